"""How far reading has come, told to whoever wants to know: a bar on a terminal, or a callback of a caller's own.

The listener stands in a context variable, so that what reads a file needs to know nothing of who started it; without a listener a position
costs one look at that variable per block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TypeVar

from logforensics.records import record

T = TypeVar("T")


@record(frozen=True)
class Progress:
    """How far a piece of work has come.

    Attributes:
        what: the file that is read, or what is being done with what was read.
        done_bytes: bytes read so far, of all files together; of a compressed file its compressed bytes count.
        total_bytes: bytes to read; None where nobody can know, as for standard input.
        number: this is the how-manieth file, from 1 on.
        count: how many files there are.
    """

    what: str
    done_bytes: int = 0
    total_bytes: int | None = None
    number: int = 1
    count: int = 1


Listener = Callable[[Progress], None]


@record(frozen=True)
class _Place:
    """Where the current file stands among all of them, in bytes."""

    number: int = 1
    count: int = 1
    before: int = 0
    size: int | None = None
    total: int | None = None


class _Meter:
    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.place = _Place()


_METER: ContextVar[_Meter | None] = ContextVar("progress", default=None)


@contextmanager
def telling(listener: Listener | None) -> Iterator[None]:
    """Within this, ``listener`` hears of all that is read by this thread; None leaves everything as it is."""
    if listener is None:
        yield
        return
    token = _METER.set(_Meter(listener))
    try:
        yield
    finally:
        _METER.reset(token)


def each(items: Sequence[T], sizes: Sequence[int | None] | None = None) -> Iterator[T]:
    """The items one after the other, each a file or what stands for files, with the place of each known to the listener.

    Args:
        items: what is read.
        sizes: bytes of each, in the same order, None where unknown. A single item keeps the place it has among the items further out.
    """
    meter = _METER.get()
    if meter is None:
        yield from items
        return
    outer = meter.place
    for number, place in enumerate(_places(outer, len(items), sizes or [None] * len(items))):
        meter.place = place
        yield items[number]
    meter.place = outer


def _places(outer: _Place, count: int, sizes: Sequence[int | None]) -> list[_Place]:
    if count == 1:
        return [outer if outer.total is not None else replace(outer, before=0, size=sizes[0], total=sizes[0])]
    known = [size for size in sizes if size is not None]
    if len(known) < count:
        return [_Place(number, count, 0, size, size) for number, size in enumerate(sizes, 1)]
    return [_Place(number, count, sum(known[: number - 1]), known[number - 1], sum(known)) for number in range(1, count + 1)]


def at(what: str, position: int, size: int | None) -> None:
    """The file ``what``, of ``size`` bytes where that is known, was read up to this byte."""
    if (meter := _METER.get()) is not None:
        place = meter.place
        done = place.before + (position if place.size is None else min(position, place.size))
        meter.listener(Progress(what, done, size if place.total is None else place.total, place.number, place.count))


def now(what: str) -> None:
    """The work goes on with something that is not counted in bytes, such as ``drawing the charts``."""
    if (meter := _METER.get()) is not None:
        place = meter.place
        if place.count > 1 and place.total is not None:
            meter.listener(Progress(what, place.before + (place.size or 0), place.total, place.number, place.count))
        else:
            meter.listener(Progress(what, number=place.number, count=place.count))


def tell(progress: Progress) -> None:
    """Pass on what another process has said of itself."""
    if (meter := _METER.get()) is not None:
        meter.listener(progress)
