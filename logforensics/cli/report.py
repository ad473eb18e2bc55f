"""``logforensics report LOG… -o FILE``: a post-mortem to publish."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from pathlib import Path
from typing import Annotated

import typer

from logforensics.cli import options

EPILOG = options.examples(
    "logforensics report server.log -o postmortem.html --host-ram 449GB",
    "logforensics report node0.log node1.log -o postmortem.md --anonymize",
)

File = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The report; its ending says the form: .html, .md or .json.")]
Title = Annotated[str | None, typer.Option("--title", metavar="TEXT", help="Title of the report.")]
Anonymize = Annotated[bool, typer.Option("--anonymize", help="Replace hosts, users, paths and model names, each always by the same word.")]


def run(
    log: options.Logs,
    *,
    output: File,
    title: Title = None,
    anonymize: Anonymize = False,
    launch_command: options.LaunchCommand = None,
    host_ram: options.HostRam = None,
    gpu_memory: options.GpuMemory = None,
    gpus: options.Gpus = None,
    sglang_version: options.SglangVersion = None,
    model_config: options.ModelConfig = None,
    rules: options.RulesFolder = None,
    patterns: options.PatternsFolder = None,
    quiet: options.Quiet = False,
    no_progress: options.NoProgress = False,
) -> int:
    """Write a post-mortem that a team can publish.

    Summary, impact, timeline, root cause with the cited lines and the arithmetic, what was configured against what took effect, the
    corrected command, how it could have been seen earlier, and charts. HTML is one file that works offline; Markdown has its charts as
    SVG files beside it. Secrets are masked.

    Exit status: 0 the report is written, 2 the input cannot be used.
    """
    from logforensics.cli.machine import hardware_of
    from logforensics.cli.output import emit
    from logforensics.cli.waiting import waiting
    from logforensics.reporting.api import form_of

    form_of(output)
    hardware = hardware_of(host_ram, gpu_memory, gpus)
    from logforensics.reporting import report

    with waiting(wanted=not (quiet or no_progress)):
        written = report(
            log,
            output,
            title=title,
            anonymize=anonymize,
            hardware=hardware,
            launch_command=launch_command,
            version=sglang_version,
            model_config=model_config,
            rules=rules,
            patterns=patterns,
        )
    if not quiet:
        emit("".join(f"{path}\n" for path in written))
    return 0
