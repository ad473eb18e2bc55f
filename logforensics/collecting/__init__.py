"""Gathering on the server's machine what a diagnosis needs beside the log. The door: :func:`collect`."""

from __future__ import annotations

from logforensics.collecting.bundle import Collected, Taken, collect

__all__ = ["Collected", "Taken", "collect"]
