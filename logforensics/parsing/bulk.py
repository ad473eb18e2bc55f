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
from logforensics.parsing.inline import column, rows
from logforensics.parsing.patterns import Pattern
from logforensics.parsing.tally import NOTICE_CHARS
from logforensics.schema import FRAMES

if TYPE_CHECKING:
    import polars as pl

# kept without ambiguity, so that the engine needs one pass (5x); the stamp is checked when it becomes a time
_PREFIX = r"^(?:\[(?P<stamp>[0-9: -]{19}(?:\.[0-9]{3})?)(?P<tags>(?: [A-Z_]+[0-9]+)*)\] )?"

_STRING = r"""'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*\""""
# outside its strings, which are all closed, nothing like [20 begins another record
_QUOTES_ONLY = rf"""^.(?:[^'"\[]|{_STRING}|\[+(?:{_STRING}|[^2'"\[]|2[^0'"\[]))*$"""
_SHORT = 30  # a shorter message may be the beginning of a torn record
_HEAD_CHARS = 160
LEVELS = {
    "CRITICAL": "error",
    "FATAL": "error",
    "ERROR": "error",
    "WARNING": "warning",
    "WARN": "warning",
    "INFO": "info",
    "DEBUG": "info",
}
_LEVEL = r"(?-u:\b)(CRITICAL|FATAL|ERROR|WARNING|WARN|INFO|DEBUG)(?-u:\b)|[A-Za-z]*Warning:"
_LOGGER = r"(?:WARNING|ERROR|INFO|DEBUG):([A-Za-z0-9_.]+):|(?-u:\b)([A-Za-z0-9_]+\.py:[0-9]+)[\]:]"


@cache
def _patterns() -> Sequence[Pattern]:
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
        records = _single(rows(lines, hit)) if pattern.bulk_open else rows(lines, hit)
        if records.is_empty():
            continue
        values = _values(_redraws(records) if redrawn.filter(hit).any() else records, pattern)
        if values.height:
            frames.setdefault(str(pattern.frame), []).append(values)
            read.append(values["line"])
    if not read:
        return frames, lines
    return frames, rows(lines, ~column(lines, pl.col("n").is_in(pl.concat(read).unique().implode())))


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


def _single(records: pl.DataFrame) -> pl.DataFrame:
    """Of records with long texts in them, those that certainly are whole and alone on their line: another begins at most inside a string."""
    import polars as pl

    line = pl.col("line")
    whole = rows(records, column(records, line.str.ends_with(")") | line.str.ends_with("}")))
    alone = column(whole, _alone())
    if alone.all():
        return whole
    quoting = line.str.contains(_QUOTES_ONLY) & ~line.str.slice(1).str.contains("INFO:  ", literal=True)
    others = rows(whole, ~alone)
    return pl.concat([rows(whole, alone), rows(others, column(others, quoting))])


def _alone() -> pl.Expr:
    """No second record begins later in the line."""
    import polars as pl

    return ~pl.col("line").str.slice(1).str.contains("[20", literal=True)


def _redraws(lines: pl.DataFrame) -> pl.DataFrame:
    """One row per record: a progress bar redraws its line with carriage returns."""
    import polars as pl

    return lines.with_columns(pl.col("line").str.split("\r")).explode("line").filter(pl.col("line") != "")


def _values(records: pl.DataFrame, pattern: Pattern) -> pl.DataFrame:
    """Rows of the lines of which every record fits ``pattern``."""
    import polars as pl

    prefix = _PREFIX if pattern.bare or pattern.frame == "requests" else _PREFIX.removesuffix("?")
    expression = f"{prefix}(?P<message>{pattern.bulk})" + ("" if pattern.bulk_open else "$")
    values = records.select_seq("n", "line", pl.col("line").str.extract_groups(expression).alias("values")).unnest("values")
    unread = values["message"].is_null()
    if unread.any():
        values = rows(values, ~column(values, pl.col("n").is_in(values["n"].filter(unread).unique().implode())))
    return values.select_seq(_columns(pattern, values))


def _columns(pattern: Pattern, values: pl.DataFrame) -> list[pl.Expr]:
    import polars as pl

    dtypes = {column.name: column.dtype for column in FRAMES[str(pattern.frame)]}
    columns = _common()
    columns += [pl.lit(value, dtype=getattr(pl, dtypes[name])).alias(name) for name, value in pattern.constants.items()]
    columns += [pl.col(name).cast(getattr(pl, dtypes[name])) for name in values.columns if name in dtypes]
    return [*columns, _text()] if "text" in dtypes else columns


def _common() -> list[pl.Expr]:
    import polars as pl

    return [
        pl.col("n").cast(pl.UInt64).alias("line"),
        time_of("stamp", "%Y-%m-%d %H:%M:%S%.f"),
        pl.col("tags").fill_null("").cast(pl.Categorical),
    ]


def _text() -> pl.Expr:
    """The message, cut; an expression may have described only its beginning."""
    import polars as pl

    begin = pl.when(pl.col("stamp").is_null()).then(0).otherwise(pl.col("stamp").str.len_bytes() + pl.col("tags").str.len_bytes() + 3)
    return pl.col("line").str.slice(begin, NOTICE_CHARS).alias("text")


def read_notices(lines: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Notices among lines in which no known literal stands, and the lines left over: bare, short or shared ones need a closer look."""
    import polars as pl

    expression = f"{_PREFIX.removesuffix('?')}(?P<message>[^ \r][^\r]{{{_SHORT},}})$"
    values = lines.select_seq("n", "line", _alone().alias("alone"), pl.col("line").str.extract_groups(expression).alias("values"))
    values = values.unnest("values")
    values = rows(values, values["alone"] & values["message"].is_not_null())
    if values.is_empty():
        return values, lines
    left = rows(lines, ~column(lines, pl.col("n").is_in(values["n"].implode())))
    head = pl.col("message").str.head(_HEAD_CHARS)
    level = head.str.extract(_LEVEL).replace_strict(LEVELS, default="warning").fill_null("info").alias("level")
    found = head.str.extract_groups(_LOGGER).struct
    logger = pl.coalesce(found.field("1"), found.field("2")).alias("logger")
    return values.select_seq(*_common(), level, logger, _text()), left
