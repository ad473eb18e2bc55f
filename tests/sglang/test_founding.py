"""Every figure of FOUNDING_CASE.md, as it was computed then, and the three corrections with their proof."""

from __future__ import annotations

import pytest

from logforensics.models import find_gpu, find_model
from logforensics.sglang.device import requests_that_fit
from logforensics.sglang.fraction import bytes_per_token_from_runs, pre_gib_from_runs, tokens_at
from logforensics.sglang.host_guard import guard_verdict
from logforensics.sglang.host_pool import pool_size
from logforensics.sglang.host_size import HostSituation, host_tier_table, safe_hicache_size
from logforensics.sglang.kv import KvSetting, kv_bytes
from logforensics.sglang.sharding import Sharding
from logforensics.units import GB, GIB, MIB

BELIEVED = 136_793  # bytes per token of the incident's notes
DEVICE_085, DEVICE_088 = 116_171, 158_999


def real_bytes_per_token() -> int:
    model = find_model("/models/Kimi-K2.5")
    assert model is not None
    found = kv_bytes(model, KvSetting("0.5.8", sharding=Sharding(tp=8)))
    assert found is not None
    return int(found.sized)


# --- the incident's own arithmetic --------------------------------------------------------------------------------------------------


def test_the_margin_that_was_used() -> None:
    situation = HostSituation(445 * GB, 8, loading_bytes=40 * GB, margin_bytes=10 * GB)
    per_process = {term.name: term.value for term in safe_hicache_size(situation, "0.5.8", "0.5.8").terms}["per process"]
    assert per_process == 49.375  # "about 49.4", rounded down and one taken off


def test_the_believed_bytes_per_token_is_a_quotient() -> None:
    assert round(14.8 * GIB / DEVICE_085) == BELIEVED
    assert pytest.approx(14.8, abs=0.01) == 97_887 * 0.85 / 1000 - 68.4  # card in MiB/1000 read as GB, less the weights


def test_the_believed_tokens_at_093_are_proportional() -> None:
    assert pytest.approx(127_105, abs=1) == DEVICE_085 * 0.93 / 0.85
    assert pytest.approx(0.094, abs=1e-3) == 0.93 / 0.85 - 1


@pytest.mark.parametrize(("ratio", "each", "in_all", "tokens", "requests"), [(2.5, 44, 348, 444, 111), (3.0, 52, 418, 508, 127)])
def test_the_believed_ratio_table(ratio: float, each: int, in_all: int, tokens: int, requests: int) -> None:
    device_gb = round(DEVICE_085 * 0.93 / 0.85 * BELIEVED / GB, 1)
    believed_tokens = 127_000 * (1 + ratio)
    assert device_gb == 17.4
    assert (round(device_gb * ratio), round(device_gb * ratio * 8)) == (each, in_all)
    assert (int(believed_tokens / 1000), int(believed_tokens / 4000)) == (tokens, requests)


def test_the_believed_gain_of_300_gb_over_eight_gpus() -> None:
    extra = 300 / 8 * GIB / BELIEVED
    assert extra == pytest.approx(294_000, rel=2e-3)
    assert extra + DEVICE_085 == pytest.approx(410_000, rel=2e-3)
    assert int((extra + DEVICE_085) / 4000) == 102  # "about 100 requests"


# --- correction 1: 70,272 bytes per token, not 136,793 --------------------------------------------------------------------------------


def test_the_architecture_gives_70272() -> None:
    assert real_bytes_per_token() == 70_272  # (512 + 64) × 61 × 2
    assert real_bytes_per_token() * DEVICE_085 / GIB == pytest.approx(7.60, abs=0.005)  # the pool line of baseline_085.log
    assert real_bytes_per_token() * DEVICE_088 / GIB == pytest.approx(10.41, abs=0.005)  # and of hicache48.log


def test_the_two_runs_give_70272() -> None:
    found = bytes_per_token_from_runs(DEVICE_085, 0.85, DEVICE_088, 0.88, pre_gib=93.43)
    assert found is not None
    assert found == pytest.approx(70_272, rel=2e-3)


def test_136793_would_need_a_card_that_does_not_exist() -> None:
    card = find_gpu("RTX PRO 6000")
    assert card is not None
    assert card.memory_mib is not None
    believed = pre_gib_from_runs(DEVICE_085, 0.85, 159_000, 0.88, BELIEVED)
    real = pre_gib_from_runs(DEVICE_085, 0.85, 159_000, 0.88, 70_272)
    assert believed is not None
    assert real is not None
    assert believed == pytest.approx(182, abs=1)
    assert real < card.memory_mib * MIB / GIB < believed


# --- correction 2: tokens are linear in the fraction -------------------------------------------------------------------------------


def test_093_gives_230k_tokens_not_127k() -> None:
    at = tokens_at(0.93, now=DEVICE_085, fraction_now=0.85, pre_gib=93.43, bytes_per_token=70_272)
    assert at == pytest.approx(230_378, rel=1e-3)  # what hicache300.log printed
    from_088 = tokens_at(0.88, now=DEVICE_085, fraction_now=0.85, pre_gib=93.43, bytes_per_token=70_272)
    assert from_088 == pytest.approx(DEVICE_088, rel=1e-3)
    assert pytest.approx(0.37, abs=0.005) == DEVICE_088 / DEVICE_085 - 1  # for 3.5 % more fraction


# --- correction 3: the host tier is prefix reach, not concurrency ---------------------------------------------------------------------


def test_running_requests_follow_the_device_pool() -> None:
    assert requests_that_fit(DEVICE_085, 4096) == 28
    row = host_tier_table([48], 8, 70_272, DEVICE_088)[0]
    assert (row.host_tokens, row.prefix_reach) == (683_060, 683_060)
    assert requests_that_fit(DEVICE_088, 4000) == 39  # whatever the host holds: not 111


def test_the_host_pool_was_larger_in_tokens_than_believed() -> None:
    assert 48 * GB // BELIEVED == 350_895
    assert pool_size(70_272, "0.5.8", size_gb=48).tokens == 683_061


# --- what killed the machine, and what ran ----------------------------------------------------------------------------------------------


def test_eight_ranks_asked_for_2400_gb_and_each_passed() -> None:
    pool = pool_size(70_272, "0.5.8", size_gb=300, device_tokens=230_378)
    assert 8 * pool.bytes / GB == pytest.approx(2400, abs=0.01)
    assert all(guard_verdict(pool.bytes, 449 * GB, 8, release).passes for release in ("0.5.8", "0.5.18"))
    assert not guard_verdict(pool.bytes, 449 * GB, 8, "0.5.19").passes


def test_48_is_what_fits() -> None:
    situation = HostSituation(449 * GB, 8, bytes_per_token=70_272, device_tokens=DEVICE_088)
    safe = safe_hicache_size(situation, "0.5.8", "0.5.8")
    assert (safe.gb, safe.total_bytes) == (48, 384 * GB)
    pinned = 8 * pool_size(70_272, "0.5.4", size_gb=48).pinned_bytes
    assert pinned / GB == pytest.approx(550, abs=1)  # on 0.4.5 to 0.5.4 even 48 would not have fitted
    assert safe_hicache_size(situation, "0.5.4", "0.5.4").gb == 34
