"""Logs whose releases print the same figure in two meanings, brought to the newer one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from logforensics.parsing.meanings import in_newest_meaning, meaning, meanings

if TYPE_CHECKING:
    from logforensics.parsing import ParsedLog

_COMPARED = ("prefill", "input_throughput", "input throughput")  # what a comparison shows of the columns that changed


def in_one_meaning(logs: Sequence[ParsedLog]) -> list[tuple[ParsedLog, tuple[str, ...]]]:
    """The logs with figures of one meaning, and a remark about each log where that took a conversion or cannot be made sure.

    Logs of which all print the same meaning stay as they are.
    """
    told = [_meant(log) for log in logs]
    if len({means for means in told if means != ""}) < 2:
        return [(log, ()) for log in logs]
    newest = [entry for entry in meanings() if (entry.frame, entry.column) == _COMPARED[:2]][-1]
    return [_brought(log, means, newest.means, newest.since or "") for log, means in zip(logs, told, strict=True)]


def _meant(log: ParsedLog) -> str | None:
    """What the figure means in a log; None where its release does not tell, empty where the log does not print it."""
    frame, column, _ = _COMPARED
    if not log.frames[frame][column].drop_nulls().len():
        return ""
    ranges = log.frames["launches"].select("version_low", "version_high").unique().rows()
    found = [meaning(frame, column, low, high) for low, high in ranges]
    return found[0].means if len(found) == 1 and found[0] is not None else None


def _brought(log: ParsedLog, means: str | None, newest: str, since: str) -> tuple[ParsedLog, tuple[str, ...]]:
    name = _COMPARED[2]
    if means in ("", newest):
        return log, ()
    if means is None:
        return log, (f"{name} changed its meaning in SGLang {since}, and this log may be older or newer: its figure stays as printed",)
    remark = f"{name} is printed as {means}; it is converted to what SGLang prints from {since} on: {newest}"
    return replace(log, frames=in_newest_meaning(log.frames)), (remark,)
