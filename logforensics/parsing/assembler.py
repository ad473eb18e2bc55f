"""What the chunks of one log gave, put together: numbered rows of frames, and the lines that only the line reader can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logforensics.diagnosis import Coverage
from logforensics.parsing.assembly import from_rows
from logforensics.parsing.left import Line, read_left
from logforensics.parsing.lines import LineReader
from logforensics.parsing.tally import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from logforensics.parsing.chunk import ChunkResult
    from logforensics.parsing.patterns import Packs

Pieces = dict[str, list["pl.DataFrame"]]
Numbered = tuple[int, "ChunkResult"]  # how many lines stand before a chunk, and what it gave

_KINDS = {"retractions": "retract"}  # events of frames that workers fill
_PLACE = frozenset({"line", "time", "tags"})


class Assembler:
    """Takes what the chunks of one log gave, in the order in which they were written.

    Attributes:
        lines: physical lines so far.
        read: of these, lines that workers turned into rows.
        noise: of these, access lines.
        launches: line numbers of the server starts, in the order they were written.
        tally: what became of the other lines.
    """

    def __init__(self, *, stamped: bool = False, newest_first: bool = False, examples: int = EXAMPLES, packs: Packs | None = None) -> None:
        self.lines = self.read = self.noise = 0
        self.launches: list[int] = []
        self._newest_first = newest_first
        self._reader = LineReader(stamped=stamped, step=-1 if newest_first else 1, examples=examples, packs=packs)
        self._literals = tuple(packs.literals) if packs else ()
        self._examples = examples
        self.tally = self._reader.tally

    def number(self, result: ChunkResult) -> Numbered:
        """Count the lines of the next chunk of the file."""
        before = self.lines
        self.lines += result.lines
        return before, result

    def take(self, group: Sequence[Numbered]) -> Pieces:
        """Pieces of frames, at most two of each: what could be vectorised, and what the line reader gave."""
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
        self.tally.add_unknown(left.unknown, left.unknown_examples)
        for name, found in left.frames.items():
            pieces.setdefault(name, []).extend(found)
        self._learn(pieces)
        pieces = {name: [pl.concat(found, how="diagonal")] if len(found) > 1 else found for name, found in pieces.items()}
        self._feed(left.rest, group[-1])
        for name, found in self._rows().items():
            pieces.setdefault(name, []).extend(found)
        return {name: found for name, found in pieces.items() if found}

    def close(self) -> Pieces:
        """Finish what is open, such as a traceback: the rows that had to wait for it."""
        self._reader.close()
        return self._rows()

    def _learn(self, pieces: Pieces) -> None:
        """Tell the line reader which whole records this log holds."""
        for name, found in pieces.items():
            for frame in found:
                self._reader.saw(_KINDS.get(name, name), [c for c in frame.columns if c not in _PLACE and frame[c].null_count() == 0])

    def _feed(self, rest: list[Line], last: Numbered) -> None:
        """Let the line reader read, in the order in which the lines were written."""
        base, result = last
        ending = base + result.lines if result.tail is not None else 0
        if result.tail is not None:
            rest.append(Line(ending, result.tail, known=True))
        for line in reversed(rest) if self._newest_first else rest:
            self._reader.feed(line.number, line.text, known=line.known, unterminated=line.number == ending)

    def _rows(self) -> Pieces:
        rows = self._reader.take()
        self.launches += [row[0] for row in rows.get("launches", [])]
        return {name: [from_rows(name, found)] for name, found in rows.items()}


def _shifted(frame: pl.DataFrame, base: int) -> pl.DataFrame:
    """Line numbers of the chunk as line numbers of the log."""
    return frame.replace_column(frame.get_column_index("line"), frame["line"] + base)


def coverage(logs: Sequence[tuple[str, Assembler, bool]]) -> Coverage:
    """What became of the lines of several logs: the name of each, what was assembled, and whether its data ended too early."""
    unknown = [(name, *example) for name, log, _ in logs for example in log.tally.unknown_examples]
    damaged = [(name, *example) for name, log, _ in logs for example in log.tally.damaged_examples]
    return Coverage(
        lines=sum(log.lines for _, log, _ in logs),
        parsed=sum(log.tally.parsed + log.read for _, log, _ in logs),
        noise=sum(log.tally.noise + log.noise for _, log, _ in logs),
        unknown=sum(log.tally.unknown for _, log, _ in logs),
        damaged=sum(log.tally.damaged for _, log, _ in logs),
        unfinished=sum(max(log.tally.unfinished, cut) for _, log, cut in logs),
        unknown_examples=tuple(unknown[:EXAMPLES]),
        damaged_examples=tuple(damaged[:EXAMPLES]),
        damaged_lines=tuple((name, *place) for name, log, _ in logs for place in log.tally.damaged_lines),
    )
