"""The founding case (FOUNDING_CASE.md, points 1 to 4 and 6), on our own logs and on the seed logs where they are present."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SEED = ROOT.parent / "shared" / "seed"
LOGS = {
    "hicache300": (ROOT / "fixtures/founding_hicache300/server.log", SEED / "hicache300.log"),
    "first_look": (ROOT / "fixtures/founding_first_look/server.log", SEED / "hicache300_first_look.log"),
    "baseline": (ROOT / "fixtures/founding_baseline_085/server.log", SEED / "baseline_085.log"),
    "hicache48": (ROOT / "fixtures/founding_hicache48/server.log", SEED / "hicache48.log"),
}
RAM = ("--host-ram", "449GB")


def _both(name: str) -> list[Any]:
    own, seed = LOGS[name]
    missing = pytest.mark.skipif(not seed.is_file(), reason="../shared is not here")
    return [pytest.param(own, id="own"), pytest.param(seed, id="seed", marks=missing)]


def diagnose(log: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "logforensics", "diagnose", str(log), "--format", "json", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def text_of(log: Path, *options: str) -> str:
    command = [sys.executable, "-m", "logforensics", "diagnose", str(log), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout


def by_cause(answer: dict[str, Any], cause: str) -> dict[str, Any]:
    return next(finding for finding in answer["findings"] if finding["root_cause"] == cause)


def values(finding: dict[str, Any]) -> list[float]:
    return [step["value"] for step in finding["arithmetic"] if isinstance(step["value"], (int, float))]


def near(finding: dict[str, Any], figure: float, tolerance: float) -> bool:
    return any(abs(value - figure) <= tolerance for value in values(finding))


@pytest.mark.parametrize("log", _both("hicache300"))
def test_point_1_the_over_allocation_with_proof_and_remedy(log: Path) -> None:
    answer = diagnose(log, *RAM)
    assert answer["verdict"] == "failed"
    first = answer["findings"][0]
    assert (first["root_cause"], first["severity"], first["confidence"]) == ("host_overallocation_per_rank", "critical", "certain")
    lines = log.read_bytes().decode().split("\n")  # text mode would turn the bars' \\r into newlines
    cited = [lines[item["line"] - 1] for item in first["evidence"]]
    assert sum("Allocating 300.00 GB host memory" in line for line in cited) == 8
    assert sum("server_args=" in line for line in cited) == 1
    assert any("hicache_size=300" in item["text"] for item in first["evidence"])
    assert {"8 × 300 GB", "449 − 40 − 22.45"} <= {step["expression"] for step in first["arithmetic"]}
    for figure in (2400, 449, 48):
        assert near(first, figure, 0)

    size, ratio = first["recommendations"][:2]
    assert (size["flag"], size["action"], size["value"], size["unit"]) == ("--hicache-size", "set", 48, "GB per rank")
    assert ratio["flag"] == "--hicache-ratio"
    assert ratio["value"] * 230_378 * 70_272 / 1e9 == pytest.approx(48, rel=0.01)

    words = shlex.split(answer["recommended_command"].replace("\\\n", " "))
    assert words[words.index("--hicache-size") + 1] == "48"
    assert "--hicache-ratio" not in words
    assert words[words.index("--tp-size") + 1] == "8"


@pytest.mark.parametrize("log", _both("hicache300"))
def test_point_1_what_is_left_on_the_gpu(log: Path) -> None:
    answer = diagnose(log, *RAM)
    warning = by_cause(answer, "static_fraction_too_high")
    assert warning["severity"] == "warning"
    assert "0.82 GiB" in warning["title"]
    lower = warning["recommendations"][0]
    assert lower["flag"] == "--mem-fraction-static"
    assert 0.87 <= lower["value"] <= 0.9


@pytest.mark.parametrize("log", _both("first_look"))
def test_point_2_the_same_before_anything_breaks(log: Path) -> None:
    answer = diagnose(log, *RAM)
    first = answer["findings"][0]
    assert (first["root_cause"], first["severity"]) == ("host_overallocation_per_rank", "critical")
    assert first["recommendations"][0]["value"] == 48
    assert answer["verdict"] == "incomplete"
    assert answer["run"]["load"][-1]["shards_done"] == 23


@pytest.mark.parametrize("log", [*_both("hicache300"), *_both("first_look")])
def test_point_3_without_the_ram_size(log: Path) -> None:
    answer = diagnose(log)
    first = by_cause(answer, "host_overallocation_per_rank")
    assert first["confidence"] != "certain"
    assert near(first, 2400, 0)
    assert any("host RAM" in item for item in answer["missing"])
    assert any("/ ranks" in step["expression"] for step in first["arithmetic"])


@pytest.mark.parametrize("log", _both("baseline"))
def test_point_4_the_capacity_bound_baseline(log: Path) -> None:
    answer = diagnose(log, *RAM)
    assert answer["verdict"] == "degraded"
    first = answer["findings"][0]
    assert (first["root_cause"], first["severity"]) == ("kv_capacity_bound", "warning")
    assert near(first, 116_171, 0)
    flags = {item["flag"] for item in first["recommendations"]}
    assert {"--mem-fraction-static", "--kv-cache-dtype", "--enable-dp-attention"} <= flags


@pytest.mark.parametrize("log", _both("baseline"))
def test_point_6_bytes_per_token_and_the_slope_of_the_fraction(log: Path) -> None:
    """70,272 bytes per token, not 136,793; 0.93 gives about 230K tokens, not 127K."""
    first = diagnose(log, *RAM)["findings"][0]
    assert near(first, 70_272, 60)
    assert not near(first, 136_793, 5_000)
    assert near(first, 230_000, 1_500)


@pytest.mark.parametrize("log", [*_both("hicache300"), *_both("hicache48")])
def test_point_6_the_host_tier_adds_no_running_requests(log: Path) -> None:
    assert "running requests" in " ".join(text_of(log, *RAM).split())
    text = " ".join(text_of(log, *RAM).split())
    assert "prefix reuse" in text


@pytest.mark.parametrize("log", _both("hicache48"))
def test_the_run_that_worked_is_not_accused(log: Path) -> None:
    answer = diagnose(log, *RAM)
    causes = {finding["root_cause"] for finding in answer["findings"] if finding["severity"] in ("critical", "error", "warning")}
    assert causes == {"kv_capacity_bound"}
