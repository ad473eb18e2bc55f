"""``logforensics sql QUERY LOG…``: a question to the frames."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from enum import Enum
from typing import Annotated

import typer

from logforensics.cli import options

EPILOG = options.examples(
    'logforensics sql "select running_req, avg(gen_throughput) from decode group by 1 order by 1" server.log',
    "logforensics sql \"select line, kind, message from errors where kind <> 'argparse'\" server.log --format json",
    'logforensics sql "show tables" server.log',
)


class TableFormat(str, Enum):
    """``--format`` of the answer."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


Query = Annotated[str, typer.Argument(metavar="QUERY", help="An SQL query, as polars understands it; the tables are the frames.")]
Format = Annotated[TableFormat, typer.Option("--format", help="Form of the answer; json is one object per line.")]


def run(
    query: Query,
    log: options.Logs,
    *,
    format: Format = TableFormat.TABLE,  # noqa: A002 (the option's name)
    no_color: options.NoColor = False,
    output: options.Output = None,
    no_progress: options.NoProgress = False,
) -> int:
    """Ask a log in SQL.

    The tables are the frames: decode, prefill, memory, errors, launches, ... (see docs/frames.md); "show tables" lists them.
    """
    from logforensics.cli.data import emit_bytes
    from logforensics.cli.output import emit, say, screen
    from logforensics.cli.waiting import waiting
    from logforensics.parsing import parse
    from logforensics.progress import now
    from logforensics.query import query_frames
    from logforensics.render.tables import data, frame_to_text

    with waiting(wanted=not no_progress, no_color=no_color):
        parsed = parse(log)
        parsed.require_sglang()
        now("asking")
        answer = query_frames(parsed.frames, query)
    for note in parsed.side.passed_over:
        say(note)
    if format is TableFormat.TABLE:
        emit(frame_to_text(answer, screen(no_color=no_color, to_file=output is not None)), output)
    else:
        emit_bytes(data(answer, format.value), output)
    return 0
