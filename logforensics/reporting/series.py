"""Long series in few points, without hiding their extremes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

MAX_POINTS = 2_000
"""Points of one chart, all its lines together."""


def downsampled(rows: pl.DataFrame, column: str, limit: int) -> pl.DataFrame:
    """At most about ``limit`` of the rows, in their order: the first, the last, and of every stretch between the lowest and the highest."""
    import polars as pl

    if rows.height <= limit:
        return rows
    stretches = max(1, (limit - 2) // 2)
    numbered = rows.with_row_index("at").with_columns((pl.col("at").cast(pl.UInt64) * stretches // rows.height).alias("stretch"))
    known = numbered.filter(pl.col(column).is_not_null())
    ends = known.group_by("stretch", maintain_order=True).agg(
        lowest=pl.col("at").sort_by(column, maintain_order=True).first(), highest=pl.col("at").sort_by(column, maintain_order=True).last()
    )
    wanted = pl.concat([ends["lowest"], ends["highest"], pl.Series("at", [0, rows.height - 1], dtype=numbered["at"].dtype)]).unique()
    return numbered.filter(pl.col("at").is_in(wanted.implode())).drop("at", "stretch")
