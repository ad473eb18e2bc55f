"""Frames to a :class:`~logforensics.run.model.Run`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from logforensics.parsing.releases import release_range
from logforensics.run import serving
from logforensics.run.model import (
    Capacity,
    Failure,
    GpuLedger,
    GuardRefusal,
    HostPool,
    KvPool,
    Launch,
    Link,
    LoadBar,
    Mark,
    MemoryStep,
    Notice,
    Override,
    Rank,
    Run,
    ShutdownEvent,
    StageReached,
    WatchdogEvent,
)
from logforensics.run.parts import MERGED, Part, launches_of, parts_of, ranks_in
from logforensics.run.telling import notes_of
from logforensics.run.timeline import place_columns

if TYPE_CHECKING:
    import polars as pl

    from logforensics.parsing import ParsedLog

_MAX_ROWS = 20_000  # of any one repeated kind of line a rule looks at; the frames keep all


def build_run(log: ParsedLog | Part) -> Run:
    """Facts of one run: the last server start of a file, or of the files that are its nodes and ranks; earlier starts are named in ``notes``.

    A log that holds several runs (see :func:`~logforensics.run.parts.parts_of`) is read as the first of them.
    """
    part = log if isinstance(log, Part) else parts_of(log)[0]
    frames = part.log.frames
    launches = launches_of(frames["launches"])
    memory = _memory(frames["memory"])
    first, final = _span(frames)
    run = Run(
        sources=part.log.sources,
        launches=(*(start.launch for start in part.earlier), *launches),
        launch=launches[0] if launches else None,
        ranks=tuple(sorted(ranks_in(frames), key=_order)),
        ledgers=_ledgers(memory),
        stages={},
        kv_pools=tuple(_kv_pools(frames["kv_pool"])),
        capacities=tuple(_capacities(frames["capacity"])),
        host_pools=tuple(
            HostPool(_rank(row), _mark(row), row["label"] or "kv", row["gb"], row["num_tokens"])
            for row in _rows(frames["host_pool"])
            if row["gb"] is not None
        ),
        refusals=tuple(GuardRefusal(_rank(row), _mark(row), row["requested_gb"], row["free_gb"]) for row in _rows(frames["host_guard"])),
        bars=tuple(_bars(frames["load_progress"])),
        failures=tuple(_failures(frames["errors"])),
        overrides=tuple(
            Override(_rank(row), _mark(row), row["flag"] or "", row["old"], row["new"], row["text"] or "")
            for row in _rows(frames["overrides"])
        ),
        notices=tuple(Notice(_rank(row), _mark(row), row["level"] or "unknown", row["text"] or "") for row in _rows(frames["notices"])),
        shutdowns=tuple(
            ShutdownEvent(row["event"], _rank(row), _mark(row), row["exit_code"], row["remaining_req"], row["text"] or "")
            for row in _rows(frames["shutdown"])
        ),
        watchdogs=tuple(
            WatchdogEvent(row["name"] or "Scheduler", _rank(row), _mark(row), row["timeout_s"], row["text"] or "")
            for row in _rows(frames["watchdog"])
        ),
        serving=serving.summarise(frames["decode"], frames["prefill"], frames["retractions"]),
        ready=next((_mark(row) for row in _rows(frames["ready"])), None),
        first_mark=first,
        last_mark=final,
        side=part.log.side,
        members=part.members,
        earlier=tuple(start.launch for start in part.earlier),
        releases=_releases(frames, launches[0] if launches else None),
    )
    run.stages = _stages(run)
    run.notes.extend(notes_of(part, run))
    return run


def _releases(frames: Mapping[str, pl.DataFrame], launch: Launch | None) -> tuple[str, str, str]:
    """What the frame of server starts says; without a start, what the lines tell."""
    if launch is not None and launch.version_low and launch.version_high and launch.version_basis is not None:
        return launch.version_low, launch.version_high, launch.version_basis
    found = release_range(frames)
    return found.low, found.high, "; ".join(found.reasons)


def _rows(frame: pl.DataFrame) -> Iterator[dict[str, Any]]:
    return frame.head(_MAX_ROWS).iter_rows(named=True)


def _mark(row: Mapping[str, Any]) -> Mark:
    return Mark(row["source"], row["line"], row["time"], row.get(MERGED))


def _rank(row: Mapping[str, Any]) -> Rank:
    return Rank(row["tp"], row["dp"], row["pp"], row["ep"])


def _memory(frame: pl.DataFrame) -> list[MemoryStep]:
    import polars as pl

    # graph_progress redraws thousands of times; its last state is what matters
    steady = frame.filter(pl.col("stage") != "graph_progress")
    moving = frame.filter(pl.col("stage") == "graph_progress").tail(200)
    return [
        MemoryStep(row["stage"], _rank(row), _mark(row), row["avail_gib"], row["usage_gib"], row["elapsed_s"], row["detail"])
        for part in (steady, moving)
        for row in _rows(part)
    ]


def _ledgers(steps: list[MemoryStep]) -> dict[Rank, GpuLedger]:
    by_rank: dict[Rank, list[MemoryStep]] = defaultdict(list)
    for step in sorted(steps, key=lambda step: step.mark.order):
        by_rank[step.rank].append(step)
    return {rank: GpuLedger(rank, tuple(found)) for rank, found in sorted(by_rank.items(), key=lambda item: _order(item[0]))}


def _order(rank: Rank) -> tuple[int, ...]:
    return tuple(-1 if number is None else number for number in (rank.dp, rank.pp, rank.tp, rank.ep))


def _kv_pools(frame: pl.DataFrame) -> Iterator[KvPool]:
    for row in _rows(frame):
        kind = row["kind"] or ("mla" if row["kv_gib"] is not None else "mha")
        yield KvPool(_rank(row), _mark(row), row["num_tokens"], row["k_gib"], row["v_gib"], row["kv_gib"], row["dtype"], kind, row["slots"])


def _capacities(frame: pl.DataFrame) -> Iterator[Capacity]:
    for row in _rows(frame):
        yield Capacity(
            _rank(row),
            _mark(row),
            row["max_total_num_tokens"],
            row["chunked_prefill_size"],
            row["max_prefill_tokens"],
            row["max_running_requests"],
            row["context_len"],
            row["avail_gib"],
        )


def _bars(frame: pl.DataFrame) -> Iterator[LoadBar]:
    """One per bar: a new bar begins where the count of shards falls back or the total changes. Files are read one after the other."""
    current: list[dict[str, Any]] = []
    for row in (frame.sort("source", maintain_order=True) if MERGED in frame.columns else frame).iter_rows(named=True):
        if current and (
            row["source"] != current[-1]["source"]
            or row["shards_total"] != current[-1]["shards_total"]
            or row["shards_done"] < current[-1]["shards_done"]
            or row["kind"] != current[-1]["kind"]
        ):
            yield _bar(current)
            current = []
        current.append(row)
    if current:
        yield _bar(current)


def _bar(rows: list[dict[str, Any]]) -> LoadBar:
    last = rows[-1]
    return LoadBar(
        last["kind"],
        _mark(last),
        _mark(rows[0]),
        last["percent"],
        last["shards_done"],
        last["shards_total"],
        last["elapsed_s"],
        last["rate_per_s"],
    )


def _failures(frame: pl.DataFrame) -> Iterator[Failure]:
    for row in _rows(frame):
        yield Failure(
            kind=row["kind"] or "error",
            message=row["message"] or "",
            mark=_mark(row),
            message_line=row["message_line"] or row["line"],
            line_end=row["line_end"] or row["line"],
            rank=_rank(row),
            process=row["process"],
            frames=tuple((name, number, function) for name, number, function in json.loads(row["frames"] or "[]")),
            chain=tuple(Link(*link) for link in json.loads(row["chain"] or "[]")),
        )


def _span(frames: Mapping[str, pl.DataFrame]) -> tuple[Mark, Mark]:
    """The first and the last line that any frame holds."""
    import polars as pl

    pieces = [frame.select(place_columns(frame)) for frame in frames.values() if frame.height]
    if not pieces:
        return Mark("", 1), Mark("", 1)
    order = "place" if "place" in pieces[0].columns else "line"
    lines = pl.concat([piece.sort(order).head(1) for piece in pieces] + [piece.sort(order).tail(1) for piece in pieces]).sort(order)
    return Mark(*lines.row(0)), Mark(*lines.row(-1))


def _stages(run: Run) -> dict[str, StageReached]:
    marks: dict[str, dict[Rank, Mark]] = defaultdict(dict)
    for step in run.memory_steps:
        marks[step.stage].setdefault(step.rank, step.mark)
    for pool in run.kv_pools:
        marks["kv_pool"].setdefault(pool.rank, pool.mark)
    for capacity in run.capacities:
        marks["capacity"].setdefault(capacity.rank, capacity.mark)
    for host_pool in run.host_pools:
        marks["hicache"].setdefault(host_pool.rank, host_pool.mark)
    if run.launch:
        marks["launch"][Rank()] = run.launch.mark
    if run.ready:
        marks["ready"][Rank()] = run.ready
    for window in run.serving.windows:
        marks["serving"].setdefault(window.rank, window.first)
    return {name: StageReached(name, found) for name, found in marks.items()}
