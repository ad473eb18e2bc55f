"""A bar for whoever waits: on a terminal, after a second, gone when the work is done, has failed or was stopped."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from logforensics.progress import Progress, telling

if TYPE_CHECKING:
    from logforensics.render.bar import Bar

PATIENCE_S = 1.0
"""Seconds after which someone at a terminal wants to see that something happens."""


@contextmanager
def waiting(*, wanted: bool = True, no_color: bool = False) -> Iterator[None]:
    """Show on standard error how far the work within has come, where a person looks at it and it takes longer than a second.

    Args:
        wanted: False for ``--quiet`` and ``--no-progress``.
        no_color: a bar without colours.
    """
    if not wanted or not _is_watched():
        yield
        return
    bar = _LateBar(no_color=no_color)
    try:
        with telling(bar.hear):
            yield
    finally:
        bar.close()


def _is_watched() -> bool:
    """Whether a person sees standard error, on a terminal that can take a line back; a build server shows every line for ever."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in {"", "dumb", "unknown"} and not os.environ.get("CI")


class _LateBar:
    """A bar that a timer draws: reading may stand still, waiting for a pipe, when the second is over."""

    def __init__(self, *, no_color: bool) -> None:
        self._latest = Progress("reading")
        self._no_color = no_color
        self._bar: Bar | None = None
        self._closed = False
        self._timer = threading.Timer(PATIENCE_S, self._show)
        self._timer.daemon = True
        self._timer.start()

    def hear(self, progress: Progress) -> None:
        """Remember how far the work has come; the bar looks when it draws."""
        self._latest = progress

    def close(self) -> None:
        """Never show the bar, or take it away."""
        self._closed = True
        self._timer.cancel()
        self._timer.join()
        if self._bar is not None:
            self._bar.close()

    def _show(self) -> None:
        from logforensics.render.bar import Bar

        if not self._closed:
            self._bar = Bar(sys.stderr, lambda: self._latest, no_color=self._no_color)
