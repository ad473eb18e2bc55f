"""The time that a line takes grows with its length, whatever stands in it: a line of a log may be megabytes long."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

import logforensics
from logforensics.parsing import packs
from logforensics.parsing.patterns import CutRecord, Pattern
from logforensics.reporting.anonymize import Anonymizer
from logforensics.secrets import mask

LAUNCH = "[2026-01-01 10:00:00] server_args=ServerArgs(model_path='x', tp_size=1)\n"
# linear work on this many characters takes milliseconds, quadratic work many seconds: the limits lie far from both
LENGTH = 40_000
UNITS = ("a", "a_", "a-", "a.", "--a", "0", "0.", " ", "[", "(", "'", "-> [", "graph ", "a: ")
LIMIT_S = 2.0


@pytest.mark.parametrize("pattern", [one for one in packs.load_strictly().patterns if one.regex], ids=lambda one: one.origin)
def test_the_expression_of_a_pattern_takes_linear_time(pattern: Pattern) -> None:
    literal = (*pattern.heads, *pattern.finds)[0]
    for unit in (*UNITS, *(sample.line for sample in pattern.samples)):
        for text in (literal + unit * (LENGTH // len(unit)), unit * (LENGTH // len(unit)) + "\N{NO-BREAK SPACE}" + literal):
            begin = time.process_time()
            with suppress(CutRecord):
                pattern.read(text, cut=False)
            assert time.process_time() - begin < LIMIT_S, (unit, text[:80])


@pytest.mark.parametrize(
    "lines",
    [
        "1 - " * 60 + "x Prefill batch, #new-seq: 1, #new-token: 2\n",
        "INFO:12 " * 60 + "x Decode batch, #running-req: 1\n",
        '{"target": "smg", "a": ' + "[" * 200_000 + "\n",
        "[2026-01-01 10:00:00] server_args=ServerArgs(a=[\n" + "(0,0,0,0),0,\n" * 599,
        "[2026-01-01 10:00:00] server_args=ServerArgs(a=/" + "\\'" * 100_000 + "\n",
        "[2026-01-01 10:00:00] server_args=ServerArgs(a=/" + "(" * 100_000 + ")" * 100_000 + "\n",
        "INFO smg::x: " + "a" * 200_000 + "{}: b\n",
        "a" * 200_000 + " hit an exception\n",
        "Pyspy dump for PID 7\n" + "\t (:" * 50_000 + "\n",
        (" " * 30 + "x[2026-01-01 10:00:01] " + "(a" * 50_000 + "\n") * 2,
        ("(x pid=1) " + "[repeated 1x across" * 5_000 + "\n") * 2,
        "torch.OutOfMemoryError: CUDA out of memory. " + "0" * 200_000 + "\n",
    ],
    ids=lambda lines: lines[:40].strip(),
)
def test_a_hostile_line_costs_no_minutes_and_the_lines_around_it_are_read(tmp_path: Path, lines: str) -> None:
    log = tmp_path / "server.log"
    log.write_text(LAUNCH + lines + LAUNCH.replace("tp_size=1", "tp_size=2"), encoding="utf-8")
    begin = time.process_time()
    parsed = logforensics.parse(log)
    assert time.process_time() - begin < 20
    assert {1, 2} <= set(parsed.frames["launches"]["tp_size"].to_list())
    coverage = parsed.coverage
    assert coverage.lines == 2 + lines.count("\n")


@pytest.mark.parametrize("unit", ["a", "a.", "a-", "a@", "/a", "a://", "0.", "f:", " "])
def test_names_are_looked_for_in_linear_time(unit: str) -> None:
    text = unit * (LENGTH // len(unit))
    begin = time.process_time()
    Anonymizer({}, [])(text)
    mask("api_key " + text)
    assert time.process_time() - begin < LIMIT_S
