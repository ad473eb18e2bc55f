"""What a comparison holds. Values stand in the order of the sides; None where a log does not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from logforensics.findings import Arithmetic
from logforensics.records import record
from logforensics.run import Mark

if TYPE_CHECKING:
    import polars as pl

SCHEMA = "logforensics.comparison/1"


class Outcome(str, Enum):
    """What a pair of runs comes to."""

    BETTER = "better"  # the candidate is
    WORSE = "worse"  # the candidate is
    NO_DIFFERENCE = "no_significant_difference"
    TRADE_OFF = "trade_off"  # more of one thing for less of another
    NOT_COMPARABLE = "not_comparable"
    UNDECIDED = "undecided"  # the logs hold nothing to compare


class Measured(NamedTuple):
    """A figure and the line it stands on (None for a figure over many lines)."""

    value: float
    mark: Mark | None = None


class Setting(NamedTuple):
    """The effective value of a flag and where it comes from: the log, a default, SGLang itself."""

    value: Any
    origin: str
    mark: Mark | None = None


@record(frozen=True)
class Side:
    """One run, or a group of runs that share a flag's value."""

    name: str
    label: str
    sources: tuple[str, ...]
    release_low: str | None
    release_high: str | None
    verdict: str
    finding: str | None
    stage: str
    served: bool
    figures: Mapping[str, Measured]
    settings: Mapping[str, Setting]
    complete: bool  # server_args are logged whole, so that what is not among them has its default
    steady: bool  # the samples are steady lines; False for a fragment, where every decode line counts
    free_range: tuple[float, float] | None  # free GiB before loading, the rank with least and the rank with most
    architecture_bytes: float | None  # KV bytes per token and rank by the architecture, where the model is known
    samples: pl.DataFrame = field(repr=False)
    chunks: pl.DataFrame = field(repr=False)
    members: int = 1
    notes: tuple[str, ...] = ()

    def value(self, key: str) -> float | None:
        """A figure's value, None where the log does not give it."""
        measured = self.figures.get(key)
        return None if measured is None else measured.value


@record(frozen=True)
class Figure:
    """One row: the same figure of every side. ``changes`` are relative to the baseline (0.37 is +37 %)."""

    section: str
    key: str
    label: str
    unit: str
    values: tuple[float | None, ...]
    changes: tuple[float | None, ...]
    marks: tuple[Mark | None, ...]


@record(frozen=True)
class Difference:
    """A setting with different effective values. ``matters`` is False for ports, names and the like."""

    flag: str
    field: str
    values: tuple[Any, ...]
    origins: tuple[str, ...]
    matters: bool


class Interval(NamedTuple):
    """A 95 % bootstrap interval."""

    low: float
    high: float

    @property
    def excludes_one(self) -> bool:
        """Whether a ratio of one lies outside."""
        return self.low > 1 or self.high < 1


@record(frozen=True)
class LoadPoint:
    """Decode speed (token/s of one scheduler) at one number of running requests; medians, and the ratio candidate over baseline."""

    running_low: int
    running_high: int
    lines: tuple[int, int]
    medians: tuple[float, float]
    ratio: float
    interval: Interval | None  # None where a side has fewer than five lines


@record(frozen=True)
class EqualLoad:
    """Decode speed where both runs carried the same load.

    ``matched`` says on what: ``running and tokens``, ``running``, or ``saturation`` (no batch size in common, both kept requests
    waiting). Throughputs are token/s of one scheduler, weighted by interval; ``steps`` are steps/s per request.
    """

    matched: str
    lines: tuple[int, int]
    running: tuple[float, float]
    tokens: tuple[float | None, float | None]
    throughput: tuple[float, float]
    ratio: float
    interval: Interval | None
    accept: tuple[float | None, float | None]
    steps: tuple[float, float]


@record(frozen=True)
class PrefillSpeed:
    """Median input throughput (token/s) of prefill batches of at least 1,024 new tokens."""

    lines: tuple[int, int]
    medians: tuple[float, float]
    ratio: float
    interval: Interval | None


@record(frozen=True)
class Verdict:
    """The answer in words: one sentence, and what it rests on."""

    outcome: Outcome
    better: str | None  # name of the better side
    summary: str
    reasons: tuple[str, ...] = ()


@record(frozen=True)
class Pair:
    """The baseline against one other side."""

    baseline: str
    candidate: str
    equal_load: EqualLoad | None
    points: tuple[LoadPoint, ...]
    prefill: PrefillSpeed | None
    bytes_per_token: int | None
    arithmetic: tuple[Arithmetic, ...]
    verdict: Verdict


@record(frozen=True)
class Comparison:
    """Two or more runs side by side."""

    sides: tuple[Side, ...]
    baseline: str
    by: str | None
    differences: tuple[Difference, ...]
    figures: tuple[Figure, ...]
    pairs: tuple[Pair, ...]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The verdict of the first pair: all there is where two runs are compared."""
        return self.pairs[0].verdict

    def figure(self, key: str) -> Figure | None:
        """A row by its key, such as ``kv_tokens``; None where no log gives it."""
        return next((row for row in self.figures if row.key == key), None)

    def difference(self, name: str) -> Difference | None:
        """A differing setting by its server_args field or its flag."""
        return next((item for item in self.differences if name in (item.field, item.flag)), None)
