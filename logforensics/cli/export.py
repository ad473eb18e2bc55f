"""``logforensics export KIND LOG``: a log for tools people already use."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from enum import Enum
from typing import Annotated

import typer

from logforensics.cli import options

EPILOG = options.examples(
    "logforensics export trace server.log -o trace.json",
    "logforensics export openmetrics server.log -o run.om",
    "logforensics export lnav -o sglang.json && lnav -i sglang.json",
)


class Kind(str, Enum):
    """What to write."""

    TRACE = "trace"
    LNAV = "lnav"
    OPENMETRICS = "openmetrics"


What = Annotated[Kind, typer.Argument(metavar="trace|lnav|openmetrics", help="The form to write.")]
Logs = Annotated[list[str] | None, typer.Argument(metavar="LOG...", help="Log files; - is standard input. lnav needs none.")]


def run(kind: What, log: Logs = None, *, output: options.Output = None, no_progress: options.NoProgress = False) -> int:
    """Write a log in a form that other tools open.

    trace: stages, batches and requests per rank, for ui.perfetto.dev or chrome://tracing. openmetrics: the series of a run under SGLang's
    own metric names, for promtool. lnav: a format file for the log viewer, made from the patterns.
    """
    from logforensics.cli.output import emit, say
    from logforensics.errors import InputError
    from logforensics.exporting import lnav_format, openmetrics, trace_events

    if kind is Kind.LNAV:
        emit(lnav_format(), output)
        return 0
    if not log:
        raise InputError(f"export {kind.value} needs a log: logforensics export {kind.value} server.log -o FILE")
    from logforensics.cli.waiting import waiting
    from logforensics.parsing import parse
    from logforensics.progress import now

    with waiting(wanted=not no_progress):
        parsed = parse(log)
        parsed.require_sglang()
        now(f"writing {kind.value}")
        text = "".join(trace_events(parsed) if kind is Kind.TRACE else openmetrics(parsed))
    for note in parsed.side.passed_over:
        say(note)
    emit(text, output)
    return 0
