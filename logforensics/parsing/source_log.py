"""One source, chunk by chunk: workers read what can be vectorised, the line reader what is left."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING

from logforensics.parsing.assembler import Assembler, Numbered, Pieces
from logforensics.parsing.chunk import ChunkResult, read_chunk
from logforensics.parsing.tally import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from logforensics.parsing.patterns import Packs
    from logforensics.reading import Source

THREADS = 1  # beside the main thread: a second one costs 6 % more CPU for the same rows
_GROUP = 8  # chunks whose left lines are read together


class SourceLog:
    """Reads one source once; ``assembled`` knows its lines, its server starts and what became of every line."""

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
        self.assembled = Assembler(stamped=source.stamped, newest_first=source.newest_first, examples=examples, packs=packs)
        self._chunk_bytes = chunk_bytes
        self._threads = threads

    def pieces(self) -> Iterator[Pieces]:
        """Pieces of frames, chunk by chunk; the last ones are the rows that had to wait for the end.

        Raises:
            InputError: the source cannot be read.
        """
        groups: Iterable[list[Numbered]] = self._groups()
        if self.source.newest_first:
            groups = reversed(list(groups))
        for group in groups:
            yield self.assembled.take(group)
        yield self.assembled.close()

    def _groups(self) -> Iterator[list[Numbered]]:
        """What the chunks gave, several at a time."""
        group: list[Numbered] = []
        for offset, result in self._results():
            self.source.remember(self.assembled.lines + 1, offset)
            group.append(self.assembled.number(result))
            if len(group) == _GROUP or self.source.live:
                yield group
                group = []
        if group:
            yield group

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
        # glibc keeps up to twice the largest block that was given back: from now on each chunk is read into the memory of an earlier one
        bytes(len(first.data) + len(second.data))
        with ThreadPoolExecutor(self._threads) as pool:
            waiting: deque[tuple[int, Future[ChunkResult]]] = deque()
            valid = True
            ahead = chain((first, second), chunks)
            del first, second  # a chunk is large: nobody may hold it longer than it is read
            for chunk in ahead:
                waiting.append((chunk.offset, pool.submit(read_chunk, chunk.data, wrappers, valid=valid)))
                del chunk
                if len(waiting) > self._threads:
                    offset, reading = waiting.popleft()
                    result = reading.result()
                    valid &= result.valid  # a log that is not UTF-8 in one place is not in others
                    yield offset, result
            for offset, reading in waiting:
                yield offset, reading.result()
