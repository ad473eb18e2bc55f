"""The machine, as far as the user says what it is: a log names neither the host's RAM nor, often, the GPUs' memory."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from logforensics.records import record
from logforensics.units import MIB

_NVIDIA_SMI = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_SECONDS = 10
_KIB = 1 << 10
_UNLIMITED = 1 << 60  # cgroup v1 writes a huge number where there is no limit


@record(frozen=True)
class Hardware:
    """What the log cannot say for sure. Every field is optional; what is given beats what the log suggests.

    Attributes:
        host_ram_bytes: RAM of the host (or the container's limit), in bytes.
        gpu_memory_bytes: memory of one GPU, in bytes.
        gpus: number of GPUs the server may use on this host.
        gpu: name of the GPUs, such as ``H100`` or ``NVIDIA H200``.
    """

    host_ram_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    gpus: int | None = None
    gpu: str | None = None


def this_host(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> Hardware:
    """The machine this runs on: nvidia-smi where it is installed, /proc/meminfo, and the limit of the control group.

    Args:
        proc: where the kernel shows its figures.
        cgroup: where control groups (version 1 or 2) are mounted.
    """
    ram, limit = _meminfo_bytes(proc / "meminfo"), _cgroup_bytes(cgroup)
    known = [size for size in (ram, limit) if size]
    cards = _nvidia_cards()
    smallest = min((mib for _, mib in cards), default=None)
    return Hardware(
        host_ram_bytes=min(known, default=None),
        gpu_memory_bytes=smallest * MIB if smallest else None,
        gpus=len(cards) or None,
        gpu=cards[0][0] if cards else None,
    )


def _meminfo_bytes(path: Path) -> int | None:
    found = re.search(r"^MemTotal:\s+(\d+) kB", _text(path), re.MULTILINE)
    return int(found[1]) * _KIB if found else None


def _cgroup_bytes(root: Path) -> int | None:
    """The memory limit of this process's control group; None where there is none."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        text = _text(root / name).strip()
        if text.isdigit() and 0 < int(text) < _UNLIMITED:
            return int(text)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _nvidia_cards() -> list[tuple[str, int]]:
    """Name and memory (MiB) of every NVIDIA card."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run([program, *_NVIDIA_SMI], capture_output=True, text=True, timeout=_SECONDS, check=True)  # noqa: S603 (fixed words)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = (line.rpartition(",") for line in done.stdout.splitlines())
    return [(name.strip(), int(size)) for name, _, size in rows if size.strip().isdigit()]
