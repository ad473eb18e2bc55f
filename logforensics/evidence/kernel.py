"""The kernel log (``dmesg``, ``journalctl -k``): OOM-killer records and GPU errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime

from logforensics import lazy_re
from logforensics.evidence.facts import Fact, KernelKill, Size, Xid

_KIB = 1 << 10
_PAGE_BYTES = 4096
_STAMP = lazy_re.compile(
    r"""
    (?: <\d{1,3}> )?                                                                  # dmesg --raw: the priority
    (?: \[ \s* (?P<uptime> \d{1,9}\.\d{1,6} ) \s* \]                                  # seconds since the boot
      | \[ [A-Z][a-z]{2} \s (?P<long> [A-Z][a-z]{2} \s+ \d{1,2} \s [\d:]{8} \s \d{4} ) \]    # dmesg -T
      | (?P<iso> \d{4}-\d\d-\d\d [T ] \d\d:\d\d:\d\d ) [.,\d]{0,8} (?: Z | [+-]\d\d:?\d\d )? (?: \s \S{1,200} \s kernel: )?
      | (?P<short> [A-Z][a-z]{2} \s+ \d{1,2} \s [\d:]{8} ) \s \S{1,200} \s kernel: )  # journalctl -k
    \s
    """,
    re.VERBOSE,
)
_WORDS = lazy_re.compile(
    r"\boom\b|oom[-_]|Killed process|NVRM|\bXid\b|Linux version|Mem-Info|Call Trace|cgroup|nvidia|\bpcie?\b|\beth\d|docker|systemd|audit|BIOS"
    r"|kernel:|\bCPU|swapper|segfault|mlx5|EXT4|XFS|usb",
    re.IGNORECASE,
)
_KILLED = lazy_re.compile(r"Killed process (?P<pid>\d{1,10}),? \((?P<victim>[^)]{1,64})\)")
_CONSTRAINT = lazy_re.compile(r"oom-kill:constraint=(?P<constraint>\w{1,40})")
_REAPED = lazy_re.compile(r"oom_reaper: reaped process (?P<pid>\d{1,10}) \((?P<victim>[^)]{1,64})\)")
_XID = lazy_re.compile(r"NVRM: Xid \((?P<bus>[^)]{1,60})\): (?P<code>\d{1,4})\b")
_LIMIT = lazy_re.compile(r"memory: usage \d{1,15}kB, limit (?P<kib>\d{1,15})kB")
_PAGES = lazy_re.compile(r"(?P<pages>\d{1,15}) pages RAM\b")
_MOST_LIMIT_KIB = 1 << 50  # what the kernel prints where there is no limit is larger
_EVENT_CHARS = 600


def is_kernel_log(lines: list[str]) -> bool:
    """Whether most lines carry a kernel log's stamp, and one says something only a kernel says; or all are the OOM killer's records."""
    if not lines:
        return False
    stamped = sum(_STAMP.match(line) is not None for line in lines)
    if stamped >= 0.6 * len(lines) and any(_WORDS.search(line) for line in lines):
        return True
    return all(_is_record(line) for line in lines)


def _is_record(line: str) -> bool:
    return any(pattern.search(line) for pattern in (_KILLED, _CONSTRAINT, _REAPED, _XID))


def read_kernel_log(text: str) -> tuple[Fact, ...]:
    """Kills, GPU errors, and the limits and RAM that the OOM killer printed."""
    return tuple(_facts(text.split("\n")))


def _facts(lines: list[str]) -> Iterator[Fact]:
    constraint: str | None = None
    killed: set[int] = set()
    for number, line in enumerate(lines, 1):
        stamp = _STAMP.match(line)
        body = line[stamp.end() :] if stamp else line
        time, year_known = _time(stamp)
        if _CONSTRAINT.search(body):
            constraint = body
            yield _kill(number, body, body, time, year_known=year_known)
        elif found := _KILLED.search(body):
            killed.add(int(found["pid"]))
            yield _kill(
                number, body, constraint if constraint and f"pid={found['pid']}," in constraint else body, time, year_known=year_known
            )
        elif (found := _REAPED.search(body)) and int(found["pid"]) not in killed:
            yield _kill(number, body, body, time, year_known=year_known)
        elif found := _XID.search(body):
            yield Xid(number, int(found["code"]), found["bus"], time, year_known, body[:_EVENT_CHARS].strip())
        elif (found := _LIMIT.search(body)) and int(found["kib"]) < _MOST_LIMIT_KIB:
            yield Size(number, "memory_limit", int(found["kib"]) * _KIB, found[0])
        elif found := _PAGES.search(body):
            yield Size(number, "host_total", int(found["pages"]) * _PAGE_BYTES, found[0])


def _kill(number: int, body: str, constraint: str, time: datetime | None, *, year_known: bool) -> KernelKill:
    """A record of the OOM killer; ``constraint`` is the line about the same victim that names the control group."""
    found = _KILLED.search(body) or _REAPED.search(body)
    task, pid = re.search(r"\btask=([^,]{1,64})", body), re.search(r"\bpid=(\d{1,10})", body)
    group = re.search(r"\boom_memcg=([^,\s]{1,300})", constraint)
    return KernelKill(
        number,
        found["victim"] if found else task[1] if task else None,
        int(found["pid"]) if found else int(pid[1]) if pid else None,
        group[1] if group else None,
        "CONSTRAINT_MEMCG" in constraint or "emory cgroup out of memory" in body,
        time,
        year_known,
        body[:_EVENT_CHARS].strip(),
    )


def _time(stamp: re.Match[str] | None) -> tuple[datetime | None, bool]:
    """The time of a stamp and whether it has a year; a leap year stands in where it has none."""
    if stamp is None:
        return None, True
    try:
        if stamp["long"]:
            return datetime.strptime(stamp["long"], "%b %d %H:%M:%S %Y"), True
        if stamp["iso"]:
            return datetime.fromisoformat(stamp["iso"].replace("T", " ")), True
        if stamp["short"]:
            return datetime.strptime(f"2000 {stamp['short']}", "%Y %b %d %H:%M:%S"), False
    except ValueError:
        return None, True
    return None, True
