"""Showing a diagnosis: to a person (text, markdown, html) or to a program (json); and writing frames to disk.

The door is small: `render` for any format, `diagnosis_to_dict` for programs, `write_frames` for tables. Everything that goes out
passes through `untrusted` first: log text is shown, never interpreted, and secrets are masked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from logforensics.render.screen import Detail, Screen

if TYPE_CHECKING:
    from logforensics.diagnosis import Diagnosis
    from logforensics.render.frames import FrameFiles, write_frames
    from logforensics.render.json import diagnosis_to_dict, dumps

__all__ = ["Detail", "Format", "FrameFiles", "Screen", "diagnosis_to_dict", "dumps", "render", "write_frames"]

Format = Literal["text", "json", "md", "html"]
_HOMES = {"FrameFiles": "frames", "write_frames": "frames", "diagnosis_to_dict": "json", "dumps": "json"}


def __getattr__(name: str) -> Any:
    """Import what a diagnosis in text does without when it is first asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def render(diagnosis: Diagnosis, fmt: Format = "text", screen: Screen | None = None) -> str:
    """The diagnosis in one of the formats, ending in a newline. Only ``text`` looks at the screen (default: 80 columns, no colour)."""
    if fmt == "json":
        from logforensics.render.json import dumps

        return dumps(diagnosis)
    if fmt == "md":
        from logforensics.render.markdown import diagnosis_to_markdown

        return diagnosis_to_markdown(diagnosis)
    if fmt == "html":
        from logforensics.render.html import diagnosis_to_html

        return diagnosis_to_html(diagnosis)
    from logforensics.render.text import diagnosis_to_text

    return diagnosis_to_text(diagnosis, screen or Screen())
