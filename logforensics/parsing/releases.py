"""Which SGLang release wrote a log: the fields of server_args, wordings that came or went, and versions that something printed.

SGLang does not print its version. Every sign (``patterns/releases.toml``) narrows the range from below or from above; a sign that no release of
the range so far agrees with is left out, since forks mix wordings. A printed version is taken where it lies in the range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from logforensics.parsing import packs
from logforensics.records import record
from logforensics.sglang import flags

if TYPE_CHECKING:
    import polars as pl

Frames = Mapping[str, "pl.DataFrame"]


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

    def line_in(self, frames: Frames) -> int | None:
        """The first line that shows it; None where none does."""
        import polars as pl

        frame = frames.get(self.frame)
        if frame is None or frame.is_empty():
            return None
        if self.has is not None and frame[self.has].null_count() == frame.height:
            return None
        conditions = [_holds(name, value) for name, value in (self.where or {}).items()]
        conditions += [pl.col(self.has).is_not_null()] if self.has else []
        conditions += [pl.col(self.lacks).is_null()] if self.lacks else []
        if self.dated is not None:
            conditions.append((pl.col("time").dt.year() > 1970) == self.dated)
        line = frame.lazy().filter(conditions).select(pl.col("line").first()).collect()["line"] if conditions else frame["line"]
        return int(line[0]) if line.len() and line[0] is not None else None


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
    """What the lines of one server start, or of a log without one, tell of their release; frames may come in pieces."""

    def __init__(self) -> None:
        self._shown: dict[int, int] = {}  # place of the sign -> its first line
        self._printed: list[tuple[int, str]] = []

    def add(self, frames: Frames) -> None:
        """Look at more rows, which come after those seen before."""
        for place, sign in enumerate(signs()):
            if place not in self._shown and (line := sign.line_in(frames)) is not None:
                self._shown[place] = line
        if not self._printed and (notices := frames.get("notices")) is not None:
            self._printed = _printed(notices)

    def range(self, launch: Mapping[str, Any] | None = None) -> ReleaseRange:
        """The releases that fit; all of them where nothing tells. ``launch`` is the row of the start, with the range of its fields."""
        names = flags.releases()
        low, high, reasons = names[0], names[-1], list[str]()
        if launch is not None and launch["version_low"] is not None:
            low, high = launch["version_low"], launch["version_high"]
            reasons.append(f"server_args has the fields of {low} … {high} (line {launch['line']})")
        shown = [(signs()[place], line) for place, line in sorted(self._shown.items())]
        for sign, line in shown:
            if sign.since and sign.since != low and _between(low, sign.since, high):
                low = sign.since
                reasons.append(f"{sign.says} (since {low}, line {line})")
        for sign, line in reversed(shown):
            if sign.until and sign.until != high and _between(low, sign.until, high):
                high = sign.until
                reasons.append(f"{sign.says} (until {high}, line {line})")
        for line, version in self._printed:
            known = flags.nearest_release(version)
            if known is not None and _between(low, known, high):
                return ReleaseRange(known, known, (*reasons, f"{version} is printed (line {line})"))
        return ReleaseRange(low, high, tuple(reasons))


def release_range(frames: Frames) -> ReleaseRange:
    """The releases that the rows of one server start, or of a log without one, fit."""
    evidence = Evidence()
    evidence.add(frames)
    launches = frames["launches"]
    return evidence.range(launches.row(0, named=True) if launches.height else None)


def _between(low: str, release: str, high: str) -> bool:
    return flags.release_at_least(release, low) and flags.release_at_least(high, release)


def _printed(notices: pl.DataFrame) -> list[tuple[int, str]]:
    """Lines that name a version of SGLang, with it; at most a few."""
    import polars as pl

    # few lines name SGLang with a number behind it: only those meet the expressions
    text = pl.col("text")
    named = notices.lazy().filter(text.str.contains(r"(?i)sgl(?:ang|-dev)[^\n]{0,60}[0-9]\.[0-9]")).select("line", "text").collect()
    found: set[tuple[int, str]] = set()
    for raw in packs.tables("releases.toml")["printed"] if named.height else ():
        versions = named.select("line", text.str.extract(raw["expression"], 1).alias("version")).drop_nulls()
        found |= set(versions.head(5).rows())
    return sorted(found)


def narrowed(frames: Frames) -> dict[str, pl.DataFrame]:
    """The frames with the release range of each server start narrowed by its lines, and what told it in ``version_basis``."""
    launches = frames["launches"]
    if launches.is_empty():
        return dict(frames)
    ranges = [release_range(of_launch(frames, row) if launches.height > 1 else frames) for row in launches.iter_rows(named=True)]
    return dict(frames) | {"launches": with_ranges(launches, ranges)}


def with_ranges(launches: pl.DataFrame, ranges: Sequence[ReleaseRange]) -> pl.DataFrame:
    """Server starts with the range of each, and what told it."""
    import polars as pl

    columns = {
        "version_low": [found.low for found in ranges],
        "version_high": [found.high for found in ranges],
        "version_basis": ["; ".join(found.reasons) for found in ranges],
    }
    return launches.with_columns(pl.Series(name, values, dtype=pl.String) for name, values in columns.items())


def of_launch(frames: Frames, launch: Mapping[str, Any]) -> dict[str, pl.DataFrame]:
    """The rows of one server start."""
    import polars as pl

    here = (pl.col("launch") == launch["launch"]) & (pl.col("source") == launch["source"])
    return {name: frame.filter(here) for name, frame in frames.items()}
