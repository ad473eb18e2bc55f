"""tqdm bars: checkpoint loading (one bar a line, or many joined by carriage returns) and graph capture."""

from __future__ import annotations

import re
from typing import Any

from logforensics import lazy_re

BAR = lazy_re.compile(
    r"(?P<kind>[A-Za-z][A-Za-z0-9 .,_-]{2,80}?):\s+(?P<percent>\d{1,3})% Completed \| (?P<done>\d+)/(?P<total>\d+) "
    r"\[(?P<elapsed>[\d:]+)<(?P<remaining>[\d:?]+),\s*(?P<rate>\d+(?:\.\d+)?|\?)(?P<unit>it/s|s/it)\]",
)
# where a bar begins; what stands before it belongs to another process's record
_HEAD = lazy_re.compile(r"(?:Loading|Multi-thread|Capturing|Downloading|Fetching) ")
_TIME = lazy_re.compile(r"(?:(\d+):)?(\d{1,2}):(\d\d)")


def seconds(clock: str) -> float | None:
    """Seconds of ``MM:SS`` or ``H:MM:SS``; None for ``?``."""
    found = _TIME.fullmatch(clock)
    return None if found is None else int(found[1] or 0) * 3600.0 + int(found[2]) * 60 + int(found[3])


def is_own(found: re.Match[str], before: str) -> bool:
    """Whether a bar is what one process printed, not made of two torn ones. ``before`` is what stands between it and the bar before it.

    A bar that begins behind something else must begin as the loaders' bars do, and its percentage must be that of its shards.
    """
    kind = found["kind"].lstrip()
    whole = kind[:1].isupper() and (not before.strip() or _HEAD.match(kind) is not None)
    done, total = int(found["done"]), int(found["total"])
    consistent = total == 0 or abs(int(found["percent"]) - 100 * done / total) <= 1
    return consistent and (whole or is_glued(found))


def is_glued(found: re.Match[str]) -> bool:
    """Whether something else stands before the bar."""
    return any(head.start() for head in _HEAD.finditer(found["kind"].lstrip()))


def read_bar(found: re.Match[str]) -> dict[str, Any]:
    """Columns of ``load_progress`` from a match of :data:`BAR`; rates are in shards per second."""
    rate = None if found["rate"] == "?" else float(found["rate"])
    kind = found["kind"].strip()
    begin = max((head.start() for head in _HEAD.finditer(kind)), default=0)
    if rate is not None and found["unit"] == "s/it":
        rate = 1 / rate if rate > 0 else None
    return {
        "kind": kind[begin:],
        "percent": int(found["percent"]),
        "shards_done": int(found["done"]),
        "shards_total": int(found["total"]),
        "elapsed_s": seconds(found["elapsed"]),
        "remaining_s": seconds(found["remaining"]),
        "rate_per_s": rate,
    }
