"""Texts of many lines without a prefix, each kept as one notice: py-spy's dump of a stuck process, and the usage that argparse prints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from logforensics import lazy_re
from logforensics.records import record

if TYPE_CHECKING:
    from logforensics.parsing.prefix import Prefix

_MAX_CHARS = 4000  # such a text is longer than any other notice, and the stack is what it is for


@record(frozen=True)
class _Kind:
    """How a text begins and goes on, and the columns of its notice."""

    head: re.Pattern[str]
    body: re.Pattern[str]
    level: str
    logger: str


_KINDS = (
    _Kind(
        lazy_re.compile(r"Pyspy dump for PID \d+"),
        lazy_re.compile(r"\s*$|Process \d+: |Python v\d|Thread |\s+[^\s(][^(]*\([^)]*:\d+\)|\s+(?:Arguments|Locals):|\s{4,}"),
        "error",
        "py-spy",
    ),
    _Kind(lazy_re.compile(r"usage: (?:sglang|launch_server\.py|python3? )"), lazy_re.compile(r"\s{4,}\S"), "info", "argparse"),
)


class Dump:
    """A text while it is being read."""

    def __init__(self, number: int, prefix: Prefix, message: str, kind: _Kind) -> None:
        self.number = number
        self.prefix = prefix
        self._kind = kind
        self._lines = [message]
        self._chars = len(message)

    @staticmethod
    def at(number: int, prefix: Prefix, message: str) -> Dump | None:
        """The text that this message heads, if it heads one."""
        kind = next((kind for kind in _KINDS if kind.head.match(message)), None)
        return Dump(number, prefix, message, kind) if kind else None

    def accept(self, text: str) -> bool:
        """Take one unprefixed line if it belongs to the text."""
        if self._kind.body.match(text) is None:
            return False
        if text.strip() and self._chars < _MAX_CHARS:
            self._lines.append(text)
            self._chars += len(text)
        return True

    def row(self) -> dict[str, Any]:
        """Columns of ``notices``: the process and its threads' stacks, or the usage."""
        return {"level": self._kind.level, "logger": self._kind.logger, "text": "\n".join(self._lines)[:_MAX_CHARS]}
