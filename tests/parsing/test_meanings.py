"""Figures that changed their meaning, brought to one."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from logforensics import parse
from logforensics.parsing.meanings import in_newest_meaning, meaning

STAMP = "[2026-02-18 14:00:{:02d} TP0] "


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [("0.5.4", "0.5.10", "bonus token"), ("0.5.11", "0.5.23", "accepted drafted"), ("0.5.9", "0.5.12", None), (None, None, None)],
)
def test_a_meaning_belongs_to_a_range_of_releases(low: str | None, high: str | None, words: str | None) -> None:
    found = meaning("decode", "accept_rate", low, high)

    assert (found is None) if words is None else (found is not None and words in found.means)


def test_old_figures_are_converted_and_new_ones_stay(tmp_path: Path) -> None:
    lines = [STAMP.format(0) + "server_args=ServerArgs(model_path='/m', speculative_num_draft_tokens=5)"]
    for n, (new, speed) in enumerate([(1000, 0.0), (2000, 500.0), (500, 4000.0)]):  # 2 s after the first, 0.5 s after the second
        lines.append(
            STAMP.format(n + 1) + f"Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: 0, token usage: 0.01, #running-req: 0, "
            f"#queue-req: 0, input throughput (token/s): {speed:.2f}, cuda graph: False"
        )
    lines.append(
        STAMP.format(9)
        + "Decode batch, #running-req: 1, #token: 9, token usage: 0.01, accept len: 3.00, accept rate: 0.60, cuda graph: True, "
        "gen throughput (token/s): 90.00, #queue-req: 0"
    )
    log = tmp_path / "server.log"
    log.write_text("\n".join(lines) + "\n")
    printed = dict(parse(log).frames)
    old = printed | {"launches": printed["launches"].with_columns(version_low=pl.lit("0.5.9"), version_high=pl.lit("0.5.10"))}
    new_release = printed | {"launches": printed["launches"].with_columns(version_low=pl.lit("0.5.16"), version_high=pl.lit("0.5.16"))}

    converted = in_newest_meaning(old)

    assert converted["decode"]["accept_rate"].to_list() == [0.5]  # two of four drafted tokens
    assert converted["prefill"]["input_throughput"].to_list() == [None, 1000.0, 1000.0]
    assert in_newest_meaning(new_release)["decode"]["accept_rate"].to_list() == [0.6]
    assert in_newest_meaning(new_release)["prefill"].equals(printed["prefill"])
