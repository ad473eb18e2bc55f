"""Decode and prefill lines of a run as samples of speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logforensics.run.timeline import timelines

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

FEW = 5
"""Fewer lines than this give no interval; a fragment with fewer steady lines is taken as it is."""
_GAP_SECONDS = 5.0
_GAP_FACTOR = 1.25
_LARGE_CHUNK = 1024  # new tokens: smaller prefill batches measure overhead
_BUSY_SHARE = 0.5


def decode_samples(frames: Mapping[str, pl.DataFrame], *, fragment: bool) -> tuple[pl.DataFrame, bool]:
    """Decode lines that say how fast the server is, and whether they are steady ones.

    A line is steady where the line before it on the same scheduler is a decode line and no longer ago than usual; it is ``even`` where
    that line has the same batch size too. A fragment has hardly a steady line; then every decode line counts and is taken as even. In a
    whole log that would measure pauses: one with hardly a steady line says nothing about speed.
    Columns: scheduler, line, running, queue, tokens, accept, throughput (token/s), weight (s; 1 where the log gives no time),
    core (between ramp-up and ramp-down), even.
    """
    import polars as pl

    schedulers = [
        lines for rank, lines in timelines(frames["decode"], frames["prefill"]) if not rank.pp and "gen_throughput" in lines.columns
    ]
    parts = [part for place, lines in enumerate(schedulers) if (part := _of_scheduler(lines, str(place))).height]
    if not parts:
        return pl.DataFrame(schema=_schema()), False
    whole = pl.concat(parts)
    is_steady = whole["steady"].sum() >= FEW or not fragment
    lines = whole.filter(pl.col("steady")) if is_steady else whole.with_columns(pl.lit(value=True).alias("even"))
    if not float(lines["weight"].sum()):
        lines = lines.with_columns(pl.lit(1.0).alias("weight"))
    return lines.drop("steady"), is_steady


def prefill_samples(frames: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Input throughput (column ``throughput``, token/s) of prefill lines with at least 1,024 new tokens."""
    import polars as pl

    large = frames["prefill"].filter((pl.col("new_token") >= _LARGE_CHUNK) & (pl.col("input_throughput") > 0))
    return large.select(pl.col("input_throughput").alias("throughput"), pl.lit(1.0).alias("weight"))


def _of_scheduler(lines: pl.DataFrame, name: str) -> pl.DataFrame:
    import polars as pl

    steady = lines.filter(pl.col("steady"))
    usual = steady["gap"].median()
    limit = max(_GAP_SECONDS, _GAP_FACTOR * usual) if isinstance(usual, (int, float)) else _GAP_SECONDS
    near = (pl.col("steady") & (pl.col("gap") <= limit)).fill_null(value=False)
    same = (near & (pl.col("running") == pl.col("running").shift(1))).fill_null(value=False)
    table = lines.with_columns(near.alias("steady"), same.alias("even"))
    table = table.filter(pl.col("decode") & (pl.col("running") > 0) & (pl.col("gen_throughput") > 0))
    return table.select(
        pl.lit(name).alias("scheduler"),
        pl.col("line"),
        pl.col("running").cast(pl.Int64),
        pl.col("queue").cast(pl.Int64),
        pl.col("tokens").cast(pl.Float64),
        pl.col("accept_len").cast(pl.Float64).alias("accept"),
        pl.col("gen_throughput").alias("throughput"),
        pl.col("weight").cast(pl.Float64),
        _core(table).alias("core"),
        pl.col("even"),
        pl.col("steady"),
    )


def _core(table: pl.DataFrame) -> pl.Series:
    """Lines between the first and the last one that carries half of the usual full load: warm-up and tail are cut."""
    import polars as pl

    full = table["running"].quantile(0.95)
    if table.is_empty() or full is None:
        return pl.Series("core", [], dtype=pl.Boolean)
    places = (table["running"] >= _BUSY_SHARE * full).arg_true()
    place = pl.int_range(table.height, eager=True)
    inside: pl.Series = (place >= places[0]) & (place <= places[-1])
    return inside


def _schema() -> dict[str, type[pl.DataType]]:
    import polars as pl

    return {
        "scheduler": pl.String,
        "line": pl.UInt64,
        "running": pl.Int64,
        "queue": pl.Int64,
        "tokens": pl.Float64,
        "accept": pl.Float64,
        "throughput": pl.Float64,
        "weight": pl.Float64,
        "core": pl.Boolean,
        "even": pl.Boolean,
    }
