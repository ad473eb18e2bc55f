"""What the kernel log, nvidia-smi and the container runtime say about this server, as far as it belongs to this run.

A kernel log spans weeks and all programs of a machine. A record counts where it can be this run's: by the victim's name and by the time.
A container usually logs in UTC and the kernel in local time, so times are compared modulo the time zones of the world (quarters of an hour).
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from logforensics.evidence import ContainerEnd, GpuProcess, KernelKill, Xid
from logforensics.findings import Evidence
from logforensics.rules.case import Case
from logforensics.run.model import Mark, Rank, ShutdownEvent
from logforensics.run.troubles import Trouble

OUR_NAMES = ("sglang", "python", "pt_main", "ray")  # the kernel cuts names to 15 characters
_ZONES_MINUTES = range(-14 * 60, 14 * 60 + 1, 15)
_BEFORE, _AFTER = timedelta(minutes=1), timedelta(minutes=10)
_SIGKILL_STATUS = 137  # 128 + 9, as shells and container runtimes report it


def kernel_kills(case: Case) -> list[ShutdownEvent]:
    """Records of files beside the log that say the kernel took a process of this server, in the form of the log's own events."""
    killed = [
        _event(source, kill.line, kill.record, kill.time if kill.year_known else None)
        for source, kill in case.side.all(KernelKill)
        if _is_ours(case, kill) and _may_be_of_this_run(case, kill.time, year_known=kill.year_known)
    ]
    if not _may_have_died(case):
        return killed
    return killed + [_event(source, end.line, end.record, None) for source, end in case.side.all(ContainerEnd) if end.oom_killed]


def forced_exits(case: Case) -> list[Evidence]:
    """Lines that say the container ended with 137: a SIGKILL, whoever sent it."""
    return [Evidence(source, end.line, needle="137") for source, end in case.side.all(ContainerEnd) if end.exit_code == _SIGKILL_STATUS]


def driver_errors(case: Case, wanted: re.Pattern[str]) -> list[Trouble]:
    """Xid records of the kernel log that ``wanted`` finds and that may belong to this run."""
    return [
        Trouble("notice", "kernel", (xid.record,), Mark(source, xid.line, xid.time), xid.line, xid.line, Rank())
        for source, xid in case.side.all(Xid)
        if wanted.search(xid.record) and _may_be_of_this_run(case, xid.time, year_known=xid.year_known)
    ]


def strangers(case: Case) -> list[tuple[GpuProcess, Evidence]]:
    """Processes on the cards that are not SGLang's by their name, largest first."""
    found = [
        (process, Evidence(source, process.line, needle=str(process.pid)))
        for source, process in case.side.all(GpuProcess)
        if process.used_mib and "sglang" not in process.name
    ]
    return sorted(found, key=lambda item: -(item[0].used_mib or 0))


def _event(source: str, line: int, text: str, time: datetime | None) -> ShutdownEvent:
    return ShutdownEvent("kernel_oom", Rank(), Mark(source, line, time), None, None, text)


def _is_ours(case: Case, kill: KernelKill) -> bool:
    """Whether the victim may be one of this server: by its name, or by a process number that the log names."""
    if kill.victim is None or kill.victim.startswith(OUR_NAMES):
        return True
    return kill.pid is not None and any(re.search(rf"\bpid[=: ]+{kill.pid}\b", event.text) for event in case.run.shutdowns)


def _may_have_died(case: Case) -> bool:
    """Whether the log allows that a process was killed: it never served, or something of an end stands in it."""
    return not case.served() or bool(case.run.shutdowns) or bool(case.run.failures)


def _may_be_of_this_run(case: Case, time: datetime | None, *, year_known: bool) -> bool:
    """Whether a record may belong to this run by its time; without one, whether the run came to a bad end at all.

    A server that served on needs a record from about its last line: what the log outlived did not end it.
    """
    span = _span(case)
    if time is None or span is None:
        return _may_have_died(case)
    first, last = span
    if not year_known:
        time = time.replace(year=last.year) if (time.month, time.day) != (2, 29) or last.year % 4 == 0 else time
    begin = first if _may_have_died(case) else last
    return any(begin - _BEFORE <= time + timedelta(minutes=minutes) <= last + _AFTER for minutes in _ZONES_MINUTES)


def _span(case: Case) -> tuple[datetime, datetime] | None:
    """The first and the last time the run prints, None where it prints none with a date; its last lines often have no stamp."""
    run = case.run
    marks = [run.first_mark, run.last_mark, *(mark for stage in run.stages.values() for mark in stage.marks.values())]
    marks += [event.mark for event in run.shutdowns] + [failure.mark for failure in run.failures] + [event.mark for event in run.watchdogs]
    marks += [window.last for window in run.serving.windows]
    times = [mark.time for mark in marks if mark.time is not None and mark.time.year > 1970]  # 1970: a release that prints no date
    return (min(times), max(times)) if times else None
