"""A log exported as one JSON array of objects, in one line or spread over many: given as lines, one object each.

A line's number is then the number of the entry. Arrays that have one object on every line already are left as they are.
"""

from __future__ import annotations

import codecs
import io
import json
from typing import TYPE_CHECKING

from logforensics import lazy_re

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logforensics.reading.cutting import Readable

# an array, bare or in an object as in {"events": [{…; or objects one after the other, each on several lines
_OPENING = lazy_re.compile(r"\ufeff?\s*(?:(?:\{\s*\"\w{1,40}\"\s*:\s*)?\[\s*(?=\{)|(?=\{[ \t]*\r?\n))")
_BETWEEN = " \t\r\n,[]"
_BREAK = lazy_re.compile(r"[\r\n]+\s*")  # in valid JSON it stands between values, never inside a text
_BLOCK = 1 << 18
_LONGEST = 8 << 20  # characters of one entry; where none ends within them, the rest is no array of entries
_OPENING_CHARS = 200
_SEEN = 2  # entries that make a list


def entries_of(head: bytes) -> list[str]:
    """The entries at the beginning of a log, one line each; none where it is no such array, or has one entry on every line."""
    text = head.decode("utf-8", "replace")
    opening = _OPENING.match(text)
    if opening is None:
        return []
    found: list[str] = []
    apart = 0  # entries that stand on a line of their own
    at = opening.end()
    for begin, end in _objects(text, at):
        found.append(_as_line(text[begin:end]))
        apart += "\n" in text[at:begin] and "\n" not in text[begin:end]
        at = end
    return found if len(found) >= _SEEN and 2 * apart < len(found) else []


class Entries:
    """A stream of such an array as lines; where the array breaks off, the rest is given as it stands."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""  # what is not given yet
        self._opened = False
        self._plain = False
        self._lines = io.BytesIO()

    def read(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes, none at the end."""
        while not (block := self._lines.read(size)):
            raw = self._stream.read(_BLOCK)
            more = self._decoder.decode(raw, final=not raw)
            if not raw and not more and not self._text:
                return b""
            self._lines = io.BytesIO(self._taken(more, final=not raw).encode())
        return block

    def _taken(self, more: str, *, final: bool) -> str:
        """What can be given now that this text has come."""
        if self._plain:
            return more
        self._text += more
        if not self._opened:
            if len(self._text) < _OPENING_CHARS and not final:
                return ""
            self._opened = True
            opening = _OPENING.match(self._text)
            self._text = self._text[opening.end() :] if opening else self._text
        text, at, out = self._text, 0, []
        for begin, end in _objects(text, 0):
            out.append(_as_line(text[begin:end]) + "\n")
            at = end
        rest = text[_next(text, at) :]
        self._plain = bool(rest) and (final or len(rest) > _LONGEST or not rest.startswith("{"))
        self._text = "" if self._plain else rest
        return "".join([*out, rest] if self._plain else out)


def _objects(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Where the whole objects from ``at`` on begin and end, as far as nothing else stands between them."""
    decode = json.JSONDecoder().raw_decode
    while True:
        at = _next(text, at)
        if not text.startswith("{", at):
            return
        try:
            _, end = decode(text, at)
        except (ValueError, RecursionError):
            return
        yield at, end
        at = end


def _next(text: str, at: int) -> int:
    """The first place from ``at`` on that is not between entries."""
    while at < len(text) and text[at] in _BETWEEN:
        at += 1
    return at


def _as_line(entry: str) -> str:
    return _BREAK.sub(" ", entry)
