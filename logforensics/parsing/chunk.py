"""One chunk of a log, vectorised: batch lines to frames, access lines counted, and the few lines left for the line reader.

Runs in worker threads; nothing here depends on what stood in an earlier chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from logforensics.parsing import batch, packs

if TYPE_CHECKING:
    import polars as pl

_ESCAPES = r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])"
MARKERS = ("Traceback (most recent call last):", "server_args=", "% Completed |", "Error", "Exception", "Interrupt")
_FORBIDDEN = b"\x01"  # the CSV reader's column separator: a byte no log line needs
_REPLACEMENT = b"\x1a"


class Line(NamedTuple):
    """A line for the line reader: its number within the chunk from 1, its text, and the known literals that occur in it."""

    n: int
    text: str
    marks: tuple[str, ...]


@dataclass(slots=True)
class ChunkResult:
    """What one chunk gave. Line numbers ``n`` count from 1 within the chunk."""

    lines: int
    frames: dict[str, list[pl.DataFrame]]
    rest: list[Line]
    access: int
    read: int
    unterminated: bool


def read_chunk(data: bytes) -> ChunkResult:
    """Split ``data`` into lines and sort them: batch lines into frames, plain access lines away, the rest in order."""
    lines = _split(data)
    unterminated = not data.endswith(b"\n")
    body, leftovers = (lines[:-1], [lines[-1:]]) if unterminated else (lines, [])
    if b"\x1b" in data:
        body, coloured = _without_colour(body)
        leftovers.append(coloured)
    is_batch = body["line"].str.contains(" batch", literal=True).fill_null(value=False)
    candidates, others = body.filter(is_batch), body.filter(~is_batch)
    frames: dict[str, list[pl.DataFrame]] = {}
    for kind in batch.KINDS:
        this = candidates["line"].str.contains(batch.WORDS[kind], literal=True)
        good, left = batch.read_many(candidates.filter(this), kind)
        candidates = candidates.filter(~this)
        frames[kind] = [_compact(frame) for frame in good]
        leftovers += left
    read = sum(frame.height for found in frames.values() for frame in found)
    others, access = _without_access(others)
    return ChunkResult(lines.height, frames, _rest([*leftovers, candidates, others]), access, read, unterminated)


def _without_colour(lines: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Lines without terminal escapes, and a few cleaned lines apart; where most are coloured, all are cleaned in place."""
    has = lines["line"].str.contains("\x1b", literal=True).fill_null(value=False)
    if int(has.sum()) * 10 > lines.height:
        return _cleaned(lines), lines.clear()
    return lines.filter(~has), _cleaned(lines.filter(has))


def _cleaned(lines: pl.DataFrame) -> pl.DataFrame:
    return lines.with_columns(lines["line"].str.replace_all(_ESCAPES, ""))


def _rest(pieces: list[pl.DataFrame]) -> list[Line]:
    import polars as pl

    rest = pl.concat(pieces)
    if len(pieces) > 1 and not rest["n"].is_sorted():
        rest = rest.sort("n")
    marks = rest["line"].str.extract_many(literals(), overlapping=True)
    # to_list copies the few lines out: views into the chunk would keep all of it in memory
    columns = zip(rest["n"].to_list(), rest["line"].to_list(), marks.to_list(), strict=True)
    return [Line(n, text or "", tuple(dict.fromkeys(found)) if found else ()) for n, text, found in columns]


def _split(data: bytes) -> pl.DataFrame:
    """Numbered lines of ``data``; a carriage return before the newline is dropped, invalid UTF-8 becomes U+FFFD."""
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
    return pl.read_csv(data, **options)


def _without_access(lines: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Drop uvicorn's plain ``… HTTP/1.1" 200 OK`` lines and count them; one that shares its line with another record stays."""
    text = lines["line"]
    plain = text.str.ends_with('HTTP/1.1" 200 OK') & ~text.str.slice(1).str.contains("[20", literal=True)
    plain &= text.str.starts_with("[") | text.str.starts_with("INFO:")
    plain = plain.fill_null(value=False)
    return lines.filter(~plain), int(plain.sum())


def _compact(frame: pl.DataFrame) -> pl.DataFrame:
    """Ranks as numbers and no strings left, so that nothing keeps the chunk's buffers alive."""
    import polars as pl

    frame = batch.with_ranks(frame)
    return frame.with_columns(pl.col("n").cast(pl.UInt64)).rename({"n": "line"})


@cache
def literals() -> list[str]:
    """Literals that make a line worth a closer look wherever they stand in it."""
    return [*packs.load().literals, *batch.WORDS.values(), *MARKERS]
