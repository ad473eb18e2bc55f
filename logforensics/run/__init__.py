"""Frames to facts: what happened in a run, each fact with the line it stands on.

The door of this room: :func:`parts_of` (which logs are one run), :func:`build_run` and the classes of :mod:`logforensics.run.model`.
"""

from __future__ import annotations

from logforensics.run.build import build_run
from logforensics.run.model import (
    BatchWindow,
    Capacity,
    Ending,
    Failure,
    GpuLedger,
    GuardRefusal,
    HostPool,
    KvPool,
    Launch,
    LoadBar,
    Mark,
    Override,
    Run,
    Serving,
    StageReached,
)
from logforensics.run.parts import Part, parts_of

__all__ = [
    "BatchWindow",
    "Capacity",
    "Ending",
    "Failure",
    "GpuLedger",
    "GuardRefusal",
    "HostPool",
    "KvPool",
    "Launch",
    "LoadBar",
    "Mark",
    "Override",
    "Part",
    "Run",
    "Serving",
    "StageReached",
    "build_run",
    "parts_of",
]
