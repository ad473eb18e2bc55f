"""Sizes: reading ``449GB`` and ``96GiB``, and printing bytes. GB is 1e9 bytes, GiB is 2^30, everywhere."""

from __future__ import annotations

from logforensics import lazy_re
from logforensics.errors import SizeError

GB = 10**9
GIB = 1 << 30
MIB = 1 << 20

_FACTORS = {"": GB, "b": 1, "kb": 10**3, "kib": 1 << 10, "mb": 10**6, "mib": MIB, "gb": GB, "gib": GIB, "tb": 10**12, "tib": 1 << 40}
_SIZE = lazy_re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_size(text: str) -> int:
    """Bytes of a size written by a person: ``449GB`` (1e9), ``96GiB`` (2^30), ``97887MiB``; a bare number is GB.

    Raises:
        SizeError: the text is not a number with one of the units B, KB, KiB, MB, MiB, GB, GiB, TB, TiB.
    """
    found = _SIZE.fullmatch(text)
    factor = _FACTORS.get(found[2].lower()) if found else None
    if found is None or factor is None:
        raise SizeError(f"cannot read the size {text!r}: write a number with GB (1e9 bytes) or GiB (2^30 bytes), such as 449GB or 96GiB")
    size = int(float(found[1]) * factor)
    if size <= 0:
        raise SizeError(f"the size {text!r} is zero: give the memory the machine really has, such as 449GB")
    return size


def gb(count: float, digits: int = 2) -> str:
    """``count`` bytes as GB (1e9), without trailing zeros: ``2400 GB``."""
    return f"{_trim(count / GB, digits)} GB"


def gib(count: float, digits: int = 2) -> str:
    """``count`` bytes as GiB (2^30), without trailing zeros: ``95.59 GiB``."""
    return f"{_trim(count / GIB, digits)} GiB"


def _trim(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
