"""``logforensics preflight -- LAUNCH COMMAND…``: the verdict before the launch."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logforensics.cli import options
from logforensics.cli.diagnose import exit_status
from logforensics.cli.options import FailOn, OutputFormat

if TYPE_CHECKING:
    from logforensics.hardware import Hardware

EPILOG = options.examples(
    "logforensics preflight --gpu H200 --gpus 8 --host-ram 2TB -- python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 2",
    "logforensics preflight launch.sh --gpu 'RTX PRO 6000' --sglang-version 0.5.9",
    "kubectl get deployment llm -o yaml | logforensics preflight - --gpu H100 --format json",
    "logforensics preflight --this-host -- sglang serve --model-path zai-org/GLM-5-FP8 --tp 8",
)
_STDIN = "-"
_MOST_CHARS = 4_000_000

Command = Annotated[
    list[str],
    typer.Argument(
        metavar="-- COMMAND", help="The launch command after --, or a file that holds one in any form, or - for standard input."
    ),
]
GpuName = Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="The GPU, such as H100, 'RTX PRO 6000' or MI355X.")]
ThisHost = Annotated[bool, typer.Option("--this-host", help="Take GPUs, RAM and memory limit from this machine.")]


def run(
    command: Command,
    *,
    gpu: GpuName = None,
    gpus: options.Gpus = None,
    gpu_memory: options.GpuMemory = None,
    host_ram: options.HostRam = None,
    this_host: ThisHost = False,
    sglang_version: options.SglangVersion = None,
    model_config: options.ModelConfig = None,
    format: options.Format = OutputFormat.TEXT,  # noqa: A002 (the option's name)
    fail_on: options.FailOnOption = FailOn.ERROR,
    no_color: options.NoColor = False,
    output: options.Output = None,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
) -> int:
    """Say what a launch will run into, before it is launched.

    Memory stage by stage, flags the release does not know or that conflict, sizes that do not divide, and the corrected command.
    The command is read, never executed: shell scripts, docker, Kubernetes, Compose, systemd, Python.

    Exit status: 0 nothing at or above --fail-on, 1 something is, 2 the command cannot be read.
    """
    from logforensics.cli.output import emit, screen
    from logforensics.preflight import preflight
    from logforensics.render import Detail, render

    hardware = _hardware(gpu, gpus, gpu_memory, host_ram, this_host=this_host)
    diagnosis = preflight(_given(command), hardware=hardware, version=sglang_version, model_config=model_config)
    detail = Detail.VERBOSE if verbose else Detail.QUIET if quiet else Detail.NORMAL
    view = screen(no_color=no_color, detail=detail, to_file=output is not None)
    emit(render(diagnosis, format.value, view), output)
    return exit_status(diagnosis, fail_on)


def _given(command: list[str]) -> str | Path:
    """The launch command: standard input, a file, or the words themselves."""
    if command == [_STDIN]:
        return sys.stdin.buffer.read(_MOST_CHARS).decode("utf-8", "replace")
    if len(command) == 1:
        path = Path(command[0])
        lone_word = " " not in command[0]
        return path if lone_word or (len(command[0]) < 1000 and path.is_file()) else command[0]
    return shlex.join(command)


def _hardware(gpu: str | None, gpus: int | None, gpu_memory: str | None, host_ram: str | None, *, this_host: bool) -> "Hardware":
    """What the options say of the machine; where they say nothing, what this machine says, if it is asked."""
    from logforensics.hardware import Hardware
    from logforensics.hardware import this_host as look
    from logforensics.units import parse_size

    here = look() if this_host else Hardware()
    named = gpu is not None
    return Hardware(
        host_ram_bytes=parse_size(host_ram) if host_ram is not None else here.host_ram_bytes,
        gpu_memory_bytes=parse_size(gpu_memory) if gpu_memory is not None else None if named else here.gpu_memory_bytes,
        gpus=gpus if gpus is not None else here.gpus,
        gpu=gpu if named else here.gpu,
    )
