"""What two memory fractions say about the size of a token in the KV pool."""

from __future__ import annotations

from logforensics.comparison.model import Side
from logforensics.findings import Arithmetic
from logforensics.sglang.fraction import bytes_per_token_from_runs

_FREE_AGREES_GIB = 0.2  # beyond it the fraction is not all that changed
_PRINTED_GIB = 0.005  # two decimals
_PLAUSIBLE_BYTES = (64, 64 << 20)


def implied_bytes_per_token(a: Side, b: Side) -> tuple[int | None, tuple[Arithmetic, ...]]:
    """Bytes per token and rank implied by two fractions of the same free memory, with the calculation; None where the logs do not give it.

    Everything but the KV pool (weights, reserve) is the same in both runs and drops out of the difference. The ranks' free memory
    differs a little, and so does what it implies; the architecture decides where it lies within.
    """
    fractions = [_fraction(side) for side in (a, b)]
    tokens = [side.value("kv_tokens") for side in (a, b)]
    if None in fractions or None in tokens or fractions[0] == fractions[1] or not _same_memory(a, b) or a.free_range is None:
        return None, ()
    (fraction_a, fraction_b), (tokens_a, tokens_b) = ((pair[0] or 0.0, pair[1] or 0.0) for pair in (fractions, tokens))
    implied = [bytes_per_token_from_runs(int(tokens_a), fraction_a, int(tokens_b), fraction_b, free) for free in a.free_range]
    if implied[0] is None or implied[1] is None or not _PLAUSIBLE_BYTES[0] <= implied[0] <= _PLAUSIBLE_BYTES[1]:
        return None, ()
    low, high = implied[0], implied[1]
    known = a.architecture_bytes
    rounding = _PRINTED_GIB / a.free_range[0]
    agrees = known is not None and low * (1 - rounding) <= known <= high * (1 + rounding)
    size = round(known) if agrees and known else round(low)
    free = _span(a.free_range[0], a.free_range[1], ".2f")
    steps = [
        Arithmetic("P, free before loading", "over the ranks", free, "GiB"),
        Arithmetic("more KV tokens", f"{tokens_b:,.0f} − {tokens_a:,.0f}", int(tokens_b - tokens_a), "tokens"),
        Arithmetic("the fractions imply", f"({fraction_b:g} − {fraction_a:g}) × P / more tokens", _span(low, high, ",.0f"), "B"),
    ]
    if known is not None:
        steps.append(Arithmetic("the architecture gives", "agrees" if agrees else "does not agree", round(known), "B"))
    return size, tuple(steps)


def _same_memory(a: Side, b: Side) -> bool:
    """Whether free memory before and after loading agrees, so that the fraction is all that changed."""
    pairs = [(a.value(key), b.value(key)) for key in ("free_before_load_gib", "free_after_load_gib")]
    return all(one is not None and other is not None and abs(one - other) <= _FREE_AGREES_GIB for one, other in pairs)


def _span(low: float, high: float, form: str) -> str:
    return f"{low:{form}}" if f"{low:{form}}" == f"{high:{form}}" else f"{low:{form}} to {high:{form}}"


def _fraction(side: Side) -> float | None:
    setting = side.settings.get("mem_fraction_static")
    return float(setting.value) if setting is not None and isinstance(setting.value, (int, float)) else None
