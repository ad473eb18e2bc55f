"""What is known of SGLang's server flags: spellings, defaults and units by release, and which release a server_args line fits.

The facts are data (``data/flags.json``, rebuilt by ``maintain_flags.py``). Wherever a release is asked for, any version text will do
(``v0.5.8``, ``0.5.8.post1``): it is read as the nearest known release.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from logforensics import lazy_re
from logforensics.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_VERSION = lazy_re.compile(r"\s*v?(\d+)\.(\d+)\.(\d+)(?:[.-]?(rc|a|b|dev|post)(\d+))?(?![0-9])", re.IGNORECASE)
_UNRELEASED = frozenset({"rc", "a", "b", "dev"})


@dataclass(frozen=True, slots=True, eq=False)
class Flag:
    """One server flag. ``name`` is its canonical spelling, empty where it cannot be typed.

    ``kind`` is the type of one value: bool (a switch, takes no value), int, float, str or json; ``takes_list`` says that several values
    may follow. ``spellings`` maps each spelling to the releases whose argparse accepts it, the preferred one first; ``releases`` are
    those whose server_args has the field. ``defaults`` are pairs (since release, value). ``implied`` are spellings that carry their
    value (``--no-x`` is False). ``renamed_to`` is the field that took over the value; ``replacement`` is what to type where the
    value does not carry over.
    """

    field: str
    name: str
    kind: str
    takes_list: bool
    spellings: Mapping[str, frozenset[str]]
    releases: frozenset[str]
    defaults: tuple[tuple[str, Any], ...]
    implied: Mapping[str, Any]
    choices: tuple[Any, ...]
    scope: str | None
    unit: str | None
    meaning: str | None
    notes: tuple[str, ...]
    renamed_to: str | None
    replacement: str | None

    @property
    def is_switch(self) -> bool:
        """True for a flag that takes no value."""
        return self.kind == "bool"


def releases() -> tuple[str, ...]:
    """The known releases, oldest first."""
    return tuple(_data()["releases"])


def all_fields() -> tuple[str, ...]:
    """Every server_args field any known release has, and options without a field of their own."""
    return tuple(_entries())


@cache
def flag_by_field(name: str) -> Flag | None:
    """The flag of a server_args field such as ``hicache_size``; None for a field no known release has."""
    entry = _entries().get(name)
    return _flag(entry) if entry else None


def find_flag(spelling: str, release: str | None = None) -> Flag | None:
    """The flag that a word such as ``--tp`` means to the argparse of a release; None where argparse would refuse it.

    Aliases and unambiguous abbreviations are resolved as argparse does. Without a release the newest one that understands the word
    decides, a full spelling before an abbreviation.

    Raises:
        InputError: the release cannot be read.
    """
    if release is not None:
        return _resolve(spelling, _known(release))
    newest_first = releases()[::-1]
    exact = (_options(r).get(spelling) for r in newest_first)
    abbreviated = (_resolve(spelling, r) for r in newest_first)
    return next((f for f in exact if f), None) or next((f for f in abbreviated if f), None)


def accepted(spelling: str, release: str) -> bool:
    """True where the argparse of the release takes the word, as a full spelling or an unambiguous abbreviation.

    Raises:
        InputError: the release cannot be read.
    """
    return find_flag(spelling, release) is not None


def flag_in(field: str, release: str) -> Flag | None:
    """The flag that holds a field's value in a release, following renames forwards and backwards; None where there is none.

    Raises:
        InputError: the release cannot be read.
    """
    wanted = _known(release)
    return next((f for f in _family(field) if any(wanted in found for s, found in f.spellings.items() if s not in f.implied)), None)


def spelling_for(field: str, release: str) -> str | None:
    """The preferred spelling of a field that a release accepts, following renames; None where the release has nothing.

    Raises:
        InputError: the release cannot be read.
    """
    flag = flag_in(field, release)
    if flag is None:
        return None
    wanted = _known(release)
    return next(s for s, found in flag.spellings.items() if wanted in found and s not in flag.implied)


def default(field: str, release: str) -> Any:
    """The default written in the source of a release; None often means that SGLang computes it, and stands for unknown fields too.

    Raises:
        InputError: the release cannot be read.
    """
    flag = flag_by_field(field)
    if flag is None:
        return None
    valid = [value for since, value in flag.defaults if release_at_least(_known(release), since)]
    return valid[-1] if valid else None


def release_at_least(a: str, b: str) -> bool:
    """True where version ``a`` is ``b`` or newer. Post releases count as newer, release candidates as older.

    Raises:
        InputError: one of the two cannot be read.
    """
    return _order(a) >= _order(b)


def nearest_release(text: str) -> str | None:
    """The known release that speaks for a version text; None where it cannot be read (``latest``, ``nightly-dev``).

    Suffixes are ignored: ``0.5.8.post1`` is 0.5.8, and ``0.5.3rc0`` is the 0.5.3 it became. A patch version between two known ones is
    the one below; older than the oldest is the oldest, newer than the newest is the newest.
    """
    found = _VERSION.match(text)
    if found is None:
        return None
    wanted = (int(found[1]), int(found[2]), int(found[3]))
    below = [r for r in releases() if _order(r)[:3] <= wanted]
    return below[-1] if below else releases()[0]


def fingerprint(fields: Collection[str], *, complete: bool = True) -> tuple[str | None, str | None, str]:
    """The range of releases whose server_args fields fit the given names best, and why: ``(low, high, evidence)``.

    Names that no release has (forks add their own) are ignored; the releases with the fewest mismatches win. ``complete=False`` is for
    a line that was cut: only the fields it has count then, not those it lacks. Both ends are None where no name is known.
    """
    known = {f for f in fields if _entries().get(f, {}).get("in")}
    if not known:
        return None, None, "no field of a known release"
    mismatches = _mismatches(known, complete=complete)
    fewest = min(mismatches.values())
    if complete and fewest > len(known) // 2:  # an excerpt that somebody shortened, whatever the caller believes
        return fingerprint(known, complete=False)
    best = [r for r in releases() if mismatches[r] == fewest]
    return best[0], best[-1], _evidence(known, best[0], best[-1], fewest, complete=complete)


def _mismatches(known: set[str], *, complete: bool) -> dict[str, int]:
    """For every release the number of fields that only one side has; with ``complete=False`` those that only the line has."""
    fitting, lacking = dict.fromkeys(releases(), 0), dict.fromkeys(releases(), 0)
    for ranges, fields in _fields_by_span().items():
        both = len(known & fields)
        for release in _span(ranges):
            fitting[release] += both
            lacking[release] += len(fields) - both
    return {r: len(known) - fitting[r] + (lacking[r] if complete else 0) for r in releases()}


def _evidence(known: set[str], low: str, high: str, mismatches: int, *, complete: bool) -> str:
    """One sentence: how many fields fit, which one rules out the release before, and which one the release after."""
    order = releases()
    before, after = order.index(low) - 1, order.index(high) + 1
    parts = [f"{len(known)} known server_args fields, mismatches: {mismatches}"]
    if before >= 0:
        parts += _difference(known, low, order[before], complete=complete)
    if after < len(order):
        parts += _difference(known, high, order[after], complete=complete)
    return "; ".join(parts)


def _difference(known: set[str], fitting: str, other: str, *, complete: bool) -> list[str]:
    """What tells the fitting release from another one: a field that only one of the two has."""
    of_fitting, of_other = _fields_of(fitting), _fields_of(other)
    has = sorted(known & of_fitting - of_other)
    if has:
        return [f"has {has[0]}, which {other} lacks"]
    lacks = sorted(of_other - of_fitting - known) if complete else []
    return [f"lacks {lacks[0]}, which {other} has"] if lacks else []


def _resolve(spelling: str, release: str) -> Flag | None:
    options = _options(release)
    if spelling in options:
        return options[spelling]
    if len(spelling) <= len("--") or not spelling.startswith("--"):
        return None
    longer = [s for s in options if s.startswith(spelling)]
    return options[longer[0]] if len(longer) == 1 else None


def _known(release: str) -> str:
    nearest = release if release in _positions() else nearest_release(release)
    if nearest is None:
        raise InputError(f"cannot read the SGLang release {release!r}: write it like {releases()[-1]}")
    return nearest


def _order(version: str) -> tuple[int, int, int, int]:
    found = _VERSION.match(version)
    if found is None:
        raise InputError(f"cannot read the SGLang release {version!r}: write it like {releases()[-1]}")
    suffix, number = (found[4] or "").lower(), int(found[5] or 0)
    return int(found[1]), int(found[2]), int(found[3]), -1 if suffix in _UNRELEASED else number


@cache
def _family(field: str) -> tuple[Flag, ...]:
    """A field's flag, then its successors, then its predecessors: everything that holds the same value under another name."""
    later = [field] if field in _entries() else []
    while later and (heir := _entries()[later[-1]].get("renamed_to")) and heir not in later:
        later.append(heir)
    earlier = [name for name, heir in _renamed() if heir in later and name not in later]
    return tuple(flag for name in (*later, *earlier) if (flag := flag_by_field(name)))


@cache
def _data() -> dict[str, Any]:
    text = (files("logforensics.sglang") / "data" / "flags.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@cache
def _positions() -> dict[str, int]:
    return {release: position for position, release in enumerate(_data()["releases"])}


@cache
def _entries() -> dict[str, dict[str, Any]]:
    """The records of ``data/flags.json`` by field; most logs ask for few of them as a :class:`Flag`."""
    return {entry["field"]: entry for entry in _data()["flags"]}


@cache
def _renamed() -> tuple[tuple[str, str], ...]:
    """Fields whose value another field took over."""
    return tuple((field, entry["renamed_to"]) for field, entry in _entries().items() if entry.get("renamed_to"))


@cache
def _options(release: str) -> dict[str, Flag]:
    """Every full spelling that a release accepts."""
    every = (flag for field in _entries() if (flag := flag_by_field(field)))
    return {s: flag for flag in every for s, found in flag.spellings.items() if release in found}


@cache
def _fields_by_span() -> dict[str, set[str]]:
    """Fields by the ranges of releases whose server_args have them, as they are written in the data."""
    found: dict[str, set[str]] = {}
    for field, entry in _entries().items():
        found.setdefault(entry.get("in", ""), set()).add(field)
    return found


@cache
def _fields_of(release: str) -> set[str]:
    return {field for ranges, fields in _fields_by_span().items() if release in _span(ranges) for field in fields}


def _flag(entry: Mapping[str, Any]) -> Flag:
    return Flag(
        field=entry["field"],
        name=entry.get("name", ""),
        kind=entry["kind"],
        takes_list=entry.get("list", False),
        spellings={s: _span(ranges) for s, ranges in entry.get("spellings", {}).items()},
        releases=_span(entry.get("in", "")),
        defaults=tuple(entry.get("defaults", {}).items()),
        implied=entry.get("implied", {}),
        choices=tuple(entry.get("choices", ())),
        scope=entry.get("scope"),
        unit=entry.get("unit"),
        meaning=entry.get("meaning"),
        notes=tuple(entry.get("notes", ())),
        renamed_to=entry.get("renamed_to"),
        replacement=entry.get("replacement"),
    )


@cache
def _span(ranges: str) -> frozenset[str]:
    """The releases of ``0.1.26-0.3.0,0.5.2``."""
    found: set[str] = set()
    for part in filter(None, ranges.split(",")):
        first, _, last = part.partition("-")
        found.update(_data()["releases"][_positions()[first] : _positions()[last or first] + 1])
    return frozenset(found)
