"""How far the clocks of two machines are apart, from what all ranks of a run do at the same moment.

Nobody prints the other machine's time, but a start has barriers: no rank leaves the rendezvous before the last one has come, and the KV pool is
sized by a collective over all ranks. The lines after a barrier are written within a fraction of a second on every node; stamps have whole seconds.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from datetime import datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING, Any

from logforensics import lazy_re
from logforensics.run.model import Clock, Mark, Rank

if TYPE_CHECKING:
    import polars as pl

    from logforensics.run.grouping import File

_BARRIERS = ("init_dist_end", "kv_pool", "pool_end", "graph_begin", "graph_end", "capacity")
_TOGETHER = 2.0  # seconds: two stamps of one event, cut to whole seconds, with what it takes to write the line
_RESOLUTION = 1.0
_FEW_SAMPLES = 2.0
_COLLECTIVE_SECONDS = 5.0  # ranks enter a collective within this time, or it is not known which of them was late
_ZONE_SECONDS = 1800
_START_SECONDS = 120.0  # nodes are started within two minutes of each other, where only time zones are asked for
_WATCHDOG = lazy_re.compile(
    r"collective operation timeout: Work\w+\(SeqNum=(\d+), OpType=(\w+)\b.{0,400}?ran for (\d+) milliseconds", re.DOTALL
)
_TORCH = lazy_re.compile(r"\[[EWIF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)")

Anchors = Mapping[Any, Mark]


def clock_of(file: File, reference: File) -> Clock:
    """The clock of a file against that of the reference."""
    if file.work.keys() & reference.work.keys() and (file.node == reference.node or None in (file.node, reference.node)):
        return Clock(0.0, 0.0, "same")
    found = _from(_barriers(file), _barriers(reference), "barrier", _RESOLUTION)
    return found or _from(_collectives(file), _collectives(reference), "collective", _COLLECTIVE_SECONDS) or _from_starts(file, reference)


def _from(here: Anchors, there: Anchors, basis: str, least: float) -> Clock | None:
    """The offset on which most events agree; None where the files have no event in common."""
    pairs = [(_seconds(here[key], there[key]), here[key], there[key]) for key in here if key in there]
    if not pairs:
        return None
    offsets = sorted(pair[0] for pair in pairs)
    cluster = max((offsets[at : bisect_right(offsets, low + _TOGETHER)] for at, low in enumerate(offsets)), key=len)
    middle = median(cluster)
    agreed = cluster if len(cluster) * 2 >= len(offsets) else offsets
    doubt = max(least, (agreed[-1] - agreed[0]) / 2, _FEW_SAMPLES if len(pairs) == 1 else 0.0)
    _, mark, other = min(pairs, key=lambda pair: (abs(pair[0] - middle), pair[1].line))
    return Clock(middle, doubt, basis, len(pairs), mark, other)


def _seconds(here: Mark, there: Mark) -> float:
    if here.time is None or there.time is None:
        raise ValueError("an event without a time is no anchor")
    return (here.time - there.time).total_seconds()


def _barriers(file: File) -> dict[Any, Mark]:
    """The first line after each barrier, over the ranks of a file; a draft model's are the second of their kind.

    Pipeline stages size and capture each for themselves: they share only the rendezvous.
    """
    import polars as pl

    stages = _BARRIERS[:1] if (file.args.get("pp_size") or 1) > 1 else _BARRIERS
    parts = [
        frame.select("line", "time", *Rank._fields, stage)
        for frame, stage in (
            (file.frames["memory"], pl.col("stage")),
            (file.frames["kv_pool"], pl.lit("kv_pool").alias("stage")),
            (file.frames["capacity"], pl.lit("capacity").alias("stage")),
        )
    ]
    events = pl.concat(parts, how="vertical_relaxed").filter(pl.col("stage").is_in(stages) & pl.col("time").is_not_null()).sort("line")
    counted = events.with_columns(pl.int_range(pl.len()).over("stage", *Rank._fields).alias("turn"))
    first = counted.sort("time", "line").group_by("stage", "turn", maintain_order=True).first()
    return {(row["stage"], row["turn"]): Mark(file.source, row["line"], row["time"]) for row in first.iter_rows(named=True)}


def _collectives(file: File) -> dict[Any, Mark]:
    """When each collective began that a watchdog gave up on: the stamp less the time it ran."""
    begin = _beginning(file)
    year = begin.time.year if begin is not None and begin.time is not None else None
    found: dict[Any, Mark] = {}
    for name, column in (("watchdog", "text"), ("notices", "text"), ("errors", "message")):
        for line, time, text in _telling(file.frames[name], column).iter_rows():
            said, when = _WATCHDOG.search(text), time or _torch_stamp(text, year)
            if said is not None and when is not None:
                found.setdefault((said[1], said[2]), Mark(file.source, line, when - timedelta(milliseconds=int(said[3]))))
    return found


def _telling(frame: pl.DataFrame, column: str) -> pl.DataFrame:
    import polars as pl

    return frame.filter(pl.col(column).str.contains("operation timeout", literal=True)).select("line", "time", column)


def _torch_stamp(text: str, year: int | None) -> datetime | None:
    """PyTorch's own stamp, which has no year: ``[E611 08:12:33.645831412 ProcessGroupNCCL.cpp:616]``."""
    found = _TORCH.search(text)
    if found is None or year is None:
        return None
    month, day, hour, minute, second = (int(part) for part in found.groups())
    try:
        return datetime(year, month, day, hour, minute, second)
    except ValueError:
        return None


def _from_starts(file: File, reference: File) -> Clock:
    """Without a common event only a time zone can be told: nodes of one run are started within minutes."""
    here, there = _beginning(file), _beginning(reference)
    if here is not None and there is not None:
        offset = _seconds(here, there)
        zone = round(offset / _ZONE_SECONDS) * _ZONE_SECONDS
        if zone and abs(offset - zone) <= _START_SECONDS:
            return Clock(float(zone), _START_SECONDS, "start", 1, here, there)
    return Clock(None, None, "unknown")


def _beginning(file: File) -> Mark | None:
    if file.launch is not None and file.launch.mark.time is not None:
        return file.launch.mark
    dated = [work.first for work in file.work.values() if work.first.time is not None and work.starts]
    return min(dated, key=lambda mark: mark.line, default=None)
