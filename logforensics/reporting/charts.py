"""The charts of a report as Vega-Lite specifications. Colours are left to the page, except where they carry a meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from logforensics.render.words import number, plural
from logforensics.reporting.model import Chart
from logforensics.reporting.series import MAX_POINTS, downsampled
from logforensics.run.model import Rank, Run
from logforensics.watching.loading import latest_bars

if TYPE_CHECKING:
    import polars as pl

_GUTTER = 48  # px left of every chart over time, so that the same moment stands below itself
_DAY = 20  # hours, from which on an axis needs dates
_MOST_LINES = 16  # schedulers drawn; more cannot be told apart
_METRICS = (
    ("throughput", "Throughput", "gen_throughput", "token/s"),
    ("running", "Running requests", "running_req", "requests"),
    ("queue", "Waiting requests", "queue_req", "requests"),
    ("kv_usage", "KV cache usage", "token_usage", "share of the pool"),
)
_PHASES = (
    ("connect", "ranks connect", "init_dist_begin", "init_dist_end"),
    ("load", "load weights", "load_begin", "load_end"),
    ("pools", "memory pools", "load_end", "pool_end"),
    ("graphs", "capture graphs", "graph_begin", "graph_end"),
    ("host", "host pools", "hicache", "hicache"),
    ("ready", "until ready", "capacity", "ready"),
)
_LEDGER = (("weights_gib", "weights"), ("kv_gib", "KV cache"), ("graphs_gib", "CUDA graphs"), ("other", "other"), ("left_gib", "left"))
_LEDGER_COLOURS = ("#4c78a8", "#f58518", "#72b7b2", "#9d9da0", "#54a24b")


def charts_of(run: Run, facts: Mapping[str, Any], frames: Mapping[str, pl.DataFrame]) -> tuple[Chart, ...]:
    """Every chart the log has data for.

    Args:
        run: the run.
        facts: its JSON form.
        frames: the frames of its server start.
    """
    found = [_stages(run), _loading(frames["load_progress"]), _memory(facts), *(_metrics(frames["decode"]))]
    return tuple(chart for chart in found if chart is not None)


def _spec(rows: Sequence[Mapping[str, Any]], **parts: Any) -> dict[str, Any]:
    return {"width": "container", "data": {"values": list(rows)}, **parts}


def _by_colour(lines: int) -> dict[str, Any]:
    """A colour for each of several lines; one line has the colour of the page."""
    return (
        {"color": {"field": "s", "type": "nominal", "title": None, "legend": {"orient": "bottom", "labelLimit": 300}}} if lines > 1 else {}
    )


# ---------------------------------------------------------------------------------------------------------------- serving


def _metrics(decode: pl.DataFrame) -> Iterator[Chart]:
    import polars as pl

    lines = decode.filter(pl.col("pp").fill_null(0) == 0)  # the stages of a pipeline print the same tokens
    parts = lines.partition_by("source", "dp", "tp", maintain_order=True)[:_MOST_LINES] if lines.height else []
    timed = bool(parts) and lines["time"].null_count() == 0
    for key, title, column, unit in _METRICS:
        figure = pl.col(column).cast(pl.Float64)
        series = {_scheduler(part, parts): part.filter(figure.is_finite()) for part in parts}  # null is not finite either
        series = {name: part for name, part in series.items() if part.height}
        if series:
            yield _metric(key, title, column, unit, series, timed=timed)


def _scheduler(part: pl.DataFrame, parts: Sequence[pl.DataFrame]) -> str:
    name = Rank(*part.select("tp", "dp").row(0)).label
    sources = {other["source"][0] for other in parts}
    return name if len(sources) == 1 else f"{name} of log {sorted(sources).index(part['source'][0]) + 1}"


def _metric(key: str, title: str, column: str, unit: str, series: Mapping[str, pl.DataFrame], *, timed: bool) -> Chart:
    rows: list[dict[str, Any]] = []
    for name, part in series.items():
        kept = downsampled(part, column, max(4, MAX_POINTS // len(series)))
        for line, time, value in kept.select("line", "time", column).iter_rows():
            rows.append(
                {"x": time.isoformat() + "Z" if timed else line, "at": f"{time:%H:%M:%S}" if time else "", "v": value, "s": name, "n": line}
            )
    total = sum(part.height for part in series.values())
    thinned = f"; {len(rows):,} of {total:,} lines drawn, lows and highs of every stretch kept" if len(rows) < total else ""
    axis = "time" if timed else "line of the log, which has no times"
    spec = _spec(
        rows,
        height=170,
        mark={"type": "line", "interpolate": "linear", "strokeWidth": 1.5, "point": len(rows) < 60},
        params=[{"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales"}],
        encoding={
            "x": _time_axis(_span(series)) if timed else {"field": "x", "type": "quantitative", "title": "line", "scale": {"zero": False}},
            "y": {"field": "v", "type": "quantitative", "title": unit, "scale": _from_zero(rows), "axis": {"minExtent": _GUTTER}},
            **_by_colour(len(series)),
            "tooltip": [
                {"field": "v", "type": "quantitative", "title": unit, "format": ",.4~g" if column == "token_usage" else ",.1f"},
                {"field": "at", "title": "time"},
                {"field": "s", "title": "scheduler"},
                {"field": "n", "type": "quantitative", "title": "line", "format": ","},
            ],
        },
    )
    figures: list[tuple[str, ...]] = [("scheduler", "lowest", "median", "highest", "last")]
    figures += [(name, *(number(value) for value in _summary(part[column]))) for name, part in series.items()]
    whose = f" of {len(series)} schedulers" if len(series) > 1 else ""
    caption = f"{unit}, as {plural(total, 'decode line')}{whose} printed it, over {axis}{thinned}."
    return Chart(key, title, caption, spec, tuple(figures), zooms=timed)


def _span(series: Mapping[str, pl.DataFrame]) -> float:
    """Hours between the first and the last line."""
    times = [part["time"][place] for part in series.values() for place in (0, -1)]
    hours: float = (max(times) - min(times)).total_seconds() / 3600
    return hours


def _from_zero(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The scale of a figure that is never negative; where it is always 0, that lies at the bottom."""
    return {"domainMin": 0} if any(row["v"] for row in rows) else {"domainMin": 0, "domainMax": 1}


def _time_axis(hours: float = 0.0) -> dict[str, Any]:
    """SGLang prints local time without a zone: it is drawn as it stands, wherever the page is read."""
    axis = {"format": "%H:%M:%S" if hours < _DAY else "%d %b %H:%M", "labelOverlap": True, "tickCount": 6}
    return {"field": "x", "type": "temporal", "title": None, "scale": {"type": "utc"}, "axis": axis}


def _summary(values: pl.Series) -> tuple[float, ...]:
    import polars as pl

    plain = values.cast(pl.Float64)
    row: tuple[float, ...] = pl.select(
        pl.lit(plain.min()), middle=pl.lit(plain.median()), high=pl.lit(plain.max()), last=pl.lit(plain[-1])
    ).row(0)
    return tuple(round(value, 4) for value in row)


# ---------------------------------------------------------------------------------------------------------------- start


def _stages(run: Run) -> Chart | None:
    rows, figures = [], [("phase", "from", "to", "seconds", "lines")]
    for _, name, begin, end in _PHASES:
        first, last = run.stages.get(begin), run.stages.get(end)
        if first is None or last is None:
            continue
        start, stop = (first.last if begin == "load_end" else first.first), last.last
        if start.time is None or stop.time is None or stop.time < start.time:
            continue
        seconds = (stop.time - start.time).total_seconds()
        span = f"{start.time:%H:%M:%S} to {stop.time:%H:%M:%S}"
        rows.append({"p": name, "x": f"{start.time.isoformat()}Z", "x2": f"{stop.time.isoformat()}Z", "span": span, "sec": seconds})
        figures.append((name, f"{start.time:%H:%M:%S}", f"{stop.time:%H:%M:%S}", number(seconds), f"{start.line}–{stop.line}"))
    if not rows:
        return None
    spec = _spec(
        rows,
        height=24 * len(rows),
        mark={"type": "bar", "height": 14, "cornerRadius": 2, "minBandSize": 2, "stroke": "#4c78a8", "strokeWidth": 2, "color": "#4c78a8"},
        encoding={
            "y": {"field": "p", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 140}},
            "x": _time_axis(),
            "x2": {"field": "x2"},
            "tooltip": [
                {"field": "p", "title": "phase"},
                {"field": "span", "title": "time"},
                {"field": "sec", "title": "seconds", "type": "quantitative"},
            ],
        },
    )
    return Chart("stages", "Stages of the start", "From the first rank that began a phase to the last that ended it.", spec, tuple(figures))


def _loading(progress: pl.DataFrame) -> Chart | None:
    if progress.height < 2:
        return None
    rows = []
    kept = downsampled(progress, "shards_done", MAX_POINTS)
    for row in kept.iter_rows(named=True):
        rank = Rank(row["tp"], row["dp"], row["pp"])
        name = row["kind"] if rank == Rank() else f"{row['kind']} ({rank.label})"
        rows.append(
            {"x": row["elapsed_s"], "v": row["percent"], "s": name, "n": row["line"], "d": f"{row['shards_done']} of {row['shards_total']}"}
        )
    spec = _spec(
        rows,
        height=150,
        mark={"type": "line", "interpolate": "step-after", "point": len(rows) < 80},
        encoding={
            "x": {"field": "x", "type": "quantitative", "title": "seconds since the bar began"},
            "y": {"field": "v", "type": "quantitative", "title": "% loaded", "scale": {"domain": [0, 100]}},
            **_by_colour(len({row["s"] for row in rows})),
            "tooltip": [
                {"field": "d", "title": "shards"},
                {"field": "x", "title": "seconds", "type": "quantitative"},
                {"field": "n", "title": "line", "type": "quantitative"},
            ],
        },
    )
    figures = [("bar", "shards", "seconds", "shards/s")]
    figures += [
        (
            f"{bar['kind']} {bar['rank']}".strip(),
            f"{bar['shards_done']} of {bar['shards_total']}",
            number(bar["elapsed_s"]),
            number(bar["rate_per_s"]),
        )
        for bar in latest_bars(progress)
    ]
    return Chart("loading", "Checkpoint loading", "What the progress bars say.", spec, tuple(figures))


def _memory(facts: Mapping[str, Any]) -> Chart | None:
    ledgers = [ledger for ledger in facts["memory"]["gpu"] if ledger["weights_gib"] is not None]
    rows = []
    for ledger in ledgers:
        values = {key: ledger.get(key) or 0.0 for key, _ in _LEDGER}
        before = ledger["free_before_load_gib"]
        values["other"] = max(0.0, round(before - sum(values.values()), 2)) if before is not None else 0.0
        rows += [{"r": ledger["rank"], "c": name, "v": values[key], "o": place} for place, (key, name) in enumerate(_LEDGER) if values[key]]
    if not rows:
        return None
    spec = _spec(
        rows,
        height=22 * len(ledgers),
        mark={"type": "bar", "height": 14},
        encoding={
            "y": {"field": "r", "type": "nominal", "sort": None, "title": None},
            "x": {"field": "v", "type": "quantitative", "title": "GiB", "stack": "zero"},
            "color": {
                "field": "c",
                "type": "nominal",
                "title": None,
                "scale": {"domain": [name for _, name in _LEDGER], "range": list(_LEDGER_COLOURS)},
                "legend": {"orient": "bottom", "columns": 3},
            },
            "order": {"field": "o"},
            "tooltip": [
                {"field": "r", "title": "rank"},
                {"field": "c", "title": "what"},
                {"field": "v", "title": "GiB", "type": "quantitative"},
            ],
        },
    )
    header = ("rank", "free before loading", "weights", "KV cache", "CUDA graphs", "left")
    keys = ("free_before_load_gib", "weights_gib", "kv_gib", "graphs_gib", "left_gib")
    table = [(ledger["rank"], *("" if ledger[key] is None else f"{ledger[key]:.2f}" for key in keys)) for ledger in ledgers]
    caption = "GiB of GPU memory by rank, from what was free before loading to what is left after the start."
    return Chart("memory", "GPU memory by rank", caption, spec, (header, *table))
