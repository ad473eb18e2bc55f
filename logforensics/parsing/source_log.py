"""One source, chunk by chunk: workers read what can be vectorised, the line reader what is left."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING

from logforensics.parsing.assembly import from_rows
from logforensics.parsing.chunk import ChunkResult, read_chunk
from logforensics.parsing.lines import LineReader
from logforensics.parsing.tally import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import polars as pl

    from logforensics.reading import Source

THREADS = 1  # beside the main thread: a second one costs 6 % more CPU for the same rows
_KINDS = {"retractions": "retract"}  # events of frames that workers fill
_PLACE = frozenset({"line", "time", "tags"})
_SGLANG_ALONE = frozenset({"prefill", "decode", "retractions"})

Pieces = dict[str, list["pl.DataFrame"]]


class SourceLog:
    """Reads one source once.

    Attributes:
        lines: physical lines so far.
        read: of these, lines that workers turned into rows.
        noise: of these, access lines.
        launches: line numbers of the server starts, in the order they were written.
    """

    def __init__(self, source: Source, *, chunk_bytes: int | None = None, threads: int = THREADS, examples: int = EXAMPLES) -> None:
        self.source = source
        self.lines = self.read = self.noise = 0
        self.launches: list[int] = []
        self._chunk_bytes = chunk_bytes
        self._threads = threads
        self._reader = LineReader(stamped=source.stamped, step=-1 if source.newest_first else 1, examples=examples)
        self._examples = examples
        self.tally = self._reader.tally

    def pieces(self) -> Iterator[Pieces]:
        """Pieces of frames, chunk by chunk; the last ones are the rows that had to wait for the end.

        Raises:
            InputError: the source cannot be read.
        """
        results: Iterable[tuple[int, ChunkResult]] = self._numbered(self._results())
        if self.source.newest_first:
            results = reversed(list(results))
        for base, result in results:
            yield self._read(base, result)
        self._reader.close()
        yield self._rows()

    def _read(self, base: int, result: ChunkResult) -> Pieces:
        frames = {name: [_shifted(frame, base) for frame in found] for name, found in result.frames.items()}
        for name, found in frames.items():
            self.tally.sglang |= bool(found) and name in _SGLANG_ALONE
            for frame in found:
                self._reader.saw(_KINDS.get(name, name), [c for c in frame.columns if c not in _PLACE and frame[c].null_count() == 0])
        rest = reversed(result.rest) if self.source.newest_first else result.rest
        for line in rest:
            last = result.unterminated and line.n == result.lines
            self._reader.feed(base + line.n, line.text, known=line.known, unterminated=last)
        self.read += result.read
        self.noise += result.access
        self.tally.add_unknown(result.unknown, [(base + n, text) for n, text in result.unknown_examples])
        for name, found in self._rows().items():
            frames.setdefault(name, []).extend(found)
        return frames

    def _rows(self) -> Pieces:
        rows = self._reader.take()
        self.launches += [row[0] for row in rows.get("launches", [])]
        return {name: [from_rows(name, found)] for name, found in rows.items()}

    def _numbered(self, results: Iterable[ChunkResult]) -> Iterator[tuple[int, ChunkResult]]:
        """Each result with the number of lines before it."""
        for result in results:
            yield self.lines, result
            self.lines += result.lines

    def _results(self) -> Iterator[ChunkResult]:
        """Chunk results in order, with at most ``threads`` + 1 chunks in memory."""
        chunks = self.source.chunks(self._chunk_bytes) if self._chunk_bytes else self.source.chunks()
        wrappers = self.source.wrappers
        if self.source.live:  # what a growing log says now is wanted now
            yield from (read_chunk(chunk.data, wrappers, self._examples) for chunk in chunks)
            return
        first, second = next(chunks, None), next(chunks, None)
        if first is None or second is None:  # a small log: threads would cost more than they save
            yield from (read_chunk(chunk.data, wrappers, self._examples) for chunk in (first,) if chunk)
            return
        with ThreadPoolExecutor(self._threads) as pool:
            waiting: deque[Future[ChunkResult]] = deque()
            for chunk in chain((first, second), chunks):
                waiting.append(pool.submit(read_chunk, chunk.data, wrappers, self._examples))
                if len(waiting) > self._threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()


def _shifted(frame: pl.DataFrame, base: int) -> pl.DataFrame:
    """Line numbers of the chunk as line numbers of the log."""
    return frame.replace_column(frame.get_column_index("line"), frame["line"] + base)
