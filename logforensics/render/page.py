"""A page of text laid out for a screen: paragraphs, hanging indents, aligned columns. All text that reaches it is quoted here.

Colours are rich's work (:mod:`logforensics.render.colour`), which is imported for them alone. It never sees markup: every string is made
`visible` here before it becomes part of a line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logforensics.render.styled import Styled
from logforensics.render.untrusted import ascii_form, visible
from logforensics.render.words import cut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logforensics.render.screen import Screen

_NARROWEST = 24  # columns left for text, however deep the indent
_WIDEST = 120  # longer lines are hard to read
_LABEL = 34  # columns a label may take before its text goes below it
_STEP = 4  # further indent of continuation lines


class Page:
    """Collects lines; `finish` gives the whole text."""

    def __init__(self, screen: Screen) -> None:
        self.width = max(40, min(screen.width, _WIDEST))
        self._ascii_only = screen.ascii_only
        self._color = screen.color
        self._lines: list[Styled] = []

    def text(self, *pieces: str | tuple[str, str]) -> Styled:
        """Pieces, plain or with a style, as one text that cannot do anything: no markup, no control characters."""
        pairs = [(piece, "") if isinstance(piece, str) else piece for piece in pieces]
        return Styled(*[(self._quoted(raw), style) for raw, style in pairs])

    def blank(self) -> None:
        """An empty line."""
        self._lines.append(Styled())

    def verbatim(self, raw: str) -> None:
        """Lines exactly as they are, however long, from the first column: for pasting."""
        for line in raw.split("\n"):
            self._lines.append(self.text(line))

    def paragraph(self, body: Styled, *, first: Styled | None = None, indent: int = 0, hang: int | None = None) -> None:
        """Wrapped text. ``first`` stands before the first line; later lines are indented by ``hang`` (default: below the text)."""
        start = _spaces(indent) + first if first is not None else _spaces(indent)
        margin = start.columns if hang is None else hang
        for number, line in enumerate(self._wrapped(body, start.columns, margin)):
            self._lines.append((_spaces(margin) if number else start) + line)

    def prose(self, raw: str, *, indent: int = 0) -> None:
        """Paragraphs: the line breaks of ``raw`` are kept, longer lines are wrapped."""
        for line in raw.strip().split("\n"):
            self.paragraph(self.text(line.rstrip()), indent=indent)

    def excerpt(self, raw: str, *, first: Styled, indent: int, needle: str = "", most_lines: int | None = None) -> None:
        """A line of a log: wrapped, and cut around ``needle`` where it would take more than about ``most_lines`` lines."""
        shown, wanted = self._quoted(raw.rstrip()), self._quoted(needle)
        if most_lines is not None:
            room = self.width - indent - first.columns + (most_lines - 1) * (self.width - indent - _STEP)
            shown = cut(shown, max(_NARROWEST, room), wanted, self._quoted("…"))
        before, needed, after = shown.partition(wanted) if wanted else (shown, "", "")
        body = Styled((before, ""), (needed, "bold"), (after, ""))
        self.paragraph(body, first=first, indent=indent, hang=indent + _STEP)

    def pairs(self, rows: Sequence[tuple[Styled, Styled]], *, indent: int) -> None:
        """Labels in one column, their texts wrapped in the next; a label that is too wide has its text start right after it."""
        widths = [label.columns for label, _ in rows if label.columns <= _LABEL]
        margin = max(widths, default=0) + 2
        for label, body in rows:
            gap = _spaces(max(2, margin - label.columns))
            self.paragraph(body, first=label + gap, indent=indent, hang=indent + margin if widths else indent + _STEP)

    def columns(self, rows: Sequence[tuple[Styled, ...]], *, indent: int) -> bool:
        """Rows with aligned columns, each as wide as its widest cell. False, and nothing written, where they do not fit."""
        widths = [max(cell.columns for cell in column) for column in zip(*rows, strict=True)]
        if indent + sum(widths) + 2 * (len(widths) - 1) > self.width:
            return False
        for row in rows:
            line = _spaces(indent)
            for cell, width in zip(row, widths, strict=True):
                line += cell + _spaces(width - cell.columns + 2)
            self._lines.append(line.rstrip())
        return True

    def finish(self) -> str:
        """Everything written so far."""
        if not self._color:
            return "".join(f"{line.plain}\n" for line in self._lines)
        from logforensics.render.colour import coloured

        return coloured(self._lines)

    def _quoted(self, raw: str) -> str:
        shown = visible(raw)
        return ascii_form(shown) if self._ascii_only else shown

    def _wrapped(self, body: Styled, first_margin: int, margin: int) -> list[Styled]:
        """The lines of ``body``: the first has its own margin, so the rest is wrapped anew."""
        whole = max(_NARROWEST, self.width - margin)
        opening = max(_NARROWEST, self.width - first_margin)
        lines = list(body.wrapped(opening))
        if len(lines) > 1 and whole != opening:
            rest = body.part(len(lines[0].plain))
            lines = [lines[0], *rest.lstrip().wrapped(whole)]
        return [line.rstrip() for line in lines]


def _spaces(count: int) -> Styled:
    return Styled((" " * count, ""))
