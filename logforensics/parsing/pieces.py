"""The records of one physical line: bars redraw it, and processes that share a pipe tear and glue their lines.

Rule: a record that another one follows on its line may have lost its end, so it is marked as cut; what stands inside quotes is text, not
a record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logforensics import lazy_re
from logforensics.parsing.prefix import read_prefix
from logforensics.records import record

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

_SEGMENTS = lazy_re.compile(r"[\r\n]+")  # a JSON envelope may hold several lines
# a record that begins in the middle of a line: only SGLang's dated bracket and uvicorn's address are distinctive enough
_EMBEDDED = lazy_re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]\[\n]{0,120}\] |INFO:     [\da-f.:\[\]]{3,45} - \"")
_STAMPED = lazy_re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?(?: [^\]\[]{1,120})?\] (?=INFO:     )")
_REQUEST = lazy_re.compile(r"(?:\[[^\]]{8,140}\] )?(?:Receive|Finish)(?: OpenAI)?: |(?:\[[^\]]{8,140}\] )?\s*\{\"")
_STRING = lazy_re.compile(r"'[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\"")
_AFTER_STRING = ",)]}: "  # and nothing, at the end of a line
_BEFORE = 80  # characters that tell a quotation from a torn record
_QUOTE = lazy_re.compile(r"['\"]")
_INTRODUCES = lazy_re.compile(r"[\"'`|>=:(]\s*$")
_QUOTES = lazy_re.compile(r"[\"'`|>:]\s*$")  # of a logger's record, whose parentheses and assignments hold no other
_TORN_AT_LABEL = lazy_re.compile(
    r"(?:#[\w -]+|usage|mem|size|tokens|elapsed|\(token/s\)|graph|accept \w+)[:=] ?$|(?:^|\] )INFO:[ \d.:]*$|^\[[-\d: A-Z]*$|HTTP/1\.1\" ?$| - \"$"
)
_BEGINS = lazy_re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|Loading |Multi-thread |Capturing |Capture |INFO:|WARNING|ERROR|Traceback|\s*\d{1,3}%|\{"
)
_BAR_BEGINS = lazy_re.compile(r"\s*(?:Loading|Multi-thread) |\s*(?:L|Lo|Loa|Load|Loadi|Loadin|Loading|M|Mu|Mul|Mult|Multi|Multi-t\w{0,5})$")
_BAR = lazy_re.compile(r"\d{1,3}%\s*(?:Completed )?\|")


@record(frozen=True)
class Piece:
    """One record; ``cut`` where no newline of its own ends it."""

    text: str
    cut: bool


@record(frozen=True)
class Split:
    """The pieces of a line; ``damaged`` where it holds more than one record although no progress bar explains it, or a torn request."""

    pieces: tuple[Piece, ...]
    damaged: bool


def is_single(text: str) -> bool:
    """Whether a line certainly is one record: nothing in it looks like the beginning of another."""
    return "\r" not in text and "\n" not in text and text.find("[20", 1) < 0 and text.find("INFO:  ", 1) < 0


def is_rest(text: str) -> bool:
    """Whether a line may be the rest of a torn record: it has a text, and does not begin as a record does."""
    return bool(text.strip()) and _BEGINS.match(text) is None and read_prefix(text).end == 0


def split(text: str, *, unterminated: bool) -> Split:
    """The records of a physical line, in order."""
    segments = [segment for segment in _SEGMENTS.split(text) if segment] if "\r" in text or "\n" in text else [text]
    pieces: list[Piece] = []
    damaged = False
    for place, segment in enumerate(segments):
        follower = segments[place + 1] if place + 1 < len(segments) else None
        open_end = unterminated if follower is None else not _ends_at_return(segment, follower)
        starts = [0, *_starts(segment)]
        ends = [*starts[1:], len(segment)]
        pieces += [Piece(segment[begin:end], cut=open_end or end != len(segment)) for begin, end in zip(starts, ends, strict=True)]
        damaged |= len(starts) > 1 and _BAR.search(segment[: starts[1]]) is None
        damaged |= len(starts) == 1 and _is_torn_request(segment)
    return Split(tuple(pieces) or (Piece("", cut=False),), damaged)


def _ends_at_return(segment: str, follower: str) -> bool:
    """Whether a carriage return ends a record: behind a bar, and where another record begins; elsewhere it is a stray byte.

    A bar begins on a line of its own: what stands before it on the same line has not ended.
    """
    if _BAR.search(segment):
        return True
    return _BEGINS.match(follower) is not None and not any(_BAR_BEGINS.match(one) for one in (segment, follower))


def _starts(segment: str) -> list[int]:
    """Where further records begin."""
    skip = _STAMPED.match(segment)
    begin = skip.end() + 1 if skip else 1
    introduces = _QUOTES if _EMBEDDED.match(segment) else _INTRODUCES
    found = [match.start() for match in _EMBEDDED.finditer(segment, begin)]
    if not found:
        return found
    found = _whole_stamps(segment, found)
    return (
        _outside_strings(segment, found)
        if _REQUEST.match(segment)
        else [start for start in found if not _introduced(segment[max(0, start - _BEFORE) : start], introduces)]
    )


def _whole_stamps(segment: str, found: list[int]) -> list[int]:
    """Without uvicorn's text behind its own stamp, which begins no further record."""
    stamps = {match.end() for match in _STAMPED.finditer(segment)}
    return [start for start in found if start not in stamps]


def _introduced(before: str, introduces: re.Pattern[str]) -> bool:
    """Whether what follows is a quotation, such as a prompt that holds a log; a torn record may end at a label, too."""
    return introduces.search(before) is not None and _TORN_AT_LABEL.search(before) is None


def _outside_strings(segment: str, places: list[int]) -> list[int]:
    """The places that do not stand inside a quoted string; one that is never closed goes on to the end."""
    kept: list[int] = []
    strings = _strings(segment)
    begin, end = next(strings, (len(segment), len(segment)))
    for place in places:
        while end <= place and begin < len(segment):
            begin, end = next(strings, (len(segment), len(segment)))
        if place < begin:
            kept.append(place)
    return kept


def _strings(segment: str) -> Iterator[tuple[int, int]]:
    """Where the quoted strings of a repr begin and end, in one pass."""
    at = 0
    while (quote := _QUOTE.search(segment, at)) is not None:
        whole = _STRING.match(segment, quote.start())
        if whole is None or not _closes(segment, whole.end()):
            yield quote.start(), len(segment)
            return
        yield whole.span()
        at = whole.end()


def _closes(segment: str, end: int) -> bool:
    """Whether a string of a repr may end here; elsewhere its last quote begins another one, behind a tear."""
    return segment[end : end + 1] in _AFTER_STRING or _EMBEDDED.match(segment, end) is not None


def _is_torn_request(segment: str) -> bool:
    """A request whose text ends inside a string, with what may be a record of another process in it."""
    if _REQUEST.match(segment) is None or _EMBEDDED.search(segment, 30) is None:
        return False
    begin, end = max(_strings(segment), default=(0, 0))
    return end == len(segment) and _STRING.fullmatch(segment, begin) is None
