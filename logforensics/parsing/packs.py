"""Pattern packs: how SGLang says things, as data (``patterns/*.toml``).

A pattern names its event and frame, the literal it is recognised by, and where each column's value stands:

``head``    the message begins with this literal · ``find`` the literal may stand anywhere in the message (lists are alternatives)
``fields``  column = label: the number after that label, wherever it stands · ``text`` column = [label, terminator]
``regex``   named groups become columns, for what labels cannot say · ``set`` constant columns · ``required`` columns that must be found
``scale``   column = factor that turns a printed figure of the regex into the column's unit
``bulk``    the whole message as an expression of Rust's regex crate, for lines that come by the thousand (see parsing/bulk.py)
``bulk_open = true`` the ``bulk`` expression describes only the message's beginning; the message must end with a closing bracket
``sets``    one row of `overrides` for each flag = new value: a constant, ``{group}``, empty (unsaid), or ``=``, what stands after the flag
            (no row where it does not); the group ``old`` belongs to the first
``bare = true`` the record has no bracket of SGLang's even where others have one (progress bars)
``unbroken = false`` allows a number at the very end of a piece that was cut off by another record
``[[pattern.sample]]`` a line and what it gives (a list where it gives several rows), run as a test.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logforensics.errors import PatternError
from logforensics.parsing.patterns import GRAM, INTEGERS, KEY, STRIDE, Packs, Pattern, Sample, compiled, dtypes_of
from logforensics.schema import FRAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMPILED = "compiled.json"
_INSTALLED = "_patterns"  # the folder's name inside an installed wheel
_LAST = "notices.toml"  # what gives a row of its own is tried first
_KEYS = frozenset(
    [
        "event",
        "frame",
        "head",
        "find",
        "fields",
        "text",
        "regex",
        "set",
        "required",
        "unbroken",
        "bare",
        "bulk",
        "bulk_open",
        "sets",
        "scale",
        "sample",
    ]
) | {"since", "until", "note", "level"}


def folder() -> Path:
    """Where the packs are: ``patterns/`` of a checkout, or the copy inside an installed wheel."""
    package = Path(__file__).resolve().parents[1]
    installed = package / _INSTALLED
    return installed if installed.is_dir() else package.parent / "patterns"


def tables(name: str) -> dict[str, Any]:
    """A pack as a plain table, without its samples where the compiled copy is current.

    Raises:
        PatternError: the file is missing or is not TOML.
    """
    found = _all_tables().get(name)
    if found is None:
        raise PatternError(f"{folder() / name}: there is no such pattern file: reinstall logforensics")
    return found


@cache
def load() -> Packs:
    """All packs of ``patterns/``.

    Raises:
        PatternError: a pattern is malformed; the message names the file and the event.
    """
    return _packs(_all_tables())


def load_strictly() -> Packs:
    """All packs with their samples, read from the TOML files, every expression compiled.

    Raises:
        PatternError: a pattern is malformed, or an expression does not compile.
    """
    packs = _packs(_read_toml())
    for pattern in packs.patterns:
        try:
            compiled(pattern.regex or "")
        except re.error as error:  # noqa: PERF203 - the message must name the pattern
            raise PatternError(f"{pattern.origin}: the regex does not compile: {error}") from error
    return packs


@cache
def _all_tables() -> dict[str, dict[str, Any]]:
    """All packs by file name, from the compiled copy where it is current: reading TOML takes ten times as long.

    In a checkout, where packs are edited, a copy that is not current is written anew.
    """
    path = folder() / _COMPILED
    digest = _digest()
    if path.is_file():
        copy: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if copy["digest"] == digest:
            return dict(copy["tables"])
    found = _read_toml()
    if folder().name != _INSTALLED:
        _write_compiled(path, found, digest)
    return found


def _write_compiled(path: Path, found: Mapping[str, Mapping[str, Any]], digest: int) -> None:
    """Write the copy, without what only people read; a folder that cannot be written to goes without."""
    left_out = {"sample", "note"}
    tables = {
        name: dict(table) | {"pattern": [{key: raw[key] for key in raw if key not in left_out} for raw in table.get("pattern", [])]}
        for name, table in found.items()
    }
    text = json.dumps({"digest": digest, "tables": tables}, ensure_ascii=False, separators=(",", ":"))
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        unfinished.write_text(text + "\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)


def _digest() -> int:
    """A checksum of all TOML files, good enough to notice an edit."""
    total = 0
    for path in _files():
        total = zlib.crc32(path.name.encode() + path.read_bytes(), total)
    return total


def _files() -> list[Path]:
    found = sorted(folder().glob("*.toml"))
    if not found:
        raise PatternError(f"{folder()}: holds no pattern files: reinstall logforensics")
    return found


def _read_toml() -> dict[str, dict[str, Any]]:
    from logforensics import toml

    found: dict[str, dict[str, Any]] = {}
    for path in _files():
        try:
            found[path.name] = toml.loads(path.read_text(encoding="utf-8"))
        except toml.TOMLDecodeError as error:  # noqa: PERF203 - the message must name the file
            raise PatternError(f"{path}: not valid TOML: {error}") from error
    return found


def _packs(found: Mapping[str, Mapping[str, Any]]) -> Packs:
    patterns = tuple(
        compile_pattern(raw, f"{name}: pattern {number} ({raw.get('event', '?')})")
        for name in sorted(found, key=lambda name: (name == _LAST, name))
        for number, raw in enumerate(found[name].get("pattern", []), 1)
    )
    return combined(patterns)


def combined(patterns: Sequence[Pattern]) -> Packs:
    """Patterns as packs; the first that fits a line reads it."""
    heads: dict[str, list[tuple[str, int]]] = defaultdict(list)
    finds: dict[str, list[int]] = defaultdict(list)
    for place, pattern in enumerate(patterns):
        for head in pattern.heads:
            heads[head[:KEY]].append((head, place))
        for literal in pattern.finds:
            finds[literal].append(place)
    grams: dict[str, set[str]] = defaultdict(set)
    for literal in finds:
        if len(literal) >= GRAM + STRIDE - 1:
            for at in range(STRIDE):
                grams[literal[at : at + GRAM]].add(literal)
    return Packs(
        tuple(patterns),
        heads={key: tuple(group) for key, group in heads.items()},
        finds={key: tuple(places) for key, places in finds.items()},
        grams={part: tuple(sorted(literals)) for part, literals in grams.items()},
        short=tuple(literal for literal in finds if len(literal) < GRAM + STRIDE - 1),
    )


def compile_pattern(raw: Mapping[str, Any], origin: str) -> Pattern:
    """Check one TOML table and make a :class:`Pattern` of it.

    Raises:
        PatternError: a key or column is unknown, or nothing says how to recognise the line.
    """
    if unknown := raw.keys() - _KEYS:
        raise PatternError(f"{origin}: unknown key {min(unknown)!r}")
    frame = raw.get("frame")
    if frame is not None and frame not in FRAMES:
        raise PatternError(f"{origin}: there is no frame {frame!r}")
    heads, finds = _texts_of(raw.get("head")), _texts_of(raw.get("find"))
    if not heads and not finds:
        raise PatternError(f"{origin}: needs `head` or `find`, the literal it is recognised by")
    if short := [head for head in heads if len(head) < KEY]:
        raise PatternError(f"{origin}: the head {short[0]!r} is shorter than {KEY} characters")
    dtypes = dtypes_of(frame) if frame else {}
    columns = {*raw.get("fields", {}), *raw.get("text", {}), *raw.get("set", {}), *raw.get("required", [])}
    if frame and (unknown_columns := columns - dtypes.keys()):
        raise PatternError(f"{origin}: frame {frame!r} has no column {min(unknown_columns)!r}")
    if raw.get("sets") and frame != "overrides":
        raise PatternError(f"{origin}: 'sets' is for the frame 'overrides'")
    return Pattern(
        event=raw["event"],
        frame=frame,
        heads=heads,
        finds=finds,
        fields=tuple((column, _texts_of(label), dtypes.get(column) in INTEGERS) for column, label in raw.get("fields", {}).items()),
        texts=tuple((column, label[0], label[1]) for column, label in raw.get("text", {}).items()),
        regex=raw.get("regex"),
        constants=raw.get("set", {}),
        scale=raw.get("scale", {}),
        required=frozenset(raw.get("required", [])),
        unbroken=raw.get("unbroken", True),
        bare=raw.get("bare", False),
        bulk=raw.get("bulk"),
        bulk_open=raw.get("bulk_open", False),
        origin=origin,
        sets=tuple(raw.get("sets", {}).items()),
        samples=tuple(Sample(sample["line"], _rows_of(sample["gives"])) for sample in raw.get("sample", [])),
    )


def _rows_of(gives: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    return (gives,) if isinstance(gives, Mapping) else tuple(gives)


def _texts_of(value: str | Sequence[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)
