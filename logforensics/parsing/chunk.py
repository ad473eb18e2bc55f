"""One chunk of a log, vectorised: batch lines to frames, access lines counted, and the few lines that are left.

Runs in worker threads; nothing here depends on what stood in an earlier chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logforensics.parsing import batch
from logforensics.parsing.inline import column, rows
from logforensics.reading import ESCAPES, unwrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from logforensics.reading import Wrapper

_IN_BATCH_LINES = "#queue-req: "  # in every release, and in few other lines
_RECORD_BEGINS = ["[20", "INFO:"]
_FORBIDDEN = b"\x01"  # the CSV reader's column separator: a byte no log line needs
_REPLACEMENT = b"\x1a"


@dataclass(slots=True)
class ChunkResult:
    """What one chunk gave. Line numbers count from 1 within the chunk; ranks are still text, in a column ``tags``.

    Attributes:
        lines: physical lines.
        frames: rows of the batch lines.
        left: lines ``(n, line)`` that are neither, not in order.
        access: access lines.
        tail: the log's last line, where no newline ends it.
        valid: all of it was UTF-8.
    """

    lines: int
    frames: dict[str, list[pl.DataFrame]]
    left: pl.DataFrame
    access: int
    tail: str | None
    valid: bool


def read_chunk(data: bytes, wrappers: Sequence[Wrapper] = (), *, valid: bool = True) -> ChunkResult:
    """Split ``data`` into lines and sort them: batch lines into frames, access lines away. ``valid`` says that it may all be UTF-8."""
    import polars as pl

    lines, valid = _split(data, valid=valid)
    unterminated = not data.endswith(b"\n")
    body, tail = (lines[:-1], lines[-1:]) if unterminated else (lines, lines.clear())
    coloured = b"\x1b" in data
    if wrappers:
        body, tail = (unwrap(_cleaned(part) if coloured else part, wrappers) for part in (body, tail))
    others, access = _without_access(body)  # first, since they are often the most
    frames, leftovers, others = _batches(others, coloured=coloured)
    if coloured:
        escaped = column(others, pl.col("line").str.contains("\x1b", literal=True).fill_null(value=False))
        plain, more = _without_access(_cleaned(rows(others, escaped)))
        others = pl.concat([rows(others, ~escaped), plain])
        access += more
    last = tail["line"][0] or "" if unterminated else None
    return ChunkResult(lines.height, frames, _copied(pl.concat([*leftovers, others])), access, last, valid)


def _copied(lines: pl.DataFrame) -> pl.DataFrame:
    """The same few lines in memory of their own: they wait for others, and as views they would keep the whole chunk from being reused.

    A blank line is no longer null.
    """
    import polars as pl

    return lines.select_seq("n", pl.concat_str("line", pl.lit(""), ignore_nulls=True))


def _batches(lines: pl.DataFrame, *, coloured: bool) -> tuple[dict[str, list[pl.DataFrame]], list[pl.DataFrame], pl.DataFrame]:
    """Frames of the batch lines, the batch lines that could not be read, and the lines that are none."""
    import polars as pl

    line = pl.col("line")
    is_batch = column(lines, line.str.contains(_IN_BATCH_LINES, literal=True).fill_null(value=False))
    candidates, others = rows(lines, is_batch), rows(lines, ~is_batch)
    decode = column(candidates, line.str.contains(batch.WORDS["decode"], literal=True))
    frames: dict[str, list[pl.DataFrame]] = {}
    leftovers: list[pl.DataFrame] = []
    for kind, found in (("decode", rows(candidates, decode)), ("prefill", rows(candidates, ~decode))):
        frames[kind], left = batch.read_many(found, kind)
        if coloured and left:
            more, left = batch.read_many(_cleaned(pl.concat(left)), kind)
            frames[kind] += more
        leftovers += left
    return frames, leftovers, others


def _cleaned(lines: pl.DataFrame) -> pl.DataFrame:
    """Without terminal escapes."""
    import polars as pl

    return lines.select_seq("n", pl.col("line").str.replace_all(ESCAPES, ""))


def _split(data: bytes, *, valid: bool) -> tuple[pl.DataFrame, bool]:
    """Numbered lines of ``data``; a carriage return before the newline is dropped, invalid UTF-8 becomes U+FFFD, a blank line null.

    ``valid`` says that all of it may be UTF-8: mending every line costs a third more, and few logs need it. Whether it is so is given back.
    """
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
        "row_index_name": "n",
        "row_index_offset": 1,
    }
    try:
        lines = pl.read_csv(data, encoding="utf8" if valid else "utf8-lossy", **options)
    except pl.exceptions.ComputeError:
        if not valid:
            raise
        return _split(data, valid=False)
    return lines.rechunk(), valid  # its threads leave eight pieces, each of which every operation would visit


def _without_access(lines: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Drop uvicorn's plain ``… HTTP/1.1" 200 OK`` lines and count them; one that shares its line with another record stays."""
    import polars as pl

    line = pl.col("line")
    ends = column(lines, line.str.ends_with('HTTP/1.1" 200 OK').fill_null(value=False))
    odd = rows(lines, ends)
    dated = line.str.contains("] INFO:", literal=True) & ~line.str.slice(27).str.contains_any(_RECORD_BEGINS)
    bare = line.str.starts_with("INFO:") & ~line.str.slice(5).str.contains_any(_RECORD_BEGINS)  # to 0.3.3, and where uvicorn is left alone
    for access in (dated, bare):
        if not odd.is_empty():
            odd = rows(odd, ~column(odd, access))
    others = rows(lines, ~ends)
    return (others if odd.is_empty() else pl.concat([others, odd])), lines.height - others.height - odd.height
