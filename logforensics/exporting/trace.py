"""The Trace Event Format that Perfetto and chrome://tracing open: stages, batches, requests and trouble on one clock."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from logforensics.comparison.starts import by_source, by_start
from logforensics.errors import InputError
from logforensics.run import Mark, Run, build_run
from logforensics.run.model import Rank
from logforensics.run.timeline import timelines
from logforensics.secrets import mask

if TYPE_CHECKING:
    import polars as pl

    from logforensics.parsing import ParsedLog

Event = dict[str, Any]
_SPANS = (
    ("connect ranks", "init_dist_begin", "init_dist_end"),
    ("load weights", "load_begin", "load_end"),
    ("allocate memory pools", "load_end", "pool_end"),
    ("capture graphs", "graph_begin", "graph_end"),
)
_COUNTERS = {"running requests": "running", "waiting requests": "queue", "KV usage": "usage", "gen throughput (token/s)": "gen_throughput"}
_SERVER = 0  # thread of what belongs to no rank
_MOST = 200
_ENDS = {"receive": "b", "finish": "e"}


def trace_events(parsed: ParsedLog) -> Iterator[str]:
    """The trace as pieces of one JSON document; time is in microseconds since the first dated line.

    Raises:
        InputError: no line of the log has a time.
    """
    starts = [(source, number, build_run(start), start) for source in by_source(parsed) for number, start in enumerate(by_start(source), 1)]
    origin = _first_time(parsed)
    if origin is None:
        raise InputError(f"{', '.join(parsed.sources)}: no line has a time, so there is no clock to draw a trace on")
    about = {"source": [mask(name) for name in parsed.sources], "origin": origin.isoformat(sep=" ")}
    yield f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [\n'
    separator = ""
    for process, (source, number, run, start) in enumerate(starts, 1):
        name = f"{source.sources[0]} start {number}"
        for event in _of_start(process, name, run, start, origin):
            yield separator + json.dumps(event)
            separator = ",\n"
    yield "\n]}\n"


def _first_time(parsed: ParsedLog) -> datetime | None:
    """The earliest time of any line; not every first line has one."""
    times = [frame["time"].min() for frame in parsed.frames.values()]
    return min((time for time in times if isinstance(time, datetime)), default=None)


def _of_start(process: int, name: str, run: Run, parsed: ParsedLog, origin: datetime) -> Iterator[Event]:
    """All events of one server start."""
    threads = {rank: number for number, rank in enumerate(dict.fromkeys([*run.ranks, *run.ledgers, Rank()]), 1)}
    yield _named("process_name", process, _SERVER, mask(name))
    yield _named("thread_name", process, _SERVER, "server")
    for rank, thread in threads.items():
        yield _named("thread_name", process, thread, rank.label)
    made = [*_stages(run, threads), *_moments(run, threads)]
    for event, time in made:
        yield {"pid": process, **event, "ts": _microseconds(time, origin)}
    for event, time in _batches(parsed.frames, threads):
        yield {"pid": process, **event, "ts": _microseconds(time, origin)}
    for event, time in _requests(parsed.frames["requests"]):
        yield {"pid": process, **event, "ts": _microseconds(time, origin)}


def _stages(run: Run, threads: Mapping[Rank, int]) -> Iterator[tuple[Event, datetime]]:
    """How long each rank took over each stage, and the server from its first line to ready."""
    if run.launch is not None and run.ready is not None:
        yield from _span("start", _SERVER, run.launch.mark, run.ready)
    for name, begin, end in _SPANS:
        if begin in run.stages and end in run.stages:
            for rank, mark in run.stages[begin].marks.items():
                if rank in run.stages[end].marks:
                    yield from _span(name, threads[rank], mark, run.stages[end].marks[rank])


def _span(name: str, thread: int, begin: Mark, end: Mark) -> Iterator[tuple[Event, datetime]]:
    if begin.time is not None and end.time is not None and end.time >= begin.time:
        lines = {"first line": begin.line, "last line": end.line}
        event = {"ph": "X", "cat": "stage", "name": name, "tid": thread, "dur": _microseconds(end.time, begin.time), "args": lines}
        yield event, begin.time


def _moments(run: Run, threads: Mapping[Rank, int]) -> Iterator[tuple[Event, datetime]]:
    """Single moments: ready, errors, watchdogs, endings, retractions."""
    found: list[tuple[str, str, Rank, Mark]] = [("ready", "stage", Rank(), run.ready)] if run.ready else []
    found += [(f"{item.kind}: {item.message}", "error", item.rank, item.mark) for item in run.failures]
    found += [(item.text, "watchdog", item.rank, item.mark) for item in run.watchdogs]
    found += [(item.text or item.event, "shutdown", item.rank, item.mark) for item in run.shutdowns]
    found += [(f"retraction of {item.requests} requests", "retraction", Rank(), item.mark) for item in run.serving.retractions]
    for text, category, rank, mark in found:
        if mark.time is not None:
            thread = threads.get(rank, _SERVER) if rank != Rank() else _SERVER
            name = mask(text)[:_MOST]
            yield {"ph": "i", "s": "t", "cat": category, "name": name, "tid": thread, "args": {"line": mark.line}}, mark.time


def _batches(frames: Mapping[str, pl.DataFrame], threads: Mapping[Rank, int]) -> Iterator[tuple[Event, datetime]]:
    """Prefill and decode lines as long as they stand for, and their figures as counters."""
    for rank, lines in timelines(frames["decode"], frames["prefill"]):
        thread = threads.get(rank, _SERVER)
        for row in _dated(lines):
            seconds = row["weight"] or 0.0
            # a decode line is printed after its steps, a prefill line before its batch runs
            shift = -seconds if row["decode"] else 0.0
            figures = (
                "running",
                "queue",
                "usage",
                "tokens",
                "new_token",
                "cached_token",
                "gen_throughput",
                "input_throughput",
                "accept_len",
                "line",
            )
            args = {name: row[name] for name in figures if row.get(name) is not None}
            kind = "decode" if row["decode"] else "prefill"
            event = {"ph": "X", "cat": "batch", "name": kind, "tid": thread, "dur": round(1e6 * seconds), "args": args}
            yield event, _moved(row["time"], shift)
            if row["decode"]:
                for label, name in _COUNTERS.items():
                    if row.get(name) is not None:
                        yield {"ph": "C", "name": f"{label} {rank.label}", "tid": thread, "args": {"value": row[name]}}, row["time"]


def _requests(requests: pl.DataFrame) -> Iterator[tuple[Event, datetime]]:
    """Requests by their ids, where --log-requests printed them; refused ones as moments."""
    for row in _dated(requests):
        if row["rid"] and row["event"] in _ENDS:
            yield {"ph": _ENDS[row["event"]], "cat": "request", "name": "request", "id": row["rid"], "tid": _SERVER}, row["time"]
        elif row["status"] is not None:
            name = f"HTTP {row['status']} {row['method'] or ''} {row['path'] or ''}".strip()
            event = {"ph": "i", "s": "t", "cat": "request", "name": mask(name), "tid": _SERVER, "args": {"line": row["line"]}}
            yield event, row["time"]


def _dated(frame: pl.DataFrame) -> Iterable[dict[str, Any]]:
    import polars as pl

    return frame.filter(pl.col("time").is_not_null()).iter_rows(named=True)


def _moved(time: datetime, seconds: float) -> datetime:
    from datetime import timedelta

    return time + timedelta(seconds=seconds)


def _microseconds(time: datetime, origin: datetime) -> int:
    return round((time - origin).total_seconds() * 1e6)


def _named(kind: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
