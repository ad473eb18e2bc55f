"""Serving windows: what the batch lines say about load and throughput.

``gen throughput`` counts the tokens since the previous decode line over the time since that line (SGLang
managers/scheduler_metrics_mixin.py, 0.5.5), idle time included. So a line weighs as much as its interval, and the first line after a gap says
nothing about speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logforensics.run.model import BatchWindow, Mark, PrefillSummary, Rank, Serving

if TYPE_CHECKING:
    import polars as pl

FULL_USAGE = 0.95
ROOMY_USAGE = 0.9
_GAP_FACTOR = 5.0
_GAP_SECONDS = 10.0
_RANKS = ["tp", "dp", "pp", "ep"]


def summarise(decode: pl.DataFrame, prefill: pl.DataFrame, retractions: pl.DataFrame) -> Serving:
    """Figures of the serving phase from the batch frames."""
    windows = tuple(_window(part) for part in decode.partition_by("source", *_RANKS, maintain_order=True)) if decode.height else ()
    events, first, last = _retractions(retractions)
    return Serving(windows, _prefill(prefill) if prefill.height else None, events, first, last)


def _window(lines: pl.DataFrame) -> BatchWindow:
    import polars as pl

    usage = pl.max_horizontal("token_usage", "full_token_usage", "swa_token_usage", "mamba_usage").fill_null(0.0)
    table = lines.with_columns(
        (pl.col("time").diff().dt.total_milliseconds() / 1000).alias("gap"),
        usage.alias("usage"),
        pl.col("queue_req").fill_null(0).alias("queue"),
    )
    typical = table["gap"].drop_nulls().median()
    limit = max(_GAP_SECONDS, _GAP_FACTOR * float(typical)) if isinstance(typical, (int, float)) else _GAP_SECONDS
    # a line whose interval is unknown or holds an idle gap is kept for counts but has no weight
    table = table.with_columns(pl.when((pl.col("gap") <= limit) & (pl.col("gap") >= 0)).then(pl.col("gap")).otherwise(0.0).alias("weight"))
    if not float(table["weight"].sum()):
        table = table.with_columns(pl.lit(1.0).alias("weight"))
    weight = pl.col("weight")
    total = float(table["weight"].sum())
    waiting = pl.col("queue") > 0
    full = waiting & (pl.col("usage") >= FULL_USAGE)
    roomy = waiting & (pl.col("usage") < ROOMY_USAGE)
    facts = table.select(
        throughput=(pl.col("gen_throughput") * weight).sum() / total,
        peak=pl.col("gen_throughput").max(),
        running_max=pl.col("running_req").max(),
        running_median=pl.col("running_req").median(),
        queue_max=pl.col("queue").max(),
        queue_median=pl.col("queue").median(),
        usage_max=pl.col("usage").max(),
        usage_median=pl.col("usage").median(),
        accept=pl.col("accept_len").mean(),
        graph_off=1 - pl.col("cuda_graph").cast(pl.Float64).mean(),
        full=(full.cast(pl.Float64) * weight).sum() / total,
        waiting=(waiting.cast(pl.Float64) * weight).sum() / total,
        roomy=(roomy.cast(pl.Float64) * weight).sum() / total,
        tokens=pl.max_horizontal("num_tokens", "full_num_tokens").max(),
    ).row(0, named=True)
    roomy_lines = table.filter(roomy)
    return BatchWindow(
        rank=Rank(*lines.select(_RANKS).row(0)),
        lines=lines.height,
        seconds=total,
        first=_mark_at(lines, 0),
        last=_mark_at(lines, -1),
        throughput_mean=facts["throughput"] or 0.0,
        throughput_peak=facts["peak"] or 0.0,
        running_max=facts["running_max"] or 0,
        running_median=facts["running_median"] or 0.0,
        queue_max=facts["queue_max"],
        queue_median=facts["queue_median"],
        usage_max=facts["usage_max"],
        usage_median=facts["usage_median"],
        accept_len_mean=facts["accept"],
        graph_off_share=facts["graph_off"],
        full_share=facts["full"],
        full_mark=_most_waiting(table.filter(full)),
        waiting_share=facts["waiting"],
        waiting_roomy_share=facts["roomy"],
        roomy_mark=_most_waiting(roomy_lines),
        roomy_running=tuple(roomy_lines["running_req"].drop_nulls().unique().sort(descending=True).to_list()),
        num_tokens_max=facts["tokens"],
    )


def _most_waiting(lines: pl.DataFrame) -> Mark | None:
    """The line with the longest queue: the one to show."""
    if lines.is_empty():
        return None
    return _mark_at(lines.sort("queue", descending=True, maintain_order=True), 0)


def _mark_at(lines: pl.DataFrame, place: int) -> Mark:
    row: tuple[Any, ...] = lines.select("source", "line", "time").row(place)
    return Mark(*row)


def _prefill(lines: pl.DataFrame) -> PrefillSummary:
    largest = lines.sort("new_token", descending=True, nulls_last=True, maintain_order=True)
    return PrefillSummary(
        lines=lines.height,
        new_token=int(lines["new_token"].sum() or 0),
        cached_token=int(lines["cached_token"].sum() or 0),
        first=_mark_at(lines, 0),
        last=_mark_at(lines, -1),
        largest=_mark_at(largest, 0),
        largest_new_token=int(largest["new_token"][0] or 0),
        queue_max=int(lines["queue_req"].fill_null(0).max() or 0),  # type: ignore[call-overload]
    )


def _retractions(lines: pl.DataFrame) -> tuple[int, Mark | None, Mark | None]:
    """Events, not lines: every rank prints the same retraction in the same second."""
    if lines.is_empty():
        return 0, None, None
    distinct = lines.unique(
        ["source", "time", "retracted_req", "new_token_ratio_old", "new_token_ratio_new"], keep="first", maintain_order=True
    )
    return distinct.height, _mark_at(distinct, 0), _mark_at(distinct, -1)
