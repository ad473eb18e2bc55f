"""Serving windows: what the batch lines say about load and throughput. Weights and gaps are made in :mod:`logforensics.run.timeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logforensics.run.balance import balance
from logforensics.run.model import BatchWindow, Drift, GraphUse, Mark, Occupancy, PrefillSummary, Rank, Retraction, Serving, Slope
from logforensics.run.parts import MERGED
from logforensics.run.prefills import prefill_window
from logforensics.run.timeline import FULL_USAGE, ROOMY_USAGE, first_by, largest_of, mark_at, place_columns, timelines

if TYPE_CHECKING:
    import polars as pl

_SLOPE_LINES = 6
_SLOPE_GROWTH = 1.02
_SAME_EVENT_SECONDS = 2
_DRIFT_LINES = 30
_CONTEXT_BAND = 0.223  # ln 1.25: contexts within a quarter of each other count as alike


def summarise(decode: pl.DataFrame, prefill: pl.DataFrame, retractions: pl.DataFrame) -> Serving:
    """Figures of the serving phase from the batch frames."""
    schedulers = list(timelines(decode, prefill))
    windows = tuple(_window(rank, lines) for rank, lines in schedulers if lines["decode"].any())
    prefills = tuple(prefill_window(rank, lines) for rank, lines in schedulers if not lines["decode"].all())
    events = _retractions(retractions)
    return Serving(
        windows=windows,
        prefill=_prefill(prefill) if prefill.height else None,
        retraction_events=len(events),
        retraction_first=events[0].mark if events else None,
        retraction_last=events[-1].mark if events else None,
        prefills=prefills,
        retractions=events,
        retractions_per_minute=_busiest_minute(events),
        balance=balance(schedulers),
    )


# ------------------------------------------------------------------------------------------------ one scheduler


def _window(rank: Rank, lines: pl.DataFrame) -> BatchWindow:
    import polars as pl

    decode = lines.filter(pl.col("decode"))
    waiting = pl.col("queue") > 0
    full, roomy = waiting & (pl.col("usage") >= FULL_USAGE), waiting & (pl.col("usage") < ROOMY_USAGE)
    total = float(lines["weight"].sum())
    facts = _decode_facts(decode)
    shares = {
        name: float(lines.filter(rows)["weight"].sum()) / total for name, rows in (("full", full), ("waiting", waiting), ("roomy", roomy))
    }
    roomy_lines = decode.filter(roomy)
    steps = _steady(decode)
    return BatchWindow(
        rank=rank,
        lines=decode.height,
        seconds=total,
        idle_seconds=float(lines["idle"].sum()),
        first=mark_at(decode, 0),
        last=mark_at(decode, -1),
        throughput_mean=_mean_throughput(decode),
        throughput_peak=facts["peak"] or 0.0,
        running_max=facts["running_max"],
        running_median=facts["running_median"],
        queue_max=int(largest_of(lines["queue"])),
        queue_median=facts["queue_median"],
        usage_max=largest_of(lines["usage"]),
        usage_median=facts["usage_median"],
        full_usage_median=facts["full_usage"],
        swa_usage_median=facts["swa_usage"],
        mamba_usage_median=facts["mamba_usage"],
        accept_len_mean=facts["accept"] if facts["accept_weight"] else None,
        accept_weight=int(facts["accept_weight"] or 0),
        accept_mark=first_by(decode.drop_nulls("accept_len"), "accept_len", descending=False),
        graph_off_share=facts["graph_off"],
        graph=_graph(decode),
        steps_median=median_of(steps),
        steady_lines=steps.len(),
        slope=_slope(decode),
        drift=_drift(decode),
        full_share=shares["full"],
        full_mark=first_by(lines.filter(full), "queue"),
        waiting_share=shares["waiting"],
        waiting_roomy_share=shares["roomy"],
        roomy_mark=first_by(roomy_lines, "queue"),
        roomy_running=tuple(roomy_lines["running"].unique().sort(descending=True).to_list()),
        num_tokens_max=facts["tokens"],
        occupancy=tuple(_occupancy(lines)),
    )


def median_of(values: pl.Series) -> float | None:
    """Median as a plain float."""
    middle = values.median()
    return float(middle) if isinstance(middle, (int, float)) else None


def _decode_facts(decode: pl.DataFrame) -> dict[str, Any]:
    import polars as pl

    accepting = pl.col("running").filter(pl.col("accept_len").is_not_null())
    return decode.select(
        peak=pl.col("gen_throughput").max(),
        running_max=pl.col("running").max(),
        running_median=pl.col("running").median(),
        queue_median=pl.col("queue").median(),
        usage_median=pl.col("usage").median(),
        full_usage=pl.coalesce("full_token_usage", "token_usage").median(),
        swa_usage=pl.col("swa_token_usage").median(),
        mamba_usage=pl.col("mamba_usage").median(),
        accept=(pl.col("accept_len") * pl.col("running")).sum() / accepting.sum(),
        accept_weight=accepting.sum(),
        graph_off=1 - pl.col("cuda_graph").cast(pl.Float64).mean(),
        tokens=pl.col("tokens").max(),
    ).row(0, named=True)


def _mean_throughput(decode: pl.DataFrame) -> float:
    """Token/s weighted by the interval each figure covers: since the previous decode line; lines after a gap have no weight."""
    import polars as pl

    table = decode.with_columns((pl.col("time").diff().dt.total_milliseconds() / 1000).alias("span"))
    typical = table["span"].drop_nulls().median()
    limit = max(10.0, 5.0 * float(typical)) if isinstance(typical, (int, float)) else 10.0
    table = table.filter((pl.col("span") >= 0) & (pl.col("span") <= limit) & pl.col("gen_throughput").is_not_null())
    seconds = float(table["span"].sum())
    if not seconds:
        plain = decode["gen_throughput"].mean()
        return float(plain) if isinstance(plain, (int, float)) else 0.0
    return float((table["gen_throughput"] * table["span"]).sum()) / seconds


def _steady(decode: pl.DataFrame) -> pl.Series:
    """Steps/s per request of the steady lines; a line after a prefill or a gap says nothing."""
    import polars as pl

    lines = decode.filter(pl.col("steady") & (pl.col("running") > 0) & (pl.col("gen_throughput") > 0))
    return lines.select(
        pl.col("gen_throughput") / (pl.col("running") * pl.col("accept_len").fill_null(1.0).clip(lower_bound=1.0))
    ).to_series()


def _graph(decode: pl.DataFrame) -> GraphUse | None:
    import polars as pl

    known = decode.filter(pl.col("cuda_graph").is_not_null() & (pl.col("running") > 0))
    if known.is_empty():
        return None
    on, off = known.filter(pl.col("cuda_graph")), known.filter(~pl.col("cuda_graph"))
    weight = float(known["weight"].sum())
    share = float(off["weight"].sum()) / weight if weight else off.height / known.height
    return GraphUse(
        on_lines=on.height,
        off_lines=off.height,
        on_running_max=int(largest_of(on["running"])) if on.height else None,
        off_running_min=int(-largest_of(-off["running"])) if off.height else None,
        off_running_max=int(largest_of(off["running"])) if off.height else None,
        off_share=share,
        off_mark=first_by(off, "running"),
        on_mark=first_by(on, "running"),
    )


def _slope(decode: pl.DataFrame) -> Slope | None:
    """Speed against tokens over the longest stretch of steady lines with one batch size and growing contexts."""
    import polars as pl

    changed = (pl.col("running") != pl.col("running").shift(1)) | ~pl.col("steady") | (pl.col("tokens") < pl.col("tokens").shift(1))
    table = decode.with_columns(changed.fill_null(value=True).cum_sum().alias("stretch"))
    # the first line of a stretch still averages over what was before it
    table = table.filter(
        pl.col("steady") & (pl.col("stretch") == pl.col("stretch").shift(1)) & (pl.col("tokens") > 0) & (pl.col("gen_throughput") > 0)
    )
    if table.height < _SLOPE_LINES:
        return None
    longest = table.group_by("stretch", maintain_order=True).len().sort("len", descending=True, maintain_order=True).row(0)[0]
    lines = table.filter(pl.col("stretch") == longest)
    tokens, speed = lines["tokens"].cast(pl.Float64), lines["gen_throughput"]
    if lines.height < _SLOPE_LINES or tokens[-1] < _SLOPE_GROWTH * tokens[0]:
        return None
    fit = (
        pl.DataFrame({"x": tokens.log(), "y": speed.log()}).select(cov=pl.cov("x", "y"), var=pl.col("x").var(), r=pl.corr("x", "y")).row(0)
    )
    if not fit[1] or fit[2] is None:
        return None
    return Slope(
        running=int(lines["running"][0]),
        lines=lines.height,
        tokens_first=int(tokens[0]),
        tokens_last=int(tokens[-1]),
        speed_first=float(speed[0]),
        speed_last=float(speed[-1]),
        elasticity=fit[0] / fit[1],
        correlation=fit[2],
        first=mark_at(lines, 0),
        last=mark_at(lines, -1),
    )


def _drift(decode: pl.DataFrame) -> Drift | None:
    """Whether steps got slower: the batch size with most steady lines, contexts within a quarter of each other."""
    import polars as pl

    step = pl.col("gen_throughput") / (pl.col("running") * pl.col("accept_len").fill_null(1.0).clip(lower_bound=1.0))
    size = (pl.col("tokens").clip(lower_bound=1).log() / _CONTEXT_BAND).floor()
    lines = decode.filter(pl.col("steady") & pl.col("steady").shift(1) & (pl.col("running") > 0) & (pl.col("gen_throughput") > 0))
    lines = lines.with_columns(step.alias("step"), size.alias("size"))
    groups = lines.group_by("running", "size", maintain_order=True).len().sort("len", descending=True, maintain_order=True)
    if groups.is_empty() or groups["len"][0] < _DRIFT_LINES:
        return None
    same = lines.filter((pl.col("running") == groups["running"][0]) & (pl.col("size") == groups["size"][0]))
    third = same.height // 3
    before, after = median_of(same["step"].head(third)), median_of(same["step"].tail(third))
    if before is None or after is None:
        return None
    return Drift(int(groups["running"][0]), same.height, before, after, mark_at(same, 0), mark_at(same, -1))


def _occupancy(lines: pl.DataFrame) -> list[Occupancy]:
    """Time by number of running requests, state of the queue and state of the pools."""
    import polars as pl

    band = (
        pl.when(pl.col("usage") >= FULL_USAGE)
        .then(pl.lit("full"))
        .when(pl.col("mamba_usage").fill_null(0.0) >= FULL_USAGE)
        .then(pl.lit("states"))
        .when(pl.col("usage") >= ROOMY_USAGE)
        .then(pl.lit("high"))
        .otherwise(pl.lit("room"))
    )
    kind = pl.when(pl.col("steady")).then(pl.lit("steady")).when(pl.col("decode")).then(pl.lit("decode")).otherwise(pl.lit("prefill"))
    place = pl.struct(place_columns(lines))
    keyed = lines.with_columns(band.alias("band"), kind.alias("kind"), (pl.col("queue") > 0).alias("waiting"))
    states = keyed.group_by("running", "kind", "waiting", "band", maintain_order=True).agg(
        seconds=pl.col("weight").sum(),
        lines=pl.len(),
        usage=pl.col("usage").mean(),
        queue_max=pl.col("queue").max(),
        mark=place.sort_by("queue", descending=True, maintain_order=True).first(),
        first=place.first(),
        last=place.last(),
    )
    return [Occupancy(**{**row, **{name: Mark(**row[name]) for name in ("mark", "first", "last")}}) for row in states.iter_rows(named=True)]


# ------------------------------------------------------------------------------------------------ the whole server


def _prefill(lines: pl.DataFrame) -> PrefillSummary:
    largest = lines.sort("new_token", descending=True, nulls_last=True, maintain_order=True)
    return PrefillSummary(
        lines=lines.height,
        new_token=int(lines["new_token"].sum() or 0),
        cached_token=int(lines["cached_token"].sum() or 0),
        first=mark_at(lines, 0),
        last=mark_at(lines, -1),
        largest=mark_at(largest, 0),
        largest_new_token=int(largest["new_token"][0] or 0),
        queue_max=int(largest_of(lines["queue_req"].fill_null(0))),
    )


def _retractions(lines: pl.DataFrame) -> tuple[Retraction, ...]:
    """Events, not lines: every tensor-parallel rank prints the same retraction within a second or two."""
    import polars as pl

    if lines.is_empty():
        return ()
    # a rank that prints the same ratios again much later has retracted again
    file = [] if MERGED in lines.columns else ["source"]  # the ranks of one run may write into several files
    key = [*file, "dp", "retracted_req", "new_token_ratio_old", "new_token_ratio_new"]
    since = (pl.col("time") - pl.col("time").shift(1).over(key)).dt.total_seconds()
    again = lines.select(
        pl.col("tp").is_not_null() & (since <= _SAME_EVENT_SECONDS) & (pl.col("tp") != pl.col("tp").shift(1).over(key))
    ).to_series()
    events = lines.filter(~again.fill_null(value=False))
    columns = ("source", "line", "time", "retracted_req", "new_token_ratio_old", "new_token_ratio_new")
    return tuple(
        Retraction(Mark(source, line, time), requests or 0, old, new)
        for source, line, time, requests, old, new in events.select(columns).iter_rows()
    )


def _busiest_minute(events: tuple[Retraction, ...]) -> float:
    """Most retractions within any 60 seconds; 0 where the lines have no time."""
    times = sorted(event.mark.time for event in events if event.mark.time is not None)
    most, begin = 0, 0
    for end, time in enumerate(times):
        while (time - times[begin]).total_seconds() > 60:
            begin += 1
        most = max(most, end - begin + 1)
    return float(most)
