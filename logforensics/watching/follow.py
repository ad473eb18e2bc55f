"""Following a growing log: whole lines as they come, through rotation, truncation and a file that is not yet there.

Lines are numbered through: after a rotation or a truncation the count goes on, and :meth:`Follower.place` says which line of which file
a number stands for.
"""

from __future__ import annotations

import codecs
import os
import select
import stat
import sys
import tempfile
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from logforensics.errors import InputError
from logforensics.reading import STDIN_NAME
from logforensics.reading.streams import encoding_of, packing_of
from logforensics.records import record

_BLOCK = 8 << 20
_LONGEST_LINE = 64 << 20  # a longer line is handed on in pieces: memory stays bounded
_INDEX_STEP = 1 << 16
_FINGERPRINT = 256
_OPEN_FILES = 3


@record(frozen=True)
class Reading:
    """What one look at the log gave.

    Attributes:
        data: whole lines, b"" where nothing new has come. Only the last line of a log that is over may lack its newline.
        happened: ``waiting`` (no such file yet), ``opened``, ``rotated``, ``truncated``, or None.
        more: there is more to read at once.
        over: nothing will follow.
    """

    data: bytes = b""
    happened: str | None = None
    more: bool = False
    over: bool = False


@dataclass(slots=True)
class _Volume:
    """The lines of one file, from its first to where it was rotated away or cut."""

    name: str
    first: int
    stream: BinaryIO | None
    starts: list[tuple[int, int]] = field(default_factory=list)

    def note(self, line: int, offset: int) -> None:
        """Remember where a line begins, not too often."""
        if not self.starts or offset - self.starts[-1][1] >= _INDEX_STEP:
            self.starts.append((line, offset))

    def quote(self, numbers: list[int]) -> dict[int, str]:
        """The text of the given lines, as far as the file still has them."""
        if self.stream is None or not self.starts:
            return {}
        firsts = [line for line, _ in self.starts]
        found = {}
        for number in numbers:
            line, offset = self.starts[max(0, bisect_right(firsts, number) - 1)]
            self.stream.seek(offset)
            for at, raw in enumerate(self.stream, line):
                if at == number:
                    found[number] = raw.decode("utf-8", "replace").rstrip("\n").rstrip("\r")
                    break
        return found

    def close(self) -> None:
        """Let the file go."""
        if self.stream is not None:
            self.stream.close()
        self.stream = None


class Follower:
    """The lines of a growing log, whatever it is; subclasses know where its bytes come from."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._volumes: list[_Volume] = []
        self._partial = b""
        self._line = 1
        self._offset = 0
        self._decoder: codecs.IncrementalDecoder | None = None
        self._begun = False
        self._spool: BinaryIO | None = None  # a copy in UTF-8, where the log itself cannot be read again at an offset

    @property
    def partial(self) -> str:
        """The line that is being written."""
        return self._partial.decode("utf-8", "replace")

    def poll(self) -> Reading:
        """What has come since the last look; never waits for more than a moment."""
        raise NotImplementedError

    def wait(self, seconds: float) -> None:
        """Let time pass until there may be something new."""
        raise NotImplementedError

    def close(self) -> None:
        """Let all files go."""
        for volume in self._volumes:
            volume.close()

    def place(self, number: int) -> tuple[str, int]:
        """The file and the line in it that a number stands for."""
        at = bisect_right([volume.first for volume in self._volumes], number) - 1
        if at < 0:
            return self.name, number
        return self._volumes[at].name, number - self._volumes[at].first + 1

    def quote(self, lines: Iterable[int]) -> dict[int, str]:
        """The text of lines by their numbers."""
        wanted: dict[int, list[int]] = {}
        for number in sorted(set(lines)):
            wanted.setdefault(bisect_right([volume.first for volume in self._volumes], number) - 1, []).append(number)
        return {number: text for at, numbers in wanted.items() if at >= 0 for number, text in self._volumes[at].quote(numbers).items()}

    # ------------------------------------------------------------------------------------------------ for the subclasses

    def _begin_volume(self, name: str, stream: BinaryIO | None) -> None:
        self._volumes.append(_Volume(name, self._line, stream))
        for old in self._volumes[:-_OPEN_FILES]:
            old.close()
        self._offset, self._begun, self._decoder, self._spool = 0, False, None, None

    def _checked(self, block: bytes) -> bytes:
        """The block in UTF-8; the first one tells the encoding.

        Raises:
            InputError: it is compressed or binary.
        """
        if not self._begun and block.strip():
            if packing_of(block):
                raise InputError(f"{self.name}: is compressed; watch follows a text that grows, diagnose reads compressed logs")
            encoding = encoding_of(self.name, block)
            self._begun = True
            if encoding:
                self._decoder = codecs.getincrementaldecoder(encoding)("replace")
                self._keep_copy()
        return block if self._decoder is None else self._decoder.decode(block).lstrip("\ufeff").encode()

    def _keep_copy(self) -> None:
        self._spool = self._volumes[-1].stream = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the volume

    def _whole_lines(self, block: bytes) -> bytes:
        """The lines that are complete now; the rest waits for its end."""
        data = self._partial + block
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) > _LONGEST_LINE:
            cut = len(data)
        out, self._partial = data[:cut], data[cut:]
        self._count(out)
        return out

    def _last_line(self) -> bytes:
        """The line that will not be finished any more."""
        out, self._partial = self._partial, b""
        self._count(out)
        return out

    def _count(self, data: bytes) -> None:
        if data:
            self._volumes[-1].note(self._line, self._offset)
            if self._spool is not None:
                self._spool.seek(0, os.SEEK_END)
                self._spool.write(data)
            self._line += data.count(b"\n") + (not data.endswith(b"\n"))
            self._offset += len(data)


class FileFollower(Follower):
    """A file that grows, is rotated away, cut, or not yet there."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._path = Path(name)
        self._stream: BinaryIO | None = None
        self._read = 0
        self._fingerprint = b""
        self._told_waiting = False

    def poll(self) -> Reading:
        """What has come since the last look."""
        try:
            return self._grown() if self._stream is not None else self._opened()
        except OSError as error:
            raise InputError(f"{self.name}: {error.strerror or error}") from error

    def wait(self, seconds: float) -> None:
        """Sleep: what file systems tell about changes differs too much, and half a second is soon enough."""
        import time

        time.sleep(seconds)

    def close(self) -> None:
        """Let all files go."""
        super().close()
        if self._stream is not None:
            self._stream.close()

    def _opened(self) -> Reading:
        try:
            stream = self._path.open("rb")
        except FileNotFoundError:
            happened = None if self._told_waiting else "waiting"
            self._told_waiting = True
            return Reading(happened=happened)
        self._stream, self._read, self._fingerprint, self._told_waiting = stream, 0, b"", False
        self._begin_volume(self.name, stream)
        return Reading(happened="opened", more=True)

    def _grown(self) -> Reading:
        stream = self._stream
        assert stream is not None  # noqa: S101 - poll has looked
        if self._was_cut(stream.fileno()):
            return self._truncated(stream)
        block = os.pread(stream.fileno(), _BLOCK, self._read)
        if block:
            self._read += len(block)
            if len(self._fingerprint) < _FINGERPRINT:
                self._fingerprint = os.pread(stream.fileno(), _FINGERPRINT, 0)
            return Reading(self._whole_lines(self._checked(block)), more=True)
        return self._rotated(stream) if self._was_replaced(stream.fileno()) else Reading()

    def _was_cut(self, descriptor: int) -> bool:
        """Whether the file is shorter than what was read, or begins differently: it was cut and has grown past the place again."""
        if os.fstat(descriptor).st_size < self._read:
            return True
        return bool(self._fingerprint) and os.pread(descriptor, len(self._fingerprint), 0) != self._fingerprint

    def _was_replaced(self, descriptor: int) -> bool:
        """Whether the name belongs to another file by now. While it belongs to none, the old file may still grow."""
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return False
        return not os.path.samestat(now, os.fstat(descriptor))

    def _truncated(self, stream: BinaryIO) -> Reading:
        data = self._last_line()
        self._volumes[-1].stream = None  # what it held is gone
        self._read, self._fingerprint = 0, b""
        self._begin_volume(self.name, stream)
        return Reading(data, happened="truncated", more=True)

    def _rotated(self, stream: BinaryIO) -> Reading:
        data = self._last_line()
        self._volumes[-1].name = self._new_name(os.fstat(stream.fileno()))
        self._stream = None
        if self._spool is not None:
            stream.close()
        return Reading(data, happened="rotated", more=True)

    def _new_name(self, old: os.stat_result) -> str:
        """The name that the old file has now, found by its inode; its former name where it is gone."""
        try:
            found = next((entry.name for entry in self._path.parent.iterdir() if _is_file(entry, old)), None)
        except OSError:  # the folder may be entered, but not listed
            found = None
        return self.name if found is None else str(Path(self.name).with_name(found))


def _is_file(path: Path, wanted: os.stat_result) -> bool:
    try:
        return os.path.samestat(path.stat(), wanted)
    except OSError:
        return False


class StreamFollower(Follower):
    """Standard input, kept in a temporary file so that lines can be quoted."""

    def __init__(self, descriptor: int | None = None) -> None:
        super().__init__(STDIN_NAME)
        self._descriptor = sys.stdin.fileno() if descriptor is None else descriptor
        self._begin_volume(STDIN_NAME, None)
        self._keep_copy()
        self._over = False

    def poll(self) -> Reading:
        """What has come since the last look; at the end of the stream, the rest."""
        if self._over:
            return Reading(over=True)
        if not select.select([self._descriptor], [], [], 0)[0]:
            return Reading()
        block = os.read(self._descriptor, _BLOCK)
        if not block:
            self._over = True
            return Reading(self._last_line(), over=True)
        return Reading(self._whole_lines(self._checked(block)), more=True)

    def wait(self, seconds: float) -> None:
        """Until something can be read."""
        if not self._over:
            select.select([self._descriptor], [], [], seconds)


def follower(log: str | os.PathLike[str]) -> Follower:
    """A follower for a path or, for ``-``, standard input.

    Raises:
        InputError: the path is a folder, a pipe or a socket.
    """
    name = os.fspath(log)
    if name == "-":
        return StreamFollower()
    if os.path.isdir(name):  # noqa: PTH112 - Path.is_dir raises where a folder above may not be entered
        raise InputError(f"{name}: is a folder: name the log file in it")
    with suppress(OSError):  # not there yet, or whoever opens it will say why not
        mode = os.stat(name).st_mode  # noqa: PTH116
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            raise InputError(f"{name}: is a pipe or a socket, not a file: give its text to standard input, with -")
    return FileFollower(name)
