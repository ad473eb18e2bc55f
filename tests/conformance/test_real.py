"""Whole logs of real servers: what an independent byte search counted, and how much of their lines is understood."""

from __future__ import annotations

import gzip
import json
import re
import time
from pathlib import Path

import pytest

from logforensics import parse
from logforensics.parsing.source_log import SourceLog
from logforensics.reading import open_sources

from .shared_tools import SHARED, needs_shared, tool

pytestmark = needs_shared
EXPECTED = json.loads((SHARED / "real" / "expected.json").read_text()) if SHARED.is_dir() else {}
SERVERS = sorted((SHARED / "cpu_servers").glob("*.log"))
OWN = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\[gpu_id=")


@pytest.mark.parametrize("name", EXPECTED)
def test_every_figure_agrees(name: str) -> None:
    check = tool("check_real")
    begin = time.process_time()

    found = check.measured(SHARED / "real" / name)

    assert time.process_time() - begin < 10
    assert {key: found[key] for key, want in EXPECTED[name].items() if not check.same(want, found[key])} == {}


def test_nearly_all_lines_that_sglang_wrote_are_understood() -> None:
    own = unknown = 0
    for path in [*(SHARED / "real" / name for name in EXPECTED), *SERVERS]:
        (source,) = open_sources(path)
        log = SourceLog(source, examples=10**9)
        for _ in log.pieces():
            pass
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        own += sum(OWN.match(line) is not None for line in data.split(b"\n"))
        unknown += sum(OWN.match(text.encode()) is not None for _, text in log.assembled.tally.unknown_examples)

    assert own > 150_000
    assert 1 - unknown / own >= 0.99


@pytest.mark.parametrize("log", SERVERS, ids=lambda path: path.stem)
def test_real_cpu_servers_say_what_their_runs_did(log: Path) -> None:
    run = json.loads(log.with_suffix(".cmd.json").read_text())
    parsed = parse(log)
    frames = parsed.frames
    result = run["result"]

    if result.get("ready"):
        assert frames["ready"].height == 1
        assert frames["capacity"].height >= 1
    if frames["launches"].height:
        flags = json.loads(frames["launches"]["server_args"][0])
        asked = re.findall(r"--([a-z][a-z-]+) ([^\s-]\S*)", run["command"])
        named = {name.replace("-", "_"): value for name, value in asked}
        same = [
            str(flags[name]) == value or str(flags[name]) == str(float(value))
            for name, value in named.items()
            if name in flags and re.fullmatch(r"[\d.]+", value)
        ]
        assert all(same)
        assert frames["launches"]["version_low"][0] is not None
    # one library ends its leak report without a newline, so that the next record shares its line
    glued = sum(line.startswith(b"See https://nanobind") and b"[20" in line for line in log.read_bytes().split(b"\n"))
    assert parsed.coverage.damaged == glued
