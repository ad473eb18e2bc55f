"""``logforensics compare A B…``: runs side by side, and whether one is better."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from typing import Annotated

import typer

from logforensics.cli import options
from logforensics.cli.options import OutputFormat

EPILOG = options.examples(
    "logforensics compare before.log after.log",
    "logforensics compare runs/ --baseline baseline.log",
    "logforensics compare 'sweep/*.log' --by --tp-size --format md -o sweep.md",
)

Runs = Annotated[
    list[str], typer.Argument(metavar="LOG...", help="Logs of the runs, folders, or patterns in quotes; the first is the baseline.")
]
Baseline = Annotated[
    str | None,
    typer.Option("--baseline", metavar="RUN", help="The run to measure against: its file name, its letter, or with --by its value."),
]
By = Annotated[
    str | None, typer.Option("--by", metavar="FLAG", help="Put runs with the same value of this flag together, such as --tp-size.")
]
Context = Annotated[
    int | None, typer.Option("--context-length", metavar="N", min=1, help="Context length in tokens, where the logs do not print it.")
]


def run(
    log: Runs,
    *,
    baseline: Baseline = None,
    by: By = None,
    context_length: Context = None,
    format: options.Format = OutputFormat.TEXT,  # noqa: A002 (the option's name)
    no_color: options.NoColor = False,
    output: options.Output = None,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> int:
    """Say which of two or more runs is better, by how much, and through what.

    Settings that differ, memory, effective limits, start, decode speed at equal load with a 95 % interval, prefill and trouble, side by
    side. Runs that cannot be compared are called so, and a difference that two starts of one configuration show too is not called one.
    """
    from logforensics.cli.output import emit, screen
    from logforensics.cli.waiting import waiting
    from logforensics.comparison import compare
    from logforensics.render import Detail
    from logforensics.render.comparison import render_comparison

    with waiting(wanted=not (quiet or no_progress), no_color=no_color):
        comparison = compare(*log, baseline=baseline, by=by, context_len=context_length)
    detail = Detail.VERBOSE if verbose else Detail.QUIET if quiet else Detail.NORMAL
    view = screen(no_color=no_color, detail=detail, to_file=output is not None)
    emit(render_comparison(comparison, format.value, view), output)
    return 0
