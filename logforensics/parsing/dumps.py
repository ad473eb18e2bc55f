"""py-spy's dump of a stuck process, which a watchdog prints: many lines without a prefix, kept as one notice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logforensics import lazy_re

if TYPE_CHECKING:
    from logforensics.parsing.prefix import Prefix

_HEAD = lazy_re.compile(r"Pyspy dump for PID \d+")
_BODY = lazy_re.compile(r"\s*$|Process \d+: |Python v\d|Thread |\s+.+\(.+:\d+\)|\s+(?:Arguments|Locals):|\s{4,}")
_MAX_CHARS = 4000  # a dump is longer than any other notice, and the stack is what it is for


class Dump:
    """A dump while it is being read."""

    def __init__(self, number: int, prefix: Prefix, message: str) -> None:
        self.number = number
        self.prefix = prefix
        self._lines = [message]
        self._chars = len(message)

    @staticmethod
    def begins(message: str) -> bool:
        """Whether this message heads a dump."""
        return _HEAD.match(message) is not None

    def accept(self, text: str) -> bool:
        """Take one unprefixed line if it belongs to the dump."""
        if _BODY.match(text) is None:
            return False
        if text.strip() and self._chars < _MAX_CHARS:
            self._lines.append(text)
            self._chars += len(text)
        return True

    def row(self) -> dict[str, Any]:
        """Columns of ``notices``: the process and its threads' stacks."""
        return {"level": "error", "logger": "py-spy", "text": "\n".join(self._lines)[:_MAX_CHARS]}
