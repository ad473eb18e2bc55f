"""Records that share their line with a torn one.

Processes that write to one pipe cut each other's lines: ``A1 B`` and then ``A2``, or ``A1 B1 A2`` and then ``B2``. The last record of such a line
is B in one case and a mixture in the other, which may read like a record. So its row waits: for the next line, which must be the rest of A or
no rest at all, and for a whole record of the same form elsewhere in the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logforensics import lazy_re
from logforensics.parsing import batch, pieces
from logforensics.parsing.patterns import CutRecord, Packs, Pattern, compiled
from logforensics.parsing.prefix import Prefix, read_prefix
from logforensics.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIGURE = lazy_re.compile(r"\d+(?:\.\d+)?")
_MOST_FORMS = 5_000
_MOST_CHARACTERS = 600
_PROVEN = ("batch", "bulk", "noise", "requests")  # what needs no other record to be whole


@record(frozen=True)
class Torn:
    """The beginning of a record that another one follows on its line; ``certain`` where it cannot be a whole record."""

    text: str
    certain: bool


@record(frozen=True)
class Suspect:
    """A row that waits. ``form`` is that of its message, None where the message proves itself whole; ``last`` is the last label of a batch."""

    kind: str
    frame: str
    number: int
    prefix: Prefix
    row: dict[str, Any]
    form: str | None
    last: str = ""


@record(frozen=True)
class _Waiting:
    """A row and the forms that must be whole ones; ``strict`` where that holds even for the only record of its kind."""

    suspect: Suspect
    needed: frozenset[str]
    strict: bool


class Suspects:
    """Rows that wait, and the forms of the log's whole records."""

    def __init__(self, packs: Packs) -> None:
        self._packs = packs
        self._forms: set[str] = set()
        self._kinds: set[str] = set()
        self._fresh: list[tuple[Torn, Suspect]] = []
        self._waiting: list[_Waiting] = []

    def __bool__(self) -> bool:
        return bool(self._fresh)

    def learn(self, kind: str, message: str) -> None:
        """A whole record."""
        self._kinds.add(kind)
        if len(self._forms) < _MOST_FORMS and len(message) <= _MOST_CHARACTERS:
            self._forms.add(form(message))

    def hold(self, torn: Torn, suspect: Suspect) -> None:
        """Let a row wait."""
        self._fresh.append((torn, suspect))

    def settle(self, following: str | None) -> Iterator[Suspect]:
        """The rows that the next line clears; None where it belongs to a record that is whole."""
        fresh, self._fresh = self._fresh, []
        rest = following if following is not None and pieces.is_rest(following) else None
        for torn, suspect in fresh:
            needed = set() if suspect.form is None else {suspect.form}
            if suspect.last and not _may_be_batch(torn.text + (rest or "")):
                pass  # a batch record is read to its last label: what ends one is not what ends another kind
            elif rest is not None:
                needed |= self._needed(torn.text + rest)
            elif torn.certain and suspect.last and suspect.last in torn.text:
                continue  # the rest stands nowhere else, and is but a figure: it may end this one
            if needed:
                self._waiting.append(_Waiting(suspect, frozenset(needed), strict=torn.certain or rest is not None))
            else:
                yield suspect

    def close(self) -> Iterator[Suspect]:
        """The rows whose forms the log holds; it is over."""
        for one in self._waiting:
            if one.needed <= self._forms or not (one.strict or one.suspect.kind in self._kinds):
                yield one.suspect
        self._waiting.clear()

    def begun(self, text: str, *, known: bool) -> Torn:
        """A record that another one follows, ``known`` where it is of a known kind: certainly torn where it is not a whole one of them."""
        prefix = read_prefix(text)
        return Torn(text, certain=self._frame(text[prefix.end :]) == "" if known else prefix.end == 0 and text.startswith("["))

    def _needed(self, text: str) -> set[str]:
        """The forms that prove a line whole, none where it proves itself."""
        message = text[read_prefix(text).end :]
        return set() if self._frame(message) in _PROVEN else {form(message)}

    def _frame(self, message: str) -> str:
        """What a message is if it is whole: the frame of its pattern, batch, noise, or nothing."""
        if message.startswith(tuple(batch.WORDS.values())):
            return "batch" if batch.read_one(message, cut=False) is not None else ""
        try:
            found = self._packs.match(message, cut=False)
        except CutRecord:
            found = None
        if found is None:
            return ""
        return "bulk" if is_exactly(found[0], message) else found[0].frame or "noise"


def _may_be_batch(text: str) -> bool:
    """Whether a text is the beginning of a batch record, as far as it goes."""
    message = text[read_prefix(text).end :]
    return any(message[: len(word)] == word[: len(message)] for word in batch.WORDS.values()) or (message == text and text.startswith("["))


def is_exactly(pattern: Pattern, message: str) -> bool:
    """Whether a pattern describes the whole of a message."""
    return pattern.bulk is not None and compiled(pattern.bulk).fullmatch(message) is not None


def form(message: str) -> str:
    """A message without its figures."""
    return _FIGURE.sub("#", message.strip())
