"""Lines that come by the thousand but are no batch lines: retractions, failed requests, graph-capture redraws.

A pattern with a ``bulk`` expression is read by polars for all its lines at once. The expression describes the whole message in the
syntax of Rust's regex crate; a line it does not describe to the last character is left for the line reader, which knows more forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from logforensics.parsing import packs
from logforensics.parsing.batch import time_of
from logforensics.schema import FRAMES

if TYPE_CHECKING:
    import polars as pl

NOTICE_CHARS = 400
_PREFIX = r"^(?:\[(?P<stamp>[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}(?:\.[0-9]{3})?)(?P<tags>(?: [A-Z_]{2,8}[0-9]+)*)\] )?"


@cache
def _patterns() -> Sequence[packs.Pattern]:
    return [pattern for pattern in packs.load().patterns if pattern.bulk is not None]


def read_bulk(lines: pl.DataFrame) -> tuple[dict[str, list[pl.DataFrame]], pl.DataFrame]:
    """Frames with columns line, time, tags and the values, by name; and the lines ``(n, line)`` that no expression describes."""
    import polars as pl

    hits = lines.select_seq(_masks())
    redrawn = hits.drop_in_place("redrawn")
    frames: dict[str, list[pl.DataFrame]] = {}
    read: list[pl.Series] = []
    for pattern, hit in zip(_patterns(), hits.iter_columns(), strict=True):
        if not hit.any():
            continue
        records = lines.filter(hit)
        values = _values(_redraws(records) if redrawn.filter(hit).any() else records, pattern)
        if values.height:
            frames.setdefault(str(pattern.frame), []).append(values)
            read.append(values["line"])
    if not read:
        return frames, lines
    return frames, lines.filter(~pl.col("n").is_in(pl.concat(read).unique().implode()))


def _masks() -> list[pl.Expr]:
    """Where each pattern's literal stands, and where a line was redrawn."""
    import polars as pl

    line = pl.col("line")
    masks = [line.str.contains("\r", literal=True).alias("redrawn")]
    for place, pattern in enumerate(_patterns()):
        literals = [*pattern.heads, *pattern.finds]
        found = line.str.contains(literals[0], literal=True) if len(literals) == 1 else line.str.contains_any(literals)
        masks.append(found.alias(str(place)))
    return masks


def _redraws(lines: pl.DataFrame) -> pl.DataFrame:
    """One row per record: a progress bar redraws its line with carriage returns."""
    import polars as pl

    return lines.with_columns(pl.col("line").str.split("\r")).explode("line").filter(pl.col("line") != "")


def _values(records: pl.DataFrame, pattern: packs.Pattern) -> pl.DataFrame:
    """Rows of the lines of which every record fits ``pattern``."""
    import polars as pl

    values = records.select_seq("n", pl.col("line").str.extract_groups(f"{_PREFIX}(?P<message>{pattern.bulk})$")).unnest("line")
    unread = values["message"].is_null()
    if unread.any():
        values = values.filter(~pl.col("n").is_in(values["n"].filter(unread).unique().implode()))
    return values.select_seq(_columns(pattern, values))


def _columns(pattern: packs.Pattern, values: pl.DataFrame) -> list[pl.Expr]:
    import polars as pl

    dtypes = {column.name: column.dtype for column in FRAMES[str(pattern.frame)]}
    columns = [
        pl.col("n").cast(pl.UInt64).alias("line"),
        time_of("stamp", _stamp_format(values["stamp"])),
        pl.col("tags").fill_null("").cast(pl.Categorical),
    ]
    columns += [pl.lit(value, dtype=getattr(pl, dtypes[name])).alias(name) for name, value in pattern.constants.items()]
    columns += [pl.col(name).cast(getattr(pl, dtypes[name])) for name in values.columns if name in dtypes]
    if "text" in dtypes:
        columns.append(pl.col("message").str.head(NOTICE_CHARS).alias("text"))
    return columns


def _stamp_format(stamps: pl.Series) -> str:
    longest = stamps.str.len_bytes().max()
    return "%Y-%m-%d %H:%M:%S" + ("%.3f" if isinstance(longest, int) and longest > 19 else "")
