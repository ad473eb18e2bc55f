"""The acceptance pairs and the hand-made groups of ../shared: figures, equal fields and verdicts."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from logforensics.comparison import Comparison, Outcome, Pair, compare
from logforensics.render.comparison import comparison_to_dict

SHARED = Path(__file__).resolve().parents[3] / "shared"
pytestmark = pytest.mark.skipif(not (SHARED / "compare").is_dir(), reason="../shared is not here")


@cache
def case(name: str, context_len: int | None = None) -> tuple[Comparison, dict[str, Any]]:
    folder = SHARED / "compare" / name
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    return compare(folder / "a.log", folder / "b.log", context_len=context_len), expected


def values(comparison: Comparison, key: str) -> tuple[float | None, ...]:
    row = comparison.figure(key)
    assert row is not None, key
    return row.values


def change_pct(comparison: Comparison, key: str) -> float:
    row = comparison.figure(key)
    assert row is not None
    assert row.changes[1] is not None
    return 100 * row.changes[1]


def within(value: float, bounds: list[float], slack: float = 0.06) -> bool:
    """The ranges are rounded to one decimal."""
    return bounds[0] - slack <= value <= bounds[1] + slack


def test_c1_the_graph_is_the_only_difference() -> None:
    found, expected = case("c1_graph_off_on")
    difference = found.difference("cuda_graph")
    assert difference is not None
    assert [str(value) for value in difference.values] == expected["differs"]["cuda_graph"]
    assert [item.field for item in found.differences] == ["cuda_graph"]
    assert values(found, "running_max") == (48, 48)
    assert values(found, "accept_len") == (1.0, 1.0)
    assert values(found, "queue_max") == (0, 0)
    metric = expected["metrics"]["gen_throughput_tok_s"]
    assert values(found, "throughput") == pytest.approx((metric["a"], metric["b"]), abs=0.01)
    assert within(change_pct(found, "throughput"), metric["delta_pct"])
    load = found.pairs[0].equal_load
    assert load is not None
    assert (load.matched, load.tokens) == ("running and tokens", (3894, 3894))
    point = expected["metrics"]["same_token_point_3894"]
    assert load.throughput == pytest.approx((point["a"], point["b"]))
    assert within(100 * (load.ratio - 1), point["delta_pct"])
    assert (found.verdict.outcome, found.verdict.better) == (Outcome.BETTER, "B")
    assert "the only logged difference is cuda graph (batch lines): False → True" in found.verdict.reasons


def test_c2_acceptance_not_step_time() -> None:
    found, expected = case("c2_mtp_dp_attention_graph")
    metrics = expected["metrics"]
    accept = metrics["accept_len_mean"]
    assert values(found, "accept_len") == pytest.approx((accept["a"], accept["b"]), abs=0.005)
    speed = metrics["gen_throughput_tok_s_mean_per_rank"]
    assert values(found, "throughput_scheduler") == pytest.approx((speed["a"], speed["b"]), abs=0.01)
    assert within(change_pct(found, "throughput_scheduler"), speed["delta_pct"])
    steps = values(found, "steps_per_s")
    for side, value in zip("ab", steps, strict=True):
        assert value is not None
        assert within(value, metrics["steps_per_s_per_request"][side], 0.01)
    assert values(found, "running_max") == (8, 8)
    assert values(found, "queue_max") == (0, 0)
    assert (found.verdict.outcome, found.verdict.better) == (Outcome.WORSE, "A")
    assert found.verdict.reasons[0].startswith("through acceptance (3.65 → 1.835 tokens a step), not step time")


def test_c3_not_comparable_at_concurrency_8() -> None:
    found, expected = case("c3_effective_scheduler_width")
    metrics = expected["metrics"]
    assert values(found, "kv_tokens") == (metrics["max_total_num_tokens"]["a"], metrics["max_total_num_tokens"]["b"])
    assert within(change_pct(found, "kv_tokens"), metrics["max_total_num_tokens"]["delta_pct"])
    assert values(found, "max_running_requests") == (8, 6)
    assert values(found, "mamba_slots")[0] == metrics["max_mamba_cache_size"]["a"]
    assert (found.verdict.outcome, found.verdict.better) == (Outcome.NOT_COMPARABLE, None)
    assert found.verdict.summary.startswith("not comparable, because at concurrency 8 B runs 6 wide with 2 queued")


def test_c4_a_trade_of_pools() -> None:
    found, expected = case("c4_swa_cap_vs_ratio")
    full, window = expected["metrics"]["full_pool_tokens"], expected["metrics"]["swa_pool_tokens"]
    assert values(found, "full_pool_tokens") == (full["a"], full["b"])
    assert within(change_pct(found, "full_pool_tokens"), full["delta_pct"])
    assert values(found, "swa_pool_tokens") == (window["a"], window["b"])
    assert within(1 + change_pct(found, "swa_pool_tokens") / 100, window["ratio"])
    assert values(found, "swa_prefix_tails")[0] == expected["metrics"]["prefix_tails"]["a"]
    assert found.verdict.outcome is Outcome.TRADE_OFF
    assert "gives up 69 % of the" in found.verdict.summary
    assert "12.1× tokens in the sliding-window pool" in found.verdict.summary
    assert any("better for few very long sessions" in reason for reason in found.verdict.reasons)


def test_c5_one_flag_changed() -> None:
    found, expected = case("c5_mem_fraction_070_080", 262_144)
    metrics = expected["metrics"]
    assert values(found, "kv_tokens") == (metrics["kv_tokens"]["a"], metrics["kv_tokens"]["b"])
    assert within(1 + change_pct(found, "kv_tokens") / 100, metrics["kv_tokens"]["ratio"])
    over = metrics["kv_over_context_262144"]
    assert values(found, "kv_over_context") == pytest.approx((over["a"], over["b"]), abs=0.005)
    assert values(found, "max_running_requests") == (5, 16)
    assert values(found, "mamba_slots") == (metrics["mamba_slots"]["a"], metrics["mamba_slots"]["b"])
    assert (found.verdict.outcome, found.verdict.better) == (Outcome.BETTER, "B")
    assert "the only logged difference is --mem-fraction-static: 0.7 → 0.8" in found.verdict.reasons


# ------------------------------------------------------------------------------------------------------- groups

GROUPS = [("compare_1", 0, 1), ("compare_1", 2, 3), ("compare_8", 0, 1)]


@cache
def labelled(group: str, first: int, second: int) -> tuple[Comparison, dict[str, Any]]:
    label = json.loads((SHARED / "labels" / f"{group}.json").read_text(encoding="utf-8"))
    return compare(*(SHARED / "real" / label["logs"][place] for place in (first, second))), label


def pair_of(found: Comparison) -> Pair:
    assert len(found.pairs) == 1
    return found.pairs[0]


@pytest.mark.parametrize(("group", "first", "second"), GROUPS)
def test_group_has_no_significant_difference(group: str, first: int, second: int) -> None:
    found, label = labelled(group, first, second)
    assert label["expected_finding"] == "no_significant_difference"
    assert found.verdict.outcome is Outcome.NO_DIFFERENCE, found.verdict
    assert [item.field for item in found.differences if item.matters] == []


@pytest.mark.parametrize(("group", "first", "second"), GROUPS)
def test_group_speed_at_equal_running(group: str, first: int, second: int) -> None:
    found, label = labelled(group, first, second)
    points = {point.running_low: point for point in pair_of(found).points}
    names = [log.partition("-")[0] + "-" for log in label["logs"]]
    wanted = [row for row in label["at_equal_running"] if (row["a"], row["b"]) == (names[first], names[second])]
    assert wanted
    for row in wanted:
        point = points[row["running"]]
        assert list(point.lines) == row["n"]
        assert point.medians == pytest.approx((row["median_a"], row["median_b"]), abs=0.02)
        assert point.ratio == pytest.approx(row["ratio"], abs=0.0002)
        assert point.interval is not None
        low, high = (bound + 1 for bound in row["ci95_of_ratio_minus_1"])
        width = high - low  # two bootstraps differ by chance
        assert point.interval.low == pytest.approx(low, abs=0.001 + 0.35 * width)
        assert point.interval.high == pytest.approx(high, abs=0.001 + 0.35 * width)


@pytest.mark.parametrize(("group", "first", "second"), GROUPS)
def test_group_capacity(group: str, first: int, second: int) -> None:
    found, label = labelled(group, first, second)
    numbers = [label["numbers"][place] for place in (first, second)]
    assert values(found, "kv_tokens") == tuple(row["kv_tokens"] for row in numbers)
    assert values(found, "left_gib") == pytest.approx([row["available_gpu_mem_gib"] for row in numbers])
    assert values(found, "max_running_requests") == tuple(row["max_running_requests"] for row in numbers)
    assert values(found, "running_max") == tuple(row["max_running"] for row in numbers)
    assert values(found, "queue_max") == tuple(row["max_queue"] for row in numbers)
    assert values(found, "decode_lines") == tuple(row["decode_lines"] for row in numbers)


@pytest.mark.parametrize(("group", "first", "second"), GROUPS[:2])
def test_group_prefill_is_not_told_apart(group: str, first: int, second: int) -> None:
    found, label = labelled(group, first, second)
    prefill, row = pair_of(found).prefill, label["prefill_ratio"][first // 2]
    assert prefill is not None
    assert prefill.medians == pytest.approx((row["median_a"], row["median_b"]), abs=0.01)
    assert prefill.ratio == pytest.approx(row["ratio"], abs=0.0001)
    assert prefill.interval is not None
    assert not prefill.interval.excludes_one
    assert any(reason.startswith("prefill: no significant difference") for reason in found.verdict.reasons)


# ------------------------------------------------------------------------------------------------- founding case


def test_founding_baseline_against_hicache48() -> None:
    found = compare(SHARED / "seed" / "baseline_085.log", SHARED / "seed" / "hicache48.log")
    assert change_pct(found, "kv_tokens") == pytest.approx(36.9, abs=0.1)
    assert {item.field for item in found.differences} == {
        "mem_fraction_static",
        "enable_hierarchical_cache",
        "hicache_size",
        "num_continuous_decode_steps",
    }
    assert pair_of(found).bytes_per_token == 70_272
    assert (found.verdict.outcome, found.verdict.better) == (Outcome.BETTER, "B")
    load = pair_of(found).equal_load
    assert load is not None
    assert load.matched == "saturation"
    assert 700 < load.throughput[0] < 760
    assert 1100 < load.throughput[1] < 1180
    assert load.interval is not None
    assert load.interval.low > 1.4
    assert comparison_to_dict(found)["pairs"][0]["bytes_per_token"] == 70_272
