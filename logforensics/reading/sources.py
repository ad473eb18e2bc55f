"""Log files as a sequence of chunks, each a whole number of lines.

A chunk remembers the byte offset and the line number at which it starts, so that single lines of a plain file can be quoted afterwards
without reading it all again; of anything else the bytes are unpacked once more.
"""

from __future__ import annotations

import io
import os
import stat
import sys
import tempfile
import weakref
from bisect import bisect_right
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from logforensics import progress
from logforensics.errors import InputError
from logforensics.reading.arrays import Entries, entries_of
from logforensics.reading.cutting import cut_at_newlines, exact_reads
from logforensics.reading.following import GrowingFile
from logforensics.reading.streams import PEEK, Layered, Recoded, encoding_of, packing_of, read_errors, unpacked
from logforensics.reading.wrappers import detect, held_lines, holds_lines, is_newest_first, is_stamped
from logforensics.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from logforensics.reading.cutting import Readable
    from logforensics.reading.wrappers import Wrapper

STDIN_NAME = "<stdin>"
CHUNK_BYTES = 8 << 20
_PIPE_BYTES = 1 << 18  # what a pipe should hold, and is asked for at once: room for more would be made every time
_MOST_PACKINGS = 3  # around each other
_HELD_LINES = 32  # looked at first for records that are not over at the end of a block
_MOST_HELD_LINES = 20_000  # and at most
_MOST_HELD = 64 << 20  # bytes of a record that does not end


@record(frozen=True)
class Chunk:
    """``data`` ends with a newline, except that the last chunk of a source may hold an unterminated line."""

    data: bytes
    offset: int


@dataclass(slots=True)
class Source:
    """One log: its name as given, and where its bytes come from.

    Attributes:
        name: the path as it was given, ``archive:member``, or ``<stdin>``.
        path: the plain file that is read in place; None where the bytes have to be unpacked or recoded.
        wrappers: what other programs put in front of its lines.
        stamped: SGLang's bracket with a time stamp stands in front of its lines.
        newest_first: the last line that was written comes first, as some consoles export it.
        live: the log is read while it grows; chunks come as soon as there is something in them.
        cut: compressed data ended too early, or the file was cut short while it was read; what was there was read.
        size: bytes, of a compressed file its compressed bytes; None where they end nobody knows where.
    """

    name: str
    path: Path | None
    wrappers: tuple[Wrapper, ...] = ()
    stamped: bool = False
    newest_first: bool = False
    live: bool = False
    cut: bool = False
    size: int | None = None
    _open: Callable[[], Readable] | None = field(default=None, repr=False)
    _starts: list[tuple[int, int]] = field(default_factory=list, repr=False)
    _file: os.stat_result | None = field(default=None, repr=False)  # the plain file as it was when it was read

    def chunks(self, size: int = CHUNK_BYTES) -> Iterator[Chunk]:
        """Yield the log in chunks of about ``size`` bytes that end at a newline.

        Raises:
            InputError: the file cannot be read, or its compression is broken.
        """
        self._starts.clear()
        offset = 0
        for data in self._unsplit(self._blocks(size, self.name)):
            offset += len(data)
            yield Chunk(data, offset - len(data))
            del data  # before the next one is read: blocks are large

    def head(self, size: int) -> bytes:
        """About the first ``size`` bytes, of which no listener to the progress hears."""
        return next(self._blocks(size, None), b"")[:size]

    def remember(self, line: int, offset: int) -> None:
        """Keep that this 1-based line begins at this offset: whoever has split a chunk into lines knows their number, and counting costs."""
        self._starts.append((line, offset))

    def quote(self, lines: Iterable[int]) -> dict[int, str]:
        """The text of the given 1-based lines (without the newline), read once more from the source."""
        wanted = sorted(set(lines))
        if not wanted:
            return {}
        return self._quoted_in_place(wanted) if self.path is not None else self._quoted_from_the_start(wanted)

    def _blocks(self, size: int, what: str | None) -> Iterator[bytes]:
        """Blocks that end at a newline; the listener to the progress hears of each under the name ``what``."""
        try:
            if self.path is not None:
                done = 0
                with self.path.open("rb") as stream:
                    self._file = os.fstat(stream.fileno())
                    for block in exact_reads(stream.fileno(), size):
                        done += len(block)
                        if what is not None:
                            progress.at(what, done, self.size)
                        yield block
                        del block
                self.cut = done < self._file.st_size
            elif self._open is not None:
                with _closing(self._open()) as stream:
                    for block in cut_at_newlines(_Salvaging(stream, self), size, patient=not self.live):
                        if what is not None:
                            progress.at(what, stream.tell(), self.size)
                        yield block
                        del block
        except read_errors() as error:
            raise InputError(f"{self.name}: cannot be read: {error}") from error

    def _unsplit(self, blocks: Iterator[bytes]) -> Iterator[bytes]:
        """Blocks of which none ends inside a record that a wrapper has split."""
        if not self.wrappers:
            yield from blocks
            return
        carry = b""
        for block in blocks:
            data = carry + block if carry else block
            keep = _end_of_whole_records(data, self.wrappers) if len(carry) < _MOST_HELD else len(data)
            data, carry = data[:keep], data[keep:]
            del block
            if data:
                yield data
            del data
        if carry:
            yield carry

    def _quoted_in_place(self, wanted: list[int]) -> dict[int, str]:
        assert self.path is not None  # noqa: S101 - the caller has looked
        starts = self._starts or [(1, 0)]
        firsts = [first for first, _ in starts]
        found: dict[int, str] = {}
        with self._unchanged() as stream:
            at = 0
            for number in wanted:
                first, offset = starts[max(0, bisect_right(firsts, number) - 1)]
                if at < first:
                    stream.seek(offset)
                    at = first
                for raw in stream:
                    at += 1
                    if at > number:
                        found[number] = _text(raw)
                        break
        return found

    @contextmanager
    def _unchanged(self) -> Iterator[BinaryIO]:
        """The plain file once more; one that was replaced or cut since it was read has other lines by now."""
        assert self.path is not None  # noqa: S101 - the caller has looked
        try:
            with self.path.open("rb") as stream:
                now, then = os.fstat(stream.fileno()), self._file
                if then is not None and not self.cut and (not os.path.samestat(now, then) or now.st_size < then.st_size):
                    raise InputError(f"{self.name}: was replaced or cut while it was read: read a copy of it, or read it again")
                yield stream
        except OSError as error:
            raise InputError(f"{self.name}: cannot be read again, to quote its lines: {error.strerror or error}") from error

    def _quoted_from_the_start(self, wanted: list[int]) -> dict[int, str]:
        found: dict[int, str] = {}
        first = 1
        for block in self._blocks(CHUNK_BYTES, f"quoting {self.name}"):
            count = block.count(b"\n")
            here = [number for number in wanted if first <= number <= first + count]
            if here:
                lines = block.split(b"\n")
                found |= {number: _text(lines[number - first]) for number in here if lines[number - first] or number < first + count}
            first += count
            if first > wanted[-1]:
                break
        return found


def _end_of_whole_records(data: bytes, wrappers: Sequence[Wrapper]) -> int:
    """Where the records end that are over, as far as the wrappers can tell."""
    starts, window = [len(data)], _HELD_LINES
    while starts[-1] and len(starts) <= _MOST_HELD_LINES:
        while starts[-1] and len(starts) <= window:
            starts.append(data.rfind(b"\n", 0, starts[-1] - 1) + 1)
        lines = [_text(data[begin:end]) for end, begin in pairwise(starts)]
        held = held_lines(lines[::-1], wrappers)
        if held < len(lines):
            return starts[held]
        window *= 8
    return 0 if len(starts) <= _MOST_HELD_LINES else len(data)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace").rstrip("\n").rstrip("\r")


def _closing(stream: Any) -> Any:
    return closing(stream) if hasattr(stream, "close") else _Kept(stream)


class _Kept:
    """A stream that needs no closing, for use in ``with``."""

    def __init__(self, stream: Readable) -> None:
        self._stream = stream

    def __enter__(self) -> Readable:
        return self._stream

    def __exit__(self, *_: object) -> None:
        return None


class _Salvaging:
    """Ends where compressed data ends too early, instead of failing: a log copied while it was written is still a log."""

    def __init__(self, stream: Readable, source: Source) -> None:
        self._stream = stream
        self._source = source

    def read(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes, none at the end."""
        try:
            return self._stream.read(size)
        except EOFError:
            self._source.cut = True
            return b""


class Pipe:
    """A stream that can be read once; what was read is kept in a file without a name, so that lines can be quoted.

    Args:
        stream: what is read.
        name: what the listener to the progress hears it called.
        owned: the stream is closed when nobody needs it any more.
    """

    def __init__(self, stream: Any, name: str, *, owned: bool = False) -> None:
        self._stream = stream
        _widen(stream)
        self._name = name
        self._spool = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the Source
        weakref.finalize(self, self._spool.close)
        if owned:
            weakref.finalize(self, stream.close)
        self._ended = False

    def open(self) -> Readable:
        """The stream from its beginning."""
        return _PipeReader(self)

    def read_at(self, at: int, size: int) -> bytes:
        """At most ``size`` bytes from offset ``at``, taken from the stream where it was not read so far."""
        kept = os.pread(self._spool.fileno(), size, at)
        if kept or self._ended:
            return kept
        block = self._next(at, size)
        self._ended = not block
        self._spool.write(block)
        self._spool.flush()
        return block

    def _next(self, at: int, size: int) -> bytes:
        """``size`` bytes unless the stream ends, as they come: who writes slowly is seen to write."""
        if not isinstance(self._stream, io.BufferedReader):
            block: bytes = self._stream.read(size)
            progress.at(self._name, at + len(block), None)
            return block
        parts: list[bytes] = []
        have = 0
        while have < size and (part := self._stream.read1(min(size - have, _PIPE_BYTES))):
            parts.append(part)
            have += len(part)
            progress.at(self._name, at + have, None)
        return b"".join(parts)


def _widen(stream: Any) -> None:
    """Let a pipe hold more than 64 KiB, where the system can: writer and reader take turns a quarter as often."""
    import fcntl

    with suppress(OSError, AttributeError, ValueError):  # no pipe, no descriptor, not Linux, or more than the user may have
        fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)


class _PipeReader:
    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._at = 0

    def read(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes, none at the end."""
        block = self._pipe.read_at(self._at, size)
        self._at += len(block)
        return block

    def readinto(self, buffer: memoryview) -> int:
        """Fill the buffer as far as one read goes; some decompressors ask in this way."""
        block = self.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)

    def tell(self) -> int:
        """Bytes read so far."""
        return self._at


def describe(name: str, path: Path | None, reopen: Callable[[], Readable], size: int | None = None) -> Source:
    """Look at the beginning of a log and say how to read it.

    Args:
        name: what to call it.
        path: the plain file, where the bytes are one.
        reopen: gives the raw bytes from their beginning, as often as wanted.
        size: how many raw bytes there are, where that is known.

    Raises:
        InputError: there is nothing to read, it holds binary data, or its compression is broken.
    """
    try:
        with _closing(reopen()) as stream:
            head = stream.read(PEEK)
        for _ in range(_MOST_PACKINGS):
            packing = packing_of(head)
            if packing is None:
                break
            path, reopen = None, partial(_unpack, reopen, packing)
            with _closing(reopen()) as stream:
                head = stream.read(PEEK)
    except read_errors() as error:
        raise InputError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    encoding = encoding_of(name, head)
    if encoding is not None:
        head = head.decode(encoding, "replace").lstrip("\ufeff").encode()
        path, reopen = None, partial(_recode, reopen, encoding)
    if lines := _listed(head):
        path, reopen, head = None, partial(_as_lines, reopen), lines
    return Source(name, path, **_traits(head), size=size, _open=reopen)


def _listed(head: bytes) -> bytes | None:
    """The lines of a log that is exported as a JSON array of objects; None where it is none."""
    lines = entries_of(head)
    return "\n".join(lines).encode() if lines and holds_lines(lines) else None


def _recode(reopen: Callable[[], Readable], encoding: str) -> Readable:
    raw = reopen()
    return Layered(Recoded(raw, encoding), raw)


def _as_lines(reopen: Callable[[], Readable]) -> Readable:
    raw = reopen()
    return Layered(Entries(raw), raw)


def _unpack(reopen: Callable[[], Readable], packing: str) -> Readable:
    return unpacked(reopen(), packing)


def _traits(head: bytes) -> dict[str, Any]:
    wrappers = detect(head)
    return {"wrappers": wrappers, "stamped": is_stamped(head), "newest_first": is_newest_first(head)}


def growing(name: str, path: Path) -> Source:
    """A file that is read while it grows.

    Raises:
        InputError: there is nothing to read so far, or it holds binary data.
    """
    source = describe(name, None, Pipe(GrowingFile(path), name).open)
    source.live = True
    return source


def standard_input() -> Source:
    """Standard input as a source; a file redirected to it is read in place.

    Raises:
        InputError: there is nothing to read, or it holds binary data.
    """
    stream = sys.stdin.buffer
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode) and stream.tell() == 0:
        path = Path(f"/dev/fd/{stream.fileno()}")
        return describe(STDIN_NAME, path, lambda: path.open("rb"), os.fstat(stream.fileno()).st_size)
    return piped(STDIN_NAME, stream)


def piped(name: str, stream: Any, *, owned: bool = False) -> Source:
    """A stream that can be read only once, such as a pipe.

    Raises:
        InputError: there is nothing to read, or it holds binary data.
    """
    return describe(name, None, Pipe(stream, name, owned=owned).open)
