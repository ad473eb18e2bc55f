"""What the text is laid out for: width, colour, character set, and how much is wanted."""

from __future__ import annotations

from enum import Enum

from logforensics.records import record


class Detail(Enum):
    """How much to say: the verdict alone, what a person needs, or everything."""

    QUIET = "quiet"
    NORMAL = "normal"
    VERBOSE = "verbose"


@record(frozen=True)
class Screen:
    """A place for text. The defaults suit a pipe.

    Attributes:
        width: columns.
        color: whether ANSI colours may be written.
        ascii_only: whether characters outside ASCII must be replaced (the encoding cannot hold them).
        detail: how much to say.
    """

    width: int = 80
    color: bool = False
    ascii_only: bool = False
    detail: Detail = Detail.NORMAL
