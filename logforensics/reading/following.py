"""A file that another process writes: read on while it grows, and go on with the file that replaces it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

IDLE_S = 2.0
_POLL_S = 0.1
_FINGERPRINT = 256


class GrowingFile:
    """A stream over a growing file that ends when nothing has come for a while.

    Args:
        path: the file; when it is renamed and made anew (rotated) or cut short, reading goes on at the beginning of the new one.
        idle_s: seconds without new bytes after which the stream ends.
    """

    def __init__(self, path: Path, *, idle_s: float = IDLE_S) -> None:
        self._path = path
        self._idle_s = idle_s
        self._file = path.open("rb", buffering=0)
        self._first = b""  # what the file begins with: one that was cut and has grown past the place again begins differently
        self._in_line = False  # what was given last did not end with a newline

    def read(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes, as soon as there are some; none when the log has ended."""
        waited = 0.0
        while True:
            begins_anew = self._was_cut()
            if begins_anew:
                self._file.seek(0)
                self._first = b""
            elif block := self._file.read(size):
                self._in_line = not block.endswith(b"\n")
                if len(self._first) < _FINGERPRINT:
                    self._first = os.pread(self._file.fileno(), _FINGERPRINT, 0)
                return block
            else:
                begins_anew = self._was_replaced()
            if begins_anew:
                if self._in_line:
                    self._in_line = False
                    return b"\n"  # the first line of what follows is not the end of the last one
                continue
            if waited >= self._idle_s:
                self._file.close()
                return b""
            time.sleep(_POLL_S)
            waited += _POLL_S

    def _was_cut(self) -> bool:
        descriptor = self._file.fileno()
        return os.fstat(descriptor).st_size < self._file.tell() or os.pread(descriptor, len(self._first), 0) != self._first

    def _was_replaced(self) -> bool:
        """Whether another file has taken this one's place; then that one is open now, from its beginning."""
        try:
            if os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
                return False
            new = self._path.open("rb", buffering=0)
        except FileNotFoundError:  # between rename and creation
            return False
        if os.fstat(self._file.fileno()).st_size > self._file.tell():  # written after the last read, before the rename
            new.close()
            return False
        self._file.close()
        self._file, self._first = new, b""
        return True
