"""All runs under a folder as one table, indexed so that only what changed is read again.

The door of this room: :func:`find_runs` and :class:`Runs`.
"""

from __future__ import annotations

from logforensics.runs.find import Runs, find_runs

__all__ = ["Runs", "find_runs"]
