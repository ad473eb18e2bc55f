"""One source, chunk by chunk: workers read what can be vectorised, the line reader what is left."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING

from logforensics.parsing.assembly import from_rows
from logforensics.parsing.chunk import ChunkResult, read_chunk
from logforensics.parsing.left import Line, read_left
from logforensics.parsing.lines import LineReader
from logforensics.parsing.tally import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import polars as pl

    from logforensics.parsing.patterns import Packs
    from logforensics.reading import Source

THREADS = 1  # beside the main thread: a second one costs 6 % more CPU for the same rows
_GROUP = 12  # chunks whose left lines are read together
_KINDS = {"retractions": "retract"}  # events of frames that workers fill
_PLACE = frozenset({"line", "time", "tags"})

Pieces = dict[str, list["pl.DataFrame"]]


class SourceLog:
    """Reads one source once.

    Attributes:
        lines: physical lines so far.
        read: of these, lines that workers turned into rows.
        noise: of these, access lines.
        launches: line numbers of the server starts, in the order they were written.
    """

    def __init__(
        self,
        source: Source,
        *,
        chunk_bytes: int | None = None,
        threads: int = THREADS,
        examples: int = EXAMPLES,
        packs: Packs | None = None,
    ) -> None:
        self.source = source
        self.lines = self.read = self.noise = 0
        self.launches: list[int] = []
        self._chunk_bytes = chunk_bytes
        self._threads = threads
        self._reader = LineReader(stamped=source.stamped, step=-1 if source.newest_first else 1, examples=examples, packs=packs)
        self._literals = tuple(packs.literals) if packs else ()
        self._examples = examples
        self.tally = self._reader.tally

    def pieces(self) -> Iterator[Pieces]:
        """Pieces of frames, chunk by chunk; the last ones are the rows that had to wait for the end.

        Raises:
            InputError: the source cannot be read.
        """
        groups: Iterable[list[tuple[int, ChunkResult]]] = self._groups()
        if self.source.newest_first:
            groups = reversed(list(groups))
        for group in groups:
            yield self._read(group)
        self._reader.close()
        yield self._rows()

    def _groups(self) -> Iterator[list[tuple[int, ChunkResult]]]:
        """Results with the number of lines before each, several at a time."""
        group: list[tuple[int, ChunkResult]] = []
        for offset, result in self._results():
            self.source.remember(self.lines + 1, offset)
            group.append((self.lines, result))
            self.lines += result.lines
            if len(group) == _GROUP or self.source.live:
                yield group
                group = []
        if group:
            yield group

    def _read(self, group: list[tuple[int, ChunkResult]]) -> Pieces:
        import polars as pl

        pieces: Pieces = {}
        for base, result in group:
            self.noise += result.access
            self.read += result.lines - result.access - result.left.height - (result.tail is not None)
            for name, found in result.frames.items():
                self.tally.sglang |= bool(found)
                pieces.setdefault(name, []).extend(_shifted(frame, base) for frame in found)
        numbered = [result.left.with_columns(pl.col("n").cast(pl.UInt64) + base) for base, result in group]
        left = read_left(pl.concat(numbered), self._examples, self._literals)
        self.read += left.read
        self.tally.sglang |= "retractions" in left.frames
        for name, found in left.frames.items():
            pieces.setdefault(name, []).extend(found)
        for name, found in pieces.items():
            for frame in found:
                self._reader.saw(_KINDS.get(name, name), [c for c in frame.columns if c not in _PLACE and frame[c].null_count() == 0])
        # few large pieces: whatever looks at a frame later visits each of them
        pieces = {name: [pl.concat(found, how="diagonal").rechunk()] if len(found) > 1 else found for name, found in pieces.items()}
        self._feed(left.rest, group[-1])
        self.tally.add_unknown(left.unknown, left.unknown_examples)
        for name, found in self._rows().items():
            pieces.setdefault(name, []).extend(found)
        return pieces

    def _feed(self, rest: list[Line], last: tuple[int, ChunkResult]) -> None:
        """Let the line reader read, in the order in which the lines were written."""
        base, result = last
        ending = base + result.lines if result.tail is not None else 0
        if result.tail is not None:
            rest.append(Line(ending, result.tail, known=True))
        for line in reversed(rest) if self.source.newest_first else rest:
            self._reader.feed(line.number, line.text, known=line.known, unterminated=line.number == ending)

    def _rows(self) -> Pieces:
        rows = self._reader.take()
        self.launches += [row[0] for row in rows.get("launches", [])]
        return {name: [from_rows(name, found)] for name, found in rows.items()}

    def _results(self) -> Iterator[tuple[int, ChunkResult]]:
        """The offset of each chunk and what it gave, in order, with at most ``threads`` + 1 chunks in memory."""
        chunks = self.source.chunks(self._chunk_bytes) if self._chunk_bytes else self.source.chunks()
        wrappers = self.source.wrappers
        if self.source.live:  # what a growing log says now is wanted now
            yield from ((chunk.offset, read_chunk(chunk.data, wrappers)) for chunk in chunks)
            return
        first, second = next(chunks, None), next(chunks, None)
        if first is None or second is None:  # a small log: threads would cost more than they save
            yield from ((chunk.offset, read_chunk(chunk.data, wrappers)) for chunk in (first,) if chunk)
            return
        with ThreadPoolExecutor(self._threads) as pool:
            waiting: deque[tuple[int, Future[ChunkResult]]] = deque()
            ahead = chain((first, second), chunks)
            del first, second  # a chunk is large: nobody may hold it longer than it is read
            for chunk in ahead:
                waiting.append((chunk.offset, pool.submit(read_chunk, chunk.data, wrappers)))
                del chunk
                if len(waiting) > self._threads:
                    offset, result = waiting.popleft()
                    yield offset, result.result()
            for offset, result in waiting:
                yield offset, result.result()


def _shifted(frame: pl.DataFrame, base: int) -> pl.DataFrame:
    """Line numbers of the chunk as line numbers of the log."""
    return frame.replace_column(frame.get_column_index("line"), frame["line"] + base)
