"""A log that is read while it grows: new lines become rows at once, and the frames can be had at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from logforensics.parsing import ParsedLog
from logforensics.parsing.assembler import Assembler, Pieces, coverage
from logforensics.parsing.assembly import complete, with_source
from logforensics.parsing.chunk import read_chunk
from logforensics.parsing.releases import narrowed
from logforensics.reading.wrappers import detect, is_stamped
from logforensics.schema import FRAMES

if TYPE_CHECKING:
    import polars as pl

    from logforensics.parsing.patterns import Packs
    from logforensics.reading import Source, Wrapper

_HEAD_LINES = 400
_PIECES = 24  # of a frame, before they are put together
KEPT_BATCHES = 100_000
"""Batch lines kept: a server that runs for weeks must not fill the memory of who watches it."""
_KEPT_ROWS = 20_000  # of any other frame: the first and the last
_BATCHES = ("prefill", "decode")


class GrowingLog:
    """Frames of a log so far. Line numbers are those of :class:`logforensics.watching.follow.Follower`."""

    def __init__(self, name: str, packs: Packs | None = None) -> None:
        self.name = name
        self._packs = packs
        self._head: bytes | None = b""
        self._wrappers: tuple[Wrapper, ...] = ()
        self._stamped = False
        self._begin()

    def _begin(self) -> None:
        self._assembled = Assembler(stamped=self._stamped, packs=self._packs)
        self._pieces: Pieces = {}

    @property
    def lines(self) -> int:
        """Lines read."""
        return self._assembled.lines

    @property
    def is_sglang(self) -> bool:
        """Whether something that only SGLang prints was seen."""
        return self._assembled.tally.sglang

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
        return self._add(self._assembled.close())

    def frame(self, name: str) -> pl.DataFrame:
        """One frame so far, with every column of its schema."""
        pieces = self._pieces.get(name)
        if not pieces:
            return complete(name, [])
        self._pieces[name] = [self._joined(name, pieces)]
        return complete(name, self._pieces[name])

    def parsed(self, quote: Callable[[Iterable[int]], dict[int, str]]) -> ParsedLog:
        """The log so far, as :func:`logforensics.parse` would give it; ``quote`` gives the text of lines."""
        opened: Mapping[str, Source] = {self.name: _Quotes(quote)}  # type: ignore[dict-item]  # only its quote() is used
        return ParsedLog(
            narrowed({name: self.frame(name) for name in FRAMES}),
            coverage([(self.name, self._assembled, False)]),
            (self.name,),
            self.is_sglang,
            _opened=opened,
        )

    # ------------------------------------------------------------------------------------------------ rows

    def _take(self, data: bytes) -> set[str]:
        return self._add(self._assembled.take([self._assembled.number(read_chunk(data, self._wrappers))]))

    def _add(self, found: Pieces) -> set[str]:
        """Keep pieces; the frames that have new rows."""
        for name, new in found.items():
            pieces = self._pieces.setdefault(name, [])
            pieces += new
            if len(pieces) > _PIECES:
                self._pieces[name] = [self._joined(name, pieces)]
        return set(found)

    def _joined(self, name: str, pieces: list[pl.DataFrame]) -> pl.DataFrame:
        """One frame in line order; of a very long one, the rows that still count."""
        import polars as pl

        bare = [piece.drop("source", "launch", strict=False) for piece in pieces]
        whole = with_source(self.name, bare, self._assembled.launches, newest_first=False)
        if name in _BATCHES:
            return whole.tail(KEPT_BATCHES)
        return whole if whole.height <= _KEPT_ROWS else pl.concat([whole.head(_KEPT_ROWS // 2), whole.tail(_KEPT_ROWS // 2)])


class _Quotes:
    """Stands for a source where lines are quoted."""

    def __init__(self, quote: Callable[[Iterable[int]], dict[int, str]]) -> None:
        self.quote = quote
