"""The bracket in front of an SGLang line: time stamp and rank tags.

Forms by release (reference: FORMATS §1): ``[HH:MM:SS TP0] `` to 0.3.3, ``[YYYY-mm-dd HH:MM:SS DP0 TP0] `` from 0.3.6, milliseconds after a
dot under ``SGLANG_LOG_MS``, tags in any order and any subset, ``[gpu_id=0] `` to 0.2.0, and no bracket at all before the logger is set up.
"""

from __future__ import annotations

import re
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple

from logforensics import lazy_re

STAMP = r"(?:\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d(?:[.,]\d{1,6})?"
# a tag is a name with a number, also one that a later release may add, the role of an encoder, or a member of an enum as forks print it;
# anything else is damage
HEAD = lazy_re.compile(
    rf"\[(?P<stamp>{STAMP})(?P<tags>(?: (?:[A-Z_]{{2,10}}\d{{1,5}}|[a-z][a-z_]{{3,30}}|[A-Z]\w{{1,40}}\.\w{{1,40}}))*)\](?: |$)", re.ASCII
)
_GPU_ID = lazy_re.compile(r"\[gpu_id=\d+\] ")
_BARE_RANK = lazy_re.compile(r"\[(?:rank(?P<rank>\d+)|(?P<tags>(?:(?:DP|PP|TP|EP)\d+ ?)+))\]:? ?")
_OUTER_STAMP = lazy_re.compile(r"(?P<stamp>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)Z? (?:- )?(?P<level>[A-Z]{4,8})?:? *")
_TAG = lazy_re.compile(r"\b(DP|PP|ATTN_CP|MOE_DP|TP|EP)(\d{1,5})\b")
_TAG_COLUMN = {"DP": "dp", "PP": "pp", "TP": "tp", "EP": "ep"}
NO_DATE = datetime(1970, 1, 1)


class Ranks(NamedTuple):
    """Rank numbers of a line, None where it has no such tag."""

    tp: int | None = None
    dp: int | None = None
    pp: int | None = None
    ep: int | None = None


class Prefix(NamedTuple):
    """What stands before the message: its time, its ranks, and where the message begins."""

    time: datetime | None
    ranks: Ranks
    end: int
    own: bool  # SGLang's own bracket (or its older [gpu_id=N]); False for a bare line


NO_RANKS = Ranks()
NO_PREFIX = Prefix(None, NO_RANKS, 0, own=False)


@lru_cache(maxsize=4096)
def ranks_of(tags: str) -> Ranks:
    """Rank numbers in a tag string such as `` DP1 TP3 EP3``; unknown words are passed over."""
    found = {_TAG_COLUMN[name]: int(number) for name, number in _TAG.findall(tags) if name in _TAG_COLUMN}
    return Ranks(**{name: number for name, number in found.items() if number <= 65535})


@lru_cache(maxsize=4096)
def time_of(stamp: str) -> datetime | None:
    """A printed stamp as a naive local time; a stamp without a date falls on 1970-01-01; None where it is no time."""
    text = stamp.replace(",", ".").replace("T", " ")
    try:
        if len(text) > 2 and text[2] == ":":
            text = f"1970-01-01 {text}"
        if "." in text:
            whole, fraction = text.split(".", 1)
            text = f"{whole}.{fraction.ljust(6, '0')}"
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def read_prefix(line: str) -> Prefix:
    """Time, ranks and message offset of one line, in any of the known forms."""
    if line[:1] != "[" and not line[:4].isdigit():
        return NO_PREFIX
    bracket = line.find("] ", 0, 200)
    return _read(line[: bracket + 2] if bracket >= 0 else line[:200])


@lru_cache(maxsize=8192)
def _read(line: str) -> Prefix:
    if found := HEAD.match(line):
        return Prefix(time_of(found["stamp"]), ranks_of(found["tags"]) if found["tags"] else NO_RANKS, found.end(), own=True)
    if found := _GPU_ID.match(line):
        return Prefix(None, NO_RANKS, found.end(), own=True)
    if found := _BARE_RANK.match(line):
        return Prefix(None, ranks_of(found["tags"] or f"TP{found['rank']}"), found.end(), own=False)
    if found := _OUTER_STAMP.match(line):
        return Prefix(time_of(found["stamp"]), NO_RANKS, found.end(), own=False)
    return NO_PREFIX
