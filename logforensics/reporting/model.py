"""What a post-mortem holds, whatever form it is written in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logforensics.diagnosis import Diagnosis
from logforensics.records import record

SCHEMA = "logforensics.report/1"


@record(frozen=True)
class Place:
    """A line of the log."""

    source: str
    line: int


@record(frozen=True)
class Moment:
    """An entry of the timeline. ``kind`` is start, trouble, load, finding or end; ``time`` is ISO 8601."""

    time: str | None
    place: Place
    kind: str
    text: str


@record(frozen=True)
class Setting:
    """A flag: what was typed, what SGLang printed, and what became of it; "" where the log does not say."""

    flag: str
    typed: str
    logged: str
    default: str
    effect: str
    place: Place | None


@record(frozen=True)
class Foresight:
    """When a finding could first be told from the log, and how long before it mattered."""

    code: str
    title: str
    place: Place
    time: str | None
    stage: str
    seconds_before: float | None  # before the first trouble, or the end of the log
    by_flags_alone: bool


@record(frozen=True)
class Chart:
    """A chart: a Vega-Lite specification with its data, words for those who do not see it, and its figures.

    ``zooms`` says that its horizontal axis is the time of the run.
    """

    key: str
    title: str
    caption: str
    spec: Mapping[str, Any]
    figures: tuple[tuple[str, ...], ...]  # header first
    zooms: bool = False


@record(frozen=True)
class Excerpt:
    """Consecutive lines of a log; ``cited`` are those that something refers to."""

    source: str
    lines: tuple[tuple[int, str], ...]
    cited: frozenset[int]


@record(frozen=True)
class Report:
    """A whole post-mortem. Secrets are masked in every string of it."""

    title: str
    diagnosis: Diagnosis
    impact: tuple[str, ...]
    timeline: tuple[Moment, ...]
    settings: tuple[Setting, ...]
    foresight: tuple[Foresight, ...]
    advice: tuple[str, ...]
    charts: tuple[Chart, ...]
    excerpts: tuple[Excerpt, ...]
    versions: tuple[tuple[str, str], ...]
    anonymized: bool = False
