"""Compressed bytes and other encodings as plain UTF-8 bytes."""

from __future__ import annotations

import codecs
import io
import sys
import zlib
from typing import TYPE_CHECKING, Any

from logforensics.errors import EmptyError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from logforensics.reading.cutting import Readable

MAGIC = {b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst", b"\xfd7zXZ\x00": "xz", b"BZh": "bz2"}
PEEK = 1 << 18
_STEP = 1 << 17
_UTF16_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


def packing_of(head: bytes) -> str | None:
    """The compression that the first bytes of a file announce."""
    return next((name for magic, name in MAGIC.items() if head.startswith(magic)), None)


def unpacked(stream: Any, packing: str) -> Readable:
    """The plain bytes of a compressed stream.

    Raises:
        InputError: the library for this compression is not installed.
    """
    return Layered(_OPENERS[packing](stream), stream)


class Layered:
    """A reader on top of another stream, closed together with it."""

    def __init__(self, reader: Readable, beneath: Any) -> None:
        self._reader = reader
        self._beneath = beneath

    def read(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes, none at the end; in small steps, since a step that finds the data cut short gives nothing."""
        return self._reader.read(min(size, _STEP))

    def readinto(self, buffer: memoryview) -> int:
        """Fill the buffer as far as one read goes, for what unpacks the bytes once more."""
        block = self.read(len(buffer))
        buffer[: len(block)] = block
        return len(block)

    def tell(self) -> int:
        """Bytes taken from the stream beneath, or read so far where that cannot tell."""
        counting: Any = self._beneath if hasattr(self._beneath, "tell") else self._reader
        return int(counting.tell())

    def close(self) -> None:
        """Close every stream beneath that can be closed."""
        for stream in (self._reader, self._beneath):
            if hasattr(stream, "close"):
                stream.close()


def read_errors() -> tuple[type[Exception], ...]:
    """What reading a broken stream raises, whichever library read it."""
    import lzma

    # zipfile raises RuntimeError for an encrypted member and one packed in a way it does not know
    found: list[type[Exception]] = [OSError, EOFError, RuntimeError, zlib.error, lzma.LZMAError]
    for module, name in (("isal.isal_zlib", "error"), ("zstandard", "ZstdError")):
        if module in sys.modules:  # not imported: it cannot have raised
            found.append(getattr(sys.modules[module], name))
    return tuple(found)


def _gz(stream: Any) -> Readable:
    """Gunzip. isal reads gzip four times faster than the standard library, which stands in where there is no wheel of it."""
    try:
        from isal import igzip
    except ImportError:
        import gzip

        return gzip.GzipFile(fileobj=stream)
    reader: Any = igzip.IGzipFile
    found: Readable = reader(fileobj=stream)
    return found


def _zst(stream: Any) -> Readable:
    try:
        import zstandard
    except ImportError as error:
        raise InputError("this log is compressed with zstd: `pip install zstandard` to read it") from error
    return zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)


def _xz(stream: Any) -> Readable:
    import lzma

    return lzma.LZMAFile(stream)


def _bz2(stream: Any) -> Readable:
    import bz2

    return bz2.BZ2File(stream)


_OPENERS: dict[str, Callable[[Any], Readable]] = {"gz": _gz, "zst": _zst, "xz": _xz, "bz2": _bz2}


def encoding_of(name: str, head: bytes) -> str | None:
    """The encoding to translate from, None for UTF-8 without a mark at its beginning.

    Raises:
        InputError: nothing to read, or binary data.
    """
    if not head.strip():
        raise EmptyError(f"{name}: is empty: there is no log to read")
    if head.startswith(codecs.BOM_UTF8):
        return "utf-8"
    if encoding := _UTF16_MARKS.get(head[:2]):
        return encoding
    nul = head.count(0)
    if nul > len(head) // 3 and nul == head[1::2].count(0):
        return "utf-16-le"
    control = sum(head.count(bytes([c])) for c in (*range(1, 7), *range(14, 27)))
    if nul > max(64, len(head) // 10) or control > max(16, len(head) // 50):
        raise InputError(f"{name}: holds binary data, not a text log")
    return None


class Recoded:
    """Bytes of another encoding as UTF-8; line numbers stay those of the decoded text."""

    def __init__(self, stream: Readable, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._kept = io.BytesIO()

    def read(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes of UTF-8, none at the end."""
        if size < 0:
            raise ValueError("a log is read in blocks")
        while not (block := self._kept.read(size)):
            raw = self._stream.read(PEEK)
            text = self._decoder.decode(raw, final=not raw).lstrip("\ufeff")
            if not raw and not text:
                return b""
            self._kept = io.BytesIO(text.encode())
        return block
