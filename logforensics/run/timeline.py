"""One scheduler's batch lines in order, each with the seconds it stands for.

A decode line is printed after its steps, a prefill line before its batch runs. So the interval between two lines belongs to the later one
where both are decode lines, and to the earlier one otherwise; of an interval that begins with a prefill line and ends with a decode line,
the prefill gets as much as its tokens take at the speed seen between prefill lines. ``gen throughput`` counts the tokens since the previous
decode line over the time since that line (SGLang managers/scheduler_metrics_mixin.py, 0.5.5), idle time and prefill included: only a decode
line that follows a decode line without a gap is *steady* and says something about speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from logforensics.run.model import Mark, Rank
from logforensics.run.parts import MERGED

if TYPE_CHECKING:
    import polars as pl

FULL_USAGE = 0.95
ROOMY_USAGE = 0.9
_GAP_FACTOR = 5.0
_GAP_SECONDS = 10.0


def timelines(decode: pl.DataFrame, prefill: pl.DataFrame) -> Iterator[tuple[Rank, pl.DataFrame]]:
    """The lines of each scheduler in order; columns ``weight`` (s), ``idle`` (s before the line), ``steady`` and ``run`` are added."""
    import polars as pl

    parts = [_common(frame, is_decode=is_decode) for frame, is_decode in ((decode, True), (prefill, False)) if frame.height]
    if not parts:
        return
    whole = pl.concat(parts, how="diagonal")
    merged = MERGED in whole.columns  # of several files: a rank's lines may go on in another one
    whole = whole.sort(MERGED) if merged else whole.sort("source", "line")
    keys = Rank._fields if merged else ("source", *Rank._fields)
    for lines in whole.partition_by(*keys, maintain_order=True):
        yield Rank(*lines.select(Rank._fields).row(0)), _weighted(lines)


def place_columns(frame: pl.DataFrame) -> list[pl.Expr]:
    """The columns that make a :class:`Mark`, by the names of its fields."""
    import polars as pl

    merged = [pl.col(MERGED).alias("place")] if MERGED in frame.columns else []
    return [pl.col("source"), pl.col("line"), pl.col("time"), *merged]


def mark_at(lines: pl.DataFrame, place: int) -> Mark:
    """Where a row stands."""
    row: tuple[Any, ...] = lines.select(place_columns(lines)).row(place)
    return Mark(*row)


def largest_of(values: pl.Series) -> float:
    """The largest value; 0 where there is none."""
    value = values.max()
    return float(value) if isinstance(value, (int, float)) else 0.0


def first_by(lines: pl.DataFrame, column: str, *, descending: bool = True) -> Mark | None:
    """The line with the largest (or smallest) value, the first of equals; None where there is none."""
    if lines.is_empty():
        return None
    return mark_at(lines.sort(column, descending=descending, nulls_last=True, maintain_order=True), 0)


def _common(frame: pl.DataFrame, *, is_decode: bool) -> pl.DataFrame:
    """The columns both kinds share, under one name each."""
    import polars as pl

    usage = pl.max_horizontal("token_usage", "full_token_usage", "swa_token_usage").fill_null(0.0)
    return frame.with_columns(
        pl.lit(is_decode).alias("decode"),
        usage.alias("usage"),
        pl.col("running_req").fill_null(0).alias("running"),
        pl.col("queue_req").fill_null(0).alias("queue"),
        pl.max_horizontal("num_tokens", "full_num_tokens").alias("tokens"),
    )


def _weighted(lines: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    gap = (pl.col("time").diff().dt.total_milliseconds() / 1000).alias("gap")
    table = lines.with_columns(gap, pl.col("decode").shift(1).alias("after_decode"))
    limit = _limit(table["gap"])
    known = (pl.col("gap") >= 0) & (pl.col("gap") <= limit)
    new_run = (pl.col("decode") != pl.col("after_decode")) | ~known.fill_null(value=False)
    table = table.with_columns(
        known.fill_null(value=False).alias("known"),
        pl.when(pl.col("gap") > limit).then(pl.col("gap")).otherwise(0.0).alias("idle"),
        new_run.fill_null(value=True).cum_sum().alias("run"),
    )
    table = table.with_columns((pl.col("decode") & pl.col("after_decode") & pl.col("known")).fill_null(value=False).alias("steady"))
    table = table.with_columns(pl.Series("weight", _weights(table), dtype=pl.Float64))
    if not float(table["weight"].sum()):
        return table.with_columns(pl.lit(1.0).alias("weight"))
    return table


def _limit(gaps: pl.Series) -> float:
    """The longest interval (s) that still is work: ten seconds, or five times the usual distance of two lines."""
    typical = gaps.drop_nulls().median()
    return max(_GAP_SECONDS, _GAP_FACTOR * float(typical)) if isinstance(typical, (int, float)) else _GAP_SECONDS


def _weights(table: pl.DataFrame) -> pl.Series:
    """Seconds each line stands for."""
    import polars as pl

    seconds = pl.when(pl.col("known")).then(pl.col("gap")).otherwise(0.0)
    own = pl.when(pl.col("decode") & pl.col("after_decode")).then(seconds).otherwise(0.0).fill_null(0.0)
    rate = _prefill_rate(table)
    need = pl.col("new_token").fill_null(0) / rate if rate and "new_token" in table.columns else seconds.shift(-1) / 2
    following = seconds.shift(-1).fill_null(0.0)
    next_decodes = pl.col("decode").shift(-1).fill_null(value=False)
    ahead = (
        pl.when(pl.col("decode") & next_decodes)
        .then(0.0)
        .when(~pl.col("decode") & next_decodes)
        .then(pl.min_horizontal(following, need.fill_null(0.0)))
        .otherwise(following)
    )
    parts = table.select(own.alias("own"), ahead.alias("ahead"), following.alias("following"), next_decodes.alias("next"), "decode")
    # what a prefill leaves of its interval to the decode line after it
    rest = parts.select(pl.when(~pl.col("decode") & pl.col("next")).then(pl.col("following") - pl.col("ahead")).otherwise(0.0)).to_series()
    whole: pl.Series = parts["own"] + parts["ahead"] + rest.shift(1, fill_value=0.0)
    return whole


def _prefill_rate(table: pl.DataFrame) -> float | None:
    """New tokens per second between prefill lines that follow each other, or None."""
    import polars as pl

    if "new_token" not in table.columns:
        return None
    pairs = table.filter(~pl.col("decode") & ~pl.col("decode").shift(-1) & pl.col("known").shift(-1))
    seconds = table.filter(~pl.col("decode") & ~pl.col("after_decode") & pl.col("known"))["gap"].sum()
    tokens = pairs["new_token"].sum()
    return float(tokens) / float(seconds) if seconds and tokens else None
