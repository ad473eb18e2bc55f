"""SGLang's own check of host memory: what one process may claim, what the message prints, and the size it picks by itself (0.5.21+)."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from logforensics.records import record
from logforensics.sglang.host_pool import DEFAULT_RATIO
from logforensics.sglang.releases import ByRelease
from logforensics.sglang.sharding import positive, sharding
from logforensics.sglang.terms import Term
from logforensics.units import GB, GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

RESERVE_BYTES = 10 * GIB  # every release keeps 10 GiB of the machine free
AUTO_FRACTION = 0.8  # default of --hicache-host-memory-fraction
AUTO_SINCE = "0.5.21"
_AUTO_SLACK = 0.05  # page rounding and staging buffers, taken off by auto_size_hicache
_AUTO = "mem_cache/hicache_auto_size.py:auto_size_hicache (0.5.23)"


class Cgroup(Enum):
    """What a release knows of the container's memory limit."""

    IGNORED = "the whole machine, whatever the container may use"
    CACHE_IS_USED = "the lower of machine and cgroup head-room, page cache counted as used"
    CACHE_IS_FREE = "the lower of machine and cgroup head-room, page cache counted as free"


@record(frozen=True)
class Guard:
    """The rule of one span of releases.

    Attributes:
        divides: whether the allowance is divided by the ranks of the host (PR 35540), or every rank may claim all of it.
        prints_reserve: whether the free figure of the message still holds the 10 GiB that are not allowed.
        cgroup: what is known of a container's limit (PR 40135).
        source: file and function.
    """

    divides: bool
    prints_reserve: bool
    cgroup: Cgroup
    source: str


_PER_RANK = "HostKVCache.__init__ (mem_cache/memory_pool.py to 0.4.7, memory_pool_host.py, pool_host/base.py)"
_PER_HOST = "mem_cache/pool_host/base.py:host_memory_budget_bytes"
_CGROUP = "mem_cache/host_memory.py:available_host_memory_bytes"

GUARD = ByRelease(
    (
        ("0.4.2", Guard(divides=False, prints_reserve=True, cgroup=Cgroup.IGNORED, source=_PER_RANK)),
        ("0.4.10", Guard(divides=False, prints_reserve=False, cgroup=Cgroup.IGNORED, source=_PER_RANK)),
        ("0.5.19", Guard(divides=True, prints_reserve=False, cgroup=Cgroup.IGNORED, source=_PER_HOST)),
        ("0.5.21", Guard(divides=True, prints_reserve=False, cgroup=Cgroup.CACHE_IS_USED, source=_CGROUP)),
        ("0.5.22", Guard(divides=True, prints_reserve=False, cgroup=Cgroup.CACHE_IS_FREE, source=_CGROUP)),
    )
)


@record(frozen=True)
class Processes:
    """Scheduler processes of one machine; each builds its own host pools.

    Attributes:
        counted: ranks that the guard knows of, ``tp × pp // nnodes``.
        replicas: servers of a plain data-parallel launch on this machine, which the guard does not see.
    """

    counted: int
    replicas: int

    @property
    def total(self) -> int:
        """All processes of the launch on this machine."""
        return self.counted * self.replicas


def processes_on_host(args: Mapping[str, Any]) -> Processes:
    """Scheduler processes that a launch starts on each machine.

    Source: mem_cache/pool_host/base.py:ranks_per_host (0.5.23); replicas from managers/data_parallel_controller.py.

    Args:
        args: server_args, or the typed flags of a command by field name; absent fields count as 1.
    """
    spread = sharding(args)
    return Processes(max(spread.tp * spread.pp // positive(args, "nnodes"), 1), spread.replicas)


@record(frozen=True)
class GuardVerdict:
    """What the guard says to one pool of one process, in bytes.

    Attributes:
        allowed_bytes: what it may claim.
        printed_bytes: the free figure of the message (there in GB).
        passes: whether the pool is built.
        term: the allowance with its rule.
    """

    allowed_bytes: int
    printed_bytes: int
    passes: bool
    term: Term


def guard_verdict(requested_bytes: int, available_bytes: int, ranks_counted: int, release: str) -> GuardVerdict:
    """Whether one process gets a pool past SGLang's own check.

    Args:
        requested_bytes: size of the pool.
        available_bytes: memory available at this moment: psutil's figure, from 0.5.21 the lower of it and the cgroup's head-room.
        ranks_counted: ``Processes.counted``.
        release: SGLang release.
    """
    rule = GUARD.at(release)
    allowed = available_bytes - RESERVE_BYTES
    expression = f"{available_bytes / GB:.2f} GB − 10 GiB"
    if rule.divides:
        allowed //= max(ranks_counted, 1)
        expression = f"({expression}) // {max(ranks_counted, 1)}"
    printed = available_bytes if rule.prints_reserve else allowed
    term = Term("allowed per process by SGLang's check", expression, allowed / GB, "GB", rule.source)
    return GuardVerdict(allowed, printed, requested_bytes <= allowed, term)


@record(frozen=True)
class Arrival:
    """The check of the process that comes after ``peers_done`` others have built their pools."""

    peers_done: int
    verdict: GuardVerdict


def arrivals(pool_bytes: int, available_bytes: int, ranks: int, release: str) -> tuple[Arrival, ...]:
    """The check of every process when they come one after the other, first to last.

    From 0.5.19 a late process is charged twice: the pools of its peers are gone from what is available, and the rest is divided by all
    ranks again (issue 38156, open).

    Args:
        pool_bytes: size of each pool.
        available_bytes: memory available before the first pool.
        ranks: processes of the launch on this machine.
        release: SGLang release.
    """
    return tuple(Arrival(k, guard_verdict(pool_bytes, available_bytes - k * pool_bytes, ranks, release)) for k in range(ranks))


def late_rank_bytes(available_bytes: int, ranks: int) -> int:
    """The largest pool that passes the check of 0.5.19+ in whatever order the ranks arrive: ``(H − 10 GiB) / (2n − 1)`` bytes.

    The last of n ranks finds ``H − (n − 1)·s`` and may claim an n-th of that less 10 GiB; s is at most that for this s.
    """
    return max(available_bytes - RESERVE_BYTES, 0) // (2 * max(ranks, 1) - 1)


@record(frozen=True)
class AutoSize:
    """What 0.5.21+ picks when neither size nor ratio is given.

    Attributes:
        ratio: the ratio used, at most the default; 0 or less stops the server.
        budget_bytes: host memory granted to each process.
        pool_bytes: host memory of all its pools.
        terms: how the figures came about.
    """

    ratio: float
    budget_bytes: int
    pool_bytes: int
    terms: tuple[Term, ...]


def auto_size(
    available_bytes: int, ranks_counted: int, device_bytes: int, *, default_ratio: float = DEFAULT_RATIO, fraction: float = AUTO_FRACTION
) -> AutoSize:
    """The ratio that SGLang 0.5.21+ picks by itself.

    Source: mem_cache/hicache_auto_size.py:auto_size_hicache (0.5.23).

    Args:
        available_bytes: the lower of psutil's figure and the cgroup's head-room.
        ranks_counted: ``Processes.counted``.
        device_bytes: device bytes of the pools that have a host mirror, of one process.
        default_ratio: 2.0; 1.2 in buffer_only mode.
        fraction: ``--hicache-host-memory-fraction``.
    """
    allowed = guard_verdict(0, available_bytes, ranks_counted, AUTO_SINCE)
    budget = int(allowed.allowed_bytes * fraction)
    ratio = min(default_ratio, budget * (1 - _AUTO_SLACK) / device_bytes)
    terms = (
        allowed.term,
        Term("budget per process", f"{allowed.allowed_bytes / GB:.2f} GB × {fraction:g}", budget / GB, "GB", _AUTO),
        Term("ratio", f"min({default_ratio:g}, 0.95 × {budget / GB:.2f} GB / {device_bytes / GB:.2f} GB)", ratio, "× device pool", _AUTO),
    )
    return AutoSize(ratio, budget, int(device_bytes * ratio), terms)
