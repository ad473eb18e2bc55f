"""From the static fraction to tokens and back; the default fraction; what stays outside."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logforensics.errors import InputError
from logforensics.sglang.default_fraction import default_fraction, vision_factor
from logforensics.sglang.device import outside_static_share, request_table_bytes, request_table_rows, requests_that_fit
from logforensics.sglang.fraction import (
    GpuBudget,
    bytes_per_token_from_runs,
    fraction_for_tokens,
    fraction_leaving,
    lowest_fraction,
    tokens,
    tokens_at,
)
from logforensics.units import GIB

KIMI = 70_272
H200_MIB, H100_MIB = 143_771, 81_559


def test_the_last_run_of_the_founding_case() -> None:
    budget = GpuBudget(93.43, 21.62, 0.88)  # TP0's lines, from which the log was made
    assert budget.rest_gib == pytest.approx(10.408, abs=1e-3)
    assert tokens(budget.rest_gib * GIB, KIMI) == pytest.approx(158_999, abs=budget.rounding_gib * GIB / KIMI)
    assert budget.term.unit == "GiB"


def test_tokens_are_whole_pages_and_never_negative() -> None:
    assert tokens(1000.9, 10) == 100
    assert tokens(1000, 10, page_size=64) == 64
    assert tokens(-5, 10) == 0
    with pytest.raises(InputError):
        tokens(1000, 0)


@given(
    pre=st.floats(10, 200),
    share=st.floats(0.05, 0.5),
    low=st.floats(0.6, 0.9),
    step=st.floats(0.005, 0.09),
    per_token=st.integers(2_000, 500_000),
)
def test_tokens_are_linear_in_the_fraction(pre: float, share: float, low: float, step: float, per_token: int) -> None:
    post = pre * share
    here, there = (GpuBudget(pre, post, f) for f in (low, low + step))
    if here.rest_gib <= 0:
        return
    now = tokens(here.rest_gib * GIB, per_token)
    predicted = tokens_at(low + step, now=now, fraction_now=low, pre_gib=pre, bytes_per_token=per_token)
    assert predicted == pytest.approx(tokens(there.rest_gib * GIB, per_token), abs=2)


@given(pre=st.floats(20, 200), per_token=st.integers(2_000, 500_000))
def test_two_runs_give_the_bytes_per_token(pre: float, per_token: int) -> None:
    a, b = (tokens(GpuBudget(pre, pre * 0.4, f).rest_gib * GIB, per_token) for f in (0.8, 0.9))
    found = bytes_per_token_from_runs(a, 0.8, b, 0.9, pre)
    assert found is not None
    assert found == pytest.approx(per_token, rel=2e-3)
    assert bytes_per_token_from_runs(a, 0.8, a, 0.9, pre) is None


def test_the_lowest_fraction_is_the_one_sglang_suggests() -> None:
    assert lowest_fraction(93.38, 21.57) == 0.77
    assert GpuBudget(93.38, 21.57, 0.77).rest_gib > 0 > GpuBudget(93.38, 21.57, 0.769).rest_gib
    assert fraction_for_tokens(230_000, GpuBudget(93.38, 21.57, 0.85), KIMI) == 0.931


def test_the_founding_cases_082_gib_want_088() -> None:
    assert fraction_leaving(left_gib=0.82, fraction=0.93, pre_gib=93.38, post_gib=21.57) == 0.88
    assert fraction_leaving(headroom_gib=40.0, left_gib=0.82, fraction=0.93, pre_gib=93.38, post_gib=21.57) is None


# Fractions that real logs printed without the flag, on an H200 (the files of ../shared/real)
@pytest.mark.parametrize(
    ("args", "card", "release", "vision", "logged"),
    [
        ({"tp_size": 1}, H200_MIB, "0.5.9", vision_factor(24, 1152), 0.8387624218749999),
        ({"tp_size": 4}, H200_MIB, "0.5.9", vision_factor(24, 1152), 0.8322890624999999),
        ({"tp_size": 8}, H200_MIB, "0.5.9", vision_factor(27, 1152), 0.816033486328125),
        ({"tp_size": 1}, H200_MIB, "0.5.9", vision_factor(), 0.86165),
        (
            {"tp_size": 1, "chunked_prefill_size": 16384, "disable_piecewise_cuda_graph": True},
            H200_MIB,
            "0.5.10",
            vision_factor(24, 1152),
            0.7592325781249999,
        ),
        ({"tp_size": 2}, H100_MIB, "0.5.10", None, 0.828),  # issue 29092
    ],
)
def test_default_fractions_of_real_logs(args: dict[str, Any], card: int, release: str, vision: float | None, logged: float) -> None:
    assert default_fraction(args, card, release, vision_factor=vision).fraction == logged


@pytest.mark.parametrize(
    ("args", "card", "release", "fraction"),
    [
        ({"tp_size": 8}, H100_MIB, "0.3.6", 0.82),
        ({"tp_size": 8}, H100_MIB, "0.4.2", 0.81),
        ({"tp_size": 1}, H100_MIB, "0.4.6", 0.88),
        ({"tp_size": 8}, H200_MIB, "0.4.6", (H200_MIB - 13 * 1024) / H200_MIB),
        ({"tp_size": 8}, H100_MIB, "0.5.1", round((H100_MIB - 13.5 * 1024) / H100_MIB, 3)),
        ({"tp_size": 8, "speculative_algorithm": "EAGLE", "enable_dp_attention": True}, H200_MIB, "0.5.2", 0.843),
        ({"tp_size": 1}, 24_564, "0.5.9", round((24_564 - 512 - 3072 - 48 - 128) / 24_564, 3)),
        ({"tp_size": 1}, 24_564, "0.5.20", round((24_564 - 512 - 6144 - 96 - 128 - 50 * 8) / 24_564, 3)),
        ({"tp_size": 1}, None, "0.5.9", 0.88),
        ({"tp_size": 1}, None, "0.5.20", 0.95),
    ],
)
def test_default_fractions_by_release(args: dict[str, Any], card: int | None, release: str, fraction: float) -> None:
    assert default_fraction(args, card, release).fraction == pytest.approx(fraction)


def test_what_lowers_the_default_fraction() -> None:
    def reserve(release: str, **args: Any) -> float:
        return 1 - default_fraction({"tp_size": 8, **args}, H200_MIB, release).fraction

    assert reserve("0.5.9", chunked_prefill_size=32768) > 0.35  # 48 GiB for the chunk
    assert reserve("0.5.9", speculative_algorithm="EAGLE") > reserve("0.5.9")
    assert reserve("0.5.9", speculative_algorithm="STANDALONE") > reserve("0.5.9", speculative_algorithm="EAGLE")
    assert reserve("0.5.9", speculative_algorithm="NGRAM") == reserve("0.5.9")
    assert reserve("0.5.14", speculative_algorithm="EAGLE") == reserve("0.5.14")
    assert reserve("0.5.9", enable_dp_attention=True, dp_size=8) > reserve("0.5.9")
    assert reserve("0.5.15", moe_a2a_backend="deepep") > reserve("0.5.15")
    assert reserve("0.5.15", disaggregation_mode="prefill") < reserve("0.5.15")
    assert reserve("0.5.15", disaggregation_mode="decode", max_running_requests=64) < reserve("0.5.15")
    assert reserve("0.5.22", max_running_requests=16) < reserve("0.5.21", max_running_requests=16)
    assert reserve("0.5.16", disable_cuda_graph=True) < reserve("0.5.15", disable_cuda_graph=True)
    mla = default_fraction({"tp_size": 8}, H200_MIB, "0.5.10", latent=True)
    assert any(term.value == 1536 for term in mla.terms)
    assert all(term.unit and term.source for term in mla.terms)


def test_the_request_table_of_a_long_context() -> None:
    assert request_table_rows(158_999, 262_144, None) == 2048
    assert request_table_rows(10_000_000, 262_144, None) == 4096
    assert request_table_rows(158_999, 262_144, 48) == 48
    assert request_table_bytes(2048, 262_144) / GIB == pytest.approx(2.0, abs=0.01)
    assert request_table_bytes(2048, 131_072) / GIB == pytest.approx(1.0, abs=0.01)


def test_what_must_fit_outside_the_static_share() -> None:
    outside = outside_static_share(
        GpuBudget(93.38, 21.57, 0.88), {"chunked_prefill_size": 8192}, device_tokens=158_999, context_len=262_144, graph_gib=3.62
    )
    assert outside.room_gib == pytest.approx(11.2056)
    assert [term.name for term in outside.terms] == ["outside the static share", "request table", "graphs", "prefill activations"]
    assert outside.left_gib == pytest.approx(11.2056 - 2.0 - 3.62 - 12.0, abs=0.02)
    estimated = outside_static_share(GpuBudget(93.38, 21.57, 0.88), {"cuda_graph_max_bs": 512}, device_tokens=1000, context_len=4096)
    assert estimated.terms[2].value == 1.0


def test_running_requests_follow_device_tokens_only() -> None:
    assert requests_that_fit(116_171, 4096) == 28
    assert requests_that_fit(116_171, 4096, limit=20) == 20
