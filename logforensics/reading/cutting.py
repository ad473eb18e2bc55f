"""Streams and files as blocks that end at a newline."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

_WINDOW = 1 << 16


class Readable(Protocol):
    """The one method a byte stream needs here."""

    def read(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes, none at the end."""
        ...


def cut_at_newlines(stream: Readable, size: int, *, patient: bool = True) -> Iterator[bytes]:
    """Blocks of about ``size`` bytes that end at a newline; a longer line makes a longer block.

    Where not ``patient``, a block is what one read gives.
    """
    carry: list[bytes] = []
    while parts := _filled(stream, size, patient=patient):
        place = next((place for place in range(len(parts) - 1, -1, -1) if b"\n" in parts[place]), None)
        if place is None:
            carry += parts
            continue
        last = parts[place]
        cut = last.rfind(b"\n") + 1
        ended: list[bytes | memoryview] = [*carry, *parts[:place], last if cut == len(last) else memoryview(last)[:cut]]
        carry = [part for part in (last[cut:], *parts[place + 1 :]) if part]
        del parts, last  # while the block is read, its parts may go
        yield _as_one(ended)
    if carry:
        yield b"".join(carry)


def _as_one(parts: list[bytes | memoryview]) -> bytes:
    """The parts in one block, copied once, or not at all where there is only one; the list is emptied."""
    block = b"".join(parts)
    parts.clear()
    return block


def exact_reads(descriptor: int, size: int) -> Iterator[bytes]:
    """The same for a regular file, without copies: find the newline before each boundary, then read exactly up to it.

    The size is taken once: of a growing file, what is there now is read.
    """
    end, begin = os.fstat(descriptor).st_size, 0
    while begin < end:
        stop = _after_last_newline(descriptor, begin, min(begin + size, end), end)
        block = os.pread(descriptor, stop - begin, begin)
        if not block:
            return  # the file was cut short while it was read
        begin = stop
        yield block
        del block  # before the next one is read


def _after_last_newline(descriptor: int, begin: int, stop: int, end: int) -> int:
    """Offset after the last newline in ``begin:stop``, or after the first one behind it where a line is longer."""
    at = stop
    while at > begin and stop < end:
        window = min(_WINDOW, at - begin)
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


def _filled(stream: Readable, size: int, *, patient: bool) -> list[bytes]:
    """``size`` bytes unless the stream ends: pipes give short reads, and parsing tiny chunks costs ten times the CPU.

    Where not ``patient``, what one read gives.
    """
    parts: list[bytes] = []
    have = 0
    while have < size and (block := stream.read(size - have)):
        parts.append(block)
        have += len(block) if patient else size
    return parts
