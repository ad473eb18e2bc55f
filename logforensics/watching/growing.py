"""A log that is read while it grows: new lines become rows at once, and the frames can be had at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from logforensics.diagnosis import Coverage
from logforensics.parsing import ParsedLog
from logforensics.parsing.batch import with_ranks
from logforensics.parsing.chunk import read_chunk
from logforensics.parsing.lines import LineReader, Row
from logforensics.parsing.prefix import Ranks
from logforensics.reading.wrappers import detect
from logforensics.schema import FRAMES, columns

if TYPE_CHECKING:
    import polars as pl

    from logforensics.reading import Source, Wrapper

_HEAD_LINES = 400
_PIECES = 24  # of a frame, before they are put together
KEPT_BATCHES = 100_000
"""Batch lines kept: a server that runs for weeks must not fill the memory of who watches it."""
_KEPT_ROWS = 20_000  # of any other frame: the first and the last
_BATCHES = ("prefill", "decode")


class GrowingLog:
    """Frames of a log so far. Line numbers are those of :class:`logforensics.watching.follow.Follower`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._head: bytes | None = b""
        self._wrappers: tuple[Wrapper, ...] = ()
        self._begin()

    def _begin(self) -> None:
        self._reader = LineReader()
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
        wrappers = detect(self._head)
        if wrappers != self._wrappers:
            # what the first lines are wrapped in shows only after a few of them: read those again
            self._wrappers, data = wrappers, self._head
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
        import polars as pl

        pieces = self._pieces.get(name, [])
        if not pieces:
            return _schema(name)
        whole = _joined(name, pieces)
        self._pieces[name] = [whole]
        starts = pl.Series("start", self._launch_lines, dtype=pl.UInt64)
        number = (starts.search_sorted(whole["line"], side="right").cast(pl.Int64) - 1).clip(lower_bound=0).cast(pl.UInt32)
        return whole.with_columns(pl.lit(self.name).alias("source"), number.alias("launch")).select(_schema(name).columns)

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
        return ParsedLog({name: self.frame(name) for name in FRAMES}, coverage, (self.name,), self.is_sglang, opened)

    # ------------------------------------------------------------------------------------------------ rows

    def _take(self, data: bytes) -> set[str]:
        result = read_chunk(data, self._wrappers)
        base, last = self._lines, len(result.rest) - 1
        for place, line in enumerate(result.rest):
            self._reader.feed(base + line.n, line.text, known=line.known, unterminated=result.unterminated and place == last)
        self._lines += result.lines
        self._read += result.read
        self._noise += result.access
        self._reader.tally.add_unknown(result.unknown, [(base + n, text) for n, text in result.unknown_examples])
        for name, found in result.frames.items():
            for frame in found:
                if frame.height:
                    self._add(name, _shifted(frame, base))
        return {name for name, found in result.frames.items() if any(frame.height for frame in found)} | self._collect()

    def _collect(self) -> set[str]:
        rows = self._reader.take()
        for name, found in rows.items():
            if name == "launches":
                self._launch_lines += [row[0] for row in found]
            self._add(name, _from_rows(name, found))
        return set(rows)

    def _add(self, name: str, piece: pl.DataFrame) -> None:
        pieces = self._pieces.setdefault(name, [])
        pieces.append(piece)
        if len(pieces) > _PIECES:
            self._pieces[name] = [_joined(name, pieces)]


class _Quotes:
    """Stands for a source where lines are quoted."""

    def __init__(self, quote: Callable[[Iterable[int]], dict[int, str]]) -> None:
        self.quote = quote


def _shifted(frame: pl.DataFrame, base: int) -> pl.DataFrame:
    """Line numbers of the log instead of the chunk, ranks instead of tags."""
    import polars as pl

    frame = frame.with_columns((pl.col("line") + base).cast(pl.UInt64))
    return with_ranks(frame) if "tags" in frame.columns else frame


def _from_rows(name: str, rows: list[Row]) -> pl.DataFrame:
    schema = _schema(name).schema
    values: dict[str, list[Any]] = {key: [row[3].get(key) for row in rows] for key in schema}
    values |= {"line": [row[0] for row in rows], "time": [row[1] for row in rows]}
    values |= {key: [row[2][place] for row in rows] for place, key in enumerate(Ranks._fields)}
    import polars as pl

    return pl.DataFrame([pl.Series(key, found, dtype=schema[key], strict=False) for key, found in values.items()])


def _joined(name: str, pieces: list[pl.DataFrame]) -> pl.DataFrame:
    """One frame in line order with every column; of a very long one, the rows that still count."""
    import polars as pl

    empty = _schema(name).drop("source", "launch")
    whole = pl.concat([empty, *(piece.drop("source", "launch", strict=False) for piece in pieces)], how="diagonal_relaxed")
    whole = whole.cast(dict(empty.schema)).sort("line", maintain_order=True)  # type: ignore[arg-type]
    if name in _BATCHES:
        return whole.tail(KEPT_BATCHES)
    return whole if whole.height <= _KEPT_ROWS else pl.concat([whole.head(_KEPT_ROWS // 2), whole.tail(_KEPT_ROWS // 2)])


def _schema(name: str) -> pl.DataFrame:
    """The empty frame."""
    import polars as pl

    def dtype(text: str) -> Any:
        return pl.Datetime("us") if text.startswith("Datetime") else getattr(pl, text)

    return pl.DataFrame(schema={column.name: dtype(column.dtype) for column in columns(name)})
