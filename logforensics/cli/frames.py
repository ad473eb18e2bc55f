"""``logforensics frames LOG… -o DIR``: the log as tables."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from logforensics.cli import options

EPILOG = options.examples(
    "logforensics frames server.log -o frames/",
    "logforensics frames server.log -o frames/ --format csv",
    "duckdb -c \"select avg(gen_throughput) from 'frames/decode.parquet'\"",
)


class TableFormat(str, Enum):
    """``--format`` of the frames."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"


Folder = Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Folder for the files; made where it is missing.")]
Format = Annotated[TableFormat, typer.Option("--format", help="Form of the files; json is one object per line.")]


def run(
    log: options.Logs,
    *,
    output: Folder,
    format: Format = TableFormat.PARQUET,  # noqa: A002 (the option's name)
    patterns: options.PatternsFolder = None,
    no_progress: options.NoProgress = False,
) -> int:
    """Write what a log says as tables.

    One file per frame (prefill, decode, memory, errors, ...); every row has its line number in the log.
    """
    from logforensics.cli.output import emit
    from logforensics.cli.waiting import waiting
    from logforensics.parsing import stream
    from logforensics.parsing.assembly import complete
    from logforensics.render import FrameFiles
    from logforensics.render.words import coverage_sentence, plural
    from logforensics.schema import FRAMES

    with waiting(wanted=not no_progress), FrameFiles(output, format.value) as files:
        pieces = stream(log, patterns=patterns)
        for name, piece in pieces:
            files.write(name, piece)
        pieces.require_sglang()
        for name in FRAMES.keys() - files.rows.keys():
            files.write(name, complete(name, []))
    lines = [f"{path}  {plural(files.rows[path.stem], 'row')}" for path in files.paths]
    emit("\n".join([*lines, coverage_sentence(pieces.coverage), *pieces.side.notes]) + "\n")
    return 0
