"""Text with styles, measured and wrapped in columns of a screen. Only what leaves a page in colour becomes rich's business.

rich measures what is not plainly one column wide (CJK, emoji); a diagnosis that holds none of these, shown without colour, never imports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from logforensics import lazy_re

_WORD = lazy_re.compile(r"\s*\S+\s*")
_OWN_SYMBOLS = str.maketrans(dict.fromkeys("…→←×·•–—−─≈≤≥≠±÷µ°‘’“”└├│", "x"))  # what our own words use beside ASCII: one column each


class Styled:
    """Pieces of text, each with a style in rich's words (``bold red``, or nothing). Never changed once made."""

    __slots__ = ("pieces",)

    def __init__(self, *pieces: tuple[str, str]) -> None:
        self.pieces = tuple(piece for piece in pieces if piece[0])

    @property
    def plain(self) -> str:
        """The text without styles."""
        return "".join(text for text, _ in self.pieces)

    @property
    def columns(self) -> int:
        """Columns it takes on a screen."""
        return columns_of(self.plain)

    def __add__(self, other: Styled) -> Styled:
        return Styled(*self.pieces, *other.pieces)

    def part(self, begin: int, end: int | None = None) -> Styled:
        """The characters from ``begin`` to before ``end``."""
        found = []
        at = 0
        for text, style in self.pieces:
            found.append((text[max(0, begin - at) : None if end is None else max(0, end - at)], style))
            at += len(text)
        return Styled(*found)

    def lstrip(self) -> Styled:
        """Without spaces in front."""
        plain = self.plain
        return self.part(len(plain) - len(plain.lstrip()))

    def rstrip(self) -> Styled:
        """Without spaces at the end."""
        plain, kept = self.plain, self.plain.rstrip()
        return self if plain == kept else self.part(0, len(kept))

    def wrapped(self, width: int) -> Iterator[Styled]:
        """Lines of at most ``width`` columns, at least one; a word that is longer is cut."""
        breaks = _breaks(self.plain, width)
        for begin, end in zip([0, *breaks], [*breaks, None], strict=True):
            yield self.part(begin, end)


def columns_of(text: str) -> int:
    """Columns that a text takes on a screen."""
    if _is_narrow(text):
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _is_narrow(text: str) -> bool:
    """Whether every character is certain to take one column."""
    return text.isascii() or text.translate(_OWN_SYMBOLS).isascii()


def _breaks(text: str, width: int) -> list[int]:
    """Where to begin new lines, as offsets into the text: before words that no longer fit."""
    if len(text) <= width and _is_narrow(text):
        return []
    found: list[int] = []
    used = 0  # columns of the current line
    for word in _WORD.finditer(text):
        needed = columns_of(word[0].rstrip())
        if used + needed <= width:
            used += columns_of(word[0])
        elif needed > width:
            at = word.start()
            for piece in _chopped(word[0], width):
                found.append(at)
                at += len(piece)
                used = columns_of(piece)
        elif used:
            found.append(word.start())
            used = columns_of(word[0])
    return [at for at in found if at]


def _chopped(word: str, width: int) -> Iterable[str]:
    """A word in pieces of at most ``width`` columns."""
    if _is_narrow(word):
        return (word[at : at + width] for at in range(0, len(word), width))
    from rich.cells import chop_cells

    return chop_cells(word, width)
