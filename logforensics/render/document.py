"""A page of headings, sentences and tables, shown as text, markdown or HTML.

What is written is quoted and masked here, once for all three forms.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from logforensics.records import record
from logforensics.render.styled import columns_of
from logforensics.render.untrusted import visible
from logforensics.render.words import cut
from logforensics.secrets import mask

if TYPE_CHECKING:
    from logforensics.render.page import Page
    from logforensics.render.screen import Screen
    from logforensics.render.styled import Styled

_TABLE_CSS = """
h2 { margin-top: 1.6rem; } .scroll { overflow-wrap: normal; } th[colspan] { padding-top: .9rem; }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
""".strip()
_COLOURS = {"green": "healthy", "red": "failed", "yellow": "degraded", "cyan": "info"}  # classes of the style sheet
_INDENT = 2
_CELL = 40  # columns a cell may take on a screen


@record(frozen=True)
class Heading:
    """A title; level 1 is the page's own, whose first word may be a verdict."""

    text: str
    level: int = 2
    badge: str = ""
    style: str = "bold"


@record(frozen=True)
class Paragraph:
    """Sentences."""

    text: str
    quiet: bool = False


@record(frozen=True)
class Bullets:
    """A list of sentences."""

    items: tuple[str, ...]


@record(frozen=True)
class Table:
    """Rows under a header. The first ``left`` columns are words; the others are numbers, aligned right, and may be split over blocks.

    A row of one cell is the title of the rows below it. ``words`` are further columns of words, by their headers.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int = 1
    words: frozenset[str] = frozenset()

    def is_words(self, place: int) -> bool:
        """Whether a column is aligned left."""
        return place < self.left or self.header[place] in self.words


Block = Heading | Paragraph | Bullets | Table


def to_text(blocks: Iterable[Block], screen: Screen) -> str:
    """The page for a screen, ending in a newline."""
    from logforensics.render.page import Page

    page = Page(screen)
    before: Block | None = None
    for block in blocks:
        follows = isinstance(before, Heading) and not (before.level == 1 and isinstance(block, Table))
        if before is not None and not follows and not (isinstance(block, Bullets) and isinstance(before, Table)):
            page.blank()
        _to_page(page, block)
        before = block
    return page.finish()


def to_markdown(blocks: Iterable[Block]) -> str:
    """The page as GitHub-flavoured markdown, ending in a newline."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def to_html(blocks: Sequence[Block]) -> str:
    """The page as one self-contained HTML document without scripts."""
    from logforensics.render.html import CSS

    title = next((f"{block.badge} {block.text}".strip() for block in blocks if isinstance(block, Heading)), "logforensics")
    body = "\n".join(_html(block) for block in blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_escaped(title)}</title>\n<style>\n{CSS}\n{_TABLE_CSS}\n</style>\n"
        f"</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


# --------------------------------------------------------------------------------------------------------- text


def _to_page(page: Page, block: Block) -> None:
    if isinstance(block, Heading):
        style = block.style if block.level == 1 else "bold underline"
        first = page.text((block.badge, block.style), "  ") if block.badge else None
        page.paragraph(page.text((mask(block.text), "bold" if block.badge else style)), first=first)
    elif isinstance(block, Paragraph):
        page.paragraph(page.text((mask(block.text), "dim" if block.quiet else "")))
    elif isinstance(block, Bullets):
        for item in block.items:
            page.paragraph(page.text(mask(item)), first=page.text("· "), indent=_INDENT)
    else:
        for number, part in enumerate(_parts(block, page.width - _INDENT)):
            if number:
                page.blank()
            _put_table(page, part)


def _parts(table: Table, width: int) -> Iterator[Table]:
    """The table cut into pieces that fit, each with the leading columns."""
    cells = [tuple(_cell(text) for text in row) for row in (table.header, *table.rows)]
    widths = _widths(cells)
    fixed = sum(widths[: table.left]) + 2 * (table.left - 1)
    begin = table.left
    while True:
        end, room = begin, width - fixed
        while end < len(widths) and (end == begin or room >= widths[end] + 2):
            room -= widths[end] + 2
            end += 1
        rows = [row if len(row) == 1 else row[: table.left] + row[begin:end] for row in cells]
        yield Table(rows[0], tuple(rows[1:]), table.left, table.words)
        if end >= len(widths):
            return
        begin = end


def _put_table(page: Page, table: Table) -> None:
    widths = _widths([table.header, *table.rows])
    lines = [(table.header, "dim")] if any(table.header) else []
    lines += [(row, "") for row in table.rows]
    whole = sum(widths) + 2 * (len(widths) - 1) + _INDENT <= page.width
    for row, style in lines:
        if len(row) == 1:
            page.blank()
            page.paragraph(page.text((row[0], "bold underline")))
        elif whole:
            page.columns([_aligned(page, row, widths, table, style)], indent=_INDENT)
        else:
            page.paragraph(page.text("  ".join(cell for cell in row if cell.strip())), indent=_INDENT, hang=2 * _INDENT)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Columns of the screen that each column of the table takes; titles do not count."""
    whole = [row for row in rows if len(row) > 1] or rows
    return [max(columns_of(row[place]) for row in whole) for place in range(len(whole[0]))]


def _aligned(page: Page, row: Sequence[str], widths: Sequence[int], table: Table, style: str) -> tuple[Styled, ...]:
    """Cells as wide as their columns: words with blanks after them, numbers with blanks before."""
    cells = []
    for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
        blanks = " " * (width - columns_of(cell))
        cells.append(page.text((cell, style), blanks) if table.is_words(place) else page.text(blanks, (cell, style)))
    return tuple(cells)


def _cell(text: str) -> str:
    return cut(visible(mask(text)), _CELL)


# ------------------------------------------------------------------------------------------------------ markdown


def _markdown(block: Block) -> str:
    from logforensics.render.markdown import escaped

    if isinstance(block, Heading):
        badge = f"{escaped(block.badge)}: " if block.badge else ""
        return f"{'#' * block.level} {badge}{escaped(mask(block.text))}"
    if isinstance(block, Paragraph):
        return escaped(mask(block.text))
    if isinstance(block, Bullets):
        return "\n".join(f"- {escaped(mask(item))}" for item in block.items)
    rule = tuple("---" if block.is_words(place) else "---:" for place in range(len(block.header)))
    lines = [tuple(escaped(cell) for cell in block.header), rule]
    for row in block.rows:
        cells = tuple(escaped(mask(cell)) for cell in row)
        lines.append(cells if len(row) > 1 else (f"**{cells[0]}**", *[""] * (len(rule) - 1)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# ---------------------------------------------------------------------------------------------------------- html


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        level = min(block.level, 3)
        colour = _COLOURS.get(block.style.split()[-1], "info")
        badge = f'<span class="badge {colour}">{_escaped(block.badge)}</span> ' if block.badge else ""
        return f"<h{level}>{badge}{_escaped(block.text)}</h{level}>"
    if isinstance(block, Paragraph):
        return f"<p{' class=' + chr(34) + 'soft' + chr(34) if block.quiet else ''}>{_escaped(block.text)}</p>"
    if isinstance(block, Bullets):
        return f"<ul>{''.join(f'<li>{_escaped(item)}</li>' for item in block.items)}</ul>"
    head = "".join(_html_cell("th", cell, words=block.is_words(place)) for place, cell in enumerate(block.header))
    rows = "".join(f"<tr>{_html_row(row, block)}</tr>\n" for row in block.rows)
    return f'<div class="scroll"><table>\n<tr>{head}</tr>\n{rows}</table></div>'


def _html_row(row: Sequence[str], table: Table) -> str:
    if len(row) == 1:
        return f'<th colspan="{len(table.header)}">{_escaped(row[0])}</th>'
    return "".join(_html_cell("td", cell, words=table.is_words(place)) for place, cell in enumerate(row))


def _html_cell(tag: str, text: str, *, words: bool) -> str:
    kind = "" if words else ' class="n"'
    return f"<{tag}{kind}>{_escaped(text)}</{tag}>"


def _escaped(raw: str) -> str:
    return html.escape(visible(mask(raw)))
