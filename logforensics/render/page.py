"""A page of text laid out for a screen: paragraphs, hanging indents, aligned columns. All text that reaches it is quoted here.

rich does the colours and measures wide characters. It never sees markup: every string becomes a `Text` after `visible`.
"""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

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
        self._out = StringIO()
        self._console = Console(
            file=self._out,
            width=self.width,
            color_system="standard" if screen.color else None,
            force_terminal=screen.color,
            force_interactive=False,
            no_color=not screen.color,
            markup=False,
            highlight=False,
            emoji=False,
            legacy_windows=False,
        )

    def text(self, *pieces: str | tuple[str, str]) -> Text:
        """Pieces, plain or with a style, as one text that cannot do anything: no markup, no control characters."""
        whole = Text()
        for piece in pieces:
            raw, style = (piece, "") if isinstance(piece, str) else piece
            whole.append(self._quoted(raw), style)
        return whole

    def blank(self) -> None:
        """An empty line."""
        self._out.write("\n")

    def verbatim(self, raw: str) -> None:
        """Lines exactly as they are, however long, from the first column: for pasting."""
        for line in raw.split("\n"):
            self._put(self.text(line))

    def paragraph(self, body: Text, *, first: Text | None = None, indent: int = 0, hang: int | None = None) -> None:
        """Wrapped text. ``first`` stands before the first line; later lines are indented by ``hang`` (default: below the text)."""
        start = Text(" " * indent)
        if first is not None:
            start.append_text(first)
        margin = start.cell_len if hang is None else hang
        for number, line in enumerate(self._wrapped(body, start.cell_len, margin)):
            self._put((start if number == 0 else Text(" " * margin)) + line)

    def prose(self, raw: str, *, indent: int = 0) -> None:
        """Paragraphs: the line breaks of ``raw`` are kept, longer lines are wrapped."""
        for line in raw.strip().split("\n"):
            self.paragraph(self.text(line.rstrip()), indent=indent)

    def excerpt(self, raw: str, *, first: Text, indent: int, needle: str = "", most_lines: int | None = None) -> None:
        """A line of a log: wrapped, and cut around ``needle`` where it would take more than about ``most_lines`` lines."""
        shown, wanted = self._quoted(raw.rstrip()), self._quoted(needle)
        if most_lines is not None:
            room = self.width - indent - first.cell_len + (most_lines - 1) * (self.width - indent - _STEP)
            shown = cut(shown, max(_NARROWEST, room), wanted, self._quoted("…"))
        body = Text(shown)
        if wanted and wanted in shown:
            body.stylize("bold", shown.index(wanted), shown.index(wanted) + len(wanted))
        self.paragraph(body, first=first, indent=indent, hang=indent + _STEP)

    def pairs(self, rows: Sequence[tuple[Text, Text]], *, indent: int) -> None:
        """Labels in one column, their texts wrapped in the next; a label that is too wide has its text start right after it."""
        widths = [label.cell_len for label, _ in rows if label.cell_len <= _LABEL]
        margin = max(widths, default=0) + 2
        for label, body in rows:
            gap = Text(" " * max(2, margin - label.cell_len))
            self.paragraph(body, first=label + gap, indent=indent, hang=indent + margin if widths else indent + _STEP)

    def columns(self, rows: Sequence[tuple[Text, ...]], *, indent: int) -> bool:
        """Rows with aligned columns, each as wide as its widest cell. False, and nothing written, where they do not fit."""
        widths = [max(cell.cell_len for cell in column) for column in zip(*rows, strict=True)]
        if indent + sum(widths) + 2 * (len(widths) - 1) > self.width:
            return False
        for row in rows:
            line = Text(" " * indent)
            for cell, width in zip(row, widths, strict=True):
                line.append_text(cell).append(" " * (width - cell.cell_len + 2))
            line.rstrip()
            self._put(line)
        return True

    def finish(self) -> str:
        """Everything written so far."""
        return self._out.getvalue()

    def _quoted(self, raw: str) -> str:
        shown = visible(raw)
        return ascii_form(shown) if self._ascii_only else shown

    def _wrapped(self, body: Text, first_margin: int, margin: int) -> list[Text]:
        """The lines of ``body``: the first has its own margin, so the rest is wrapped anew."""
        whole = max(_NARROWEST, self.width - margin)
        opening = max(_NARROWEST, self.width - first_margin)
        lines = list(body.wrap(self._console, opening)) or [Text()]
        if len(lines) > 1 and whole != opening:
            rest = body[len(lines[0].plain) :]
            lines = [lines[0], *_without_leading_spaces(rest).wrap(self._console, whole)]
        for line in lines:
            line.rstrip()
        return lines

    def _put(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True)


def _without_leading_spaces(text: Text) -> Text:
    return text[len(text.plain) - len(text.plain.lstrip()) :]
