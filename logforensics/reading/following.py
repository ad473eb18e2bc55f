"""A file that another process writes: read on while it grows, and go on with the file that replaces it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

IDLE_S = 2.0
_POLL_S = 0.1


class GrowingFile:
    """A stream over a growing file that ends when nothing has come for a while.

    Args:
        path: the file; when it is renamed and made anew (rotated) or cut short, reading goes on at the beginning of the new one.
        idle_s: seconds without new bytes after which the stream ends.
    """

    def __init__(self, path: Path, *, idle_s: float = IDLE_S) -> None:
        self._path = path
        self._idle_s = idle_s
        self._file = path.open("rb")

    def read(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes, as soon as there are some; none when the log has ended."""
        waited = 0.0
        while True:
            if block := self._file.read(size):
                return block
            if self._replaced():
                continue
            if waited >= self._idle_s:
                self._file.close()
                return b""
            time.sleep(_POLL_S)
            waited += _POLL_S

    def _replaced(self) -> bool:
        """Whether another file has taken this one's place; then that one is open now, from its beginning."""
        try:
            now = self._path.stat()
        except FileNotFoundError:  # between rename and creation
            return False
        mine = os.fstat(self._file.fileno())
        if (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino):
            if now.st_size >= self._file.tell():
                return False
            self._file.seek(0)
            return True
        if rest := self._file.read(1):  # written after the last read, before the rename
            self._file.seek(-len(rest), os.SEEK_CUR)
            return True
        try:
            new = self._path.open("rb")
        except FileNotFoundError:
            return False
        self._file.close()
        self._file = new
        return True
