"""``python -m benchmarks.parse``: generate logs, run everything interleaved, print a table of ratios, write it into docs/performance.md."""

from __future__ import annotations

import argparse
import gzip
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.parse.contenders import ROOT, Contender, ours, python, references
from benchmarks.parse.generate import MIXES, STYLES, write

if TYPE_CHECKING:
    from collections.abc import Iterable

MB = 1_000_000
PARTS = ("kinds", "inputs", "sizes", "start")
DOC = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- benchmarks.parse begins -->", "<!-- benchmarks.parse ends -->"
MEASURE_FRAMES = "import sys, logforensics; p = logforensics.parse(sys.argv[1]); print(sum(f.estimated_size() for f in p.frames.values()))"


class Usage:
    """CPU seconds and peak memory of each contender over the rounds."""

    def __init__(self) -> None:
        self.cpu: dict[str, list[float]] = {}
        self.peak_mb: dict[str, float] = {}

    def run(self, contenders: Iterable[Contender], rounds: int) -> None:
        """Run all, one after the other, so often that noise of the machine meets all of them."""
        contenders = list(contenders)
        for _ in range(rounds):
            for contender in contenders:
                seconds, peak = _measure(contender)
                self.cpu.setdefault(contender.name, []).append(seconds)
                self.peak_mb[contender.name] = max(peak, self.peak_mb.get(contender.name, 0.0))

    def median(self, name: str) -> float:
        """Median CPU seconds."""
        return statistics.median(self.cpu[name])

    def net(self, name: str) -> float:
        """Median CPU seconds without those of ``import polars``."""
        return max(self.median(name) - self.median("polars"), 1e-3)


def _measure(contender: Contender) -> tuple[float, float]:
    """CPU seconds (user and system) and peak memory in MB of one run."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPATH": str(ROOT)}
    feeder = None if contender.standard_input is None else subprocess.Popen(["cat", str(contender.standard_input)], stdout=subprocess.PIPE)
    stdin = feeder.stdout if feeder else subprocess.DEVNULL
    program = subprocess.Popen(contender.command, stdin=stdin, stdout=subprocess.DEVNULL, env=environment)
    _, status, used = os.wait4(program.pid, 0)
    program.returncode = os.waitstatus_to_exitcode(status)
    if feeder and feeder.stdout:
        feeder.stdout.close()
        feeder.wait()
    if program.returncode != 0:
        sys.exit(f"{contender.name} failed with status {program.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / MB


def compare_kinds(folder: Path, size: int, rounds: int, log_parser: Path | None) -> list[str]:
    """Rows for every mix, number of ranks and style."""
    rows = ["| log | regex loop ÷ ours | log_parser ÷ ours | ours ÷ sketch | ours ÷ rg | ours, MB/CPU-s |", "|---|---|---|---|---|---|"]
    for mix in MIXES:
        for ranks in (1, 8):
            for style in STYLES:
                log = folder / "kind.log"
                write(log, size, mix=mix, ranks=ranks, style=style)
                used = Usage()
                used.run([*references(log, log_parser), ours(log)], rounds)
                rows.append(f"| {mix}, {ranks} rank{'s' * (ranks > 1)}, {style} | {_ratios(used, size)} |")
    return rows


def _ratios(used: Usage, size: int) -> str:
    mine = used.net("ours")
    cells = [
        _over(used.net("regex loop"), mine),
        _known(used, "log_parser", lambda net: net / mine),
        _known(used, "sketch", lambda net: mine / net),
    ]
    cells.append(f"{mine / used.median('rg'):.1f}" if "rg" in used.cpu else "n/a")
    return " | ".join([*cells, f"{size / MB / mine:.0f}"])


def _over(one: float, other: float) -> str:
    return f"{one / other:.1f}"


def _known(used: Usage, name: str, ratio: object) -> str:
    return f"{ratio(used.net(name)):.1f}" if name in used.cpu and callable(ratio) else "n/a"


def compare_inputs(folder: Path, size: int, rounds: int) -> list[str]:
    """The same log plain, packed and piped: whole processes."""
    log = folder / "inputs.log"
    write(log, size)
    packed = folder / "inputs.log.gz"
    with gzip.open(packed, "wb", compresslevel=1) as out:
        out.write(log.read_bytes())
    script = "import sys, logforensics; logforensics.parse(sys.argv[1])"
    used = Usage()
    used.run([python("plain", script, log), python("gz", script, packed), python("pipe", script, "-", standard_input=log)], rounds)
    rows = ["| input | CPU ÷ plain | peak memory, MB |", "|---|---|---|"]
    return rows + [
        f"| {name} | {used.median(name) / used.median('plain'):.2f} | {used.peak_mb[name]:.0f} |" for name in ("plain", "gz", "pipe")
    ]


def compare_sizes(folder: Path, sizes: list[int]) -> list[str]:
    """Peak memory and the size of all frames by the size of the log."""
    rows = ["| log | peak memory, MB | all frames, MB |", "|---|---|---|"]
    for size in sizes:
        log = folder / "size.log"
        write(log, size)
        contender = python("ours", MEASURE_FRAMES, log)
        held = subprocess.run(contender.command, capture_output=True, check=True, cwd=ROOT).stdout
        rows.append(f"| {size / MB:.0f} MB | {_measure(contender)[1]:.0f} | {int(held) / MB:.0f} |")
        log.unlink()
    return rows


def compare_start(folder: Path, rounds: int) -> list[str]:
    """What a small log costs beyond importing polars."""
    log = folder / "small.log"
    write(log, 20_000)
    log.write_text("\n".join(log.read_text().split("\n")[:200]) + "\n")
    command = (sys.executable, "-m", "logforensics")
    contenders = [
        python("polars", "import polars"),
        Contender("diagnose", (*command, "diagnose", "--fail-on", "never", str(log))),
        Contender("--help", (*command, "--help")),
        ours(log),
    ]
    used = Usage()
    used.run(contenders, rounds * 3)
    rows = ["| 200 lines | CPU ÷ `import polars` |", "|---|---|"]
    return rows + [f"| {name} | {used.median(name) / used.median('polars'):.2f} |" for name in ("ours", "diagnose", "--help")]


def main() -> int:
    """Run the benchmarks that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parse", description=__doc__)
    parser.add_argument("--size", type=int, default=200, help="MB of the compared logs (default 200)")
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[100, 1000], help="MB of the logs whose memory is measured (default 100 1000)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="runs of each program, interleaved (default 5)")
    parser.add_argument("--log-parser", type=Path, help="SGLang's own debug_utils/log_parser.py, unpacked from a wheel")
    parser.add_argument("--only", choices=PARTS, help="run this part alone, and write its table alone")
    parser.add_argument("--no-write", action="store_true", help="only print; leave docs/performance.md alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        parts = [_run(part, Path(name), options) for part in ([options.only] if options.only else PARTS)]
    tables = ["\n".join(part) for part in parts]
    print("\n\n".join(tables))
    if not options.no_write:
        if options.only:
            about, *known = _known_tables()
            known[PARTS.index(options.only)] = tables[0]
        else:
            about, known = _about(options.size, options.rounds), tables
        _write([about, *known])
    return 0


def _run(part: str, folder: Path, options: argparse.Namespace) -> list[str]:
    """The rows of one part."""
    if part == "kinds":
        return compare_kinds(folder, options.size * MB, options.rounds, options.log_parser)
    if part == "inputs":
        return compare_inputs(folder, options.size * MB // 2, options.rounds)
    if part == "sizes":
        return compare_sizes(folder, [size * MB for size in options.sizes])
    return compare_start(folder, options.rounds)


def _about(size: int, rounds: int) -> str:
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    return f"{machine}, logs of {size} MB, medians of {rounds} interleaved runs. Net of `import polars`."


def _known_tables() -> list[str]:
    """What docs/performance.md says of the machine, and its tables, one for each part."""
    _, _, rest = DOC.read_text(encoding="utf-8").partition(BEGIN)
    found = rest.partition(END)[0].strip().split("\n\n")
    if len(found) != 1 + len(PARTS):
        sys.exit(f"{DOC}: holds no whole table so far: run all parts once")
    return found


def _write(paragraphs: list[str]) -> None:
    text = DOC.read_text(encoding="utf-8") if DOC.is_file() else f"# Performance\n\n{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOC.write_text(
        "\n\n".join([f"{before}{BEGIN}", *paragraphs]).replace(f"{BEGIN}\n\n", f"{BEGIN}\n", 1) + f"\n{END}{after}", encoding="utf-8"
    )


if __name__ == "__main__":
    sys.exit(main())
