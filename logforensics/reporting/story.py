"""The story of a run in sentences: what it cost, and what happened when."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from logforensics.findings import Finding, Severity
from logforensics.render.words import number, plural, stage_name
from logforensics.reporting.model import Moment, Place
from logforensics.rules import Case
from logforensics.run.model import STAGES, Mark
from logforensics.watching.words import duration

if TYPE_CHECKING:
    import polars as pl

_TROUBLES_TOLD = 12
_Dated = tuple[Mark, str, str]  # where, kind, text


def impact_of(case: Case, requests: pl.DataFrame) -> tuple[str, ...]:
    """What the trouble meant for those who used the server."""
    return tuple(_impact(case, requests))


def _impact(case: Case, requests: pl.DataFrame) -> Iterator[str]:
    run = case.run
    if run.earlier:
        yield f"The log holds {len(run.earlier) + 1} server starts; this report is about the last one."
    elapsed = _between(run.launch.mark if run.launch else run.first_mark, run.last_mark)
    if not case.served():
        took = f" {duration(elapsed)} after its start" if elapsed else ""
        yield f"The server did not answer a single request: its log ends{took}, after the stage “{stage_name(run.stage)}”."
    else:
        yield from _served(case)
    yield from _losses(case, requests)


def _served(case: Case) -> Iterator[str]:
    run, windows = case.run, case.run.serving.windows
    start = _between(run.launch.mark, run.ready) if run.launch and run.ready else None
    if start:
        yield f"The server was ready {duration(start)} after its start."
    if windows:
        seconds = max(window.seconds for window in windows)
        mean, peak = run.serving.throughput_mean, sum(window.throughput_peak for window in windows if not window.rank.pp)
        speed = f" at {number(round(mean))} token/s on average, {number(round(peak))} at best" if isfinite(mean + peak) else ""
        yield f"It decoded for {duration(seconds)}{speed}."
        waiting = max(window.queue_max for window in windows)
        share = max(window.waiting_share for window in windows)
        if waiting:
            yield f"Up to {plural(waiting, 'request')} waited; requests were waiting {share:.0%} of the time."


def _losses(case: Case, requests: pl.DataFrame) -> Iterator[str]:
    serving = case.run.serving
    if serving.retraction_events:
        lost = sum(event.requests for event in serving.retractions)
        yield f"{plural(serving.retraction_events, 'retraction')} sent {plural(lost, 'running request')} back to the queue."
    statuses = requests.drop_nulls("status").group_by("status").len().sort("len", descending=True)
    for status, count in statuses.head(4).iter_rows():
        yield f"{plural(count, 'HTTP answer')} had the status {status}."
    troubles = case.run.troubles
    if troubles and serving.windows and troubles[0].mark.order > serving.windows[0].first.order:
        last = serving.windows[0]
        yield f"At most {plural(last.running_max, 'running request')} and the queue behind them were lost when the server failed."


def timeline_of(case: Case, findings: Sequence[Finding]) -> tuple[Moment, ...]:
    """Starts, stages, load, troubles and where findings stand, in line order; files that were merged in the order of time."""
    dated = [*_starts(case), *_load(case), *_troubles(case), (case.run.last_mark, "end", "the last line that was understood")]
    moments = [_moment(*item) for item in dated]
    order = _order([mark for mark, _, _ in dated if mark.place is not None])
    return tuple(sorted([*moments, *_found(findings)], key=lambda moment: order(moment.place)))


def _order(marks: Sequence[Mark]) -> Callable[[Place], tuple[Any, ...]]:
    """What to sort places by: file and line, or in merged files the place in time, told by the last mark before the line."""
    known = {
        source: sorted((mark.line, mark.order) for mark in marks if mark.source == source) for source in {mark.source for mark in marks}
    }

    def key(place: Place) -> tuple[Any, ...]:
        found = known.get(place.source)
        if not found:
            return (bool(known), place.source, place.line)
        line, order = found[max(0, bisect_right(found, (place.line, 1 << 62)) - 1)]
        return (False, "", order + place.line - line)

    return key


def _starts(case: Case) -> Iterator[_Dated]:
    run = case.run
    for launch in run.earlier:
        yield launch.mark, "start", "an earlier server start"
    for name in STAGES:
        stage = run.stages.get(name)
        if stage is None:
            continue
        ranks = f" on the last of {len(stage.marks)} ranks" if len(stage.marks) > 1 else ""
        yield stage.last, "start", f"{stage_name(name)}{ranks}"


def _load(case: Case) -> Iterator[_Dated]:
    serving = case.run.serving
    for window in serving.windows[:4]:
        name = f" ({window.rank.label})" if len(serving.windows) > 1 else ""
        if window.full_mark:
            yield window.full_mark, "load", f"the KV pool is full and the queue at its longest{name}"
        yield window.last, "load", f"last decode line{name}"
    if serving.retraction_first:
        yield serving.retraction_first, "load", "first retraction"


def _troubles(case: Case) -> Iterator[_Dated]:
    troubles = case.run.troubles
    for trouble in troubles[:_TROUBLES_TOLD]:
        who = f" ({trouble.rank.label})" if any(number is not None for number in trouble.rank) else ""
        place = None if trouble.mark.place is None else trouble.said_at
        yield Mark(trouble.mark.source, trouble.line, trouble.when, place), "trouble", f"{trouble.head}{who}"
    if len(troubles) > _TROUBLES_TOLD:
        rest = troubles[_TROUBLES_TOLD]
        yield rest.mark, "trouble", f"… and {len(troubles) - _TROUBLES_TOLD} more"


def _found(findings: Sequence[Finding]) -> Iterator[Moment]:
    for finding in findings:
        if finding.severity is not Severity.INFO and finding.evidence:
            first = finding.evidence[0]
            yield Moment(None, Place(first.source, first.line), "finding", f"{finding.code}: {finding.title}")


def _moment(mark: Mark, kind: str, text: str) -> Moment:
    return Moment(mark.time.isoformat() if mark.time else None, Place(mark.source, mark.line), kind, text)


def _between(first: Mark, last: Mark) -> float | None:
    if first.time is None or last.time is None:
        return None
    seconds = (last.time - first.time).total_seconds()
    return seconds if seconds >= 0 else None
