"""What files beside a log can say, as typed facts; each knows its 1-based line."""

from __future__ import annotations

from datetime import datetime

from logforensics.records import record
from logforensics.units import GB, gb


@record(frozen=True)
class Size:
    """An amount of memory, bytes.

    ``what`` is ``host_total``, ``host_available``, ``memory_limit`` (of a container or control group), ``locked_limit`` (``ulimit -l``) or
    ``shm_total``.
    """

    line: int
    what: str
    size_bytes: int
    needle: str = ""

    @property
    def text(self) -> str:
        """For people."""
        return f"{_SIZES[self.what]} {gb(self.size_bytes) if self.size_bytes >= GB else f'{self.size_bytes:,} B'}"


_SIZES = {
    "host_total": "host memory",
    "host_available": "available host memory",
    "memory_limit": "memory limit of the container or control group",
    "locked_limit": "memory that a process may lock",
    "shm_total": "shared memory of the container",
}


@record(frozen=True)
class KernelKill:
    """The kernel's OOM killer took a process; sizes are what the victim held.

    Attributes:
        line: of the record.
        victim: name of the process, cut to 15 characters by the kernel; None where the record does not say.
        pid: its number on the host.
        cgroup: the control group whose limit was reached, None where the whole machine was full.
        limited: a control group's limit was reached, not the machine's memory.
        time: of the record, in the kernel's time zone; None where it counts seconds since the boot.
        year_known: false where the record has no year: that of ``time`` then means nothing.
        record: the record's own text.
    """

    line: int
    victim: str | None
    pid: int | None
    cgroup: str | None
    limited: bool
    time: datetime | None
    year_known: bool
    record: str

    @property
    def text(self) -> str:
        """For people."""
        where = f" in {self.cgroup}" if self.cgroup else ""
        return f"the kernel's OOM killer took {self.victim or 'a process'}{f' ({self.pid})' if self.pid else ''}{where}"


@record(frozen=True)
class Xid:
    """A GPU error that the driver reported to the kernel log."""

    line: int
    code: int
    bus: str
    time: datetime | None
    year_known: bool
    record: str

    @property
    def text(self) -> str:
        """For people."""
        return f"Xid {self.code} of the GPU at {self.bus}"


@record(frozen=True)
class Gpu:
    """A card as nvidia-smi lists it; memory in MiB."""

    line: int
    index: int | None
    name: str | None
    memory_mib: int | None
    used_mib: int | None
    needle: str = ""

    @property
    def text(self) -> str:
        """For people."""
        size = f" with {self.memory_mib} MiB" if self.memory_mib else ""
        return f"GPU {self.index if self.index is not None else '?'}: {self.name or 'unnamed'}{size}"


@record(frozen=True)
class GpuProcess:
    """A process that holds memory (MiB) on a card."""

    line: int
    gpu: int | None
    pid: int
    name: str
    used_mib: int | None

    @property
    def text(self) -> str:
        """For people."""
        size = f" holds {self.used_mib} MiB" if self.used_mib is not None else " runs"
        return f"process {self.pid} ({self.name}){size} on GPU {self.gpu if self.gpu is not None else '?'}"


@record(frozen=True)
class GpuLoad:
    """How busy a card was: mean share (%) over the lines of ``nvidia-smi dmon``."""

    line: int
    gpu: int
    busy_percent: float
    samples: int

    @property
    def text(self) -> str:
        """For people."""
        return f"GPU {self.gpu} was busy {self.busy_percent:.0f} % of the time"


@record(frozen=True)
class GpuLink:
    """How two cards are connected, in the words of ``nvidia-smi topo -m`` (``NV18``, ``PIX``, ``PHB``, ``NODE``, ``SYS`` …)."""

    line: int
    first: int
    second: int
    kind: str

    @property
    def text(self) -> str:
        """For people."""
        return f"GPU {self.first} and GPU {self.second} are connected by {self.kind}"


@record(frozen=True)
class ContainerEnd:
    """How a container ended: its exit code, and whether the runtime says that the OOM killer did it."""

    line: int
    exit_code: int | None
    oom_killed: bool
    record: str

    @property
    def text(self) -> str:
        """For people."""
        return "the container was OOM-killed" if self.oom_killed else f"the container ended with exit code {self.exit_code}"


@record(frozen=True)
class ThreadStack:
    """Where one thread of a process stood when py-spy looked; innermost frame first, as ``function (file:line)``, a line each after ``line``."""

    line: int
    pid: int
    process: str
    thread: str
    active: bool
    frames: tuple[str, ...]

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.process} ({self.pid}), {self.thread}: in {self.frames[0] if self.frames else 'native code'}"


@record(frozen=True)
class NcclWarning:
    """A ``NCCL WARN`` line."""

    line: int
    record: str

    @property
    def text(self) -> str:
        """For people."""
        return f"NCCL warned: {self.record}"


@record(frozen=True)
class Figure:
    """A figure that a benchmark printed, with its unit in the name as printed (``Mean TTFT (ms)``)."""

    line: int
    name: str
    value: float

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.name} {self.value:g}"


@record(frozen=True)
class PackageVersion:
    """The version of a package or driver on the server's machine."""

    line: int
    package: str
    version: str

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.package} {self.version}"


Fact = Size | KernelKill | Xid | Gpu | GpuProcess | GpuLoad | GpuLink | ContainerEnd | ThreadStack | NcclWarning | Figure | PackageVersion
