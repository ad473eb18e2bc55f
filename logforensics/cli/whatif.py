"""``logforensics whatif LOG --FLAG VALUE…``: what other settings would have given."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from typing import Annotated

import typer

from logforensics.cli import options
from logforensics.cli.options import OutputFormat

EPILOG = options.examples(
    "logforensics whatif server.log",
    "logforensics whatif server.log --mem-fraction-static 0.9 --kv-cache-dtype fp8_e4m3",
    "logforensics whatif server.log --hicache-size 48 --enable-hierarchical-cache --host-ram 449GB",
)
CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}

Log = Annotated[str, typer.Argument(metavar="LOG", help="The log of a whole start, plain or compressed; - is standard input.")]


def run(
    context: typer.Context,
    log: Log,
    *,
    format: options.Format = OutputFormat.TEXT,  # noqa: A002 (the option's name)
    launch_command: options.LaunchCommand = None,
    host_ram: options.HostRam = None,
    gpu_memory: options.GpuMemory = None,
    sglang_version: options.SglangVersion = None,
    model_config: options.ModelConfig = None,
    no_color: options.NoColor = False,
    output: options.Output = None,
    no_progress: options.NoProgress = False,
) -> int:
    """Say what other server flags would have given, one row each.

    Any server flag that changes memory may follow the log, such as --mem-fraction-static 0.9, --kv-cache-dtype fp8_e4m3,
    --context-length 32768, --tp-size 16, --hicache-size 48; without one, the usual levers are shown. Several flags are shown one by
    one and together: KV tokens, requests that fit at the size they had in the log, memory left on the GPU, memory pinned on the host.
    With HiCache, sizes of the host tier are compared: tokens, prefixes in reach, and with --host-ram whether they fit.
    """
    from logforensics.cli.machine import hardware_of
    from logforensics.cli.output import emit, screen
    from logforensics.cli.waiting import waiting
    from logforensics.render.whatif import render_whatif
    from logforensics.whatif import whatif

    hardware = hardware_of(host_ram, gpu_memory)
    with waiting(wanted=not no_progress, no_color=no_color):
        answer = whatif(
            log, context.args, hardware=hardware, launch_command=launch_command, version=sglang_version, model_config=model_config
        )
    emit(render_whatif(answer, format.value, screen(no_color=no_color, to_file=output is not None)), output)
    return 0
