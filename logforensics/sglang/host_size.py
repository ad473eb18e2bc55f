"""The HiCache size to recommend: what a machine can give to every scheduler process, with its derivation (MEMORY_MODEL §4)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from logforensics.errors import InputError
from logforensics.records import record
from logforensics.sglang.flags import release_at_least
from logforensics.sglang.host_guard import AUTO_SINCE, GUARD, RESERVE_BYTES, late_rank_bytes
from logforensics.sglang.host_pool import PINNING, SMALL_POOL, Pinning, SmallPool, pinned_bytes, takes_size
from logforensics.sglang.releases import span
from logforensics.sglang.terms import Term, arithmetic
from logforensics.units import GB, GIB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logforensics.findings import Arithmetic

LOADING_BYTES_PER_PROCESS = 5 * GB  # the founding case: 40 GB for 8 processes
MARGIN_SHARE = 0.05
_RULE = "sizing rule, MEMORY_MODEL §4"
_FLAG = "--hicache-size"
_PER_PROCESS = "GB per process"


@record(frozen=True)
class HostSituation:
    """What is known of a machine and of the pools that are to fit into it.

    Attributes:
        host_bytes: memory of the machine; better: memory available when the pools are built, with ``loading_bytes=0``.
        processes: scheduler processes on the machine, replicas included.
        ranks_counted: those of them that SGLang's check divides by (0.5.19+); None where they are all of them.
        cgroup_bytes: head-room of the container, None where there is no limit.
        loading_bytes: what the processes still take beside the pools; None is 5 GB each.
        margin_bytes: what must stay free; None is the larger of 10 GiB and 5 % of the host.
        share_outside: side pools on top of ``--hicache-size``, as a fraction of it (host_pool.share_outside).
        full_size_pools: pools that take the full size each (host_pool.full_size_pools).
        bytes_per_token: bytes of one token in the host pool, None where unknown.
        device_tokens: tokens of the device pool, None where unknown.
    """

    host_bytes: int
    processes: int
    ranks_counted: int | None = None
    cgroup_bytes: int | None = None
    loading_bytes: int | None = None
    margin_bytes: int | None = None
    share_outside: float = 0.0
    full_size_pools: int = 1
    bytes_per_token: int | None = None
    device_tokens: int | None = None

    @property
    def limit_bytes(self) -> int:
        """The lower of the machine's memory and the container's head-room."""
        return min(self.host_bytes, self.host_bytes if self.cgroup_bytes is None else self.cgroup_bytes)

    @property
    def loading(self) -> int:
        """Bytes set aside for what the processes take beside the pools."""
        return LOADING_BYTES_PER_PROCESS * self.processes if self.loading_bytes is None else self.loading_bytes

    @property
    def margin(self) -> int:
        """Bytes that must stay free."""
        return max(RESERVE_BYTES, round(MARGIN_SHARE * self.limit_bytes)) if self.margin_bytes is None else self.margin_bytes

    def host_tokens(self, size_gb: float) -> int | None:
        """Tokens of one process's pool of ``size_gb`` GB; None where the bytes per token are unknown."""
        return int(size_gb * GB // self.bytes_per_token) if self.bytes_per_token else None


@record(frozen=True)
class SafeSize:
    """A HiCache size that fits, for the strictest release of a span.

    Attributes:
        gb: ``--hicache-size``, GB (1e9) per process; 0 where nothing fits, or nothing that the release accepts.
        ratio: the same as ``--hicache-ratio``, rounded down to two decimals; None without bytes per token and device tokens.
        total_bytes: what all processes pin on the machine, side pools and power-of-two rounding included.
        host_tokens: tokens of one process's pool; None without bytes per token.
        late_rank_gb: from 0.5.19, the largest size that passes SGLang's check in every order of arrival; a larger one may fail by start
            skew (issue 38156). None for older releases.
        exceeds_device: whether the pool holds more tokens than the device pool; None where either is unknown.
        prefer_auto: 0.5.21+ picks a fitting size by itself when no size and no ratio is given.
        takes_size: whether every release of the span has ``--hicache-size``; otherwise only the ratio can be given.
        terms: the derivation, line by line.
    """

    gb: int
    ratio: float | None
    total_bytes: int
    host_tokens: int | None
    late_rank_gb: int | None
    exceeds_device: bool | None
    prefer_auto: bool
    takes_size: bool
    terms: tuple[Term, ...]

    @property
    def derivation(self) -> tuple[Arithmetic, ...]:
        """The derivation in the form findings carry."""
        return arithmetic(self.terms)


def safe_hicache_size(situation: HostSituation, release_low: str | None = None, release_high: str | None = None) -> SafeSize:
    """The largest ``--hicache-size`` that the machine can give to every process.

    The strictest release from ``release_low`` to ``release_high`` decides; an end that is None is open.

    Raises:
        InputError: there is no process, or a figure of the situation is negative.
    """
    _check(situation)
    releases = span(release_low, release_high)
    pinning = next((r for r in releases if PINNING.at(r) is Pinning.POWER_OF_TWO), releases[-1])
    refusing = next((r for r in releases if SMALL_POOL.at(r) is SmallPool.REFUSED), None)
    share = _share_terms(situation)
    fit = _fit_terms(share[-1], situation, pinning)
    if refusing and _exceeds_device(int(fit[-1].value), situation) is False:
        fit = (*fit, _refused_term(int(fit[-1].value), situation))
    size = int(fit[-1].value)
    late = _late_rank_terms(situation, releases[-1])
    return SafeSize(
        gb=size,
        ratio=_ratio(size, situation),
        total_bytes=_pinned_in_all(size, situation, pinning),
        host_tokens=situation.host_tokens(size),
        late_rank_gb=int(late[0].value) if late else None,
        exceeds_device=_exceeds_device(size, situation),
        prefer_auto=release_at_least(releases[0], AUTO_SINCE),
        takes_size=takes_size(releases[0]),
        terms=(*share, *fit, *_result_terms(size, situation, pinning), *late),
    )


def _check(situation: HostSituation) -> None:
    if situation.processes < 1 or situation.full_size_pools < 1:
        raise InputError(f"a host pool needs at least one process and one pool, not {situation.processes} and {situation.full_size_pools}")
    if situation.host_bytes <= 0 or situation.share_outside < 0:
        raise InputError(f"a host of {situation.host_bytes} bytes with {situation.share_outside} of side pools cannot be")


def _share_terms(situation: HostSituation) -> tuple[Term, ...]:
    """From the machine to what each process may pin: limit − loading − margin, divided by the processes."""
    limit, loading, margin, n = situation.limit_bytes, situation.loading, situation.margin, situation.processes
    left = max(limit - loading - margin, 0)
    of = "host memory" if limit == situation.host_bytes else "head-room of the container"
    how = f"{n} processes × {LOADING_BYTES_PER_PROCESS // GB} GB" if situation.loading_bytes is None else "as given"
    why = f"the larger of 10 GiB and {MARGIN_SHARE:.0%} of {limit / GB:g} GB" if situation.margin_bytes is None else "as given"
    return (
        Term("memory to share", of, limit / GB, "GB", "given"),
        Term("loading and growth", how, loading / GB, "GB", "founding case: 40 GB for 8 processes"),
        Term("safety margin", why, margin / GB, "GB", _RULE),
        Term("for all host pools", f"{limit / GB:g} − {loading / GB:g} − {margin / GB:.2f}", left / GB, "GB", _RULE),
        Term("per process", f"{left / GB:.2f} GB / {n}", left / n / GB, "GB", "every scheduler process builds its own pool (HostKVCache)"),
    )


def _fit_terms(per_process: Term, situation: HostSituation, release: str) -> tuple[Term, ...]:
    """From what a process may pin to the flag: side pools taken off, rounded to what the allocator really takes, whole GB."""
    terms: list[Term] = []
    room = float(per_process.value)
    pools, beside = situation.full_size_pools, 1 + situation.share_outside
    if pools * beside != 1:
        expression = f"{room:.2f} GB / {pools} / {beside:.3f}"
        room /= pools * beside
        terms.append(Term("KV pool per process, side pools taken off", expression, room, "GB", "MEMORY_MODEL §3.3"))
    if PINNING.at(release) is Pinning.POWER_OF_TWO and room * GB >= 1:
        power = 1 << (int(room * GB).bit_length() - 1)
        expression = f"largest power of two within {room:.2f} GB: {power / GIB:g} GiB"
        room = power / GB
        terms.append(Term("what torch can pin within that", expression, room, "GB", "pinned-memory allocator, 0.4.5 to 0.5.4 (PR 12266)"))
    return (*terms, Term(_FLAG, f"{room:.2f} GB rounded down", int(room), _PER_PROCESS, "the flag takes whole GB"))


def _exceeds_device(size_gb: int, situation: HostSituation) -> bool | None:
    tokens = situation.host_tokens(size_gb)
    return None if tokens is None or not situation.device_tokens else tokens > situation.device_tokens


def _refused_term(size_gb: int, situation: HostSituation) -> Term:
    expression = (
        f"{size_gb} GB hold {situation.host_tokens(size_gb):,} tokens, the device {situation.device_tokens:,}: the server would stop"
    )
    return Term(_FLAG, expression, 0, _PER_PROCESS, "assertion in HostKVCache.__init__, to 0.5.14")


def _ratio(size_gb: int, situation: HostSituation) -> float | None:
    if not situation.bytes_per_token or not situation.device_tokens:
        return None
    return math.floor(size_gb * GB / (situation.bytes_per_token * situation.device_tokens) * 100) / 100


def _pinned_in_all(size_gb: int, situation: HostSituation, release: str) -> int:
    each = pinned_bytes(size_gb * GB, release) * situation.full_size_pools
    return round(each * (1 + situation.share_outside)) * situation.processes


def _result_terms(size_gb: int, situation: HostSituation, release: str) -> tuple[Term, ...]:
    """What the size comes to: bytes on the machine, tokens, ratio."""
    total, n = _pinned_in_all(size_gb, situation, release), situation.processes
    terms = [Term("pinned in all", f"{n} × {total / n / GB:g} GB", total / GB, "GB", "sum over the processes of the machine")]
    tokens, ratio = situation.host_tokens(size_gb), _ratio(size_gb, situation)
    if tokens:
        expression = f"{size_gb} GB // {situation.bytes_per_token:,} B"
        terms.append(Term("host tokens per process", expression, tokens, "tokens", "HostKVCache.__init__"))
    if ratio:
        expression = f"{size_gb} GB / ({situation.bytes_per_token:,} B × {situation.device_tokens:,} tokens)"
        terms.append(Term("--hicache-ratio", expression, ratio, "× device pool", _RULE))
    return tuple(terms)


def _late_rank_terms(situation: HostSituation, newest: str) -> tuple[Term, ...]:
    """The size that passes the check of 0.5.19+ in every order of arrival; nothing for older releases."""
    if not GUARD.at(newest).divides:
        return ()
    n = situation.ranks_counted or situation.processes
    available = situation.limit_bytes - situation.loading
    size = int(late_rank_bytes(available, n) / (1 + situation.share_outside) / GB)
    expression = f"({available / GB:g} GB − 10 GiB) / (2 × {n} − 1)"
    source = "host_memory_budget_bytes, 0.5.19+ (issue 38156)"
    return (Term("passes SGLang's check in every order of arrival", expression, size, _PER_PROCESS, source),)


@record(frozen=True)
class TierRow:
    """One size of the host tier and what it gives.

    Attributes:
        gb_per_process: size of one process's pool in GB (1e9).
        gb_in_all: all processes of the machine, in GB.
        host_tokens: tokens of one process's pool.
        prefix_reach: distinct tokens whose prefix can be found on device or host.
        ratio: host tokens over device tokens.
        fits: whether all pools fit into the budget; None where the budget is unknown.
    """

    gb_per_process: float
    gb_in_all: float
    host_tokens: int
    prefix_reach: int
    ratio: float
    fits: bool | None


def host_tier_table(
    sizes_gb: Iterable[float],
    processes: int,
    bytes_per_token: int,
    device_tokens: int,
    *,
    write_policy: str = "write_through",
    budget_bytes: int | None = None,
) -> tuple[TierRow, ...]:
    """What each size of the host tier gives: cached prefixes, and **no** additional running request.

    Admission counts device tokens only (managers/schedule_policy.py:PrefillAdder, 0.5.9), so there is no column of requests. With
    ``write_through`` the host holds a copy of what is on the device and distinct tokens are at most the larger of both tiers; with
    ``write_back`` they are at most the sum.

    Args:
        sizes_gb: sizes per process in GB (1e9).
        processes: scheduler processes of the machine.
        bytes_per_token: bytes of one token in the host pool.
        device_tokens: tokens of the device pool.
        write_policy: ``--hicache-write-policy``.
        budget_bytes: memory for all host pools (``for all host pools`` of SafeSize), None where unknown.
    """
    rows = []
    for size in sizes_gb:
        tokens = int(size * GB // bytes_per_token)
        reach = tokens + device_tokens if write_policy == "write_back" else max(tokens, device_tokens)
        fits = None if budget_bytes is None else size * processes * GB <= budget_bytes
        rows.append(TierRow(size, size * processes, tokens, reach, tokens / device_tokens, fits))
    return tuple(rows)
