"""``logforensics watch LOG``: follow a server while it starts and serves."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from logforensics import lazy_re
from logforensics.cli import options
from logforensics.cli.options import FailOn

if TYPE_CHECKING:
    from logforensics.hardware import Hardware
    from logforensics.watching import Watch

EPILOG = options.examples(
    "logforensics watch server.log --host-ram 449GB",
    "logforensics watch server.log --this-host --until ready --timeout 20m || kill $SERVER",
    "kubectl logs -f sglang-0 | logforensics watch - --format json",
)

_DURATION = lazy_re.compile(r"(?:([0-9]+)h)?(?:([0-9]+)m(?:in)?)?(?:([0-9]+(?:\.[0-9]+)?)s?)?")


class Until(str, Enum):
    """``--until``."""

    READY = "ready"
    FAILED = "failed"
    FINDING = "finding"


class EventFormat(str, Enum):
    """``--format`` of a watch."""

    TEXT = "text"
    JSON = "json"


def _seconds(text: str | None) -> float | None:
    """Seconds of ``20m``, ``1h30m``, ``90s`` or ``90``."""
    if text is None:
        return None
    found = _DURATION.fullmatch(text.strip().lower().replace(" ", ""))
    if not text.strip() or found is None:
        raise typer.BadParameter(f"cannot read the duration {text!r}: write 90s, 20m or 1h30m")
    hours, minutes, seconds = found.groups()
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(seconds or 0)


Log = Annotated[str, typer.Argument(metavar="LOG", help="The log; it need not exist yet. - is standard input.")]
Format = Annotated[EventFormat, typer.Option("--format", help="text: a live view on a terminal, else lines. json: one event a line.")]
UntilOption = Annotated[Until | None, typer.Option("--until", help="Stop when the server is ready, has failed, or something is found.")]
Timeout = Annotated[
    str | None, typer.Option("--timeout", metavar="TIME", callback=_seconds, help="Stop after this time, such as 90s, 20m or 1h30m.")
]
Interval = Annotated[float, typer.Option("--interval", metavar="SECONDS", min=0.05, help="Time between two looks at the file.")]
ThisHost = Annotated[bool, typer.Option("--this-host", help="The server runs on this machine: take its RAM, its limit and its GPUs.")]
Plain = Annotated[bool, typer.Option("--plain", help="Lines instead of the live view, on a terminal too.")]


def run(
    log: Log,
    *,
    format: Format = EventFormat.TEXT,  # noqa: A002 (the option's name)
    until: UntilOption = None,
    timeout: Timeout = None,
    launch_command: options.LaunchCommand = None,
    host_ram: options.HostRam = None,
    gpu_memory: options.GpuMemory = None,
    gpus: options.Gpus = None,
    this_host: ThisHost = False,
    sglang_version: options.SglangVersion = None,
    model_config: options.ModelConfig = None,
    rules: options.RulesFolder = None,
    patterns: options.PatternsFolder = None,
    fail_on: options.FailOnOption = FailOn.ERROR,
    interval: Interval = 0.5,
    plain: Plain = False,
    no_color: options.NoColor = False,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
) -> int:
    """Follow a log while the server writes it.

    Loading with the time left, the stages, the memory ledger, then throughput, queue and KV usage; and every finding the moment the
    flags or the log decide it, which is often long before the crash. The log may be rotated, cut, or not there yet.

    With --until ready, a failure or a finding at or above --fail-on ends the wait, too.

    Exit status: 0 what --until names was reached (without --until: nothing at or above --fail-on), 1 a failure or a finding at or above
    --fail-on came first, 2 the input cannot be used, 3 the time is up.
    """
    from logforensics.cli.output import screen

    hardware = _hardware(host_ram, gpu_memory, gpus, here=this_host)
    from logforensics.findings import Severity
    from logforensics.watching import Known, Watch
    from logforensics.watching import Until as Event

    session = Watch(
        log,
        known=Known(hardware, launch_command, sglang_version, model_config, rules, patterns),
        until=Event(until.value) if until is not None else None,
        timeout_s=float(timeout) if timeout is not None else None,
        fail_on=None if fail_on is FailOn.NEVER else Severity(fail_on.value),
        interval_s=interval,
    )
    if format is EventFormat.JSON:
        _print_json(session)
    elif plain or quiet or not _draws():
        _print_lines(session, ascii_only=screen(no_color=no_color).ascii_only, quiet=quiet, verbose=verbose)
    else:
        _draw(session, log, no_color=no_color)
    return session.outcome.status if session.outcome is not None else 0


def _hardware(host_ram: str | None, gpu_memory: str | None, gpus: int | None, *, here: bool) -> "Hardware":
    """What the options say of the machine; where they say nothing, what this machine says, if it is the one."""
    from logforensics.hardware import Hardware, this_host
    from logforensics.units import parse_size

    found = this_host() if here else Hardware()
    return replace(
        found,
        host_ram_bytes=parse_size(host_ram) if host_ram is not None else found.host_ram_bytes,
        gpu_memory_bytes=parse_size(gpu_memory) if gpu_memory is not None else found.gpu_memory_bytes,
        gpus=gpus if gpus is not None else found.gpus,
    )


def _draws() -> bool:
    import os
    import sys

    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _print_json(session: "Watch") -> None:
    import json

    from logforensics.cli.output import emit

    for events in session.rounds():
        for event in events:
            emit(json.dumps(event.as_json(), allow_nan=False) + "\n")


def _print_lines(session: "Watch", *, ascii_only: bool, quiet: bool, verbose: bool) -> None:
    import time

    from logforensics.cli.output import emit
    from logforensics.render.untrusted import ascii_form, visible
    from logforensics.watching.words import Lines

    lines = Lines(time.monotonic, quiet=quiet, verbose=verbose, ascii_only=ascii_only)
    for events in session.rounds():
        for event in events:
            for line in lines.tell(event, session.watcher.state.pulse):
                shown = visible(line)
                emit((ascii_form(shown) if ascii_only else shown) + "\n")


def _draw(session: "Watch", log: str, *, no_color: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    from logforensics.cli.output import screen
    from logforensics.watching.live import View
    from logforensics.watching.words import sentence

    shown = screen(no_color=no_color)
    console = Console(no_color=not shown.color, highlight=False, markup=False, emoji=False)
    view = View(log, ascii_only=shown.ascii_only)
    with Live(console=console, auto_refresh=False) as live:
        for events in session.rounds():
            for event in events:
                if event.kind == "finding" and event.data["severity"] != "info":
                    live.console.print(view.finding(event))
                elif event.kind in ("rotated", "truncated", "error", "withdrawn"):
                    for line in sentence(event):
                        live.console.print(view.line(line))
            live.update(view.draw(session.watcher.state), refresh=True)
