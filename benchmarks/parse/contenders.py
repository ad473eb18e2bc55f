"""What is compared, each as a program of its own: its CPU time includes starting Python and importing."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"

OURS = "import sys, logforensics; logforensics.parse(sys.argv[1])"
# a line loop that reads the commonest nine kinds of lines, the first that fits: what people write who need more than one number
REGEX_LOOP = r"""
import sys, regex
head = r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?P<tags>(?: [A-Z]+\d+)*)\] "
kinds = [regex.compile(expression) for expression in (
    head + r"Decode batch, #running-req: (\d+), #token: (\d+), token usage: ([\d.]+), .*?gen throughput \(token/s\): ([\d.]+), #queue-req: (\d+)",
    head + r"Prefill batch, #new-seq: (\d+), #new-token: (\d+), #cached-token: (\d+), token usage: ([\d.]+), #running-req: (\d+), #queue-req: (\d+)",
    r"Retract requests\. #retracted_reqs: (\d+)",
    r"avail mem=([\d.]+) GB",
    r"KV Cache is allocated\. #tokens: (\d+)",
    r"max_total_num_tokens=(\d+)",
    r"(\d+)% Completed \| (\d+)/(\d+)",
    r"server_args=",
    r"Traceback",
)]
rows = []
with open(sys.argv[1], encoding="utf-8", errors="replace", newline="\n") as log:
    for number, line in enumerate(log, 1):
        for kind in kinds:
            if found := kind.search(line):
                rows.append((number, *found.groups()))
                break
"""
LOG_PARSER = "import sys; sys.path.insert(0, sys.argv[2]); import log_parser; log_parser.parse(open(sys.argv[1], errors='replace').read())"
SKETCH = "import sys; sys.path.insert(0, sys.argv[2]); import fast_path; fast_path.parse(sys.argv[1])"


@dataclass(frozen=True, slots=True)
class Contender:
    """One program; ``standard_input`` is a file that is piped to it."""

    name: str
    command: tuple[str, ...]
    standard_input: Path | None = None


def python(name: str, script: str, *arguments: str | Path, standard_input: Path | None = None) -> Contender:
    """A Python program as a contender."""
    return Contender(name, (sys.executable, "-c", script, *map(str, arguments)), standard_input)


def ours(log: Path) -> Contender:
    """Our parser with all frames held."""
    return python("ours", OURS, log)


def references(log: Path, log_parser: Path | None) -> list[Contender]:
    """Whatever of the references is at hand."""
    found = [python("polars", "import polars"), python("regex loop", REGEX_LOOP, log)]
    if (SHARED / "tools" / "fast_path.py").is_file():
        found.append(python("sketch", SKETCH, log, SHARED / "tools"))
    if log_parser is not None:
        found.append(python("log_parser", LOG_PARSER, log, log_parser.parent))
    if ripgrep := shutil.which("rg"):
        found.append(Contender("rg", (ripgrep, "-c", "-e", "Decode batch", "-e", "Prefill batch", str(log))))
    return found
