"""What the HiCache pools of one machine ask of its memory: from the lines that announce them, else from the flags."""

from __future__ import annotations

from logforensics.findings import Arithmetic, Evidence
from logforensics.records import record
from logforensics.rules.case import Case
from logforensics.rules.performance import cell_bytes
from logforensics.rules.registry import step
from logforensics.sglang.host_pool import PINNING, Pinning, full_size_pools, pinned_bytes, share_outside
from logforensics.sglang.host_size import HostSituation, SafeSize, safe_hicache_size
from logforensics.sglang.releases import span
from logforensics.units import GB, gb


@record(frozen=True)
class HostBudget:
    """Host memory asked for by the scheduler processes of one machine, bytes.

    ``each`` is what one process asks for, ``pinned`` what the host loses to it; ``announced`` processes printed their pools already.
    """

    each: int
    pinned: int
    processes: int
    announced: int
    sized_by: str  # hicache_size or hicache_ratio
    lines: tuple[Evidence, ...]
    steps: tuple[Arithmetic, ...]
    side_share: float

    @property
    def total(self) -> int:
        """Bytes asked of the machine in all."""
        return self.pinned * self.processes


def host_budget(case: Case) -> HostBudget | None:
    """The budget, or None where HiCache is off or nothing tells its size."""
    sized_by = "hicache_size" if case.config.number("hicache_size") else "hicache_ratio"
    return _announced(case, sized_by) or _planned(case, sized_by)


def _announced(case: Case, sized_by: str) -> HostBudget | None:
    """From the ``Allocating … GB host memory`` lines."""
    pools = case.run.host_pools
    if not pools:
        return None
    by_rank: dict[object, list[float]] = {}
    main = side = 0.0
    for pool in pools:
        by_rank.setdefault(pool.rank, []).append(pool.gb)
        if pool.label in ("kv", "full"):
            main += pool.gb
        else:
            side += pool.gb
    each = max(sum(sizes) for sizes in by_rank.values())
    one_host = case.config.size("nnodes") == 1 and not case.run.merged
    processes = max(case.schedulers_per_host, len(by_rank)) if one_host else case.schedulers_per_host
    lines = tuple(pool.mark.evidence("host memory") for pool in pools)
    steps = []
    one = next((sizes for sizes in by_rank.values() if len(sizes) > 1), None)
    if side and one:
        steps.append(step("one rank's pools", " + ".join(f"{size:g}" for size in one), sum(one), "GB"))
    return _budget(case, round(each * GB), processes, len(by_rank), sized_by, lines, steps, side / main if main else 0.0)


def _planned(case: Case, sized_by: str) -> HostBudget | None:
    """From the flags alone: the size, or the ratio times the device pool once that is known."""
    config = case.config
    if not config.get("enable_hierarchical_cache"):
        return None
    size = config.number("hicache_size")
    if size:
        kinds = _side_pools(case)
        pools = max(full_size_pools(kinds, release) for release in span(case.release.low, case.release.high)) if kinds else 1
        steps = [step("pools of one rank", f"{pools} × {size:g} GB", pools * size, "GB")] if pools > 1 else []
        share = _index_share(case)
        steps += [step("index pool on top of the size", f"{share:.3f} × {size:g} GB", share * size, "GB")] if share else []
        return _budget(case, round(size * (pools + share) * GB), case.schedulers_per_host, 0, sized_by, (), steps, share)
    ratio = config.number("hicache_ratio")
    cell = cell_bytes(case)
    tokens = next((pool.num_tokens for pool in case.run.kv_pools if pool.num_tokens and pool.kind in ("mha", "mla")), None)
    if not ratio or cell is None or tokens is None or (case.release.since("0.5.21") and not config.typed("hicache_ratio")):
        return None  # from 0.5.21 the default ratio is fitted to the host by SGLang itself
    share = _index_share(case)
    each = int(cell[0] * tokens * ratio * (1 + share))
    beside = f" × {1 + share:.3f} (index)" if share else ""
    steps = [step("one rank's pool", f"{ratio:g} × {tokens:,} tokens × {cell[0]:,.0f} B{beside}", round(each / GB, 2), "GB")]
    return _budget(case, each, case.schedulers_per_host, 0, sized_by, (cell[1],), steps, share)


def _index_share(case: Case) -> float:
    """The DSA index pool as a fraction of the KV pool, where it comes on top of the size (0.5.11+); only a planned run knows it."""
    index = next((pool.gib for pool in case.run.kv_pools if pool.kind == "dsa_index" and pool.gib), None)
    main = next((pool.gib for pool in case.run.kv_pools if pool.kind == "mla" and pool.gib), None)
    return share_outside(index, main, case.release.high) if index and main else 0.0


def _side_pools(case: Case) -> list[str]:
    kinds = {pool.kind for pool in case.run.kv_pools}
    return [name for kind, name in (("mamba", "recurrent"), ("swa", "sliding")) if kind in kinds]


def _budget(
    case: Case, each: int, processes: int, announced: int, sized_by: str, lines: tuple[Evidence, ...], steps: list[Arithmetic], side: float
) -> HostBudget:
    releases = span(case.release.low, case.release.high)
    pinning = all(PINNING.at(release) is Pinning.POWER_OF_TWO for release in releases)
    pinned = pinned_bytes(each, releases[0]) if pinning else each
    if pinned != each:
        steps = [*steps, step("torch pins a power of two (0.4.5 … 0.5.4)", f"{gb(each)} → {pinned >> 30} GiB", round(pinned / GB, 2), "GB")]
    whole = step("asked of the host", f"{processes} × {pinned / GB:g} GB", round(pinned * processes / GB, 2), "GB")
    return HostBudget(each, pinned, processes, announced, sized_by, lines, (*steps, whole), side)


def safe_size(case: Case, budget: HostBudget, host_bytes: int, *, measured: bool = False) -> SafeSize:
    """The HiCache size that fits into ``host_bytes`` (``measured``: what is available now, loading already paid for)."""
    cell = cell_bytes(case)
    tokens = next((pool.num_tokens for pool in case.run.kv_pools if pool.num_tokens and pool.kind in ("mha", "mla")), None)
    situation = HostSituation(
        host_bytes=host_bytes,
        processes=budget.processes,
        loading_bytes=0 if measured else None,
        share_outside=budget.side_share,
        bytes_per_token=round(cell[0]) if cell else None,
        device_tokens=tokens,
    )
    return safe_hicache_size(situation, case.release.low, case.release.high)
