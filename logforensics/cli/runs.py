"""``logforensics runs DIR``: every run under a folder."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from logforensics.cli import options

if TYPE_CHECKING:
    from logforensics.runs import Runs

EPILOG = options.examples(
    "logforensics runs logs/",
    "logforensics runs logs/ --where \"tp_size == 8 and verdict == 'failed'\"",
    "logforensics runs logs/ --sort=-steady_tok_s --format csv -o runs.csv",
)


class RunsFormat(str, Enum):
    """``--format`` of the table."""

    TEXT = "text"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"
    MD = "md"
    HTML = "html"


Folders = Annotated[list[str], typer.Argument(metavar="DIR", help="Folders with logs, searched to any depth; single logs too.")]
Format = Annotated[RunsFormat, typer.Option("--format", help="Form of the output; json is one object per line.")]
Where = Annotated[
    str | None,
    typer.Option("--where", metavar="SQL", help="Only runs that meet a condition over the columns and the fields of server_args."),
]
Sort = Annotated[
    str | None, typer.Option("--sort", metavar="COLUMNS", help="Columns to sort by, separated by commas; - before one for descending.")
]
Columns = Annotated[str | None, typer.Option("--columns", metavar="COLUMNS", help="Columns to show, separated by commas.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Read every file, remember nothing.")]


def run(
    folder: Folders,
    *,
    where: Where = None,
    sort: Sort = None,
    columns: Columns = None,
    format: Format = RunsFormat.TEXT,  # noqa: A002 (the option's name)
    no_cache: NoCache = False,
    no_color: options.NoColor = False,
    output: options.Output = None,
    verbose: options.Verbose = False,
    no_progress: options.NoProgress = False,
) -> int:
    """Show every run under a folder as a table.

    Model, release, the flags that vary, KV tokens, peak and steady throughput, stage reached, verdict and first finding; a row per
    server start. What was read is remembered: a second call reads only files that changed.
    """
    from logforensics.cli.data import emit_bytes
    from logforensics.cli.output import emit, say, screen
    from logforensics.cli.waiting import waiting
    from logforensics.render.tables import data, render_runs
    from logforensics.runs import find_runs

    with waiting(wanted=not no_progress, no_color=no_color):
        runs = find_runs(*folder, where=where, sort=sort, use_cache=not no_cache)
    names = _checked(runs, columns)
    if verbose:
        for _, problem in runs.skipped:
            say(problem)
    if format in (RunsFormat.TEXT, RunsFormat.MD, RunsFormat.HTML):
        emit(render_runs(runs, format.value, screen(no_color=no_color, to_file=output is not None), names), output)
    else:
        emit_bytes(data(runs.frame.select(names) if names else runs.table(), format.value), output)
    return 0


def _checked(runs: "Runs", columns: str | None) -> tuple[str, ...]:
    """The wanted columns, all of them known."""
    from logforensics.errors import InputError

    names = tuple(name.strip() for name in (columns or "").split(",") if name.strip())
    if unknown := [name for name in names if name not in runs.frame.columns]:
        raise InputError(f"--columns: no column {unknown[0]!r}; --format csv shows all of them")
    return names
