"""Files given beside a log (kernel log, ``free``, nvidia-smi, docker inspect …): recognised by content, read into typed facts.

The door of this room: :func:`separate` tells logs from the files beside them, :class:`Side` is asked for what those say.
"""

from __future__ import annotations

from logforensics.evidence.bench import BenchBlock, block_at
from logforensics.evidence.facts import (
    ContainerEnd,
    Fact,
    Figure,
    Gpu,
    GpuLink,
    GpuLoad,
    GpuProcess,
    KernelKill,
    NcclWarning,
    PackageVersion,
    Size,
    ThreadStack,
    Xid,
)
from logforensics.evidence.recognise import kinds_of
from logforensics.evidence.side import Found, Side, SideFile, is_side, separate

__all__ = [
    "BenchBlock",
    "ContainerEnd",
    "Fact",
    "Figure",
    "Found",
    "Gpu",
    "GpuLink",
    "GpuLoad",
    "GpuProcess",
    "KernelKill",
    "NcclWarning",
    "PackageVersion",
    "Side",
    "SideFile",
    "Size",
    "ThreadStack",
    "Xid",
    "block_at",
    "is_side",
    "kinds_of",
    "separate",
]
