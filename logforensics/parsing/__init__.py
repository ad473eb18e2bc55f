"""Lines to frames. The door of this room: :func:`parse`, :func:`stream`, and what they give."""

from __future__ import annotations

from logforensics.parsing.log import ParsedLog, Stream, parse, stream

__all__ = ["ParsedLog", "Stream", "parse", "stream"]
