"""Bytes to numbered lines: files, compressed files, archives, folders, globs and standard input, cut into chunks that end at a newline.

The door of this room: :func:`open_sources` and :class:`Source`; :class:`Wrapper` and :func:`unwrap` for what other programs put in front of
every line.
"""

from __future__ import annotations

from logforensics.reading.opening import open_sources
from logforensics.reading.sources import STDIN_NAME, Chunk, Source
from logforensics.reading.wrappers import ESCAPES, MARK, Wrapper, unwrap

__all__ = ["ESCAPES", "MARK", "STDIN_NAME", "Chunk", "Source", "Wrapper", "open_sources", "unwrap"]
