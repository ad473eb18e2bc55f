"""A whole log, or several, as frames."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from logforensics.diagnosis import Coverage
from logforensics.errors import InputError
from logforensics.parsing.batch import with_ranks
from logforensics.parsing.chunk import ChunkResult, read_chunk
from logforensics.parsing.lines import LineReader, Row
from logforensics.parsing.prefix import Ranks
from logforensics.parsing.tally import EXAMPLES, Tally
from logforensics.reading import Source, open_sources
from logforensics.schema import FRAMES, columns

if TYPE_CHECKING:
    import polars as pl

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
_THREADS = 1  # beside the main thread: a second one costs 6 % more CPU for the same rows
_KINDS = {"retractions": "retract"}  # events of frames that workers fill
_PLACE = frozenset({"line", "time", "tags"})


@dataclass(frozen=True, slots=True)
class ParsedLog:
    """What was read: typed frames (see docs/frames.md), what became of every line, and where it came from."""

    frames: Mapping[str, pl.DataFrame]
    coverage: Coverage
    sources: tuple[str, ...]
    is_sglang: bool
    _opened: Mapping[str, Source] = field(default_factory=dict, repr=False)

    def quote(self, wanted: Mapping[str, Iterable[int]]) -> dict[tuple[str, int], str]:
        """The text of the given lines, by (source, line)."""
        texts: dict[tuple[str, int], str] = {}
        for name, lines in wanted.items():
            if source := self._opened.get(name):
                texts |= {(name, line): text for line, text in source.quote(lines).items()}
        return texts

    def require_sglang(self) -> None:
        """Refuse a text that holds nothing SGLang prints.

        Raises:
            InputError: no line was recognised.
        """
        if not self.is_sglang:
            raise InputError(
                f"{', '.join(self.sources)}: does not look like an SGLang server log: none of {self.coverage.lines} lines was recognised"
            )


def parse(paths: Paths, *, follow: bool = False, chunk_bytes: int | None = None, threads: int = _THREADS) -> ParsedLog:
    """Read one or more logs (``-`` is standard input) into frames.

    Args:
        paths: a path or several; each becomes a value of the ``source`` column.
        follow: reserved for growing files; only False is supported.
        chunk_bytes: size of the pieces read at once; the rows do not depend on it.
        threads: worker threads for the vectorised part; the rows do not depend on it.

    Raises:
        InputError: a file is missing, empty, a folder, or binary.
    """
    if follow:
        raise InputError("follow=True is not supported: read the file again when it has grown")
    sources = open_sources(paths)
    parts = [_read_source(source, chunk_bytes, threads) for source in sources]
    frames = {name: _whole(name, [(part.name, part.frames.get(name, []), part.launch_lines) for part in parts]) for name in FRAMES}
    return ParsedLog(
        frames=frames,
        coverage=_coverage(parts),
        sources=tuple(part.name for part in parts),
        is_sglang=any(part.is_sglang for part in parts),
        _opened={source.name: source for source in sources},
    )


@dataclass(slots=True)
class _Part:
    """What one source gave."""

    name: str
    frames: dict[str, list[pl.DataFrame]]
    tally: Tally
    lines: int
    read: int
    noise: int
    launch_lines: list[int]

    @property
    def is_sglang(self) -> bool:
        """Whether something that only SGLang prints was seen."""
        return self.tally.sglang or any(self.frames.get(name) for name in ("prefill", "decode", "retractions"))


def _read_source(source: Source, chunk_bytes: int | None, threads: int) -> _Part:
    reader = LineReader(stamped=source.stamped)
    part = _Part(source.name, {}, reader.tally, 0, 0, 0, [])
    for result in _results(source, chunk_bytes, threads):
        base = part.lines
        last = len(result.rest) - 1
        for place, line in enumerate(result.rest):
            reader.feed(base + line.n, line.text, known=line.known, unterminated=result.unterminated and place == last)
        part.lines += result.lines
        part.read += result.read
        reader.tally.add_unknown(result.unknown, [(base + n, text) for n, text in result.unknown_examples])
        part.noise += result.access
        for name, found in result.frames.items():
            part.frames.setdefault(name, []).extend(_shifted(frame, base) for frame in found)
            for frame in found:
                reader.saw(_KINDS.get(name, name), [c for c in frame.columns if c not in _PLACE and frame[c].null_count() == 0])
        _collect(part, reader)
    reader.close()
    _collect(part, reader)
    return part


def _results(source: Source, chunk_bytes: int | None, threads: int) -> Iterator[ChunkResult]:
    """Chunk results in order, with at most ``threads`` + 1 chunks in memory."""
    chunks = source.chunks(chunk_bytes) if chunk_bytes else source.chunks()
    first = next(chunks, None)
    second = next(chunks, None) if first else None
    if first is None or second is None:  # a small log: threads would cost more than they save
        yield from (read_chunk(chunk.data, source.wrappers) for chunk in (first,) if chunk)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[ChunkResult]] = deque()
        for chunk in chain((first, second), chunks):
            waiting.append(pool.submit(read_chunk, chunk.data, source.wrappers))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _shifted(frame: pl.DataFrame, base: int) -> pl.DataFrame:
    """Line numbers of the chunk as line numbers of the log."""
    return frame.replace_column(frame.get_column_index("line"), frame["line"] + base)


def _collect(part: _Part, reader: LineReader) -> None:
    for name, rows in reader.take().items():
        if name == "launches":
            part.launch_lines += [row[0] for row in rows]
        part.frames.setdefault(name, []).append(_from_rows(name, rows))


def _from_rows(name: str, rows: list[Row]) -> pl.DataFrame:
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


def _whole(name: str, parts: list[tuple[str, list[pl.DataFrame], list[int]]]) -> pl.DataFrame:
    """All pieces of one frame with every column of its schema, in line order per source."""
    import polars as pl

    pieces = [_with_source(source, frames, launches) for source, frames, launches in parts if frames]
    schema = {column.name: _dtype(column.dtype) for column in columns(name)}
    if not pieces:
        return pl.DataFrame(schema=schema)
    whole = pieces[0] if len(pieces) == 1 else pl.concat(pieces, how="diagonal")
    missing = [pl.lit(None, dtype=dtype).alias(key) for key, dtype in schema.items() if key not in whole.columns]
    return whole.with_columns(missing).select(schema.keys())


def _with_source(source: str, frames: list[pl.DataFrame], launches: list[int]) -> pl.DataFrame:
    import polars as pl

    pieces = [with_ranks(pl.concat(fast, how="diagonal"))] if (fast := [frame for frame in frames if "tags" in frame.columns]) else []
    pieces += [frame for frame in frames if "tags" not in frame.columns]
    whole = pieces[0] if len(pieces) == 1 else pl.concat(pieces, how="diagonal")
    if not whole["line"].is_sorted():
        whole = whole.sort("line", maintain_order=True)
    if len(launches) > 1:
        starts = pl.Series("start", launches, dtype=pl.UInt64)
        number = (starts.search_sorted(whole["line"], side="right").cast(pl.Int64) - 1).clip(lower_bound=0).cast(pl.UInt32)
        launch = number.alias("launch")
    else:
        launch = pl.lit(0, dtype=pl.UInt32).alias("launch")
    return whole.with_columns(pl.lit(source).alias("source"), launch)


def _dtype(name: str) -> Any:
    import polars as pl

    return pl.Datetime("us") if name.startswith("Datetime") else getattr(pl, name)


def _coverage(parts: list[_Part]) -> Coverage:
    tallies = [(part, part.tally) for part in parts]
    unknown = [(part.name, *example) for part, tally in tallies for example in tally.unknown_examples]
    damaged = [(part.name, *example) for part, tally in tallies for example in tally.damaged_examples]
    return Coverage(
        lines=sum(part.lines for part in parts),
        parsed=sum(tally.parsed + part.read for part, tally in tallies),
        noise=sum(tally.noise + part.noise for part, tally in tallies),
        unknown=sum(tally.unknown for _, tally in tallies),
        damaged=sum(tally.damaged for _, tally in tallies),
        unfinished=sum(tally.unfinished for _, tally in tallies),
        unknown_examples=tuple(unknown[:EXAMPLES]),
        damaged_examples=tuple(damaged[:EXAMPLES]),
    )
