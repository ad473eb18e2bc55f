"""Log files as a sequence of chunks, each a whole number of lines.

A chunk remembers the byte offset and the line number at which it starts, so that single lines can be quoted afterwards
without reading the whole file again.
"""

from __future__ import annotations

import gzip
import os
import sys
import tempfile
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from logforensics.errors import InputError

STDIN_NAME = "<stdin>"
CHUNK_BYTES = 12 << 20
_PEEK = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"
_UTF16_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


@dataclass(frozen=True, slots=True)
class Chunk:
    """``data`` ends with a newline, except that the last chunk of a source may hold an unterminated line."""

    data: bytes
    offset: int


@dataclass(slots=True)
class Source:
    """One log: its name as given, and where its bytes come from."""

    name: str
    path: Path | None
    packed: bool = False
    encoding: str | None = None
    _spool: BinaryIO | None = field(default=None, repr=False)
    _starts: list[tuple[int, int]] = field(default_factory=list, repr=False)

    def chunks(self, size: int = CHUNK_BYTES) -> Iterator[Chunk]:
        """Yield the log in chunks of about ``size`` bytes that end at a newline.

        Raises:
            InputError: the file cannot be read, or its compression is broken.
        """
        self._starts.clear()
        offset, line = 0, 1
        try:
            with self._open() as stream:
                plain = self.path is not None and not self.packed and self.encoding is None
                for data in _exact_reads(stream.fileno(), size) if plain else _cut_at_newlines(stream, size):
                    self._starts.append((line, offset))
                    yield Chunk(data, offset)
                    offset += len(data)
                    line += data.count(b"\n")
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{self.name}: cannot be read: {error}") from error

    def quote(self, lines: Iterable[int]) -> dict[int, str]:
        """The text of the given 1-based lines (without the newline), read once more from the source."""
        wanted = sorted(set(lines))
        found: dict[int, str] = {}
        if not wanted or not self._starts:
            return found
        with self._open() as stream:
            for begin, numbers in self._by_chunk(wanted):
                first, offset = self._starts[begin]
                stream.seek(offset)
                for number, raw in enumerate(stream, first):
                    if number == numbers[0]:
                        found[number] = raw.decode("utf-8", "replace").rstrip("\n").rstrip("\r")
                        numbers.pop(0)
                        if not numbers:
                            break
        return found

    def _by_chunk(self, wanted: Sequence[int]) -> list[tuple[int, list[int]]]:
        firsts = [first for first, _ in self._starts]
        groups: dict[int, list[int]] = {}
        for number in wanted:
            groups.setdefault(max(0, bisect_right(firsts, number) - 1), []).append(number)
        return sorted(groups.items())

    def _open(self) -> BinaryIO:
        if self._spool is not None:
            self._spool.seek(0)
            return _Unclosed(self._spool)  # type: ignore[return-value]
        if self.path is None:
            return _decoded(sys.stdin.buffer, self.encoding)
        raw: BinaryIO = self.path.open("rb")
        stream = gzip.GzipFile(fileobj=raw) if self.packed else raw
        return _decoded(stream, self.encoding)  # type: ignore[arg-type]


class _Unclosed:
    """A stream that survives ``with``: the spool of standard input is read more than once."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def __enter__(self) -> BinaryIO:
        return self._stream

    def __exit__(self, *_: object) -> None:
        return None


def open_sources(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Source]:
    """Check each path and say how to read it; ``-`` is standard input (kept in a temporary file, so that lines can be quoted).

    Raises:
        InputError: a path does not exist, is a folder, is empty, or holds binary data.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    sources = [_open_source(os.fspath(path)) for path in paths]
    if not sources:
        raise InputError("no log was given: name a file, or - for standard input")
    return sources


def _open_source(given: str) -> Source:
    if given == "-":
        return _standard_input()
    path = Path(given)
    try:
        if path.is_dir():
            raise InputError(f"{given}: is a folder: name a log file in it")
        with path.open("rb") as stream:
            head = stream.read(_PEEK)
    except OSError as error:
        raise InputError(f"{given}: {error.strerror or error}") from error
    packed = head.startswith(_GZIP_MAGIC)
    if packed:
        try:
            with gzip.open(path) as stream:
                head = stream.read(_PEEK)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"{given}: broken gzip data: {error}") from error
    source = Source(given, path, packed=packed)
    source.encoding = _checked_encoding(given, head)
    return source


def _standard_input() -> Source:
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the Source
    while block := sys.stdin.buffer.read(1 << 20):
        spool.write(block)
    spool.seek(0)
    head = spool.read(_PEEK)
    if head.startswith(_GZIP_MAGIC):
        spool.seek(0)
        spool = _unpacked(spool)
        head = spool.read(_PEEK)
    encoding = _checked_encoding(STDIN_NAME, head)
    if encoding:
        spool.seek(0)
        plain = tempfile.TemporaryFile()  # noqa: SIM115
        plain.write(spool.read().decode(encoding, "replace").encode())
        spool = plain
    return Source(STDIN_NAME, None, _spool=spool)  # type: ignore[arg-type]


def _unpacked(spool: BinaryIO) -> BinaryIO:  # type: ignore[misc]
    plain = tempfile.TemporaryFile()  # noqa: SIM115
    try:
        with gzip.GzipFile(fileobj=spool) as stream:
            while block := stream.read(1 << 20):
                plain.write(block)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{STDIN_NAME}: broken gzip data: {error}") from error
    plain.seek(0)
    return plain  # type: ignore[return-value]


def _checked_encoding(name: str, head: bytes) -> str | None:
    """The encoding to translate from, None for UTF-8.

    Raises:
        InputError: nothing to read, or binary data.
    """
    if not head.strip():
        raise InputError(f"{name}: is empty: there is no log to read")
    if encoding := _UTF16_MARKS.get(head[:2]):
        return encoding
    nul = head.count(0)
    if nul > len(head) // 3 and 0 not in head[::2][:64]:
        return "utf-16-le"
    control = sum(head.count(bytes([c])) for c in (*range(1, 7), *range(14, 27)))
    if nul > max(64, len(head) // 10) or control > max(16, len(head) // 50):
        raise InputError(f"{name}: holds binary data, not a text log")
    return None


class _Recoded:
    """Bytes of another encoding as UTF-8; line numbers stay those of the decoded text."""

    def __init__(self, stream: BinaryIO, encoding: str) -> None:
        import codecs

        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._kept = b""

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes of UTF-8."""
        while (size < 0 or len(self._kept) < size) and (block := self._stream.read(1 << 20)):
            self._kept += self._decoder.decode(block).lstrip("\ufeff").encode()
        if size < 0:
            size = len(self._kept)
        out, self._kept = self._kept[:size], self._kept[size:]
        return out


def _decoded(stream: BinaryIO, encoding: str | None) -> BinaryIO:
    if encoding is None:
        return stream
    import io

    return io.BytesIO(_Recoded(stream, encoding).read())


def _cut_at_newlines(stream: BinaryIO, size: int) -> Iterator[bytes]:
    """Blocks of about ``size`` bytes that end at a newline; a longer line makes a longer block."""
    carry: list[bytes] = []
    while block := _fill(stream, size):
        cut = block.rfind(b"\n") + 1
        if cut == 0:
            carry.append(block)
            continue
        yield b"".join([*carry, block[:cut]]) if carry else block[:cut]
        carry = [block[cut:]] if cut < len(block) else []
    if carry:
        yield b"".join(carry)


def _exact_reads(descriptor: int, size: int) -> Iterator[bytes]:
    """The same for a regular file, without copies: find the newline before each boundary, then read exactly up to it.

    The size is taken once: of a growing file, what is there now is read.
    """
    end, begin = os.fstat(descriptor).st_size, 0
    while begin < end:
        stop = _after_last_newline(descriptor, begin, min(begin + size, end), end)
        yield os.pread(descriptor, stop - begin, begin)
        begin = stop


def _after_last_newline(descriptor: int, begin: int, stop: int, end: int) -> int:
    """Offset after the last newline in ``begin:stop``, or after the first one behind it where a line is longer."""
    at = stop
    while at > begin and stop < end:
        window = min(_PEEK, at - begin)
        found = os.pread(descriptor, window, at - window).rfind(b"\n")
        if found >= 0:
            return at - window + found + 1
        at -= window
    while stop < end:
        block = os.pread(descriptor, 1 << 20, stop)
        found = block.find(b"\n")
        if found >= 0 or not block:
            return stop + found + 1
        stop += len(block)
    return min(stop, end)


def _fill(stream: BinaryIO, size: int) -> bytes:
    """``size`` bytes unless the stream ends: pipes give short reads, and parsing tiny chunks costs ten times the CPU."""
    block = stream.read(size)
    if not block or len(block) == size:
        return block
    parts, have = [block], len(block)
    while have < size and (block := stream.read(size - have)):
        parts.append(block)
        have += len(block)
    return b"".join(parts)
