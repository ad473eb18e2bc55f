"""Of the lines that SGLang itself wrote into the logs of ../shared, nearly all are understood, in every log as well as over all."""

from __future__ import annotations

from pathlib import Path

import pytest

from logforensics.parsing.prefix import read_prefix
from logforensics.parsing.source_log import SourceLog
from logforensics.reading import open_sources

SHARED = Path(__file__).resolve().parents[3] / "shared"
LOGS = sorted([*(SHARED / "real").glob("*.log.gz"), *(SHARED / "cpu_servers").glob("*.log")])
pytestmark = pytest.mark.skipif(not LOGS, reason="../shared is not here")
ENOUGH = 0.99


def test_lines_of_sglang_are_understood() -> None:
    shares: dict[str, float] = {}
    own = unknown = 0
    for path in LOGS:
        (source,) = open_sources([path])
        log = SourceLog(source, examples=10**9)
        for _ in log.pieces():
            pass
        missed = sum(read_prefix(text).own for _, text in log.assembled.tally.unknown_examples)
        here = (
            log.assembled.lines - log.assembled.tally.unknown + missed
        )  # what nobody recognised and has no bracket of SGLang's is another program's
        shares[path.name] = 1 - missed / max(here, 1)
        own, unknown = own + here, unknown + missed

    worst = sorted(shares.items(), key=lambda item: item[1])[:10]
    assert own > 100_000
    assert 1 - unknown / own >= ENOUGH, worst
    assert worst[0][1] >= ENOUGH, worst
