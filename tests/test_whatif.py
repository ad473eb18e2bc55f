"""What other settings would have given, on the founding case: its own second and third run are the check."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from logforensics import Hardware, cli
from logforensics.errors import InputError
from logforensics.whatif import whatif

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
BASELINE = FIXTURES / "founding_baseline_085/server.log"
HICACHE = FIXTURES / "founding_hicache48/server.log"


def test_the_fraction_gives_what_the_later_runs_had() -> None:
    """0.88 gave 158,999 tokens and 0.93 gave 230,378: linear in the fraction, not proportional to it."""
    for fraction, tokens, left in ((0.88, 158_999, 5.5), (0.93, 230_378, 0.82)):
        row = whatif(BASELINE, f"--mem-fraction-static {fraction}").rows[0]
        assert row.kv_tokens == pytest.approx(tokens, rel=0.002)
        assert row.left_gib == pytest.approx(left, abs=0.05)
    assert "prefill" in row.risk


def test_half_the_bytes_hold_twice_the_tokens() -> None:
    row = whatif(BASELINE, ["--kv-cache-dtype", "fp8_e4m3"]).rows[0]
    assert row.kv_tokens == pytest.approx(2 * 116_171, rel=0.001)
    assert "quality" in row.risk


def test_dp_attention_multiplies_the_pools_of_a_latent_cache() -> None:
    row = whatif(BASELINE, "--enable-dp-attention --dp-size 8").rows[-1]
    assert (row.kv_tokens, row.kv_tokens_in_all) == (116_171, 8 * 116_171)


def test_the_host_tier_adds_no_running_requests() -> None:
    answer = whatif(HICACHE, "--hicache-size 60", hardware=Hardware(host_ram_bytes=449 * 10**9))
    row = answer.rows[0]
    assert (row.kv_tokens, row.requests) == (answer.now.kv_tokens, answer.now.requests)
    assert (answer.now.host_gb, row.host_gb) == (384, 480)
    assert "the host has 449 GB" in row.risk


def test_sizes_of_the_host_tier_are_compared_with_the_largest_that_fits() -> None:
    answer = whatif(HICACHE, "--hicache-size 100", hardware=Hardware(host_ram_bytes=449 * 10**9))
    sizes = {row.gb_per_process: row for row in answer.host_tier}
    assert sizes.keys() == {24, 48, 96, 50, 100, 200}  # what was and what is asked for, halves and doubles; 48 is also what fits
    assert [size for size, row in sizes.items() if row.fits] == [24, 48]
    assert (sizes[100].gb_in_all, sizes[100].host_tokens) == (800, pytest.approx(100e9 / 70_272, rel=0.001))
    assert sizes[100].prefix_reach == sizes[100].host_tokens  # written through: the host holds a copy of the device


def test_without_the_hosts_memory_nothing_is_said_to_fit() -> None:
    assert {row.fits for row in whatif(HICACHE).host_tier} == {None}


@pytest.mark.parametrize(("arguments", "shown"), [(["--hicache-size", "60"], True), ([], False)])
def test_the_host_tier_is_on_the_screen_where_it_is_in_play(
    capsys: pytest.CaptureFixture[str], *, arguments: list[str], shown: bool
) -> None:
    log = HICACHE if shown else BASELINE
    assert cli.main(["whatif", str(log), *arguments]) == 0
    assert ("prefix tokens in reach" in capsys.readouterr().out) is shown


def test_several_flags_are_shown_alone_and_together() -> None:
    answer = whatif(BASELINE, "--mem-fraction-static 0.88 --kv-cache-dtype fp8_e4m3")
    assert [row.change.count("--") for row in answer.rows] == [1, 1, 2]
    assert answer.rows[2].kv_tokens == pytest.approx(2 * (answer.rows[0].kv_tokens or 0), rel=0.001)


def test_a_cap_limits_and_a_shorter_context_frees_the_request_table() -> None:
    cap, context = whatif(BASELINE, "--max-running-requests 10").rows[0], whatif(BASELINE, "--context-length 131072").rows[0]
    assert cap.requests == 10
    assert (context.left_gib or 0) > 8.3 + 0.9


@pytest.mark.parametrize(
    ("log", "changes", "said"),
    [
        (BASELINE, "--no-such-flag 3", "no flag of SGLang 0.5.8"),
        (BASELINE, "--port 30001", "cannot be computed"),
        (FIXTURES / "founding_first_look/server.log", "--mem-fraction-static 0.9", "a whole start"),
    ],
)
def test_what_cannot_be_told_is_refused(log: Path, changes: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        whatif(log, changes)


def test_the_command_in_its_forms() -> None:
    command = [sys.executable, "-m", "logforensics", "whatif", str(BASELINE), "--mem-fraction-static", "0.9"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "as it was" in text
    assert "host GB" not in text
    answer = json.loads(subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=True).stdout)
    assert answer["schema"] == "logforensics.whatif/1"
    assert answer["rows"][0]["change"] == "--mem-fraction-static 0.9"
    usual = subprocess.run(command[:5], capture_output=True, text=True, check=True).stdout
    assert "--enable-dp-attention --dp-size 8" in usual
