"""A whole log, or several, as frames: at once (:func:`parse`) or piece by piece in bounded memory (:func:`stream`)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from logforensics.errors import InputError
from logforensics.evidence import Side, is_side, separate
from logforensics.garbage import without_cycle_collection
from logforensics.parsing.assembler import coverage
from logforensics.parsing.assembly import complete, with_source
from logforensics.parsing.releases import Evidence, narrowed
from logforensics.parsing.source_log import THREADS, SourceLog
from logforensics.progress import Listener, each, telling
from logforensics.reading import Source, open_sources
from logforensics.records import record
from logforensics.schema import FRAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from logforensics.diagnosis import Coverage
    from logforensics.parsing.patterns import Packs

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@record(frozen=True)
class ParsedLog:
    """What was read: typed frames (see docs/frames.md), what became of every line, and where it came from."""

    frames: Mapping[str, pl.DataFrame]
    coverage: Coverage
    sources: tuple[str, ...]
    is_sglang: bool
    side: Side = field(default_factory=Side)  # what files given beside the logs say
    _opened: Mapping[str, Source] = field(default_factory=dict, repr=False)

    def quote(self, wanted: Mapping[str, Iterable[int]]) -> dict[tuple[str, int], str]:
        """The text of the given lines, by (source, line)."""
        texts: dict[tuple[str, int], str] = {}
        for name, lines in wanted.items():
            if source := self._opened.get(name):
                texts |= {(name, line): text for line, text in source.quote(lines).items()}
        return texts

    def newest_first(self, source: str) -> bool:
        """Whether the first line of a source is the last that was written."""
        opened = self._opened.get(source)
        return opened is not None and opened.newest_first

    def require_sglang(self) -> None:
        """Refuse a text that holds nothing SGLang prints.

        Raises:
            InputError: no line was recognised.
        """
        if not self.is_sglang:
            raise _not_sglang(self.sources, self.coverage)


def parse(
    paths: Paths,
    *,
    follow: bool = False,
    chunk_bytes: int | None = None,
    threads: int = THREADS,
    patterns: str | os.PathLike[str] | None = None,
    progress: Listener | None = None,
) -> ParsedLog:
    """Read one or more logs (``-`` is standard input) into frames.

    Args:
        paths: files, folders, globs or archives; each log becomes a value of the ``source`` column.
        follow: read on while a file grows, also into the file that replaces it, until nothing has come for two seconds.
        chunk_bytes: size of the pieces read at once; the rows do not depend on it.
        threads: worker threads for the vectorised part; the rows do not depend on it.
        patterns: a folder of pattern packs of one's own, which are tried before the built-in ones.
        progress: is called with a :class:`logforensics.Progress` as reading goes on, many times a second: let it be quick.

    Raises:
        PatternError: a pack of one's own is malformed.
        InputError: a file is missing, empty, or binary, a folder holds no log, or only files that go beside a log were given.
    """
    packs = _with_own(patterns) if patterns is not None else None
    with telling(progress), without_cycle_collection():
        unread: list[str] = []
        sources, side, beside = separate(open_sources(paths, follow=follow, also=is_side, passed_over=unread), unread)
        logs = [SourceLog(source, chunk_bytes=chunk_bytes, threads=threads, packs=packs) for source in sources]
        frames = _frames(logs)
    return ParsedLog(
        frames=frames,
        coverage=_coverage(logs),
        sources=tuple(source.name for source in sources),
        is_sglang=any(log.assembled.tally.sglang for log in logs),
        side=side,
        _opened={source.name: source for source in (*sources, *beside)},
    )


def _frames(logs: Sequence[SourceLog]) -> dict[str, pl.DataFrame]:
    gathered: dict[str, list[pl.DataFrame]] = {name: [] for name in FRAMES}
    for log in each(logs, [log.source.size for log in logs]):
        pieces: dict[str, list[pl.DataFrame]] = {}
        for found in log.pieces():
            for name, frames in found.items():
                pieces.setdefault(name, []).extend(frames)
        for name in list(pieces):  # one by one, so that the memory of one is there for the next
            if frames := pieces.pop(name):
                gathered[name].append(with_source(log.source.name, frames, log.assembled.launches, newest_first=log.source.newest_first))
            del frames
    return narrowed({name: complete(name, gathered.pop(name)) for name in FRAMES})


def _with_own(folder: str | os.PathLike[str]) -> Packs:
    from logforensics.parsing.own_packs import with_own

    return with_own(folder)


class _Starts:
    """The server starts of a stream, which come last: only then is it known which releases their lines fit."""

    def __init__(self) -> None:
        self._rows: list[pl.DataFrame] = []
        self._evidence = Evidence()

    def add(self, name: str, piece: pl.DataFrame) -> None:
        """Look at rows of a frame."""
        self._evidence.add({name: piece})
        if name == "launches":
            self._rows.append(piece)

    def rows(self) -> Iterator[tuple[str, pl.DataFrame]]:
        """All starts, with their ranges."""
        import polars as pl

        if self._rows:
            yield "launches", self._evidence.narrow(pl.concat(self._rows))


class Stream:
    """Frames piece by piece, for logs whose frames do not fit in memory.

    Iterating gives ``(frame name, rows)``: within a source and a frame the rows come in the order of their lines, except that the row of a
    traceback comes where it ends, and the rows of doubtful records and the server starts come last. Every piece has all columns of its frame.
    ``side`` is what files given beside the logs say, and which logs could not be read.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        follow: bool = False,
        chunk_bytes: int | None = None,
        threads: int = THREADS,
        patterns: str | os.PathLike[str] | None = None,
    ) -> None:
        packs = _with_own(patterns) if patterns is not None else None
        unread: list[str] = []
        sources, self.side, _ = separate(open_sources(paths, follow=follow, also=is_side, passed_over=unread), unread)
        self._logs = [SourceLog(source, chunk_bytes=chunk_bytes, threads=threads, packs=packs) for source in sources]

    def __iter__(self) -> Iterator[tuple[str, pl.DataFrame]]:
        """Read the sources, one after the other, once."""
        for log in each(self._logs, [log.source.size for log in self._logs]):
            starts = _Starts()
            for found in log.pieces():
                for name, frames in found.items():
                    if frames:
                        done = [with_source(log.source.name, frames, log.assembled.launches, newest_first=log.source.newest_first)]
                        piece = complete(name, done)
                        starts.add(name, piece)
                        if name != "launches":
                            yield name, piece
            yield from starts.rows()

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the logs."""
        return tuple(log.source.name for log in self._logs)

    @property
    def coverage(self) -> Coverage:
        """What became of the lines read so far."""
        return _coverage(self._logs)

    def require_sglang(self) -> None:
        """Refuse a text of which nothing that was read so far is SGLang's.

        Raises:
            InputError: no line was recognised.
        """
        if not any(log.assembled.tally.sglang for log in self._logs):
            raise _not_sglang(self.sources, self.coverage)


def stream(
    paths: Paths,
    *,
    follow: bool = False,
    chunk_bytes: int | None = None,
    threads: int = THREADS,
    patterns: str | os.PathLike[str] | None = None,
) -> Stream:
    """Read one or more logs piece by piece, in memory that does not grow with the log. Arguments and errors as for :func:`parse`."""
    return Stream(paths, follow=follow, chunk_bytes=chunk_bytes, threads=threads, patterns=patterns)


def _not_sglang(sources: Sequence[str], coverage: Coverage) -> InputError:
    return InputError(f"{', '.join(sources)}: does not look like an SGLang server log: none of {coverage.lines} lines was recognised")


def _coverage(logs: Sequence[SourceLog]) -> Coverage:
    return coverage([(log.source.name, log.assembled, log.source.cut) for log in logs])
