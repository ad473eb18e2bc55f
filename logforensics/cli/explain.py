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
    "logforensics explain OWN001 --rules our-rules/",
)

Code = Annotated[
    str | None,
    typer.Argument(metavar="CODE", help="A finding's code (LF101) or root cause (kv_capacity_bound), a trap, an equation or a flag."),
]
List = Annotated[bool, typer.Option("--list", help="Name everything that can be explained.")]


def run(code: Code = None, *, list: List = False, rules: options.RulesFolder = None, no_color: options.NoColor = False) -> int:  # noqa: A002 (the option's name)
    """Explain a finding, a trap, an equation or a flag.

    What it means, how it is recognised, how to mend it.
    """
    import sys

    from logforensics.cli.output import emit, screen
    from logforensics.errors import LogforensicsError
    from logforensics.rules.own import load_rules
    from logforensics.rules.pages import listing, page

    own = [item.rule for item in load_rules(rules)] if rules is not None else []
    if list:
        emit(listing(own))
        return 0
    if code is None:
        raise LogforensicsError("nothing was named; the usual way is: logforensics explain LF101, and --list names everything")
    markdown = page(code, own)
    if sys.stdout.isatty():
        from logforensics.render.pages import markdown_to_text

        markdown = markdown_to_text(markdown, screen(no_color=no_color))
    emit(markdown if markdown.endswith("\n") else markdown + "\n")
    return 0
