"""The machine, as far as the user says what it is: a log names neither the host's RAM nor, often, the GPUs' memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the log cannot say for sure. Every field is optional; what is given beats what the log suggests.

    Attributes:
        host_ram_bytes: RAM of the host (or the container's limit), in bytes.
        gpu_memory_bytes: memory of one GPU, in bytes.
        gpus: number of GPUs the server may use on this host.
    """

    host_ram_bytes: int | None = None
    gpu_memory_bytes: int | None = None
    gpus: int | None = None
