"""Bytes to numbered lines: files, gzip and standard input, cut into chunks that end at a newline.

The door of this room: :func:`open_sources` and :class:`Source`.
"""

from __future__ import annotations

from logforensics.reading.sources import STDIN_NAME, Chunk, Source, open_sources

__all__ = ["STDIN_NAME", "Chunk", "Source", "open_sources"]
