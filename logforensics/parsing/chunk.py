"""One chunk of a log, vectorised: batch lines to frames, access lines counted, and the few lines left for the line reader.

Runs in worker threads; nothing here depends on what stood in an earlier chunk.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from logforensics.parsing import batch, packs
from logforensics.parsing.bulk import read_bulk, read_notices
from logforensics.parsing.tally import EXAMPLES, NOTICE_CHARS
from logforensics.reading import unwrap

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl

    from logforensics.reading import Wrapper

_ESCAPES = r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
MARKERS = ("Traceback (most recent call last):", "server_args=", "% Completed |", "Error", "Exception", "Interrupt")
_IN_BATCH_LINES = "#queue-req: "  # in every release, and in few other lines
_RECORD_BEGINS = ["[20", "INFO:"]
_FORBIDDEN = b"\x01"  # the CSV reader's column separator: a byte no log line needs
_REPLACEMENT = b"\x1a"


class Line(NamedTuple):
    """A line for the line reader: its number within the chunk from 1, its text, and whether a known literal occurs in it."""

    n: int
    text: str
    known: bool


@dataclass(slots=True)
class ChunkResult:
    """What one chunk gave. Line numbers count from 1 within the chunk; ranks are still text, in a column ``tags``."""

    lines: int
    frames: dict[str, list[pl.DataFrame]]
    rest: list[Line]
    access: int
    read: int
    unknown: int
    unknown_examples: list[tuple[int, str]]
    unterminated: bool


def read_chunk(data: bytes, wrappers: Sequence[Wrapper] = (), examples: int = EXAMPLES) -> ChunkResult:
    """Split ``data`` into lines and sort them: batch lines and bulk lines into frames, access lines away, the rest in order."""
    import polars as pl

    lines = _split(data)
    unterminated = not data.endswith(b"\n")
    body, tail = (lines[:-1], lines[-1:]) if unterminated else (lines, lines.clear())
    coloured = b"\x1b" in data
    if wrappers:
        body, tail = (unwrap(_cleaned(part) if coloured else part, wrappers) for part in (body, tail))
    frames, leftovers, others = _batches(body, coloured=coloured)
    others, access = _without_access(others)
    if coloured:
        others, more = _without_access(_cleaned(others))
        access += more
    bulk, others = read_bulk(others)
    others = pl.concat([*leftovers, others])
    known = others["line"].str.contains(literals())
    notices, plain = read_notices(others.filter(~known))
    frames |= bulk
    if notices.height:
        frames["notices"] = [notices]
    rest = sorted([*_lines(others.filter(known), known=True), *_lines(plain, known=False), *_lines(tail, known=True)])
    return ChunkResult(
        lines=lines.height,
        frames=frames,
        rest=rest,
        access=access,
        read=lines.height - access - notices.height - len(rest),
        unknown=notices.height,
        unknown_examples=_examples(lines, notices, examples),
        unterminated=unterminated,
    )


def _examples(lines: pl.DataFrame, notices: pl.DataFrame, limit: int) -> list[tuple[int, str]]:
    return (
        [(number, lines["line"][number - 1][:NOTICE_CHARS]) for number in notices["line"].head(limit).to_list()] if notices.height else []
    )


def _batches(lines: pl.DataFrame, *, coloured: bool) -> tuple[dict[str, list[pl.DataFrame]], list[pl.DataFrame], pl.DataFrame]:
    """Frames of the batch lines, the batch lines that could not be read, and the lines that are none."""
    import polars as pl

    is_batch = lines["line"].str.contains(_IN_BATCH_LINES, literal=True).fill_null(value=False)
    candidates, others = lines.filter(is_batch), lines.filter(~is_batch)
    decode = candidates["line"].str.contains(batch.WORDS["decode"], literal=True)
    frames: dict[str, list[pl.DataFrame]] = {}
    leftovers: list[pl.DataFrame] = []
    for kind, rows in (("decode", candidates.filter(decode)), ("prefill", candidates.filter(~decode))):
        frames[kind], left = batch.read_many(rows, kind)
        if coloured and left:
            more, left = batch.read_many(_cleaned(pl.concat(left)), kind)
            frames[kind] += more
        leftovers += left
    return frames, leftovers, others


def _cleaned(lines: pl.DataFrame) -> pl.DataFrame:
    """Without terminal escapes."""
    return lines.with_columns(lines["line"].str.replace_all(_ESCAPES, ""))


def _lines(rows: pl.DataFrame, *, known: bool) -> Iterator[Line]:
    """Rows ``(n, line)`` one by one."""
    # to_list copies the few lines out: views into the chunk would keep all of it in memory
    for n, text in zip(rows["n"].to_list(), rows["line"].to_list(), strict=True):
        yield Line(n, text or "", known)


def _split(data: bytes) -> pl.DataFrame:
    """Numbered lines of ``data``; a carriage return before the newline is dropped, invalid UTF-8 becomes U+FFFD, a blank line null."""
    import polars as pl

    if _FORBIDDEN in data:
        data = data.replace(_FORBIDDEN, _REPLACEMENT)
    options: dict[str, Any] = {
        "has_header": False,
        "separator": "\x01",
        "quote_char": None,
        "truncate_ragged_lines": True,
        "schema": {"line": pl.String},
        "glob": False,
        "encoding": "utf8-lossy",
        "row_index_name": "n",
        "row_index_offset": 1,
    }
    return pl.read_csv(data, **options).rechunk()  # its threads leave eight pieces, each of which every operation would visit


def _without_access(lines: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Drop uvicorn's plain ``… HTTP/1.1" 200 OK`` lines and count them; one that shares its line with another record stays."""
    import polars as pl

    line = pl.col("line")
    ends = line.str.ends_with('HTTP/1.1" 200 OK')
    plain = ends & line.str.contains("] INFO:", literal=True) & ~line.str.slice(27).str.contains_any(_RECORD_BEGINS)
    if lines["line"].str.starts_with("INFO:").any():  # releases to 0.3.3, and loggers that leave uvicorn alone
        plain |= ends & line.str.starts_with("INFO:") & ~line.str.slice(5).str.contains_any(_RECORD_BEGINS)
    others = lines.filter(~plain.fill_null(value=False)).with_columns(line.fill_null(""))
    return others, lines.height - others.height


@cache
def literals() -> str:
    """An expression of the literals that make a line worth a closer look wherever they stand in it (polars keeps it compiled)."""
    return "|".join(re.escape(literal) for literal in (*packs.load().literals, *batch.WORDS.values(), *MARKERS))
