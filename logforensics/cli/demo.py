"""``logforensics demo``: the founding incident, diagnosed from the log that comes with the package."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from pathlib import Path

from logforensics.cli import options

EPILOG = options.examples("logforensics demo")
HOST_RAM = "449GB"


def run(*, no_color: options.NoColor = False) -> int:
    """Diagnose the log of a real incident.

    It comes with logforensics. Eight GPUs, --hicache-size 300, 449 GB of host RAM: the server died because every one of the eight ranks
    asked for 300 GB. The exit status is 0: the failure is the demo's, not yours.
    """
    from logforensics.cli.output import emit, screen
    from logforensics.engine import diagnose
    from logforensics.hardware import Hardware
    from logforensics.render import render
    from logforensics.units import parse_size

    log = _log()
    diagnosis = diagnose(log, hardware=Hardware(host_ram_bytes=parse_size(HOST_RAM)))
    command = f"$ logforensics diagnose {log} --host-ram {HOST_RAM}\n\n"
    emit(command + render(diagnosis, screen=screen(no_color=no_color)))
    return 0


def _log() -> Path:
    """The founding log: in the package when installed, among the fixtures in a checkout."""
    from logforensics.errors import InputError

    package = Path(__file__).resolve().parent.parent
    places = (package / "_demo" / "server.log", package.parent / "fixtures" / "founding_hicache300" / "server.log")
    for place in places:
        if place.is_file():
            return place.relative_to(Path.cwd()) if place.is_relative_to(Path.cwd()) else place
    raise InputError(f"the demo's log is missing from this installation ({places[0]}); install logforensics again")
