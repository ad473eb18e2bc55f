"""Kubernetes quantities of memory: ``64Gi``, ``500M``, ``128974848``."""

from __future__ import annotations

from logforensics import lazy_re

_QUANTITY = lazy_re.compile(r"^(?P<number>\d{1,18}(?:\.\d{1,6})?)(?P<unit>(?:[KMGTPE]i|[kKMGTPE])?)$")
_PREFIXES = "KMGTPE"


def quantity_bytes(text: str) -> int | None:
    """The quantity in bytes, or None where it is none (``64Gi`` is binary, ``64G`` decimal)."""
    found = _QUANTITY.match(text.strip())
    if found is None:
        return None
    unit = found["unit"].upper()
    power = _PREFIXES.index(unit[0]) + 1 if unit else 0
    factor: int = (1024 if unit.endswith("I") else 1000) ** power
    return round(float(found["number"]) * factor)
