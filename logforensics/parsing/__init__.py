"""Lines to frames. The door of this room: :func:`parse` and :class:`ParsedLog`."""

from __future__ import annotations

from logforensics.parsing.log import ParsedLog, parse

__all__ = ["ParsedLog", "parse"]
