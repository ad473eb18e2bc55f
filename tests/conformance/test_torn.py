"""Logs that processes tore while they wrote: no row that never existed, and every damaged line counted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from logforensics import parse

from .shared_tools import SHARED, needs_shared

pytestmark = needs_shared
LINES = 12_000


def _generate(out: Path, layout: str, style: str, torn: float) -> None:
    command = [sys.executable, str(SHARED / "tools" / "gen_ranks_log.py"), "--lines", str(LINES), "--layout", layout, "--style", style]
    subprocess.run([*command, "--torn", str(torn), "--seed", "3", "--out", str(out)], check=True)


@pytest.mark.parametrize("style", ["0.5.8", "0.5.23"])
@pytest.mark.parametrize("layout", ["bare", "tp", "dpep", "pptp"])
@pytest.mark.parametrize("torn", [0.005, 0.05])
def test_damage_invents_nothing_and_is_counted(layout: str, style: str, torn: float, tmp_path: Path) -> None:
    whole, damaged = tmp_path / "whole.log", tmp_path / "damaged.log"
    _generate(whole, layout, style, 0.0)
    _generate(damaged, layout, style, torn)
    truth = json.loads((tmp_path / "damaged.log.truth.json").read_text())
    clean, found = parse(whole), parse(damaged)
    lines = set(whole.read_text().split("\n"))
    hurt = {n for n, line in enumerate(damaged.read_text().split("\n"), 1) if line not in lines}

    for name, frame in found.frames.items():
        if name == "notices":  # remains of lines are kept as text
            continue
        told = ("version_low", "version_high", "version_basis")  # by all lines of the log: of a damaged one fewer tell
        placed = [column for column in ("source", "line", "message_line", "line_end", "frames", "chain", *told) if column in frame.columns]
        invented = Counter(frame.drop(placed).iter_rows()) - Counter(clean.frames[name].drop(placed).iter_rows())
        assert not invented, name
    recovered = sum(found.frames[name].height for name in ("prefill", "decode"))
    assert recovered >= truth["prefill"] + truth["decode"] - 2 * truth["torn"]
    assert clean.coverage.damaged == 0
    counted = _damaged_lines(damaged)
    assert counted <= hurt
    assert len(counted) >= truth["torn"]
    assert len(counted) >= 0.98 * len(hurt)


def _damaged_lines(log: Path) -> set[int]:
    return {line for _, first, last in parse(log).coverage.damaged_lines for line in range(first, last + 1)}
