"""Work on frames of one chunk in the thread that asks for it.

polars hands a filter, and a select of one text expression, to its thread pool, although one thread then does all of it: the other threads
wait for more by spinning, which costs up to a tenth of a parse in CPU time and gains nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl


def column(frame: pl.DataFrame, expression: pl.Expr) -> pl.Series:
    """The value of ``expression`` in each row."""
    import polars as pl

    return frame.select_seq(expression.alias("value"), pl.lit(0).alias("beside")).to_series()


def rows(frame: pl.DataFrame, mask: pl.Series) -> pl.DataFrame:
    """The rows in which ``mask`` is true."""
    import polars as pl

    return pl.DataFrame([values.filter(mask) for values in frame.iter_columns()])
