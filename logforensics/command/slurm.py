"""What the ``#SBATCH`` lines of a batch script say about the machine."""

from __future__ import annotations

import re

from logforensics import lazy_re
from logforensics.command.launch import binary_size
from logforensics.command.model import Place

_DIRECTIVE = lazy_re.compile(r"^#SBATCH\s+(--[\w-]+|-\w)(?:[= ]\s*(\S+))?", re.MULTILINE)
_GPU_OPTIONS = ("--gpus-per-node", "--gres", "--gpus-per-task", "--gpus")


def allocation(text: str) -> Place:
    """GPUs of a node and host memory (bytes) that a batch script asks for; nothing where the text is none."""
    asked = {found[1]: found[2] or "" for found in _DIRECTIVE.finditer(text)}
    gpus = next((count for option in _GPU_OPTIONS if (count := _count(asked.get(option, "")))), None)
    if "--mem" in asked:
        return Place(gpus=gpus, memory_bytes=_memory(asked["--mem"]))
    each = _memory(asked.get("--mem-per-gpu", ""))
    return Place(gpus=gpus, memory_bytes=each * gpus if each and gpus else None)


def _count(value: str) -> int | None:
    """``4``, ``h100:4``, ``gpu:h100:4``."""
    last = value.rpartition(":")[2]
    return int(last) if last.isdigit() and int(last) < 1000 else None


def _memory(value: str) -> int | None:
    """Slurm counts in MiB where no unit is given; 0 is the whole node."""
    if value.isdigit():
        return int(value) << 20 or None
    return binary_size(value) if value else None
