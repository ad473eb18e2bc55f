"""``logforensics explain CODE``: the page of a rule."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from typing import Annotated

import typer

from logforensics.cli import options

EPILOG = options.examples(
    "logforensics explain LF101",
    "logforensics explain host_overallocation_per_rank",
    "logforensics explain hicache-size-per-rank",
    "logforensics explain mem-fraction-static",
)

Code = Annotated[
    str, typer.Argument(metavar="CODE", help="A finding's code (LF101) or root cause (kv_capacity_bound), a trap, an equation or a flag.")
]


def run(code: Code, *, no_color: options.NoColor = False) -> int:
    """Explain a finding, a trap, an equation or a flag.

    What it means, how it is recognised, how to mend it.
    """
    import sys

    from logforensics.cli.output import emit, screen
    from logforensics.rules.pages import page

    markdown = page(code)
    if sys.stdout.isatty():
        from logforensics.render.pages import markdown_to_text

        markdown = markdown_to_text(markdown, screen(no_color=no_color))
    emit(markdown if markdown.endswith("\n") else markdown + "\n")
    return 0
