"""One pattern: how SGLang says one thing, and the set of all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from typing import Any

from logforensics import lazy_re
from logforensics.records import record
from logforensics.schema import FRAMES

KEY = 4  # letters by which heads are grouped; no head is shorter
GRAM = 5  # letters of a part by which a literal is found
STRIDE = 4  # every so many letters a message is looked at
_LONG = 1200  # letters from which on looking for each literal is as fast
INTEGERS = frozenset({"Int32", "Int64", "UInt64", "UInt16", "UInt32"})
_LOGGED = lazy_re.compile(
    r"(?:DEBUG|INFO|WARNING|ERROR)[: ]\S{1,60}\.py:\d{1,6}: |(?:DEBUG|INFO|WARNING|ERROR):[\w.]{1,80}:"
)  # other loggers' heads
_BEFORE_LABEL = lazy_re.compile(
    r"(?:^|[,.;:()\[\]#>-]\s*|\d ?(?:[GM]i?B|m?s|%)?\s+)$"
)  # the end of a sentence, of another field, or of its figure
_NUMBER = lazy_re.compile(r" ?(-?\d+(?:\.\d+)?(?:e-?\d+)?)(?=$|[ ,;:)\]%]|\.(?:[ ,]|$)|[GM]i?B|m?s\b)")


class CutRecord(Exception):  # noqa: N818 - control flow between pattern and reader, never seen outside this room
    """A record was recognised but its values are cut: it must be counted as damaged, not turned into a row."""


@record(frozen=True)
class Sample:
    """A line that the pattern must read, and the columns it must give, one mapping for each row."""

    line: str
    gives: tuple[Mapping[str, Any], ...]


@record(frozen=True)
class Pattern:
    """One way SGLang says one thing (see :mod:`logforensics.parsing.packs` for what each key means)."""

    event: str
    frame: str | None  # None: known noise, counted but without a row
    heads: tuple[str, ...]
    finds: tuple[str, ...]
    fields: tuple[tuple[str, tuple[str, ...], bool], ...]  # column, labels, integer
    texts: tuple[tuple[str, str, str], ...]
    regex: str | None
    constants: Mapping[str, Any]
    required: frozenset[str]
    unbroken: bool
    bare: bool
    bulk: str | None
    bulk_open: bool
    origin: str
    sets: tuple[tuple[str, str], ...] = ()  # flag, new value: one row for each
    scale: Mapping[str, float] = field(default_factory=dict)  # what turns a printed figure of the regex into its column's unit
    samples: tuple[Sample, ...] = field(default=(), compare=False)

    def read(self, message: str, *, cut: bool) -> dict[str, Any] | None:
        """The columns of ``message``, or None if this pattern does not fit.

        ``cut`` says that the message did not end with a newline of its own: a number that touches its end is not to be trusted.

        Raises:
            CutRecord: the pattern fits but a required value is missing or may be cut.
        """
        # where the last number must not end: behind it only what may be the beginning of its decimals
        end = len(message.rstrip(" .")) if cut and self.unbroken else -1
        row = dict(self.constants)
        if self.regex is not None:
            found = compiled(self.regex).search(message)
            if found is None:
                return None
            row |= self._named(found, end)
        row |= self._numbers(message, end)
        row |= self._texts(message, cut=cut)
        if not self.required <= row.keys() or (cut and self.fields and not any(column in row for column, _, _ in self.fields)):
            raise CutRecord
        return row

    def rows(self, row: dict[str, Any], message: str) -> list[dict[str, Any]]:
        """What :meth:`read` gave, as the rows it stands for: one, or one for each flag that the message says was set."""
        if not self.sets:
            return [row]
        values = [(flag, value, _set_to(flag, value, row, message)) for flag, value in self.sets]
        rows: list[dict[str, Any]] = [{"flag": flag, "new": new} for flag, value, new in values if new is not None or value != "="]
        if rows and "old" in row:
            rows[0]["old"] = row["old"]
        return rows

    def _named(self, found: re.Match[str], end: int) -> dict[str, Any]:
        groups = {name: value for name, value in found.groupdict().items() if value is not None}
        if any(found.end(name) == end for name in groups):
            raise CutRecord
        dtypes = dtypes_of(self.frame) if self.frame else {}
        row: dict[str, Any] = {name: _typed(value, dtypes.get(name)) for name, value in groups.items()}
        return row | {name: row[name] * factor for name, factor in self.scale.items() if name in row}

    def _numbers(self, message: str, end: int) -> dict[str, float]:
        row: dict[str, float] = {}
        for column, labels, integer in self.fields:
            for label in labels:
                at = _place_of(label, message)
                if at < 0 or (number := _NUMBER.match(message, at + len(label))) is None:
                    continue
                if number.end() == end:
                    raise CutRecord
                row[column] = int(float(number[1])) if integer else float(number[1])
                break
        return row

    def _texts(self, message: str, *, cut: bool) -> dict[str, str]:
        row: dict[str, str] = {}
        for column, label, stop in self.texts:
            at = message.find(label)
            if at >= 0:
                begin = at + len(label)
                end = message.find(stop, begin) if stop else -1
                if cut and end < 0:
                    raise CutRecord
                row[column] = message[begin : end if end >= 0 else None].strip()
        return row


@record(frozen=True)
class Packs:
    """All patterns, by the literals that make a message worth trying them."""

    patterns: tuple[Pattern, ...]
    heads: Mapping[str, tuple[tuple[str, int], ...]]  # the first letters of a message -> (its beginning, place of the pattern)
    finds: Mapping[str, tuple[int, ...]]  # a literal anywhere in it -> places of the patterns
    grams: Mapping[str, tuple[str, ...]]  # a part of a literal -> the literals that hold it near their beginning
    short: tuple[str, ...]  # literals that are too short for that

    @property
    def literals(self) -> list[str]:
        """Every literal of every pattern."""
        return sorted({*self.finds, *(head for group in self.heads.values() for head, _ in group)})

    def match(self, message: str, *, cut: bool, heads_only: bool = False) -> tuple[Pattern, dict[str, Any]] | None:
        """The first pattern that reads ``message``, with its columns.

        Raises:
            CutRecord: a pattern fits but the record is cut.
        """
        body = message if (logged := _LOGGED.match(message)) is None else message[logged.end() :]
        places = [place for head, place in self.heads.get(body[:KEY], ()) if body.startswith(head)]
        if not heads_only:
            for literal in self._found_in(message):
                places += self.finds[literal]
        for place in sorted(set(places)) if len(places) > 1 else places:
            if (row := self.patterns[place].read(message, cut=cut)) is not None:
                return self.patterns[place], row
        return None

    def _found_in(self, message: str) -> list[str]:
        """The literals of ``finds`` that stand in a message.

        A message is looked at every few characters only: a literal is listed under each of its first parts, so that one of them is met. It
        takes a tenth of the time that looking for each literal takes; in a long message that is as fast.
        """
        if len(message) > _LONG:
            return [literal for literal in self.finds if literal in message]
        found = [literal for literal in self.short if literal in message]
        for at in range(0, len(message) - GRAM + 1, STRIDE):
            if literals := self.grams.get(message[at : at + GRAM]):
                found += [literal for literal in literals if literal in message]
        return found


@cache
def compiled(expression: str) -> re.Pattern[str]:
    """A pattern's expression, compiled when a line first asks for it: most logs need few of them."""
    return re.compile(expression)


@cache
def dtypes_of(frame: str) -> dict[str, str]:
    """The dtype name of each column of a frame."""
    return {column.name: column.dtype for column in FRAMES[frame]}


def _place_of(label: str, message: str) -> int:
    """Where a label begins; -1 where it does not occur, or only as the end of a longer name: ``peak mem usage=`` is no ``mem usage=``."""
    at = message.find(label)
    name = label.lstrip(" #")
    if not label.endswith(("=", ": ")) or not name[0].isalpha():
        return at
    lead = label.count(" ", 0, 1)
    while at >= 0 and _BEFORE_LABEL.search(message, max(0, at - 8), at + lead) is None:
        at = message.find(label, at + 1)
    return at


def _set_to(flag: str, value: str, groups: Mapping[str, Any], message: str) -> str | None:
    """The new value of a flag: a constant, a named group (``{name}``), what the message prints after ``flag=`` (``=``), or unsaid (empty)."""
    if value == "=":
        spelled = flag.replace("_", "[-_]")
        found = re.search(rf"(?:(?<![\w-])|--){spelled}(?: ?==? ?|'?: | to | )['`\"]?([\w./+-]*\w)", message)
        return found[1] if found else None
    if value.startswith("{") and value.endswith("}"):
        return groups.get(value[1:-1])
    return value or None


def _typed(value: str, dtype: str | None) -> int | float | str:
    if dtype not in INTEGERS and dtype != "Float64":
        return value
    try:
        return int(float(value)) if dtype in INTEGERS else float(value)
    except (ValueError, OverflowError) as error:  # 1.0.02: two numbers that were torn
        raise CutRecord from error
