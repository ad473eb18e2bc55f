"""Host memory for HiCache: pools, SGLang's own check, the size to recommend."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logforensics.errors import InputError
from logforensics.sglang.flags import release_at_least, releases
from logforensics.sglang.host_guard import arrivals, auto_size, guard_verdict, late_rank_bytes, processes_on_host
from logforensics.sglang.host_pool import full_size_pools, pinned_bytes, pool_size, share_outside, takes_size
from logforensics.sglang.host_size import HostSituation, host_tier_table, safe_hicache_size
from logforensics.units import GB, GIB

SHARED = Path(__file__).resolve().parents[3] / "shared"
KIMI = 70_272

needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the reference files are not here")


def golden_events(name: str) -> list[Any]:
    """(release, event, its log lines) of every golden event of that name."""
    found = []
    for path in sorted(SHARED.glob("golden/*.json")):
        lines = path.with_suffix(".log").read_text(encoding="utf-8").split("\n")
        for event in json.loads(path.read_text(encoding="utf-8"))["events"]:
            if event["event"] == name:
                text = "\n".join(lines[event["line"] - 1 : event["line"] - 1 + event["lines"]])
                found.append(pytest.param(path.stem, event, text, id=f"{path.stem}-{event['case']}"))
    return found


# --- pools -----------------------------------------------------------------------------------------------------------------------------


@needs_shared
@pytest.mark.parametrize(("release", "event", "text"), golden_events("hicache_pool"))
def test_golden_pools_are_sized_and_judged_as_sglang_did(release: str, event: dict[str, Any], text: str) -> None:
    fed = event["fed"]
    size, device = fed["host_size_gb"], fed["device_tokens"]
    pool = pool_size(fed["bytes_per_token"], release, size_gb=size, ratio=fed["ratio"], device_tokens=device)
    verdict = guard_verdict(pool.bytes, fed["host_available_bytes"], fed["ranks_on_host"], release)
    assert f"{pool.bytes / GB:.2f} GB" in text
    assert verdict.passes is not fed["raised"]
    if fed["raised"]:
        assert f"only have {verdict.printed_bytes / GB:.2f} GB free" in text
    if "tokens," in text:
        assert f" {pool.tokens} tokens," in text
    if release_at_least(release, "0.4.10"):  # before, the recorded budget is the figure of the message
        assert verdict.allowed_bytes == fed["budget_bytes"]


@pytest.mark.parametrize(("release", "tokens"), [("0.5.5", 683_008), ("0.5.6", 683_072), ("0.5.23", 683_072)])
def test_pages_are_rounded_down_to_0_5_5_and_one_more_from_0_5_6(release: str, tokens: int) -> None:
    assert pool_size(KIMI, release, size_gb=48, page_size=64).tokens == tokens


def test_a_whole_number_of_pages_still_gets_one_more() -> None:
    assert pool_size(1000, "0.5.5", size_gb=1, page_size=100).tokens == 1_000_000
    assert pool_size(1000, "0.5.6", size_gb=1, page_size=100).tokens == 1_000_100


def test_issue_14282_40_gb_fails_and_30_works() -> None:
    assert 4 * pool_size(32_768, "0.5.3", size_gb=40).pinned_bytes == 256 * GIB
    assert 4 * pool_size(32_768, "0.5.3", size_gb=30).pinned_bytes == 128 * GIB
    assert pool_size(32_768, "0.5.5", size_gb=40).pinned_bytes == pool_size(32_768, "0.5.5", size_gb=40).bytes


def test_pr_12266_179_gib_take_256() -> None:
    assert pinned_bytes(round(179.70 * GIB), "0.5.4") == 256 * GIB
    assert pinned_bytes(1 << 35, "0.5.4") == 1 << 35
    assert pinned_bytes(0, "0.5.4") == 0
    assert pinned_bytes(48 * GB, "0.4.4") == 48 * GB


def test_a_ratio_follows_the_device_pool() -> None:
    assert pool_size(32_768, "0.4.6", device_tokens=1_005_629).bytes / GB == pytest.approx(65.90, abs=0.01)  # issue 7059, default ratio
    with pytest.raises(InputError, match="device_tokens"):
        pool_size(32_768, "0.5.8", ratio=2.0)
    with pytest.raises(InputError, match="bytes per token"):
        pool_size(0, "0.5.8", size_gb=48)


def test_a_small_pool_stops_the_server_to_0_5_14() -> None:
    old, new = (pool_size(KIMI, r, size_gb=8, device_tokens=158_999) for r in ("0.5.14", "0.5.15"))
    assert (old.smaller_than_device, old.refused) == (True, True)
    assert (new.smaller_than_device, new.refused) == (True, False)


def test_side_pools_by_release() -> None:
    assert [full_size_pools(["recurrent"], r) for r in ("0.5.9", "0.5.10", "0.5.16", "0.5.17")] == [1, 2, 2, 1]
    assert full_size_pools(["recurrent", "sliding"], "0.5.12") == 3
    assert full_size_pools([], "0.5.12") == 1
    assert share_outside(132, 1152, "0.5.10") == 0
    assert share_outside(132, 1152, "0.5.11") == pytest.approx(0.1146, abs=1e-4)
    assert share_outside(132, 656, "0.5.11") == pytest.approx(0.201, abs=1e-3)


def test_pr_29263_index_pool_of_glm_5() -> None:
    kv = pool_size(576 * 78, "0.5.14", size_gb=150)
    assert kv.bytes * share_outside(132, 576, "0.5.14") / GB == pytest.approx(34.38, abs=0.01)


def test_the_size_flag_came_with_0_4_6() -> None:
    assert [takes_size(r) for r in ("0.4.5", "0.4.6", "0.5.23")] == [False, True, True]


# --- the check -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "counted", "total"),
    [
        ({"tp_size": 8}, 8, 8),
        ({"tp_size": 8, "pp_size": 2, "nnodes": 2}, 8, 8),
        ({"tp_size": 16, "nnodes": 2, "dp_size": 16, "enable_dp_attention": True}, 8, 8),
        ({"tp_size": 2, "dp_size": 4}, 2, 8),
        ({"tp_size": 1, "nnodes": 2}, 1, 1),
        ({"tp_size": None}, 1, 1),
    ],
)
def test_processes_on_a_host(args: dict[str, Any], counted: int, total: int) -> None:
    processes = processes_on_host(args)
    assert (processes.counted, processes.total) == (counted, total)


def test_the_founding_case_passed_the_check_eight_times_and_would_not_today() -> None:
    assert guard_verdict(300 * GB, 445 * GB, 8, "0.5.8").passes
    today = guard_verdict(300 * GB, 445 * GB, 8, "0.5.19")
    assert not today.passes
    assert today.printed_bytes / GB == pytest.approx(54.28, abs=0.01)


def test_old_messages_show_memory_that_is_not_allowed() -> None:  # incident m04: 40 refused with "44.87 free"
    verdict = guard_verdict(40 * GB, round(44.87 * GB), 1, "0.4.9")
    assert not verdict.passes
    assert verdict.printed_bytes / GB == pytest.approx(44.87)
    assert verdict.allowed_bytes / GB == pytest.approx(34.13, abs=0.01)


def test_a_late_rank_is_charged_twice() -> None:  # issue 38156: 48 GB on 445 GB
    checks = arrivals(48 * GB, 445 * GB, 8, "0.5.19")
    assert [round(c.verdict.allowed_bytes / GB, 2) for c in checks] == [54.28, 48.28, 42.28, 36.28, 30.28, 24.28, 18.28, 12.28]
    assert [c.verdict.passes for c in checks] == [True, True] + [False] * 6
    assert late_rank_bytes(445 * GB, 8) / GB == pytest.approx(28.95, abs=0.01)


@given(available=st.integers(20 * GB, 4000 * GB), ranks=st.integers(1, 32))
def test_the_late_rank_size_passes_in_every_order(available: int, ranks: int) -> None:
    size = late_rank_bytes(available, ranks)
    assert all(check.verdict.passes for check in arrivals(size, available, ranks, "0.5.23"))
    assert late_rank_bytes(GB, ranks) == 0


def test_auto_size_shrinks_the_default_ratio() -> None:
    device = 159_277 * KIMI
    roomy = auto_size(445 * GB, 8, device)
    tight = auto_size(120 * GB, 8, device)
    assert roomy.ratio == 2.0
    assert tight.ratio == pytest.approx(0.95 * 0.8 * (120 * GB - 10 * GIB) / 8 / device, rel=1e-6)
    assert tight.pool_bytes < tight.budget_bytes


# --- the size to recommend -------------------------------------------------------------------------------------------------------------


def founding(host_gb: float = 449, **more: Any) -> HostSituation:
    return HostSituation(int(host_gb * GB), more.pop("processes", 8), bytes_per_token=KIMI, device_tokens=158_999, **more)


def test_the_founding_case_gets_48_with_its_derivation() -> None:
    safe = safe_hicache_size(founding(), "0.5.8", "0.5.8")
    assert (safe.gb, safe.ratio, safe.total_bytes, safe.host_tokens) == (48, 4.29, 384 * GB, 683_060)
    assert (safe.exceeds_device, safe.prefer_auto, safe.takes_size, safe.late_rank_gb) == (True, False, True, None)
    labels = [step.label for step in safe.derivation]
    assert labels[:6] == ["memory to share", "loading and growth", "safety margin", "for all host pools", "per process", "--hicache-size"]
    assert all(term.unit and term.source and term.expression for term in safe.terms)


def test_the_founding_casess_own_margins() -> None:
    first = safe_hicache_size(founding(445, loading_bytes=40 * GB, margin_bytes=25 * GB), "0.5.8", "0.5.8")
    second = safe_hicache_size(founding(445, loading_bytes=40 * GB, margin_bytes=10 * GB), "0.5.8", "0.5.8")
    assert (first.gb, second.gb) == (47, 49)  # 49.375, taken as 48 there


def test_issue_14282_gets_34() -> None:
    safe = safe_hicache_size(HostSituation(256 * GB, 4), "0.5.3", "0.5.3")
    assert (safe.gb, safe.total_bytes, safe.ratio, safe.host_tokens) == (34, 4 << 35, None, None)


def test_an_uncertain_release_gets_the_strictest_rule() -> None:
    assert safe_hicache_size(HostSituation(256 * GB, 4), "0.5.3", "0.5.9").gb == 34
    assert safe_hicache_size(HostSituation(256 * GB, 4), "0.5.5", "0.5.9").gb == 55
    assert safe_hicache_size(HostSituation(256 * GB, 4)).takes_size is False


def test_side_pools_are_taken_off() -> None:
    assert safe_hicache_size(founding(share_outside=132 / 1152), "0.5.14", "0.5.14").gb == 43
    doubled = safe_hicache_size(founding(full_size_pools=2), "0.5.14", "0.5.14")
    assert (doubled.gb, doubled.total_bytes) == (24, 384 * GB)


def test_a_container_limit_bounds_the_size() -> None:
    assert safe_hicache_size(founding(cgroup_bytes=200 * GB, loading_bytes=0), "0.5.8", "0.5.8").gb == 23


def test_a_size_the_release_would_refuse_is_none() -> None:
    assert safe_hicache_size(founding(128), "0.5.8", "0.5.8").gb == 0
    late = safe_hicache_size(founding(128), "0.5.16", "0.5.16")
    assert (late.gb, late.exceeds_device) == (9, False)
    assert safe_hicache_size(founding(30), "0.5.16", "0.5.16").gb == 0


def test_newer_releases_name_the_late_rank_size_and_their_own_choice() -> None:
    safe = safe_hicache_size(founding(445, loading_bytes=0), "0.5.21", "0.5.23")
    assert (safe.late_rank_gb, safe.prefer_auto) == (28, True)
    assert safe.terms[-1].value == 28


@pytest.mark.parametrize(("host", "processes", "share"), [(0, 8, 0.0), (449 * GB, 0, 0.0), (449 * GB, 8, -0.1)])
def test_impossible_machines_are_refused(host: int, processes: int, share: float) -> None:
    with pytest.raises(InputError):
        safe_hicache_size(HostSituation(host, processes, share_outside=share))


@given(
    host=st.integers(16 * GB, 8000 * GB),
    processes=st.integers(1, 64),
    release=st.sampled_from([r for r in releases() if release_at_least(r, "0.4.6")]),
    pools=st.integers(1, 3),
    share=st.sampled_from([0.0, 132 / 1152, 132 / 656]),
)
def test_a_recommended_size_always_fits(host: int, processes: int, release: str, pools: int, share: float) -> None:
    situation = HostSituation(host, processes, share_outside=share, full_size_pools=pools)
    safe = safe_hicache_size(situation, release, release)
    assert safe.total_bytes <= max(host - 10 * GIB, 0)
    if safe.gb:
        asked = pool_size(KIMI, release, size_gb=safe.gb).bytes
        assert guard_verdict(asked, host, processes, release).passes


def test_the_host_tier_gives_prefix_reach() -> None:
    rows = host_tier_table([37.5, 48, 300], 8, KIMI, 158_999, budget_bytes=386 * GB)
    assert [(r.gb_in_all, r.host_tokens, r.fits) for r in rows] == [(300, 533_640, True), (384, 683_060, True), (2400, 4_269_125, False)]
    assert rows[1].prefix_reach == 683_060  # a copy of the device is inside
    assert host_tier_table([48], 8, KIMI, 158_999, write_policy="write_back")[0].prefix_reach == 842_059
