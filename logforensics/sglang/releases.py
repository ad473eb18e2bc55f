"""Values that changed with SGLang's releases: a table of (since release, value) instead of branches in code."""

from __future__ import annotations

from typing import Generic, TypeVar

from logforensics.records import record
from logforensics.sglang.flags import nearest_release, release_at_least, releases

T = TypeVar("T")


@record(frozen=True)
class ByRelease(Generic[T]):
    """A value by release: pairs (since release, value), oldest first.

    The first pair also speaks for older releases: asking for the HiCache rule of a release before HiCache is the caller's mistake, and
    the oldest rule is the best answer there is.
    """

    rows: tuple[tuple[str, T], ...]

    def at(self, release: str) -> T:
        """The value in one release.

        Raises:
            InputError: the release cannot be read.
        """
        return next((value for since, value in reversed(self.rows) if release_at_least(release, since)), self.rows[0][1])

    def over(self, low: str | None, high: str | None) -> tuple[T, ...]:
        """The distinct values of all releases from ``low`` to ``high``, in order of release.

        Raises:
            InputError: one of the two cannot be read.
        """
        return tuple(dict.fromkeys(self.at(release) for release in span(low, high)))


def span(low: str | None, high: str | None) -> tuple[str, ...]:
    """The known releases from ``low`` to ``high``, oldest first; an end that is None or unreadable is open. Never empty.

    Args:
        low: oldest release that fits a log, such as ``0.5.8``.
        high: newest release that fits.
    """
    known = releases()
    first = known.index((low and nearest_release(low)) or known[0])
    last = known.index((high and nearest_release(high)) or known[-1])
    return known[min(first, last) : last + 1]
