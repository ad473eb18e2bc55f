"""Following a log while the server writes it. The door of this room: :func:`watch`, :class:`Watch` and :class:`Event`."""

from __future__ import annotations

from logforensics.watching.changes import Event
from logforensics.watching.watcher import Known, Outcome, Until, Watch, Watcher, watch

__all__ = ["Event", "Known", "Outcome", "Until", "Watch", "Watcher", "watch"]
