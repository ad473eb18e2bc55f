"""``logforensics diagnose LOG…``: what went wrong, why, and what to change."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from typing import TYPE_CHECKING

from logforensics.cli import options
from logforensics.cli.options import FailOn, OutputFormat

if TYPE_CHECKING:
    from logforensics.diagnosis import Diagnosis

EPILOG = options.examples(
    "logforensics diagnose server.log",
    "logforensics diagnose server.log --host-ram 449GB",
    "logforensics diagnose server.log dmesg.txt free.txt nvidia-smi.txt docker-inspect.json",
    "logforensics diagnose bundle.tar.zst",
    "logforensics diagnose server.log --rules our-rules/ --patterns our-patterns/",
    "logforensics diagnose node0.log node1.log --format json -o diagnosis.json",
    "kubectl logs sglang-0 | logforensics diagnose - --fail-on warning",
)


def run(
    log: options.Logs,
    *,
    format: options.Format = OutputFormat.TEXT,  # noqa: A002 (the option's name)
    launch_command: options.LaunchCommand = None,
    host_ram: options.HostRam = None,
    gpu_memory: options.GpuMemory = None,
    gpus: options.Gpus = None,
    sglang_version: options.SglangVersion = None,
    model_config: options.ModelConfig = None,
    rules: options.RulesFolder = None,
    patterns: options.PatternsFolder = None,
    fail_on: options.FailOnOption = FailOn.ERROR,
    no_color: options.NoColor = False,
    output: options.Output = None,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> int:
    """Say what went wrong and what to change.

    The verdict, its cause, the lines of the log that prove it, the arithmetic, and the corrected launch command. Files of the machine given
    beside the log (kernel log, free, nvidia-smi, docker inspect …) are recognised by what they hold.

    Exit status: 0 nothing at or above --fail-on, 1 something is, 2 the input cannot be used.
    """
    from logforensics.cli.machine import hardware_of
    from logforensics.cli.output import emit, screen
    from logforensics.cli.waiting import waiting
    from logforensics.render import Detail, render

    hardware = hardware_of(host_ram, gpu_memory, gpus)
    from logforensics.engine import diagnose  # polars comes with it: only once the options are known to be good

    with waiting(wanted=not (quiet or no_progress), no_color=no_color):
        diagnosis = diagnose(
            log,
            hardware=hardware,
            launch_command=launch_command,
            version=sglang_version,
            model_config=model_config,
            rules=rules,
            patterns=patterns,
        )
    detail = Detail.VERBOSE if verbose else Detail.QUIET if quiet else Detail.NORMAL
    view = screen(no_color=no_color, detail=detail, to_file=output is not None)
    emit(render(diagnosis, format.value, view), output)
    return exit_status(diagnosis, fail_on)


def exit_status(diagnosis: "Diagnosis", fail_on: FailOn) -> int:
    """1 where a finding is at least as bad as ``fail_on``, else 0."""
    from logforensics.findings import Severity

    worst = diagnosis.worst()
    if fail_on is FailOn.NEVER or worst is None:
        return 0
    return options.FOUND if worst.rank <= Severity(fail_on.value).rank else 0
