"""A rule's page on a terminal. Its markdown is our own; no log text is in it."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markdown import Markdown

from logforensics.render.untrusted import ascii_form

if TYPE_CHECKING:
    from logforensics.render.screen import Screen


def markdown_to_text(markdown: str, screen: Screen) -> str:
    """The page laid out for ``screen``."""
    out = StringIO()
    console = Console(
        file=out,
        width=max(40, min(screen.width, 100)),
        color_system="standard" if screen.color else None,
        force_terminal=screen.color,
        no_color=not screen.color,
        legacy_windows=False,
    )
    console.print(Markdown(ascii_form(markdown) if screen.ascii_only else markdown, hyperlinks=False, code_theme="ansi_dark"))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
