"""Long lines wrapped at the edge of a terminal or an issue tracker's box: every record but the short ones stands on several lines.

Recognised by the log itself: no line is wider than a certain width, and the lines of that width are followed by text without a head.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from logforensics import lazy_re
from logforensics.reading.joining import joined
from logforensics.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

_MOST = 0.7
_NEARLY_ALL = 0.9
_NARROWEST = 20
_WIDEST = 500
_MIN_FOLDS = 2
_CERTAIN = 8
_SHORT_PASTE = 64  # in more lines, so few folds may be torn lines of one length
_TRIMMED = 2  # spaces at the edge that may have been cut off
# what a line begins with that is no continuation, in the syntax that Python and Rust share
_HEAD = (
    r"\r?(?:\s*$|\s\s+[^\s0-9]|\t|[\[<(]*[0-9]{4}-[0-9]{2}-[0-9]{2}|\[[0-9]{2}:[0-9]{2}:[0-9]{2}|\[(?:rank|TP|DP|PP|EP|gpu_id)|(?:INFO|WARN|ERROR|DEBUG|CRITICAL)"
    r"|Loading |Multi-thread |Captur|Traceback |Exception|During handling|The above exception|[A-Za-z_.]+(?:Error|Exception|Interrupt)(?::|$)"
    r"|\s*[0-9]{1,3}%\||\{\s*(?:[\"']|$)|Killed|Process [0-9S]|Pyspy|Thread |```)"
)
# what goes on rather than begins: at least half of the folds must show it
_GOES_ON = lazy_re.compile(r"[a-z#,.()\]}:;=_/' \"-]|\[[0-9:]+<|[0-9.]+(?:[,)\]%/]|it/s|s/it|$)|(?:True|False|None)\b")


@record(frozen=True)
class Fold:
    """Lines wrapped at ``width`` characters: in the middle of a word where ``hard``, else at a space, which is gone.

    ``head`` matches what a line begins with that is no continuation.
    """

    width: int
    hard: bool
    head: str

    def part(self, _line: str) -> tuple[str, bool]:
        """Only the next line can say whether this one goes on."""
        return "", False

    def held(self, lines: Sequence[str]) -> int:
        """How many of these last lines belong to a record that the next line may go on with."""
        if self.hard and len(lines[-1]) < self.width - _TRIMMED:
            return 0
        return next((count for count, line in enumerate(reversed(lines), 1) if re.match(self.head, line)), len(lines))

    def bare(self, line: str) -> str:
        """The line as it is."""
        return line

    def unfolded(self, lines: Sequence[str]) -> list[str]:
        """The records of a few lines."""
        out: list[str] = []
        gap: str | None = None
        for line, after in pairwise([*lines, ""]):
            out[-1:] = [out[-1] + gap + line] if gap is not None else [*out[-1:], line]
            gap = self._gap(line, after) if re.match(self.head, after) is None else None
        return out

    def _gap(self, line: str, after: str) -> str | None:
        """What was cut out where the next line goes on with this one; None where it does not."""
        if self.hard:
            missing = self.width - len(line)
            return " " * missing if missing == 0 or (0 < missing <= _TRIMMED and not after.startswith(" ")) else None
        if len(line) == self.width and " " not in line:
            return ""  # a word that is longer than a line
        if len(line) + 1 + len(after.split(" ", 1)[0]) <= self.width:
            return None
        return "" if line.endswith(" ") else " "

    def take_off(self, lines: pl.DataFrame) -> pl.DataFrame:
        """Rows ``(n, line)``, each record in the row of its first line."""
        import polars as pl

        text = pl.col("line").fill_null("")
        size, after = text.str.len_chars(), text.shift(-1, fill_value="")
        continues = ~after.str.contains(self.head)
        if self.hard:
            trimmed = size.is_between(self.width - _TRIMMED, self.width - 1) & ~after.str.starts_with(" ")
            goes_on = continues & ((size == self.width) | trimmed)
            whole = text.str.pad_end(self.width)
        else:
            word = after.str.extract(r"^([^ ]*)").str.len_chars().fill_null(0)
            goes_on = continues & (size + 1 + word > self.width)
            of_one_word = (size == self.width) & ~text.str.contains(" ", literal=True)
            whole = text + pl.when(of_one_word | text.str.ends_with(" ")).then(pl.lit("")).otherwise(pl.lit(" "))
        line = pl.when(goes_on).then(whole).otherwise(text).alias("line")
        return joined(lines.select("n", line, goes_on.alias("goes_on"), pl.lit("").alias("stream")))


def find(lines: Sequence[str], prefix: str | None = None) -> Fold | None:
    """How these lines are wrapped; None where they are not. Lines that begin with ``prefix`` are no continuations."""
    width = max((len(line) for line in lines if " " in line.strip()), default=0)  # a text box may leave a long word whole
    if not _NARROWEST <= width <= _WIDEST:
        return None
    head = f"^(?:{prefix.removeprefix('^')}|{_HEAD})" if prefix else f"^{_HEAD}"
    is_head = re.compile(head)
    folds = [(line, after) for line, after in pairwise(lines) if line and is_head.match(after) is None]
    words = [(line, after) for line, after in folds if len(line) + 1 + len(after.split(" ", 1)[0]) > width]
    full = [fold for fold in words if len(fold[0]) >= width - _TRIMMED]
    exact = sum(len(line) == width for line, _ in full)
    widest = sum(len(line) == width for line in lines[:-1])
    enough = _MIN_FOLDS + (len(lines) > _SHORT_PASTE)
    # lines cut at spaces may all end near the edge, but not at it
    if len(full) >= enough and len(full) >= _NEARLY_ALL * len(words) and 2 * exact >= len(full) and _go_on(full):
        # where many whole lines have that width by themselves, a few lines with a rest below them may be torn ones
        return Fold(width, hard=True, head=head) if len(full) >= min(_MOST * widest, _CERTAIN) else None
    if len(words) > enough and len(words) >= _MOST * len(folds) and _go_on(words):
        return Fold(width, hard=False, head=head)
    return None


def _go_on(folds: Sequence[tuple[str, str]]) -> bool:
    return 2 * sum(_GOES_ON.match(after) is not None for _, after in folds) >= len(folds)
