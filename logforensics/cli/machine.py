"""The machine, as the options of a command describe it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logforensics.hardware import Hardware


def hardware_of(host_ram: str | None, gpu_memory: str | None, gpus: int | None = None) -> Hardware:
    """What ``--host-ram``, ``--gpu-memory`` and ``--gpus`` say.

    Raises:
        SizeError: a size cannot be read.
    """
    from logforensics.hardware import Hardware
    from logforensics.units import parse_size

    return Hardware(
        host_ram_bytes=parse_size(host_ram) if host_ram is not None else None,
        gpu_memory_bytes=parse_size(gpu_memory) if gpu_memory is not None else None,
        gpus=gpus,
    )
