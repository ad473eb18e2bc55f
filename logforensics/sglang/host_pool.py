"""How large one HiCache pool becomes: tokens and bytes of host memory that one scheduler process asks for, by release.

Host figures are bytes, and GB means 1e9 bytes: that is what ``--hicache-size`` and the log lines use.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from logforensics.errors import InputError
from logforensics.records import record
from logforensics.sglang.flags import release_at_least
from logforensics.sglang.releases import ByRelease
from logforensics.sglang.terms import Term
from logforensics.units import GB, GIB

if TYPE_CHECKING:
    from collections.abc import Collection

_SIZING = "HostKVCache.__init__ (mem_cache/memory_pool_host.py to 0.5.13, pool_host/base.py from 0.5.14)"


class Rounding(Enum):
    """What happens to a token count that is no page multiple."""

    DOWN = "down to a page multiple"
    NEXT_PAGE = "one page more than fits"


class Pinning(Enum):
    """How the pool's memory is obtained, and so how much of it is really taken."""

    PAGEABLE = "pageable"
    POWER_OF_TWO = "pinned by torch, which rounds the tensor up to a power of two"
    EXACT = "registered at its exact size"


class SmallPool(Enum):
    """What a release does with a host pool that is not larger than the device pool."""

    REFUSED = "an assertion stops the server"
    WARNED = "a warning"


ROUNDING = ByRelease((("0.4.2", Rounding.DOWN), ("0.5.6", Rounding.NEXT_PAGE)))
PINNING = ByRelease((("0.4.2", Pinning.PAGEABLE), ("0.4.5", Pinning.POWER_OF_TWO), ("0.5.5", Pinning.EXACT)))
SMALL_POOL = ByRelease((("0.4.2", SmallPool.REFUSED), ("0.5.15", SmallPool.WARNED)))
DEFAULT_RATIO = 2.0  # of every release; 0.5.21+ shrinks it to fit, see host_guard.auto_size
SIZE_FLAG_SINCE = "0.4.6"


class Charge(Enum):
    """Whether ``--hicache-size`` covers a pool that stands beside the KV pool."""

    ABSENT = "no such pool yet"
    INSIDE = "inside the size"
    OUTSIDE = "on top of the size"
    FULL_SIZE = "the full size again"
    SPLIT = "shares the size in proportion to device bytes"
    RATIO_ONLY = "--hicache-size is refused, only --hicache-ratio works"


SIDE_POOLS: dict[str, ByRelease[Charge]] = {
    # mem_cache/memory_pool_host.py:NSATokenToKVPoolHost (0.5.9), hybrid_cache/hybrid_pool_assembler.py (0.5.11, 0.5.23)
    "dsa_index": ByRelease((("0.4.2", Charge.ABSENT), ("0.5.9", Charge.INSIDE), ("0.5.11", Charge.OUTSIDE))),
    # MambaPoolHost; issue 29034 describes the doubling, _split_hicache_size ends it
    "recurrent": ByRelease((("0.4.2", Charge.ABSENT), ("0.5.10", Charge.FULL_SIZE), ("0.5.17", Charge.SPLIT))),
    "sliding": ByRelease((("0.4.2", Charge.ABSENT), ("0.5.12", Charge.FULL_SIZE), ("0.5.17", Charge.SPLIT))),
    "deepseek_v4": ByRelease((("0.4.2", Charge.ABSENT), ("0.5.12", Charge.RATIO_ONLY))),
}


def full_size_pools(kinds: Collection[str], release: str) -> int:
    """How many pools of one process take the full ``--hicache-size``: 1, and one more for each doubled side pool.

    Args:
        kinds: the model's side pools, keys of ``SIDE_POOLS``.
        release: SGLang release.
    """
    return 1 + sum(SIDE_POOLS[kind].at(release) is Charge.FULL_SIZE for kind in kinds)


def share_outside(index_bytes: float, row_bytes: float, release: str) -> float:
    """The share of a DSA index pool that comes on top of ``--hicache-size``, as a fraction of the KV pool.

    Args:
        index_bytes: index bytes per token and layer (132).
        row_bytes: KV bytes per token and layer (1152 bf16, 656 or 576 fp8).
        release: SGLang release; to 0.5.10 the index was inside the size and the share is 0.
    """
    return index_bytes / row_bytes if SIDE_POOLS["dsa_index"].at(release) is Charge.OUTSIDE else 0.0


@record(frozen=True)
class PoolSize:
    """One pool of one process.

    Attributes:
        tokens: tokens it holds.
        bytes: bytes asked for, the figure of the ``Allocating … GB`` line (there divided by 1e9).
        pinned_bytes: bytes the host really loses.
        smaller_than_device: whether it holds no more than the device pool; None where the device pool is unknown.
        refused: whether the release stops the server for that.
        terms: how the figures came about.
    """

    tokens: int
    bytes: int
    pinned_bytes: int
    smaller_than_device: bool | None
    refused: bool
    terms: tuple[Term, ...]


def pool_size(
    bytes_per_token: int,
    release: str,
    *,
    size_gb: int = 0,
    ratio: float | None = None,
    device_tokens: int | None = None,
    page_size: int = 1,
) -> PoolSize:
    """Size of the pool that one scheduler process builds for ``--hicache-size`` or ``--hicache-ratio``.

    Source: HostKVCache.__init__ in mem_cache/memory_pool.py (0.4.6), memory_pool_host.py (0.5.3, 0.5.8), pool_host/base.py (0.5.23).

    Args:
        bytes_per_token: bytes of one token in the pool, side pools that stand apart left out.
        release: SGLang release.
        size_gb: value of ``--hicache-size``, GB (1e9 bytes) per process; 0 where it is not given.
        ratio: value of ``--hicache-ratio``, used where no size is given; None is the default of 2.0.
        device_tokens: tokens of the device pool; needed for a ratio.
        page_size: tokens of a page.

    Raises:
        InputError: neither a size nor the device tokens for a ratio are known, or the bytes per token are not positive.
    """
    if bytes_per_token <= 0:
        raise InputError(f"a KV pool of {bytes_per_token} bytes per token cannot be: give the model's bytes per token, such as 70272")
    wanted = _wanted_tokens(bytes_per_token, size_gb, DEFAULT_RATIO if ratio is None else ratio, device_tokens)
    rounding = ROUNDING.at(release)
    tokens = _round_to_page(int(wanted.value), page_size, rounding)
    asked = tokens * bytes_per_token
    pinned = pinned_bytes(asked, release)
    small = None if device_tokens is None else tokens <= device_tokens
    terms = (
        wanted,
        Term("host tokens per process", f"{wanted.value:,} in pages of {page_size}, {rounding.value}", tokens, "tokens", _SIZING),
        Term("host pool per process", f"{tokens:,} × {bytes_per_token:,} B", asked / GB, "GB", _SIZING),
        *([_pinning_term(asked, pinned)] if pinned != asked else []),
    )
    return PoolSize(tokens, asked, pinned, small, bool(small) and SMALL_POOL.at(release) is SmallPool.REFUSED, terms)


def pinned_bytes(asked: int, release: str) -> int:
    """Bytes that a pool of ``asked`` bytes takes from the host: 0.4.5 to 0.5.4 pin the next power of two (PR 12266, issue 14282)."""
    if PINNING.at(release) is not Pinning.POWER_OF_TWO or asked <= 0:
        return asked
    return 1 << (asked - 1).bit_length()


def takes_size(release: str) -> bool:
    """Whether the release has ``--hicache-size`` (before 0.4.6 there is only the ratio)."""
    return release_at_least(release, SIZE_FLAG_SINCE)


def _wanted_tokens(bytes_per_token: int, size_gb: int, ratio: float, device_tokens: int | None) -> Term:
    name = "host tokens asked for"
    if size_gb > 0:
        return Term(name, f"{size_gb} GB // {bytes_per_token:,} B", size_gb * GB // bytes_per_token, "tokens", _SIZING)
    if device_tokens is None:
        raise InputError("the size of a HiCache pool by ratio needs the tokens of the device pool: give device_tokens, or a size in GB")
    return Term(name, f"{device_tokens:,} × {ratio:g}", int(device_tokens * ratio), "tokens", _SIZING)


def _round_to_page(tokens: int, page_size: int, rounding: Rounding) -> int:
    pages = tokens // page_size
    return (pages + 1 if rounding is Rounding.NEXT_PAGE else pages) * page_size


def _pinning_term(asked: int, pinned: int) -> Term:
    return Term(
        "pinned per process",
        f"{asked / GIB:.2f} GiB rounded up to a power of two, {pinned / GIB:.0f} GiB",
        pinned / GB,
        "GB",
        "torch's pinned-memory allocator (0.4.5 to 0.5.4; PR 12266)",
    )
