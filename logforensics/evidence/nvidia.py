"""``nvidia-smi``: the table, ``-q``, ``--query-gpu … --format=csv``, ``dmon`` and ``topo -m``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from logforensics import lazy_re
from logforensics.evidence.facts import Fact, Gpu, GpuLink, GpuLoad, GpuProcess, PackageVersion

# ---------------------------------------------------------------------------------------------------------------- the table

_DRIVER = lazy_re.compile(r"Driver Version\s*:\s+(?P<version>\d[\d.]{2,20})")
_TABLE_GPU = lazy_re.compile(r"^\|\s+(?P<index>\d{1,3})\s+(?P<name>\S.{0,60}?)(?:\s{2,}| )(?:On|Off|N/A)\s*\|")
_TABLE_MEMORY = lazy_re.compile(r"\|\s*(?P<used>\d{1,8})MiB\s*/\s*(?P<total>\d{1,8})MiB\s*\|")
_TABLE_PROCESS = lazy_re.compile(
    r"^\|\s+(?P<gpu>\d{1,3})\s+(?:(?:N/A|\d{1,3})\s+(?:N/A|\d{1,3})\s+)?(?P<pid>\d{1,10})\s+(?:C\+G|C|G|M\+C)\s+(?P<name>\S.{0,200}?)\s+(?P<used>\d{1,8})MiB\s*\|"
)


def is_table(text: str) -> bool:
    """The table that ``nvidia-smi`` prints."""
    return re.search(r"^\| NVIDIA-SMI \d", text, re.MULTILINE) is not None


def read_table(text: str) -> tuple[Fact, ...]:
    """Driver, cards with their memory, and the processes on them."""
    return tuple(_table_facts(text.split("\n")))


def _table_facts(lines: list[str]) -> Iterator[Fact]:
    card: Gpu | None = None
    for number, line in enumerate(lines, 1):
        if line.startswith("| NVIDIA-SMI"):
            yield from _driver(number, line)
        elif process := _TABLE_PROCESS.match(line):
            yield GpuProcess(number, int(process["gpu"]), int(process["pid"]), process["name"], int(process["used"]))
        elif head := _TABLE_GPU.match(line):
            card = Gpu(number, int(head["index"]), head["name"].strip(), None, None)
        elif card is not None and (memory := _TABLE_MEMORY.search(line)):
            yield replace(card, line=number, memory_mib=int(memory["total"]), used_mib=int(memory["used"]), needle=f"{memory['total']}MiB")
            card = None


def _driver(number: int, line: str) -> Iterator[PackageVersion]:
    if found := _DRIVER.search(line):
        yield PackageVersion(number, "nvidia driver", found["version"])


# ---------------------------------------------------------------------------------------------------------------- nvidia-smi -q

_KEY = lazy_re.compile(r"^(?P<indent>\s*)(?P<key>[A-Za-z][\w ./()-]{0,60}?)\s*(?::\s*(?P<value>.{0,200}))?$")


def is_query(text: str) -> bool:
    """``nvidia-smi -q``."""
    return re.search(r"^=+NVSMI LOG=+", text, re.MULTILINE) is not None


def read_query(text: str) -> tuple[Fact, ...]:
    """Driver, cards, and the processes on them."""
    return tuple(_query_facts(text.split("\n")))


def _query_facts(lines: list[str]) -> Iterator[Fact]:
    index, name, section = -1, None, ""
    total: tuple[int, int] | None = None
    pid, process = 0, ""
    for number, line in enumerate(lines, 1):
        if re.match(r"GPU [0-9A-Fa-f]{4,8}:", line):
            index, name, section = index + 1, None, ""
            continue
        row = _KEY.match(line)
        if row is None:
            continue
        key, value = row["key"], (row["value"] or "").strip()
        mib = int(value.split(" ")[0]) if re.match(r"\d{1,8} MiB$", value) else None
        if not value:
            section = key
        elif key == "Driver Version":
            yield from _driver(number, line)
        elif key == "Product Name":
            name = value
        elif section == "FB Memory Usage" and mib is not None and key == "Total":
            total = (number, mib)
        elif section == "FB Memory Usage" and mib is not None and key == "Used" and total:
            yield Gpu(total[0], index, name, total[1], mib, needle=f"{total[1]} MiB")
            total = None
        elif key == "Process ID" and value.isdigit():
            pid, process = int(value), ""
        elif key == "Name" and pid:
            process = value
        elif key == "Used GPU Memory" and pid:
            yield GpuProcess(number, index, pid, process, mib)
            pid = 0


# ---------------------------------------------------------------------------------------------------------------- csv

_CSV_NAMES = frozenset({"index", "name", "gpu_name", "uuid", "memory.total", "memory.used", "memory.free", "driver_version", "pid"})


def is_csv(text: str) -> bool:
    """``nvidia-smi --query-gpu=… --format=csv`` or ``--query-compute-apps``, with its header."""
    return _csv_columns(text.lstrip().split("\n", 1)[0]) is not None


def _csv_columns(line: str) -> list[str] | None:
    """Field names of a header without their units, or None where it is none."""
    names = [re.sub(r" \[.{1,20}\]$", "", cell.strip()) for cell in line.split(",")]
    known = sum(name in _CSV_NAMES or name in ("process_name", "used_gpu_memory", "used_memory") for name in names)
    return names if len(names) > 1 and known >= 2 else None


def read_csv(text: str) -> tuple[Fact, ...]:
    """Cards, or the processes on them."""
    return tuple(_csv_facts(text.split("\n")))


def _csv_facts(lines: list[str]) -> Iterator[Fact]:
    columns: list[str] = []
    row_number = 0
    driver = False
    for number, line in enumerate(lines, 1):
        if header := _csv_columns(line):
            columns, row_number = header, 0
            continue
        cells = dict(zip(columns, (cell.strip() for cell in line.split(",")), strict=False))
        if len(columns) < 2 or len(cells) < len(columns):
            continue
        if "driver_version" in cells and not driver:
            driver = True
            yield PackageVersion(number, "nvidia driver", cells["driver_version"])
        yield from _csv_row(number, cells, row_number)
        row_number += 1


def _csv_row(number: int, cells: Mapping[str, str], row: int) -> Iterator[Fact]:
    if "pid" in cells and cells["pid"].isdigit():
        used = cells.get("used_gpu_memory") or cells.get("used_memory") or ""
        yield GpuProcess(number, None, int(cells["pid"]), cells.get("process_name") or cells.get("name") or "", _mib(used))
        return
    total = _mib(cells.get("memory.total", ""))
    name = cells.get("name") or cells.get("gpu_name")
    if name or total:
        index = cells.get("index", "")
        yield Gpu(
            number, int(index) if index.isdigit() else row, name, total, _mib(cells.get("memory.used", "")), cells.get("memory.total", "")
        )


def _mib(cell: str) -> int | None:
    found = re.match(r"(\d{1,8})(?: MiB)?$", cell)
    return int(found[1]) if found else None


# ---------------------------------------------------------------------------------------------------------------- dmon

_MOST_GPUS = 1024


def is_dmon(text: str) -> bool:
    """``nvidia-smi dmon``."""
    return re.search(r"^#\s*(?:Date\s+Time\s+)?gpu\s.*\n#\s*(?:YYYYMMDD\s+HH:MM:SS\s+)?Idx\s", text, re.MULTILINE) is not None


def read_dmon(text: str) -> tuple[Fact, ...]:
    """How busy each card was (the ``sm`` column)."""
    columns: list[str] = []
    busy: dict[int, list[float]] = {}
    first: dict[int, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("#"):
            names = line.lstrip("#").split()
            columns = names if "gpu" in names else columns
            continue
        cells = dict(zip(columns, line.split(), strict=False))
        gpu, share = cells.get("gpu", ""), cells.get("sm", "")
        if gpu.isdigit() and share.isdigit() and int(gpu) < _MOST_GPUS:
            busy.setdefault(int(gpu), []).append(float(share))
            first.setdefault(int(gpu), number)
    return tuple(GpuLoad(first[gpu], gpu, sum(shares) / len(shares), len(shares)) for gpu, shares in sorted(busy.items()))


# ---------------------------------------------------------------------------------------------------------------- topo

_TOPO_HEADER = lazy_re.compile(r"^\s+(?:\x1b\[\d+m)?GPU0\b")
_TOPO_ROW = lazy_re.compile(r"^GPU(?P<gpu>\d{1,3})\s+(?P<cells>\S.*)$")
_LINK = lazy_re.compile(r"^(?:NV\d{1,2}|PIX|PXB|PHB|NODE|SYS)$")


def is_topo(text: str) -> bool:
    """``nvidia-smi topo -m``."""
    return re.search(r"^GPU0\s+X\b", text, re.MULTILINE) is not None


def read_topo(text: str) -> tuple[Fact, ...]:
    """How each pair of cards is connected."""
    found: list[Fact] = []
    gpus = 0
    for number, line in enumerate(text.split("\n"), 1):
        if _TOPO_HEADER.match(line):
            gpus = len(re.findall(r"GPU\d+", line))
        elif row := _TOPO_ROW.match(line):
            first = int(row["gpu"])
            cells = row["cells"].split()[:gpus]
            found += [GpuLink(number, first, second, kind) for second, kind in enumerate(cells) if second > first and _LINK.match(kind)]
    return tuple(found)
