"""Rows and pieces of frames to frames with every column of the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logforensics.parsing.batch import cut_like, with_ranks
from logforensics.parsing.prefix import Ranks
from logforensics.schema import columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from logforensics.parsing.lines import Row


def from_rows(name: str, rows: list[Row]) -> pl.DataFrame:
    """Rows as a frame that holds only the columns some row has."""
    import polars as pl

    present = {key for row in rows for key in row[3]}
    values: dict[str, list[Any]] = {key: [row[3].get(key) for row in rows] for key in present}
    values |= {"line": [row[0] for row in rows], "time": [row[1] for row in rows]}
    values |= {key: [row[2][place] for row in rows] for place, key in enumerate(Ranks._fields)}
    series = [
        pl.Series(column.name, values[column.name], dtype=_dtype(column.dtype), strict=False)
        for column in columns(name)
        if column.name in values
    ]
    return pl.DataFrame([one for one in series if one.null_count() < len(rows)])


def with_source(source: str, frames: Sequence[pl.DataFrame], launches: Sequence[int], *, newest_first: bool) -> pl.DataFrame:
    """The pieces of one source as one frame, in the order in which the lines were written, with the number of the server start.

    Args:
        source: its name.
        frames: pieces, at least one, with ranks as text in ``tags`` (from workers) or as columns.
        launches: the lines of the server starts, in the order they were written.
        newest_first: the log's first line is the last that was written.
    """
    import polars as pl

    pieces = [with_ranks(pl.concat(fast, how="diagonal"))] if (fast := [frame for frame in frames if "tags" in frame.columns]) else []
    pieces += [frame for frame in frames if "tags" not in frame.columns]
    whole = pieces[0] if len(pieces) == 1 else pl.concat(pieces, how="diagonal")
    if not whole["line"].is_sorted(descending=newest_first):
        whole = whole.sort("line", maintain_order=True, descending=newest_first)
    launch: pl.Series | pl.Expr = pl.lit(0, dtype=pl.UInt32)
    if len(launches) > 1:
        sign = -1 if newest_first else 1  # so that both grow with time
        starts = pl.Series([sign * line for line in launches], dtype=pl.Int64)
        number = starts.search_sorted(whole["line"].cast(pl.Int64) * sign, side="right").cast(pl.Int64) - 1
        launch = cut_like(number.clip(lower_bound=0).cast(pl.UInt32), whole["line"])
    return whole.with_columns(pl.lit(source).alias("source"), launch.alias("launch"))


def complete(name: str, pieces: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Pieces of a frame, one after the other, with every column of its schema."""
    import polars as pl

    schema = {column.name: _dtype(column.dtype) for column in columns(name)}
    if not pieces:
        return pl.DataFrame(schema=schema)
    whole = pieces[0] if len(pieces) == 1 else pl.concat(pieces, how="diagonal")
    there = set(whole.columns)
    return whole.select_seq(pl.col(key) if key in there else pl.lit(None, dtype=dtype).alias(key) for key, dtype in schema.items())


def _dtype(name: str) -> Any:
    import polars as pl

    return pl.Datetime("us") if name.startswith("Datetime") else getattr(pl, name)
