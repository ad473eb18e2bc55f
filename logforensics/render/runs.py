"""The facts of a run as labelled lines. Every key is optional: a log that broke off early has few."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from logforensics.render.words import number

# A key says its unit in its last part; a reader wants it behind the number.
_UNITS = {"gib": "GiB", "gb": "GB", "s": "s", "pct": "%", "bytes": "bytes"}
_NAMES = ("name", "stage", "rank", "label", "kind", "term")
_ITEMS_SHOWN = 6


def run_rows(run: Mapping[str, Any], *, verbose: bool = False) -> list[tuple[str, str]]:
    """Label and value of each fact that is there; a list takes a row per item (``verbose``: all of them)."""
    rows = _version(run)
    for key, value in run.items():
        if key in {"version_low", "version_high"} or _empty(value):
            continue
        label, unit = _label(key)
        if isinstance(value, (list, tuple)) and any(isinstance(item, Mapping) for item in value):
            rows += _items(label, value, None if verbose else _ITEMS_SHOWN)
        else:
            rows.append((label, f"{_told(value)} {unit}".rstrip()))
    return rows


def _version(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    low, high = run.get("version_low"), run.get("version_high")
    known = [str(version) for version in (low, high) if version]
    return [("SGLang", " to ".join(dict.fromkeys(known)))] if known else []


def _items(label: str, items: list[Any] | tuple[Any, ...], most: int | None) -> list[tuple[str, str]]:
    rows = [(label if i == 0 else "", _told(item)) for i, item in enumerate(items[:most])]
    left = len(items) - len(rows)
    return [*rows, ("", f"… and {left} more")] if left else rows


def _told(value: Any) -> str:
    """A value in words: ``tp 8, dp 1``; what has a name begins with it: ``load_end: avail 21.57 GiB, line 91``."""
    if isinstance(value, Mapping):
        name = next((key for key in _NAMES if isinstance(value.get(key), str)), None)
        rest = ", ".join(_pair(key, item) for key, item in value.items() if key != name and not _empty(item))
        return rest if name is None else f"{value[name]}: {rest}" if rest else str(value[name])
    if isinstance(value, datetime):
        return value.isoformat(" ", "seconds")
    if isinstance(value, (list, tuple)):
        return ", ".join(_told(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value)


def _pair(key: str, value: Any) -> str:
    label, unit = _label(str(key))
    told = f"({_told(value)})" if isinstance(value, (Mapping, list, tuple)) else _told(value)
    return f"{label} {told} {unit}".rstrip()


def _label(key: str) -> tuple[str, str]:
    """A key as words, and the unit its last part names."""
    words = key.split("_")
    unit = _UNITS.get(words[-1], "") if len(words) > 1 else ""
    return " ".join(words[:-1] if unit else words), unit


def _empty(value: Any) -> bool:
    return value is None or (isinstance(value, (str, list, tuple, Mapping)) and not value)
