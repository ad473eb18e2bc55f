"""Pattern packs: how SGLang says things, as data (``patterns/*.toml``).

A pattern names its event and frame, the literal it is recognised by, and where each column's value stands:

``head``    the message begins with this literal · ``find`` the literal may stand anywhere in the message (lists are alternatives)
``fields``  column = label: the number after that label, wherever it stands · ``text`` column = [label, terminator]
``regex``   named groups become columns, for what labels cannot say · ``set`` constant columns · ``required`` columns that must be found
``bulk``    the whole message as an expression of Rust's regex crate, for lines that come by the thousand (see parsing/bulk.py)
``bulk_open = true`` the ``bulk`` expression describes only the message's beginning; the message must end with a closing bracket
``bare = true`` the record has no bracket of SGLang's even where others have one (progress bars)
``unbroken = false`` allows a number at the very end of a piece that was cut off by another record
``[[pattern.sample]]`` a line and what it gives, run as a test.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from logforensics.errors import PatternError
from logforensics.schema import FRAMES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEY = 4  # letters by which heads are grouped; no head is shorter
_NUMBER = re.compile(r" ?(-?\d+(?:\.\d+)?(?:e-?\d+)?)")
_INTEGERS = {"Int32", "Int64", "UInt64", "UInt16", "UInt32"}
_KEYS = {
    "event",
    "frame",
    "head",
    "find",
    "fields",
    "text",
    "regex",
    "set",
    "required",
    "bare",
    "bulk",
    "bulk_open",
    "unbroken",
    "sample",
    "since",
    "until",
    "note",
    "level",
}


class CutRecord(Exception):  # noqa: N818 - control flow between pattern and reader, never seen outside this room
    """A record was recognised but its values are cut: it must be counted as damaged, not turned into a row."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A line that the pattern must read, and the columns it must give."""

    line: str
    gives: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One way SGLang says one thing."""

    event: str
    frame: str | None  # None: known noise, counted but without a row
    heads: tuple[str, ...]
    finds: tuple[str, ...]
    fields: tuple[tuple[str, tuple[str, ...], bool], ...]  # column, labels, integer
    texts: tuple[tuple[str, str, str], ...]
    regex: re.Pattern[str] | None
    constants: Mapping[str, Any]
    required: frozenset[str]
    unbroken: bool
    bare: bool
    bulk: str | None
    bulk_open: bool
    origin: str
    samples: tuple[Sample, ...] = field(default=(), compare=False)

    def read(self, message: str, *, cut: bool) -> dict[str, Any] | None:
        """The columns of ``message``, or None if this pattern does not fit.

        ``cut`` says that the message did not end with a newline of its own: a number that touches its end is not to be trusted.

        Raises:
            CutRecord: the pattern fits but a required value is missing or may be cut.
        """
        row = dict(self.constants)
        if self.regex is not None:
            found = self.regex.search(message)
            if found is None:
                return None
            for name, value in found.groupdict().items():
                if value is not None:
                    if cut and self.unbroken and found.end(name) == len(message):
                        raise CutRecord
                    row[name] = _typed(value, self.frame, name)
        for column, labels, integer in self.fields:
            for label in labels:
                at = message.find(label)
                if at < 0 or (number := _NUMBER.match(message, at + len(label))) is None:
                    continue
                if cut and self.unbroken and number.end() == len(message):
                    raise CutRecord
                row[column] = int(float(number[1])) if integer else float(number[1])
                break
        for column, label, stop in self.texts:
            at = message.find(label)
            if at >= 0:
                begin = at + len(label)
                end = message.find(stop, begin) if stop else -1
                row[column] = message[begin : end if end >= 0 else None].strip()
        if not self.required <= row.keys():
            raise CutRecord
        return row


@dataclass(frozen=True, slots=True)
class Packs:
    """All patterns, by the literals that make a message worth trying them."""

    patterns: tuple[Pattern, ...]
    heads: Mapping[str, tuple[tuple[str, int], ...]]  # the first letters of a message -> (its beginning, place of the pattern)
    finds: Mapping[str, tuple[int, ...]]  # a literal anywhere in it -> places of the patterns

    @property
    def literals(self) -> list[str]:
        """Every literal of every pattern."""
        return sorted({*self.finds, *(head for group in self.heads.values() for head, _ in group)})

    def match(self, message: str, *, cut: bool, heads_only: bool = False) -> tuple[Pattern, dict[str, Any]] | None:
        """The first pattern that reads ``message``, with its columns.

        Raises:
            CutRecord: a pattern fits but the record is cut.
        """
        places = [place for head, place in self.heads.get(message[:_KEY], ()) if message.startswith(head)]
        if not heads_only:
            for literal, found in self.finds.items():
                if literal in message:
                    places += found
        for place in sorted(set(places)) if len(places) > 1 else places:
            if (row := self.patterns[place].read(message, cut=cut)) is not None:
                return self.patterns[place], row
        return None


def _typed(value: str, frame: str | None, name: str) -> Any:
    dtype = _dtypes(frame).get(name) if frame else None
    if dtype in _INTEGERS:
        return int(float(value))
    return float(value) if dtype == "Float64" else value


@cache
def _dtypes(frame: str) -> dict[str, str]:
    return {column.name: column.dtype for column in FRAMES[frame]}


def folder() -> Path:
    """Where the packs are: ``patterns/`` of a checkout, or the copy inside an installed wheel."""
    installed = Path(str(resources.files("logforensics"))) / "_patterns"
    return installed if installed.is_dir() else Path(__file__).resolve().parents[2] / "patterns"


def tables(name: str) -> dict[str, Any]:
    """A pack read as plain TOML.

    Raises:
        PatternError: the file is missing or is not TOML.
    """
    path = folder() / name
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PatternError(f"{path}: {error.strerror}: reinstall logforensics") from error
    except tomllib.TOMLDecodeError as error:
        raise PatternError(f"{path}: not valid TOML: {error}") from error


@cache
def load() -> Packs:
    """All packs of ``patterns/``, compiled.

    Raises:
        PatternError: a pattern is malformed; the message names the file and the event.
    """
    patterns = tuple(
        compile_pattern(raw, f"{path.name}: pattern {number} ({raw.get('event', '?')})")
        for path in sorted(folder().glob("*.toml"))
        for number, raw in enumerate(tables(path.name).get("pattern", []), 1)
    )
    heads: dict[str, list[tuple[str, int]]] = defaultdict(list)
    finds: dict[str, list[int]] = defaultdict(list)
    for place, pattern in enumerate(patterns):
        for head in pattern.heads:
            heads[head[:_KEY]].append((head, place))
        for literal in pattern.finds:
            finds[literal].append(place)
    return Packs(patterns, {key: tuple(found) for key, found in heads.items()}, {key: tuple(found) for key, found in finds.items()})


def compile_pattern(raw: Mapping[str, Any], origin: str) -> Pattern:
    """Check one TOML table and make a :class:`Pattern` of it.

    Raises:
        PatternError: a key or column is unknown, or nothing says how to recognise the line.
    """
    if unknown := raw.keys() - _KEYS:
        raise PatternError(f"{origin}: unknown key {sorted(unknown)[0]!r}")
    frame = raw.get("frame")
    if frame is not None and frame not in FRAMES:
        raise PatternError(f"{origin}: there is no frame {frame!r}")
    heads, finds = _texts_of(raw.get("head")), _texts_of(raw.get("find"))
    if not heads and not finds:
        raise PatternError(f"{origin}: needs `head` or `find`, the literal it is recognised by")
    if short := [head for head in heads if len(head) < _KEY]:
        raise PatternError(f"{origin}: the head {short[0]!r} is shorter than {_KEY} characters")
    dtypes = _dtypes(frame) if frame else {}
    columns = {*raw.get("fields", {}), *raw.get("text", {}), *raw.get("set", {}), *raw.get("required", [])}
    if frame and (unknown_columns := columns - dtypes.keys()):
        raise PatternError(f"{origin}: frame {frame!r} has no column {sorted(unknown_columns)[0]!r}")
    return Pattern(
        event=raw["event"],
        frame=frame,
        heads=heads,
        finds=finds,
        fields=tuple((column, _texts_of(label), dtypes.get(column) in _INTEGERS) for column, label in raw.get("fields", {}).items()),
        texts=tuple((column, label[0], label[1]) for column, label in raw.get("text", {}).items()),
        regex=_compiled(raw.get("regex"), origin),
        constants=raw.get("set", {}),
        required=frozenset(raw.get("required", [])),
        unbroken=raw.get("unbroken", True),
        bare=raw.get("bare", False),
        bulk=raw.get("bulk"),
        bulk_open=raw.get("bulk_open", False),
        origin=origin,
        samples=tuple(Sample(sample["line"], sample["gives"]) for sample in raw.get("sample", [])),
    )


def _compiled(expression: str | None, origin: str) -> re.Pattern[str] | None:
    if expression is None:
        return None
    try:
        return re.compile(expression)
    except re.error as error:
        raise PatternError(f"{origin}: the regex does not compile: {error}") from error


def _texts_of(value: str | Sequence[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)
