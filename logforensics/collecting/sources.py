"""What ``collect`` gathers, as data: commands (words, never a shell's line) and files of the kernel, with the member each becomes."""

from __future__ import annotations

from pathlib import Path

from logforensics.records import record


@record(frozen=True)
class Command:
    """A program and its arguments; the first of several ways that succeeds is taken.

    Attributes:
        member: the file in the bundle.
        ways: the command lines, tried in order.
        why: what its output decides, for the list of what is missing.
    """

    member: str
    ways: tuple[tuple[str, ...], ...]
    why: str


@record(frozen=True)
class Files:
    """Files whose lines are written as ``path:line`` (``named``) or as they are; those that do not exist are passed over."""

    member: str
    paths: tuple[Path, ...]
    why: str
    named: bool = False


_QUERY = "--query-gpu=index,name,memory.total,memory.used,driver_version"


def machine(hours: int) -> tuple[Command | Files, ...]:
    """What is asked of every machine. ``hours``: how far back the kernel log goes."""
    return (
        Command(
            "kernel.txt",
            (("journalctl", "-k", "--no-pager", "-o", "short-iso", "--since", f"-{hours}h"), ("dmesg", "-T"), ("dmesg",)),
            "who was killed by the OOM killer, and GPU errors",
        ),
        Command("free.txt", (("free", "-b"),), "the host's memory"),
        Files("meminfo.txt", (Path("/proc/meminfo"),), "the host's memory"),
        Files(
            "cgroup.txt",
            tuple(
                Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.events", "memory.current", "memory/memory.limit_in_bytes")
            ),
            "the container's memory limit",
            named=True,
        ),
        Command("nvidia-smi.csv", (("nvidia-smi", _QUERY, "--format=csv"),), "the GPUs and their memory"),
        Command("nvidia-smi.txt", (("nvidia-smi",),), "which processes hold GPU memory"),
        Command("nvidia-smi-q.txt", (("nvidia-smi", "-q"),), "ECC errors and remapped rows"),
        Command("nvidia-smi-topo.txt", (("nvidia-smi", "topo", "-m"),), "how the GPUs are connected"),
    )


def process(pid: int) -> tuple[Command | Files, ...]:
    """What is asked about the server's process."""
    return (
        Command("py-spy.txt", (("py-spy", "dump", "--nonblocking", "--pid", str(pid)),), "where every thread of the server stands"),
        Files("limits.txt", (Path(f"/proc/{pid}/limits"),), "the limits of the server's process"),
    )


def container(name: str) -> Command:
    """What Docker knows of a container."""
    return Command(f"docker-{_plain(name)}.json", (("docker", "inspect", "--", name),), "the container's limits and how it ended")


def pod(name: str) -> Command:
    """What Kubernetes knows of a pod; ``namespace/pod`` names a namespace."""
    namespace, _, own = name.rpartition("/")
    words = ("kubectl", "describe", "pod", *(("--namespace", namespace) if namespace else ()), "--", own)
    return Command(f"pod-{_plain(name)}.txt", (words,), "the pod's limits and how its containers ended")


def _plain(name: str) -> str:
    """A name that is safe as a part of a file's name."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name)[:80]
