"""Which SGLang release wrote a log: the fields of server_args, wordings that came or went, and versions that something printed.

SGLang does not print its version. Every sign (``patterns/releases.toml``) narrows the range from below or from above; a sign that no release of
the range so far agrees with is left out, since forks mix wordings. A printed version is taken where it lies in the range.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from logforensics.parsing import packs
from logforensics.records import record
from logforensics.sglang import flags

if TYPE_CHECKING:
    import polars as pl

Frames = Mapping[str, "pl.DataFrame"]
Start = tuple[str, int]  # source and number of a server start

_NO_DATE = 1970  # the year of a time stamp that was printed without a date


@record(frozen=True)
class Sign:
    """A wording by which a release is told: what must hold in some row of a frame, and the releases it then excludes."""

    frame: str
    says: str
    since: str | None = None
    until: str | None = None
    where: Mapping[str, str | list[str]] | None = None
    has: str | None = None
    lacks: str | None = None
    dated: bool | None = None

    def may_show(self, frame: pl.DataFrame) -> bool:
        """Whether it is worth asking a frame."""
        return self.has is None or frame[self.has].null_count() < frame.height

    def holds(self) -> pl.Expr:
        """Whether a row shows it."""
        import polars as pl

        conditions = [_holds(name, value) for name, value in (self.where or {}).items()]
        conditions += [pl.col(self.has).is_not_null()] if self.has else []
        conditions += [pl.col(self.lacks).is_null()] if self.lacks else []
        if self.dated is not None:
            conditions.append((pl.col("time").dt.year() > _NO_DATE) == self.dated)
        return pl.all_horizontal(conditions) if len(conditions) > 1 else conditions[0]


@record(frozen=True)
class ReleaseRange:
    """The oldest and the newest release that fit, and why."""

    low: str
    high: str
    reasons: tuple[str, ...]


def _holds(column: str, value: str | list[str]) -> pl.Expr:
    import polars as pl

    if isinstance(value, list):
        return pl.any_horizontal(_holds(column, item) for item in value)
    if value.startswith("~"):
        return pl.col(column).str.contains(value[1:], literal=True)
    return pl.col(column) == value if value else pl.col(column).is_null()


@cache
def signs() -> tuple[Sign, ...]:
    """All signs, those of older releases first."""
    return tuple(Sign(**raw) for raw in packs.tables("releases.toml")["sign"])


class Evidence:
    """What lines tell of the release that wrote them, by server start; frames may come in pieces."""

    def __init__(self) -> None:
        self._shown: dict[int, dict[Start, int]] = {}  # place of the sign -> its first line after each start
        self._printed: dict[Start, list[tuple[int, str]]] = {}

    def add(self, frames: Frames) -> None:
        """Look at more rows, which come after those seen before."""
        for name, frame in frames.items():
            if frame.height and (asked := [place for place, sign in enumerate(signs()) if sign.frame == name and sign.may_show(frame)]):
                self._ask(frame, asked)
        if "notices" in frames:
            self._printed = _printed(frames["notices"]) | self._printed

    def _ask(self, frame: pl.DataFrame, asked: list[int]) -> None:
        """Where a frame shows signs first, all of them in one pass."""
        import polars as pl

        firsts = [pl.col("line").filter(signs()[place].holds()).first().alias(str(place)) for place in asked]
        starts = frame.select_seq(pl.col("source", "launch").first(), pl.col("source", "launch").n_unique().name.suffix("s")).row(0)
        one = starts[2:] == (1, 1)  # grouping costs ten times as much as looking at a short frame
        found = frame.select_seq(pl.col("source", "launch").first(), *firsts) if one else frame.group_by("source", "launch").agg(firsts)
        for source, launch, *lines in found.iter_rows():
            for place, line in zip(asked, lines, strict=True):
                if line is not None:
                    self._shown.setdefault(place, {}).setdefault((source, launch), line)

    def range(self, launch: Mapping[str, Any] | None = None, *, alone: bool = False) -> ReleaseRange:
        """The releases that fit; all of them where nothing tells.

        Args:
            launch: the row of the server start, with the range of its fields; None for a log without one.
            alone: there is no other start, so that all lines of all sources are of this one.
        """
        start = None if launch is None or alone else (str(launch["source"]), int(launch["launch"]))
        names = flags.releases()
        low, high, reasons = names[0], names[-1], list[str]()
        if launch is not None and launch["version_low"] is not None:
            low, high = launch["version_low"], launch["version_high"]
            reasons.append(f"server_args has the fields of {low} … {high} (line {launch['line']})")
        shown = [(signs()[place], line) for place, found in sorted(self._shown.items()) if (line := _first(found, start)) is not None]
        for sign, line in shown:
            if sign.since and sign.since != low and _between(low, sign.since, high):
                low = sign.since
                reasons.append(f"{sign.says} (since {low}, line {line})")
        for sign, line in reversed(shown):
            if sign.until and sign.until != high and _between(low, sign.until, high):
                high = sign.until
                reasons.append(f"{sign.says} (until {high}, line {line})")
        for line, version in self._versions(start):
            known = flags.nearest_release(version)
            if known is not None and _between(low, known, high):
                return ReleaseRange(known, known, (*reasons, f"{version} is printed (line {line})"))
        return ReleaseRange(low, high, tuple(reasons))

    def narrow(self, launches: pl.DataFrame) -> pl.DataFrame:
        """Server starts with the range of each, and what told it."""
        import polars as pl

        ranges = [self.range(row, alone=launches.height == 1) for row in launches.iter_rows(named=True)]
        columns = {
            "version_low": [found.low for found in ranges],
            "version_high": [found.high for found in ranges],
            "version_basis": ["; ".join(found.reasons) for found in ranges],
        }
        return launches.with_columns(pl.Series(name, values, dtype=pl.String) for name, values in columns.items())

    def _versions(self, start: Start | None) -> list[tuple[int, str]]:
        if start is not None:
            return self._printed.get(start, [])
        return [item for found in self._printed.values() for item in found]


def _first(found: Mapping[Start, int], start: Start | None) -> int | None:
    """The first line after a start; of all lines where no start is given."""
    return found.get(start) if start is not None else found[min(found)]


def release_range(frames: Frames) -> ReleaseRange:
    """The releases that the rows of one server start, or of a log without one, fit."""
    evidence = Evidence()
    evidence.add(frames)
    launches = frames["launches"]
    return evidence.range(launches.row(0, named=True) if launches.height else None, alone=True)


def _between(low: str, release: str, high: str) -> bool:
    return flags.release_at_least(release, low) and flags.release_at_least(high, release)


def _printed(notices: pl.DataFrame) -> dict[Start, list[tuple[int, str]]]:
    """Lines that name a version of SGLang, with it, by server start; a few of each form."""
    import polars as pl

    # few lines name SGLang with a number behind it: only those meet the expressions
    text = pl.col("text")
    place = ("source", "launch", "line")
    named = notices.lazy().filter(text.str.contains(r"(?i)sgl(?:ang|-dev)[^\n]{0,60}[0-9]\.[0-9]")).select(*place, "text").collect()
    found: set[tuple[str, int, int, str]] = set()
    for raw in packs.tables("releases.toml")["printed"] if named.height else ():
        versions = named.select(*place, text.str.extract(raw["expression"], 1).alias("version")).drop_nulls()
        found |= set(versions.rows())
    by_start: dict[Start, list[tuple[int, str]]] = {}
    for source, launch, line, version in sorted(found):
        by_start.setdefault((source, launch), []).append((line, version))
    return by_start


def narrowed(frames: Frames) -> dict[str, pl.DataFrame]:
    """The frames with the release range of each server start narrowed by its lines, and what told it in ``version_basis``."""
    launches = frames["launches"]
    if launches.is_empty():
        return dict(frames)
    evidence = Evidence()
    evidence.add(frames)
    return dict(frames) | {"launches": evidence.narrow(launches)}
