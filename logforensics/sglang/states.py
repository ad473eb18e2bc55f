"""Recurrent states (linear attention, Mamba): slots, and what they take from the KV budget first, by release.

Source: handle_max_mamba_cache in model_runner.py (0.5.4 to 0.5.6), model_runner_kv_cache_mixin.py (0.5.7 to 0.5.15),
kv_cache_configurator.py:_handle_max_mamba_cache (0.5.16+); slots per request from _calculate_mamba_ratio.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from logforensics.records import record
from logforensics.sglang.releases import ByRelease
from logforensics.sglang.sharding import positive, sharding
from logforensics.sglang.terms import Term
from logforensics.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_RATIO = 0.9  # --mamba-full-memory-ratio: states over KV
_SLOTS_WITHOUT_LIMIT = 512  # to 0.5.8, without radix cache and --max-running-requests
_SLOTS_PER_REQUEST = 3  # with radix cache; a second buffer adds 1 or 2
_SOURCE = "kv_cache_configurator.py:_handle_max_mamba_cache"


@record(frozen=True)
class States:
    """The state pool of one rank.

    Attributes:
        slots: charged slots (``max_mamba_cache_size``); the pool line shows one more.
        gib: memory taken from the KV budget, intermediate states of speculation included.
        terms: how the figures came about.
    """

    slots: int
    gib: float
    terms: tuple[Term, ...]


@record(frozen=True)
class _Demand:
    """What the rules below work with; bytes are of one rank."""

    budget: float
    slot: int
    ratio: float
    drafts: int
    requests: int | None
    per_request: int
    fixed: int | None

    def share(self) -> float:
        """The part of a budget that goes to states: ``r / (1 + r)``."""
        return self.ratio / (1 + self.ratio)


def _drafts_per_slot(demand: _Demand) -> tuple[int, float]:
    """0.5.4 to 0.5.6: every slot has room for the drafted tokens beside its own state."""
    wide = demand.slot * (1 + demand.drafts)
    slots = demand.fixed if demand.fixed is not None else int(demand.budget * demand.share() // demand.slot // (1 + demand.drafts))
    return slots, slots * wide


def _drafts_first(demand: _Demand) -> tuple[int, float]:
    """0.5.7 to 0.5.12: states of the drafted tokens for all running requests come off first, then the ratio applies."""
    first = demand.slot * (demand.requests or 0) * demand.drafts
    slots = demand.fixed if demand.fixed is not None else int((demand.budget - first) * demand.share() // demand.slot)
    return slots, first + slots * demand.slot


def _drafts_with_slots(demand: _Demand) -> tuple[int, float]:
    """0.5.13+: the ratio's share holds the slots and the drafted tokens of as many requests as the slots serve."""
    if demand.fixed is not None:
        served = min(demand.requests or demand.fixed, demand.fixed // demand.per_request)
        return demand.fixed, demand.slot * (demand.fixed + served * demand.drafts)
    slots = int(demand.budget * demand.share() // (demand.slot * (1 + demand.drafts / demand.per_request)))
    return slots, demand.slot * (slots + slots / demand.per_request * demand.drafts)


CHARGE: ByRelease[Callable[[_Demand], tuple[int, float]]] = ByRelease(
    (("0.5.4", _drafts_per_slot), ("0.5.7", _drafts_first), ("0.5.13", _drafts_with_slots))
)


def slots_per_request(args: Mapping[str, Any]) -> int:
    """State slots that one running request may need: 1 without radix cache, else 3, and up to 2 more with a second buffer."""
    if args.get("disable_radix_cache"):
        return 1
    second = args.get("mamba_scheduler_strategy") == "extra_buffer" or args.get("mamba_radix_cache_strategy") == "extra_buffer"
    speculative = bool(args.get("speculative_algorithm")) or bool(args.get("disable_overlap_schedule"))
    return _SLOTS_PER_REQUEST + ((1 if speculative else 2) if second else 0)


def states(rest_gib: float, slot_bytes: int, args: Mapping[str, Any], release: str) -> States:
    """Slots and memory of the recurrent states.

    Args:
        rest_gib: memory for all pools of the static share, GiB.
        slot_bytes: bytes of one slot on one rank (kv.state_slot_bytes).
        args: server_args of the launch.
        release: SGLang release.
    """
    spread = sharding(args)
    requests = _per_group(args, "max_running_requests", spread.attention_dp)
    fixed = _per_group(args, "max_mamba_cache_size", spread.attention_dp)
    if fixed is None and args.get("disable_radix_cache"):
        fixed = requests or _SLOTS_WITHOUT_LIMIT
    ratio = float(args.get("mamba_full_memory_ratio") or DEFAULT_RATIO)
    drafts = positive(args, "speculative_num_draft_tokens", 0) if args.get("speculative_algorithm") else 0
    demand = _Demand(rest_gib * GIB, slot_bytes, ratio, drafts, requests, slots_per_request(args), fixed)
    slots, taken = CHARGE.at(release)(demand)
    how = f"{slots} slots given" if fixed is not None else f"{rest_gib:.2f} GiB × {ratio:g}/{1 + ratio:g} / {slot_bytes:,} B"
    terms = (
        Term("recurrent-state slots", how, slots, "slots", _SOURCE),
        Term("recurrent states", f"{slots} × {slot_bytes:,} B" + (", and drafts" if drafts else ""), taken / GIB, "GiB", _SOURCE),
    )
    return States(slots, taken / GIB, terms)


def _per_group(args: Mapping[str, Any], field: str, groups: int) -> int | None:
    value = positive(args, field, 0)
    return max(value // groups, 1) if value else None
