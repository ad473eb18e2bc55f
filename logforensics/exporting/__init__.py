"""A log in the forms of tools people already use.

The door of this room: :func:`trace_events` (Perfetto, chrome://tracing), :func:`lnav_format` and :func:`openmetrics`.
"""

from __future__ import annotations

from logforensics.exporting.lnav import lnav_format
from logforensics.exporting.openmetrics import openmetrics
from logforensics.exporting.trace import trace_events

__all__ = ["lnav_format", "openmetrics", "trace_events"]
