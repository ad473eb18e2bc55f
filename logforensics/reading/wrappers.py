"""What other programs do to every line: prefixes, JSON envelopes, escaped HTML, and lines wrapped at the edge of a terminal.

It is recognised from the beginning of a log, and then undone on every line that has it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from logforensics import lazy_re
from logforensics.reading import envelopes, folds, prefixes
from logforensics.reading.envelopes import ESCAPES, Entities
from logforensics.reading.joining import MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl

_MAX_WRAPPERS = 5
_SAMPLE_LINES = 400
_SHARE = 0.6  # of the lines, for a JSON envelope
_MIN_BACK = 3
_MOST = 0.9
_ALL = 0.95
_TWICE = 0.3
_SHALLOW = 2  # keys that lead to a line, where no line looks like SGLang's
_STAMP = lazy_re.compile(rb"\[(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:\.\d{3})?(?=[ \]])")
_OWN = r"\[(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?=[ \]])"
_BRACKET = lazy_re.compile(_OWN)
# what a prefix can stand in front of: SGLang's bracket, or what wraps it further in
_INNER = lazy_re.compile(_OWN + r"|\{\"|\((?:[^()\s]{1,100}(?:\([^()]{0,100}\))? )?pid=")
_ESCAPES = lazy_re.compile(ESCAPES)
# the router writes JSON itself: its level and module are no wrapper
_ROUTER_JSON = lazy_re.compile(r'"target" ?: ?"(?:smg|sglang_router|sgl_model_gateway)\w*')


class Wrapper(Protocol):
    """One way of wrapping lines."""

    def part(self, line: str) -> tuple[str, bool]:
        """The stream this physical line belongs to, and whether it goes on in that stream's next one."""

    def held(self, lines: Sequence[str]) -> int:
        """How many of these last lines belong to records that may not be over."""

    def bare(self, line: str) -> str:
        """The line without what wraps it."""

    def take_off(self, lines: pl.DataFrame) -> pl.DataFrame:
        """Rows ``(n, line)`` without what wraps them."""


def detect(head: bytes) -> tuple[Wrapper, ...]:
    """The wrappers of a log's first bytes, outermost first."""
    lines = [_ESCAPES.sub("", line).rstrip("\r") for line in head.decode("utf-8", "replace").split("\n")[:_SAMPLE_LINES]]
    found: list[Wrapper] = []
    fold: folds.Fold | None = None
    while len(found) < _MAX_WRAPPERS:
        wrapper = _outermost([line for line in lines if line.strip()])
        if fold is None and (fold := folds.find(lines, wrapper.expression if isinstance(wrapper, prefixes.Prefix) else None)):
            found.append(fold)
            lines = fold.unfolded(lines)
            continue
        if wrapper is None:
            break
        found.append(wrapper)
        lines = _unwrapped(lines, wrapper)
    if Entities.seen_in(lines):
        found.append(Entities())
    return tuple(found)


def holds_lines(objects: Sequence[str]) -> bool:
    """Whether JSON objects hold a line of a log each: deep in an object that describes something, a message is no line."""
    found = envelopes.find(objects, _BRACKET)
    return found is not None and (len(found.path) <= _SHALLOW or any(map(_BRACKET.search, objects)))


def is_stamped(head: bytes) -> bool:
    """Whether SGLang's own lines carry its bracket: some line of the beginning does."""
    return _STAMP.search(head) is not None


def is_newest_first(head: bytes) -> bool:
    """Whether time runs backwards from line to line: never forwards in the beginning of the log, and backwards at least a few times."""
    stamps = [match.group() for match in _STAMP.finditer(head)]
    back = sum(later < earlier for earlier, later in pairwise(stamps))
    return back >= _MIN_BACK and not any(later > earlier for earlier, later in pairwise(stamps))


def unwrap(lines: pl.DataFrame, wrappers: Sequence[Wrapper]) -> pl.DataFrame:
    """Rows ``(n, line)`` without their wrappers; a line that has none stays as it is.

    A record that was split is whole in the row of its first part; see :data:`logforensics.reading.joining.MARK` for the others.
    """
    for wrapper in wrappers:
        lines = wrapper.take_off(lines)
    return lines


def held_lines(lines: Sequence[str], wrappers: Sequence[Wrapper]) -> int:
    """How many of the last lines of a piece of a log belong to records that may not be over."""
    most = 0
    for wrapper in wrappers:
        most = max(most, wrapper.held(lines))
        lines = [_ESCAPES.sub("", wrapper.bare(line)) for line in lines]
    return most


def _unwrapped(lines: Sequence[str], wrapper: Wrapper) -> list[str]:
    """The sample without a wrapper, parts joined."""
    out: list[str] = []
    goes_on = False
    for line in lines:
        bare = _ESCAPES.sub("", wrapper.bare(line))
        if goes_on:
            out[-1] += bare
        else:
            out.append(bare)
        goes_on = wrapper.part(line)[1]
    return out


def _outermost(lines: Sequence[str]) -> Wrapper | None:
    """The wrapper that most lines have, or most of those that carry SGLang's bracket."""
    places = [(line, match.start()) for line in lines if (match := _BRACKET.search(line))]
    inner = [line for line, place in places if place]
    decisive = len(inner) > 1 and 2 * len(inner) >= len(places)

    # a line that begins with SGLang's bracket, or one like it, has none of the known prefixes and is no envelope
    others = [line for line in lines if line[:1] != "[" or not line[1:2].isdigit()]

    def has_most(fits: Callable[[str], bool], share: float) -> bool:
        if not decisive and len(others) < share * len(lines):
            return False
        hits = sum(fits(line) and _ROUTER_JSON.search(line) is None for line in others)
        return hits > 1 and (hits >= share * len(lines) or (decisive and sum(map(fits, inner)) >= _MOST * len(inner)))

    for prefix in prefixes.KNOWN[:-1]:
        if has_most(prefix.fits, prefix.share):
            return prefix
    envelope = envelopes.find([line for line in lines if _ROUTER_JSON.search(line) is None], _BRACKET)
    if envelope is not None and has_most(envelope.fits, _SHARE):
        return envelope
    if decisive:
        learned = prefixes.learn([line[: match.start()] for line in inner if (match := _INNER.search(line))])
        return learned or _fitting(prefixes.KNOWN[-1], lines)
    twice = sum(prefixes.STAMPED_TWICE.fits(line) for line, _ in places)
    if twice > 1 and sum(prefixes.ALL_STAMPED.fits(line) for line in lines) >= _ALL * len(lines):
        return prefixes.ALL_STAMPED
    return prefixes.STAMPED_TWICE if twice > 1 and twice >= _TWICE * len(places) else None


def _fitting(prefix: prefixes.Prefix, lines: Sequence[str]) -> prefixes.Prefix | None:
    hits = sum(prefix.fits(line) for line in lines)
    return prefix if hits > 1 and hits >= prefix.share * len(lines) else None


__all__ = ["ESCAPES", "MARK", "Wrapper", "detect", "is_newest_first", "is_stamped", "unwrap"]
