"""A ``server_args=`` record that ends inside a value: in a paste, the lines below may be the rest of it."""

from __future__ import annotations

from logforensics import lazy_re
from logforensics.parsing import tracebacks
from logforensics.parsing.prefix import read_prefix
from logforensics.parsing.server_args import is_nameless, read_server_args

_MOST_LINES = 600
_MOST_CHARS = 100_000
_TRIMMED = 2  # spaces at the edge that may have been cut off
_MOST_READINGS = 8  # of the lines so far as one record: each reads all of them
_MARK = lazy_re.compile(r"\\.|['\"()\[\]{}]")
_OPENERS, _CLOSERS = "([{", ")]}"


class _Brackets:
    """Which brackets are open at the end of what was seen."""

    def __init__(self) -> None:
        self._depth = 0
        self._plain = 0  # with those in quotes: a stray quote must not hide the end
        self._quote = ""

    def all_close(self, text: str) -> bool:
        """Whether the last open bracket is closed somewhere in this text."""
        closed = False
        for found in _MARK.finditer(text):
            mark = found[0]
            if mark in "'\"":
                self._quote = "" if mark == self._quote else self._quote or mark
            elif len(mark) == 1:
                step = 1 if mark in _OPENERS else -1
                self._plain += step
                self._depth += 0 if self._quote else step
                closed |= step < 0 and (self._depth <= 0 or self._plain <= 0)
        return closed


class UnfinishedLaunch:
    """Collects lines until they make a whole record.

    Attributes:
        lines: the lines so far, ``(number, text)``.
    """

    def __init__(self, number: int, text: str) -> None:
        self.lines = [(number, text)]
        self._chars = len(text)
        self._brackets = _Brackets()
        self._brackets.all_close(text[text.find("server_args=") :])
        self._readings = 0

    @staticmethod
    def begins(text: str) -> bool:
        """Whether this line holds the beginning of such a record, but not its end."""
        if "server_args=" not in text or text.lstrip().startswith(('"', "'", "{")):
            return False
        found = read_server_args(text)
        return found is not None and not found[1]

    def accepts(self, text: str) -> bool:
        """Whether this line may be more of the record."""
        return (
            len(self.lines) < _MOST_LINES
            and self._chars < _MOST_CHARS
            and self._readings < _MOST_READINGS
            and bool(text.strip())
            and not read_prefix(text).end
            and "\r" not in text
            and tracebacks.OPENING not in text
            and tracebacks.EXCEPTION.match(text) is None
        )

    def add(self, number: int, text: str) -> str | None:
        """Take a line; the whole record's text where it is complete with it and reads in one way only."""
        self.lines.append((number, text))
        self._chars += len(text)
        if not self._brackets.all_close(text):
            return None
        self._readings += 1
        whole = self._joined()
        found = read_server_args(whole)
        if found is None or not found[1] or any(map(is_nameless, found[0])):
            return None
        return whole

    def _joined(self) -> str:
        """The lines as one: cut at a column where all but the last are of one width, else at spaces."""
        first, *others = [text for _, text in self.lines]
        margin = min(len(text) - len(text.lstrip()) for text in others)
        margin = margin if margin > 1 else 0  # a paste is indented, a record that was cut has one space at most
        texts = [first, *(text[margin:] for text in others)]
        width = max(map(len, texts[:-1]))
        if all(width - len(text) <= _TRIMMED for text in texts[:-1]):
            return "".join(text.ljust(width) for text in texts[:-1]) + texts[-1]
        return " ".join(text.strip() for text in texts)
