"""The options that several commands share, and the exit statuses."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from logforensics._version import __version__

FOUND = 1
"""Exit status: a finding at or above ``--fail-on``."""
CANNOT_USE = 2
"""Exit status: the input cannot be used."""
INTERRUPTED = 130
"""Exit status: Ctrl-C, as shells report it."""


class OutputFormat(str, Enum):
    """``--format`` of a diagnosis."""

    TEXT = "text"
    JSON = "json"
    MD = "md"
    HTML = "html"


class FailOn(str, Enum):
    """``--fail-on``: the mildest severity that makes the exit status 1."""

    CRITICAL = "critical"
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"
    NEVER = "never"


def examples(*commands: str) -> str:
    r"""An epilog with one example a line (``\b`` keeps typer from joining the lines)."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


def _print_version(wanted: bool) -> None:  # noqa: FBT001 (the form typer asks for)
    if wanted:
        typer.echo(f"logforensics {__version__}")
        raise typer.Exit


_MACHINE = "SIZE"

Logs = Annotated[list[str], typer.Argument(metavar="LOG...", help="Log files, plain or .gz; - is standard input.")]
Format = Annotated[OutputFormat, typer.Option("--format", help="Form of the output.")]
LaunchCommand = Annotated[
    str | None, typer.Option("--launch-command", metavar="TEXT", help="The command that started the server, where the log lacks it.")
]
HostRam = Annotated[
    str | None, typer.Option("--host-ram", metavar=_MACHINE, help="RAM of the host, such as 449GB or 418GiB; a bare number is GB.")
]
GpuMemory = Annotated[str | None, typer.Option("--gpu-memory", metavar=_MACHINE, help="Memory of one GPU, such as 80GiB or 97887MiB.")]
Gpus = Annotated[int | None, typer.Option("--gpus", metavar="N", min=1, help="GPUs in the host.")]
SglangVersion = Annotated[
    str | None, typer.Option("--sglang-version", metavar="V", help="SGLang's release, such as 0.5.8, where you know it.")
]
ModelConfig = Annotated[
    Path | None, typer.Option("--model-config", metavar="PATH", help="The model's config.json, or the folder that holds it.")
]
RulesFolder = Annotated[
    Path | None,
    typer.Option("--rules", metavar="DIR", help="Rules of your own: *.toml, and *.py, which are run (docs/howto/own_rules.md)."),
]
PatternsFolder = Annotated[Path | None, typer.Option("--patterns", metavar="DIR", help="Pattern packs of your own, tried before ours.")]
FailOnOption = Annotated[FailOn, typer.Option("--fail-on", help="Exit with status 1 from this severity on.")]
NoColor = Annotated[bool, typer.Option("--no-color", help="No colours (so does the environment variable NO_COLOR).")]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE, whole or not at all.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Every cited line, every remark.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="The verdict only.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="No progress bar; without a terminal there is none anyway.")]
Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")]
