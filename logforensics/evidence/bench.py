"""The tables that SGLang's benchmark clients print: bench_serving and its siblings.

============ Serving Benchmark Result ============
Backend:                                 sglang
Request throughput (req/s):              2.05
---------------Time to First Token----------------
Mean TTFT (ms):                          13603.68
==================================================
"""

from __future__ import annotations

import re

from logforensics import lazy_re
from logforensics.evidence.facts import Fact, Figure
from logforensics.records import record

_TITLE = lazy_re.compile(r"^={3,} ?(?P<title>[A-Z][\w ()-]{2,60}? Results?) ?={3,}\s*$")
_SECTION = lazy_re.compile(r"^-{3,}(?P<section>[A-Z][\w .()/-]{2,60}?)-{3,}\s*$")
_CLOSING = lazy_re.compile(r"^={10,}\s*$")
_FIGURE = lazy_re.compile(
    r"^ {0,4}(?P<name>[A-Z#][^:]{1,60}?)(?: \((?P<unit>[A-Za-z%]{1,3}|[\w.]{1,12}/[\w.]{1,8})\))?:(?: {2,}|\t| )(?P<value>\S(?:.{0,60}\S)?)\s*$"
)
_NUMBER = lazy_re.compile(r"-?\d{1,15}(?:\.\d{1,9})?")


@record(frozen=True)
class BenchFigure:
    """One line of a table: the name and unit as printed, the value as a number where it is one, and as text."""

    section: str | None
    name: str
    unit: str | None
    value: float | None
    text: str


class BenchBlock:
    """A table while it is being read; ``line`` is that of its title."""

    def __init__(self, line: int, title: str) -> None:
        self.line = line
        self.title = title
        self.figures: list[tuple[int, BenchFigure]] = []
        self.open = True
        self._section: str | None = None

    def accept(self, line: int, text: str) -> bool:
        """Take one line if it belongs to the table; the first that does not ends it."""
        if not text.strip():
            return self.open
        if _CLOSING.match(text):
            self.open = False
            return True
        if section := _SECTION.match(text):
            self._section = section["section"].strip()
            return True
        figure = _FIGURE.match(text)
        if figure is None:
            self.open = False
            return False
        number = _NUMBER.fullmatch(figure["value"])
        value = float(number[0]) if number else None
        self.figures.append((line, BenchFigure(self._section, figure["name"], figure["unit"], value, figure["value"])))
        return True


def block_at(line: int, text: str) -> BenchBlock | None:
    """The table whose title this line is."""
    title = _TITLE.match(text) if text[:3] == "===" else None
    return BenchBlock(line, title["title"]) if title else None


def is_bench(text: str) -> bool:
    """The result table of a benchmark client of SGLang."""
    return re.search(r"^=+ ?(?:Serving|Offline Throughput) Benchmark Result ?=+", text, re.MULTILINE) is not None


def read_bench(text: str) -> tuple[Fact, ...]:
    """Every figure of the tables under the name it has there, with its unit."""
    figures = [item for block in _blocks(text) for item in block.figures]
    return tuple(Figure(number, _printed(figure), figure.value) for number, figure in figures if figure.value is not None)


def _blocks(text: str) -> list[BenchBlock]:
    blocks: list[BenchBlock] = []
    for number, line in enumerate(text.split("\n"), 1):
        if blocks and blocks[-1].open and blocks[-1].accept(number, line):
            continue
        if begun := block_at(number, line):
            blocks.append(begun)
    return blocks


def _printed(figure: BenchFigure) -> str:
    return f"{figure.name} ({figure.unit})" if figure.unit else figure.name
