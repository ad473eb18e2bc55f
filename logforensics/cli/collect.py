"""``logforensics collect -o BUNDLE``: what a diagnosis needs beside the log, in one file."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logforensics.cli import options

if TYPE_CHECKING:
    from logforensics.collecting import Collected

EPILOG = options.examples(
    "logforensics collect --log server.log -o bundle.tar.zst",
    "logforensics collect --log logs/ --pid 4242 --docker sglang -o bundle.tar.zst",
    "kubectl logs -n llm sglang-0 | logforensics collect --log - --pod llm/sglang-0",
    "logforensics diagnose bundle.tar.zst",
)

Logs = Annotated[
    list[str] | None, typer.Option("--log", metavar="PATH", help="A log of the server, a folder, a glob, or -; may be repeated.")
]
Pid = Annotated[int | None, typer.Option("--pid", metavar="N", min=1, help="The server's process: its limits, and its stacks with py-spy.")]
Docker = Annotated[list[str] | None, typer.Option("--docker", metavar="NAME", help="Inspect this container; may be repeated.")]
Pod = Annotated[list[str] | None, typer.Option("--pod", metavar="[NAMESPACE/]NAME", help="Describe this pod; may be repeated.")]
Hours = Annotated[int, typer.Option("--hours", metavar="N", min=1, help="How far back the kernel log goes.")]
Bundle = Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The bundle, written whole or not at all.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Do not say what was taken and what was not.")]


def run(
    *,
    log: Logs = None,
    pid: Pid = None,
    docker: Docker = None,
    pod: Pod = None,
    hours: Hours = 24,
    output: Bundle = Path("bundle.tar.zst"),
    quiet: Quiet = False,
    no_progress: options.NoProgress = False,
) -> int:
    """Gather what a diagnosis needs beside the log, on the server's machine.

    The logs, the kernel log, memory, limits, GPUs and versions go into one file that `diagnose` reads. API keys, tokens and passwords are
    masked. Docker and Kubernetes are asked only about what you name. What could not be had is listed, and is no error.
    """
    from logforensics.cli.output import emit
    from logforensics.cli.waiting import waiting
    from logforensics.collecting import collect

    with waiting(wanted=not (quiet or no_progress)):
        found = collect(output, logs=log or (), pid=pid, containers=docker or (), pods=pod or (), hours=hours)
    if not quiet:
        emit(_told(found))
    return 0


def _told(found: "Collected") -> str:
    """What was taken and what was not, a line each."""
    from logforensics.render.untrusted import visible

    width = max((len(name) for name in (*(item.member for item in found.taken), *(member for member, _ in found.missed))), default=0)
    lines = [f"  {item.member:<{width}}  {item.size_bytes:>12,} bytes  {item.origin}" for item in found.taken]
    lines = [f"{found.path} holds, with secrets masked:", *lines]
    if found.missed:
        lines += ["could not be had:", *(f"  {member:<{width}}  {why}" for member, why in found.missed)]
    lines.append(f"read it with: logforensics diagnose {found.path}")
    return "\n".join(visible(line) for line in lines) + "\n"
