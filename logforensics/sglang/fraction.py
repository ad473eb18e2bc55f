"""From ``--mem-fraction-static`` to KV tokens and back (MEMORY_MODEL §1.2).

``rest = A − P·(1 − f)`` and ``T = rest·2^30 / c``: P is free GPU memory before loading and A after it (GiB, the minimum over the ranks), f the
fraction, c the bytes per token. T is linear in f with slope ``P·2^30/c``, whatever it is now; it is not proportional to f.

Source: model_runner.py:profile_max_num_token (to 0.5.6), model_runner_kv_cache_mixin.py (0.5.7 to 0.5.15),
mem_cache/kv_cache_configurator.py:_profile_available_bytes (0.5.16+).
"""

from __future__ import annotations

import math

from logforensics.errors import InputError
from logforensics.records import record
from logforensics.sglang.terms import Term
from logforensics.units import GIB

ROUNDING_GIB = 0.005  # half of the last printed decimal
COMFORTABLE_GIB = 5.0  # SGLang's tuning page asks for 5 to 8 GB after start; below 1 expect an out-of-memory error in prefill
_SOURCE = "kv_cache_configurator.py:_profile_available_bytes"


@record(frozen=True)
class GpuBudget:
    """Free GPU memory around loading, GiB, as the log prints it: the minimum over the ranks.

    Attributes:
        pre_gib: free before loading (``Load weight begin. avail mem``).
        post_gib: free after loading (``Load weight end. avail mem``; the last one from 0.5.14, where draft weights load first).
        fraction: ``mem_fraction_static``.
    """

    pre_gib: float
    post_gib: float
    fraction: float

    @property
    def rest_gib(self) -> float:
        """What is left for the pools of the static share; 0 or less stops the server."""
        return self.post_gib - self.outside_gib

    @property
    def outside_gib(self) -> float:
        """What stays outside the static share: request table, graphs, activations, communication buffers."""
        return self.pre_gib * (1 - self.fraction)

    @property
    def rounding_gib(self) -> float:
        """How far ``rest_gib`` may be off because both figures are printed with two decimals."""
        return ROUNDING_GIB * (2 - self.fraction)

    @property
    def term(self) -> Term:
        """The budget with its figures."""
        expression = f"{self.post_gib:g} GiB − {self.pre_gib:g} GiB × (1 − {self.fraction:g})"
        return Term("memory for the pools", expression, self.rest_gib, "GiB", _SOURCE)


def tokens(budget_bytes: float, bytes_per_token: float, page_size: int = 1) -> int:
    """KV tokens that a number of bytes holds: ``floor(bytes / c)``, rounded down to a page multiple; 0 where nothing is left.

    Raises:
        InputError: the bytes per token are not positive.
    """
    if bytes_per_token <= 0:
        raise InputError(f"a KV pool of {bytes_per_token} bytes per token cannot be: give the model's bytes per token, such as 70272")
    return max(int(budget_bytes // bytes_per_token), 0) // page_size * page_size


def tokens_at(fraction: float, *, now: int, fraction_now: float, pre_gib: float, bytes_per_token: float) -> int:
    """KV tokens at another fraction on the same machine: ``T + (f' − f)·P·2^30/c``, never below 0.

    Args:
        fraction: the other fraction.
        now: tokens at ``fraction_now``.
        fraction_now: the fraction that gave them.
        pre_gib: free GPU memory before loading, GiB.
        bytes_per_token: bytes per token and rank.
    """
    return max(now + int((fraction - fraction_now) * pre_gib * GIB / bytes_per_token), 0)


def bytes_per_token_from_runs(tokens_a: int, fraction_a: float, tokens_b: int, fraction_b: float, pre_gib: float) -> float | None:
    """Bytes per token that two runs with different fractions imply: ``c = P·2^30·(f2 − f1)/(T2 − T1)``; None where they do not differ."""
    if tokens_a == tokens_b or fraction_a == fraction_b:
        return None
    return pre_gib * GIB * (fraction_b - fraction_a) / (tokens_b - tokens_a)


def pre_gib_from_runs(tokens_a: int, fraction_a: float, tokens_b: int, fraction_b: float, bytes_per_token: float) -> float | None:
    """Free memory before loading (GiB) that two runs and a bytes-per-token figure imply; more than the card proves the figure wrong."""
    if fraction_a == fraction_b:
        return None
    return (tokens_b - tokens_a) * bytes_per_token / GIB / (fraction_b - fraction_a)


def weights_fraction(pre_gib: float, post_gib: float) -> float:
    """The share of the free memory that loading took, ``1 − A/P``: a fraction that is no higher leaves nothing for the pools."""
    return 1 - post_gib / pre_gib


def lowest_fraction(pre_gib: float, post_gib: float) -> float:
    """The fraction below which nothing is left for the pools, rounded up to three decimals as SGLang's message does."""
    return math.ceil(weights_fraction(pre_gib, post_gib) * 1000) / 1000


def fraction_for_tokens(wanted: int, budget: GpuBudget, bytes_per_token: float) -> float:
    """The fraction that gives a number of tokens, rounded up to three decimals; above 1 where the card cannot hold them."""
    needed = wanted * bytes_per_token / GIB - budget.rest_gib
    return math.ceil((budget.fraction + needed / budget.pre_gib) * 1000) / 1000


def fraction_leaving(
    *, left_gib: float, fraction: float, pre_gib: float, post_gib: float | None = None, headroom_gib: float = COMFORTABLE_GIB
) -> float | None:
    """The fraction that leaves ``headroom_gib`` free after start where ``fraction`` left ``left_gib``, rounded down to two decimals.

    Raising f takes what lies outside the static share away byte for byte, so ``f' = f − (wanted − left)/P``.

    Args:
        left_gib: free memory after start now (``available_gpu_mem``), GiB.
        fraction: the fraction that left it.
        pre_gib: free memory before loading, GiB.
        post_gib: free memory after loading, GiB; with it the answer is None where nothing would be left for the pools.
        headroom_gib: wanted free memory after start, GiB.
    """
    target = math.floor((fraction - (headroom_gib - left_gib) / pre_gib) * 100) / 100
    if target <= 0 or (post_gib is not None and target <= lowest_fraction(pre_gib, post_gib)):
        return None
    return target
