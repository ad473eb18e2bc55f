"""A post-mortem of a run, for people who were not there. The door of this room: :func:`report`, :func:`build_report` and :class:`Report`."""

from __future__ import annotations

from logforensics.reporting.api import report
from logforensics.reporting.build import build_report
from logforensics.reporting.model import Report

__all__ = ["Report", "build_report", "report"]
