"""A log that is read while it grows: new lines become rows at once, and the frames can be had at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from logforensics.diagnosis import Coverage
from logforensics.parsing import ParsedLog
from logforensics.parsing.assembly import complete, from_rows, with_source
from logforensics.parsing.chunk import read_chunk
from logforensics.parsing.left import Line, read_left
from logforensics.parsing.lines import LineReader
from logforensics.parsing.tally import EXAMPLES
from logforensics.reading.wrappers import detect, is_stamped
from logforensics.schema import FRAMES

if TYPE_CHECKING:
    import polars as pl

    from logforensics.reading import Source, Wrapper

_HEAD_LINES = 400
_PIECES = 24  # of a frame, before they are put together
KEPT_BATCHES = 100_000
"""Batch lines kept: a server that runs for weeks must not fill the memory of who watches it."""
_KEPT_ROWS = 20_000  # of any other frame: the first and the last
_BATCHES = ("prefill", "decode")
_KINDS = {"retractions": "retract"}  # what the line reader calls the records of a frame
_PLACE = frozenset({"line", "time", "tags"})


class GrowingLog:
    """Frames of a log so far. Line numbers are those of :class:`logforensics.watching.follow.Follower`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._head: bytes | None = b""
        self._wrappers: tuple[Wrapper, ...] = ()
        self._stamped = False
        self._begin()

    def _begin(self) -> None:
        self._reader = LineReader(stamped=self._stamped)
        self._pieces: dict[str, list[pl.DataFrame]] = {}
        self._lines = self._read = self._noise = 0
        self._launch_lines: list[int] = []

    @property
    def lines(self) -> int:
        """Lines read."""
        return self._lines

    @property
    def is_sglang(self) -> bool:
        """Whether something that only SGLang prints was seen."""
        return self._reader.tally.sglang or any(name in self._pieces for name in (*_BATCHES, "retractions"))

    def feed(self, data: bytes) -> set[str]:
        """Read whole lines; the frames that have new rows."""
        if self._head is None:
            return self._take(data)
        self._head += data
        form = detect(self._head), is_stamped(self._head)
        if form != (self._wrappers, self._stamped):
            # what the first lines look like shows only after a few of them: read those again
            self._wrappers, self._stamped = form
            data = self._head
            self._begin()
        if self._head.count(b"\n") >= _HEAD_LINES:
            self._head = None
        return self._take(data)

    def settle(self) -> set[str]:
        """Finish what is open, such as a traceback, because nothing has come for a while; the frames that have new rows."""
        self._reader.close()
        return self._collect()

    def frame(self, name: str) -> pl.DataFrame:
        """One frame so far, with every column of its schema."""
        pieces = self._pieces.get(name)
        if not pieces:
            return complete(name, [])
        self._pieces[name] = [self._joined(name, pieces)]
        return complete(name, self._pieces[name])

    def parsed(self, quote: Callable[[Iterable[int]], dict[int, str]]) -> ParsedLog:
        """The log so far, as :func:`logforensics.parse` would give it; ``quote`` gives the text of lines."""
        tally = self._reader.tally
        unknown, damaged = ([(self.name, *example) for example in found] for found in (tally.unknown_examples, tally.damaged_examples))
        coverage = Coverage(
            lines=self._lines,
            parsed=tally.parsed + self._read,
            noise=tally.noise + self._noise,
            unknown=tally.unknown,
            damaged=tally.damaged,
            unfinished=tally.unfinished,
            unknown_examples=tuple(unknown),
            damaged_examples=tuple(damaged),
        )
        opened: Mapping[str, Source] = {self.name: _Quotes(quote)}  # type: ignore[dict-item]  # only its quote() is used
        return ParsedLog({name: self.frame(name) for name in FRAMES}, coverage, (self.name,), self.is_sglang, _opened=opened)

    # ------------------------------------------------------------------------------------------------ rows

    def _take(self, data: bytes) -> set[str]:
        import polars as pl

        result = read_chunk(data, self._wrappers)
        base = self._lines
        self._lines += result.lines
        self._noise += result.access
        self._read += result.lines - result.access - result.left.height - (result.tail is not None)
        left = read_left(result.left.with_columns(pl.col("n").cast(pl.UInt64) + base), EXAMPLES)
        self._read += left.read
        self._reader.tally.add_unknown(left.unknown, left.unknown_examples)
        batches = {name: [frame.with_columns(frame["line"] + base) for frame in found] for name, found in result.frames.items()}
        pieces = [(name, frame) for frames in (batches, left.frames) for name, found in frames.items() for frame in found if frame.height]
        for name, frame in pieces:
            self._reader.saw(_KINDS.get(name, name), [c for c in frame.columns if c not in _PLACE and frame[c].null_count() == 0])
            self._add(name, frame)
        rest = left.rest if result.tail is None else [*left.rest, Line(self._lines, result.tail, known=True)]
        for line in rest:
            unterminated = result.tail is not None and line.number == self._lines
            self._reader.feed(line.number, line.text, known=line.known, unterminated=unterminated)
        return {name for name, _ in pieces} | self._collect()

    def _collect(self) -> set[str]:
        rows = self._reader.take()
        for name, found in rows.items():
            if name == "launches":
                self._launch_lines += [row[0] for row in found]
            self._add(name, from_rows(name, found))
        return set(rows)

    def _add(self, name: str, piece: pl.DataFrame) -> None:
        if not piece.height:
            return
        pieces = self._pieces.setdefault(name, [])
        pieces.append(piece)
        if len(pieces) > _PIECES:
            self._pieces[name] = [self._joined(name, pieces)]

    def _joined(self, name: str, pieces: list[pl.DataFrame]) -> pl.DataFrame:
        """One frame in line order; of a very long one, the rows that still count."""
        import polars as pl

        bare = [piece.drop("source", "launch", strict=False) for piece in pieces]
        whole = with_source(self.name, bare, self._launch_lines, newest_first=False)
        if name in _BATCHES:
            return whole.tail(KEPT_BATCHES)
        return whole if whole.height <= _KEPT_ROWS else pl.concat([whole.head(_KEPT_ROWS // 2), whole.tail(_KEPT_ROWS // 2)])


class _Quotes:
    """Stands for a source where lines are quoted."""

    def __init__(self, quote: Callable[[Iterable[int]], dict[int, str]]) -> None:
        self.quote = quote
