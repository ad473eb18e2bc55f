"""The lines that are neither batch nor access lines: bulk lines and plain notices to frames, the rest for the line reader.

Several chunks together, since there are few such lines and every polars call has its price; very few all go to the line reader.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from logforensics.parsing import batch, packs
from logforensics.parsing.bulk import read_bulk, read_notices
from logforensics.parsing.inline import column, rows
from logforensics.parsing.tally import NOTICE_CHARS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import polars as pl

_FEW = 256  # so many lines are read one by one in the time that polars needs to compile the expressions
_MARKERS = ("Traceback (most recent call last):", "server_args=", "% Completed |", "Error", "Exception", "Interrupt")


class Line(NamedTuple):
    """A line for the line reader: its number, its text, and whether a known literal occurs in it."""

    number: int
    text: str
    known: bool


@dataclass(slots=True)
class LeftResult:
    """What these lines gave.

    Attributes:
        frames: rows of bulk lines and notices; ranks are still text, in a column ``tags``.
        rest: what the line reader has to read, in order.
        read: lines that gave rows, other than notices.
        unknown: lines that gave notices.
        unknown_examples: the first of these.
    """

    frames: dict[str, list[pl.DataFrame]]
    rest: list[Line]
    read: int
    unknown: int
    unknown_examples: list[tuple[int, str]]


def read_left(lines: pl.DataFrame, examples: int, own: tuple[str, ...] = ()) -> LeftResult:
    """Read lines ``(n, line)`` with the log's line numbers; at most ``examples`` unknown ones are given back as text.

    ``own`` are the literals of packs that the user brought.
    """
    import polars as pl

    if lines.height <= _FEW:
        worth = _literals(own)
        rest = sorted(_lines(lines, lambda text: any(literal in text for literal in worth)))
        return LeftResult({}, rest, read=0, unknown=0, unknown_examples=[])
    frames, others = read_bulk(lines)
    known = column(others, pl.col("line").str.contains(literals(own)))
    candidates = rows(others, ~known)
    notices, plain = read_notices(candidates)
    if notices.height:
        frames["notices"] = [notices]
    rest = sorted([*_lines(rows(others, known), lambda _: True), *_lines(plain, lambda _: False)])
    read = lines.height - len(rest) - notices.height
    return LeftResult(frames, rest, read, notices.height, _examples(candidates, notices, examples))


def _examples(lines: pl.DataFrame, notices: pl.DataFrame, limit: int) -> list[tuple[int, str]]:
    if notices.is_empty():
        return []
    numbers = notices["line"].sort().head(limit)
    found = lines.filter(lines["n"].is_in(numbers.implode())).sort("n")
    return [(number, text[:NOTICE_CHARS]) for number, text in zip(found["n"].to_list(), found["line"].to_list(), strict=True)]


def _lines(found: pl.DataFrame, known: Callable[[str], bool]) -> Iterator[Line]:
    """Rows ``(n, line)`` one by one; ``known`` says of a text whether a literal occurs in it."""
    # to_list copies the few lines out: views into the chunk would keep all of it in memory
    for number, text in zip(found["n"].to_list(), found["line"].to_list(), strict=True):
        yield Line(number, text, known(text))


@cache
def _literals(own: tuple[str, ...]) -> tuple[str, ...]:
    return (*own, *packs.load().literals, *batch.WORDS.values(), *_MARKERS)


@cache
def literals(own: tuple[str, ...] = ()) -> str:
    """An expression of the literals that make a line worth a closer look wherever they stand in it (polars keeps it compiled)."""
    return "|".join(re.escape(literal) for literal in _literals(own))
