"""Records that stand on several physical lines, because a container runtime or a terminal has split them, put together again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import polars as pl

MARK = "\x1d"
"""Alone on a line: its text was joined to a line above. In front of a text: the record's end is not in the log. No log line needs this byte."""


def joined(lines: pl.DataFrame) -> pl.DataFrame:
    """Rows ``(n, line)`` with every record in the row of its first part.

    Args:
        lines: rows ``(n, line, goes_on, stream)``; ``goes_on`` says that the record goes on in the next row of the same ``stream``.
    """
    import polars as pl

    if not lines["goes_on"].any():
        return lines.select("n", "line")
    before = pl.col("goes_on").shift(1, fill_value=False).over("stream")
    whole = lines.with_columns(pl.col("line").fill_null(""), before.alias("part"))
    whole = whole.with_columns((~pl.col("part")).cum_sum().over("stream").alias("record"))
    open_end = pl.when(pl.col("goes_on").last().over("stream", "record")).then(pl.lit(MARK)).otherwise(pl.lit(""))
    text = pl.when("part").then(pl.lit(MARK)).otherwise(open_end + pl.col("line").str.join("").over("stream", "record"))
    return whole.select("n", pl.when(pl.col("goes_on") | pl.col("part")).then(text).otherwise(pl.col("line")).alias("line"))


def held_back(parts: Iterable[tuple[str, bool]]) -> int:
    """How many of the last lines belong to records that are not over, given each line's stream and whether it goes on."""
    opened: dict[str, int] = {}
    count = 0
    for stream, goes_on in parts:
        if goes_on:
            opened.setdefault(stream, count)
        else:
            opened.pop(stream, None)
        count += 1
    return count - min(opened.values(), default=count)
