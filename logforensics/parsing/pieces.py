"""The records of one physical line: bars redraw it, and processes that share a pipe tear and glue their lines.

Rule: a record that another one follows on its line may have lost its end, so it is marked as cut; what stands inside quotes is text, not
a record.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SEGMENTS = re.compile(r"[\r\n]+")  # a JSON envelope may hold several lines
# a record that begins in the middle of a line: only SGLang's dated bracket and uvicorn's address are distinctive enough
_EMBEDDED = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[^\]\[\n]{0,120}\] |INFO:     [\da-f.:\[\]]{3,45} - \"")
_STAMPED = re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{3})?(?: [^\]\[]{1,120})?\] (?=INFO:     )")
_REQUEST = re.compile(r"(?:\[[^\]]{8,140}\] )?(?:Receive|Finish)(?: OpenAI)?: |(?:\[[^\]]{8,140}\] )?\s*\{\"")
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_INTRODUCES = re.compile(r"[\"'`|>=:(]\s*$")
_TORN_AT_LABEL = re.compile(
    r"(?:#[\w -]+|usage|mem|size|tokens|elapsed|\(token/s\)|graph|accept \w+)[:=] ?$|^INFO:[ \d.:]*$|^\[[-\d: A-Z]*$|HTTP/1\.1\" ?$| - \"$"
)
_BAR = re.compile(r"\d{1,3}%\s*(?:Completed )?\|")


@dataclass(frozen=True, slots=True)
class Piece:
    """One record; ``cut`` where no newline of its own ends it."""

    text: str
    cut: bool


@dataclass(frozen=True, slots=True)
class Split:
    """The pieces of a line; ``damaged`` where it holds more than one record although no progress bar explains it, or a torn request."""

    pieces: tuple[Piece, ...]
    damaged: bool


def is_single(text: str) -> bool:
    """Whether a line certainly is one record: nothing in it looks like the beginning of another."""
    return "\r" not in text and "\n" not in text and text.find("[20", 1) < 0 and text.find("INFO:  ", 1) < 0


def split(text: str, *, unterminated: bool) -> Split:
    """The records of a physical line, in order."""
    segments = [segment for segment in _SEGMENTS.split(text) if segment]
    pieces: list[Piece] = []
    damaged = False
    for place, segment in enumerate(segments):
        open_end = unterminated and place + 1 == len(segments)
        starts = [0, *_starts(segment)]
        ends = [*starts[1:], len(segment)]
        pieces += [Piece(segment[begin:end], cut=open_end or end != len(segment)) for begin, end in zip(starts, ends, strict=True)]
        damaged |= len(starts) > 1 and _BAR.search(segment[: starts[1]]) is None
        damaged |= len(starts) == 1 and _is_torn_request(segment)
    return Split(tuple(pieces) or (Piece("", cut=False),), damaged)


def _starts(segment: str) -> list[int]:
    """Where further records begin."""
    skip = _STAMPED.match(segment)
    begin = skip.end() + 1 if skip else 1
    found = [match.start() for match in _EMBEDDED.finditer(segment, begin)]
    if not found:
        return found
    quoted = _inside_string if _REQUEST.match(segment) else _introduced
    return [start for start in _whole_stamps(segment, found) if not quoted(segment[:start])]


def _whole_stamps(segment: str, found: list[int]) -> list[int]:
    """Without uvicorn's text behind its own stamp, which begins no further record."""
    stamps = {match.end() for match in _STAMPED.finditer(segment)}
    return [start for start in found if start not in stamps]


def _introduced(before: str) -> bool:
    """Whether what follows is a quotation, such as a prompt that holds a log; a torn record may end at a label, too."""
    return _INTRODUCES.search(before) is not None and _TORN_AT_LABEL.search(before) is None


def _inside_string(before: str) -> bool:
    rest = _STRING.sub("", before)
    return "'" in rest or '"' in rest


def _is_torn_request(segment: str) -> bool:
    """A request whose text ends inside a string, with what may be a record of another process in it."""
    return _REQUEST.match(segment) is not None and _EMBEDDED.search(segment, 30) is not None and _inside_string(segment)
