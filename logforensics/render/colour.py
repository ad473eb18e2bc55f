"""Lines in colour, by rich."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from logforensics.render.styled import Styled


def coloured(lines: Iterable[Styled]) -> str:
    """The lines with ANSI escapes for their styles, each ending in a newline. They are not wrapped again."""
    out = StringIO()
    console = Console(
        file=out,
        color_system="standard",
        force_terminal=True,
        force_interactive=False,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    for line in lines:
        console.print(Text.assemble(*line.pieces), soft_wrap=True)
    return out.getvalue()
