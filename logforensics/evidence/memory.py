"""Memory of the machine and what a process may have of it: ``free``, /proc/meminfo, control groups, ``ulimit``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from logforensics import lazy_re
from logforensics.evidence.facts import Fact, Size

_KIB = 1 << 10
_MOST_BYTES = 1 << 60  # larger figures mean that there is no limit

# ---------------------------------------------------------------------------------------------------------------- free

_FREE_HEADER = lazy_re.compile(r"^[ \t]+total[ \t]+used[ \t]+free\b", re.MULTILINE)
_FREE_ROW = lazy_re.compile(r"^Mem:\s+(?P<cells>\S.*)$")
_CELL = lazy_re.compile(r"^(?P<number>\d{1,20}(?:[.,]\d{1,3})?)(?P<unit>[BKMGTP]?)(?P<binary>i?)B?$", re.IGNORECASE)
_POWERS = {"B": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def is_free(text: str) -> bool:
    """Output of ``free``, whatever its unit."""
    return _FREE_HEADER.search(text) is not None and re.search(r"^Mem:\s+\d", text, re.MULTILINE) is not None


def read_free(text: str) -> tuple[Fact, ...]:
    """Total and available host memory. A bare number is KiB, or the unit that makes a plausible machine of it (``-b``, ``-m``, ``-g``)."""
    return tuple(_free_facts(text.split("\n")))


def _free_facts(lines: list[str]) -> Iterator[Fact]:
    columns: list[str] = []
    for number, line in enumerate(lines, 1):
        if _FREE_HEADER.match(line):
            columns = line.split()
        elif (row := _FREE_ROW.match(line)) and columns:
            cells = dict(zip(columns, row["cells"].split(), strict=False))
            scale = _free_scale(row["cells"].split())
            for column, what in (("total", "host_total"), ("available", "host_available")):
                size = _free_bytes(cells.get(column, ""), scale)
                if size:
                    yield Size(number, what, size, cells[column])


def _free_scale(cells: list[str]) -> int:
    """Bytes of a bare number's unit. ``free`` prints KiB; -b, -m and -g leave no trace but the magnitude: hosts have 8 GiB to 8 TiB.

    A count of bytes is one of whole KiB, which six counts of KiB are not by chance.
    """
    if not cells[0].isdigit():
        return _KIB
    value = int(cells[0])
    whole = all(int(cell) % _KIB == 0 for cell in cells if cell.isdigit())
    if value >= 1 << 37 or (value >= 1 << 30 and whole):
        return 1
    return _KIB if value >= 1 << 23 else _KIB**2 if value >= 1 << 13 else _KIB**3


def _free_bytes(cell: str, scale: int) -> int | None:
    found = _CELL.match(cell)
    if found is None:
        return None
    number = float(found["number"].replace(",", "."))
    unit = found["unit"].upper()
    return round(number * (_KIB ** _POWERS[unit] if unit else scale))


# ---------------------------------------------------------------------------------------------------------------- /proc/meminfo

_MEMINFO = lazy_re.compile(r"^(?P<name>MemTotal|MemAvailable):\s+(?P<kib>\d{1,15}) kB")
_MEMINFO_NAMES = {"MemTotal": "host_total", "MemAvailable": "host_available"}


def is_meminfo(text: str) -> bool:
    """/proc/meminfo."""
    return re.search(r"^MemTotal:\s+\d+ kB\s*^MemFree:", text, re.MULTILINE) is not None


def read_meminfo(text: str) -> tuple[Fact, ...]:
    """Total and available host memory."""
    rows = ((number, _MEMINFO.match(line)) for number, line in enumerate(text.split("\n"), 1))
    return tuple(Size(number, _MEMINFO_NAMES[row["name"]], int(row["kib"]) * _KIB, row[0]) for number, row in rows if row)


# ---------------------------------------------------------------------------------------------------------------- control groups

_CGROUP = lazy_re.compile(r"^(?:\S{1,300}/)?(?P<name>memory\.(?:max|limit_in_bytes))[:= ]\s*(?P<value>\d{1,20}|max)\s*$")


def is_cgroup(text: str) -> bool:
    """Lines such as ``/sys/fs/cgroup/memory.max:103079215104`` (``grep . /sys/fs/cgroup/memory.*``)."""
    return any(_CGROUP.match(line) for line in text.split("\n"))


def read_cgroup(text: str) -> tuple[Fact, ...]:
    """The memory limits; ``max`` is none."""
    rows = ((number, _CGROUP.match(line)) for number, line in enumerate(text.split("\n"), 1))
    return tuple(
        Size(number, "memory_limit", int(row["value"]), row["name"])
        for number, row in rows
        if row and row["value"] != "max" and 0 < int(row["value"]) < _MOST_BYTES
    )


# ---------------------------------------------------------------------------------------------------------------- limits of a process

_ULIMIT = lazy_re.compile(r"^max locked memory\s+\((?P<unit>k?bytes), -l\)\s+(?P<value>\d{1,20}|unlimited)\s*$")
_PROC_LIMITS = lazy_re.compile(r"^Max locked memory\s+(?P<value>\d{1,20}|unlimited)\s+\S+\s+bytes")


def is_limits(text: str) -> bool:
    """``ulimit -a`` or /proc/PID/limits."""
    return re.search(r"^max locked memory\s+\(|^Limit\s+Soft Limit\s+Hard Limit", text, re.MULTILINE) is not None


def read_limits(text: str) -> tuple[Fact, ...]:
    """How much memory a process may lock; no fact where that is unlimited."""
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        row = _ULIMIT.match(line) or _PROC_LIMITS.match(line)
        if row and row["value"] != "unlimited" and int(row["value"]) < _MOST_BYTES:
            scale = _KIB if row.groupdict().get("unit") == "kbytes" else 1
            found.append(Size(number, "locked_limit", int(row["value"]) * scale, row[0].split("  ")[0]))
    return tuple(found)
