"""Predicted KV tokens: the rules by release, what the pool line changes, and the real logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logforensics.models import Model, find_model
from logforensics.sglang import accuracy
from logforensics.sglang.prediction import KvPrediction, draft_weights_first, kv_setting, logged_bytes_per_token, predict_kv_tokens
from logforensics.sglang.states import slots_per_request, states
from logforensics.units import GIB

SHARED = Path(__file__).resolve().parents[3] / "shared"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the reference files are not here")

PRE, POST = 139.13, 76.54


def model(name: str) -> Model:
    found = find_model(name)
    assert found is not None
    return found


def predict(name: str | None, release: str = "0.5.9", logged: float | None = None, **args: Any) -> KvPrediction:
    found = predict_kv_tokens({"mem_fraction_static": 0.88, **args}, model(name) if name else None, PRE, POST, logged, release, release)
    assert found is not None
    return found


def test_the_plain_equation() -> None:
    found = predict("Qwen3-32B")
    assert found.tokens == int((POST - PRE * 0.12) * GIB // 262_144)
    assert found.bound_tokens == int(0.005 * 1.12 * GIB / 262_144) + 1
    assert (found.uncertain, found.from_log, found.note) == (False, False, "")
    assert found.relative_error(found.tokens) == 0
    assert [step.label for step in found.arithmetic] == ["memory for the pools", "K and V", "bytes per token", "KV tokens"]


def test_pages_and_a_cap() -> None:
    assert predict("Qwen3-32B", page_size=64).tokens % 64 == 0
    capped = predict("Qwen3-32B", max_total_tokens=100_000)
    assert capped.tokens == 100_000
    assert "--max-total-tokens" in capped.terms[-1].expression
    assert predict("Qwen3-32B", max_total_tokens=10_000_000).tokens == predict("Qwen3-32B").tokens


def test_speculation_enlarges_to_0_5_6() -> None:
    spec: dict[str, Any] = {
        "speculative_algorithm": "EAGLE",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 4,
    }
    plain = predict("Qwen3-32B", "0.5.6").tokens
    assert predict("Qwen3-32B", "0.5.6", max_running_requests=256, **spec).tokens == plain + 256 * 7 + 100
    assert predict("Qwen3-32B", "0.5.6", **spec).tokens == plain + 3064 * 7 + 100  # unset: T / 40,960 × 512 rows
    assert predict("Qwen3-32B", "0.4.3", **spec).tokens == plain
    released = predict("Qwen3-32B", "0.5.7", max_running_requests=256, enable_multi_layer_eagle=False, **spec)
    assert released.tokens == plain
    development = predict("Qwen3-32B", "0.5.7", max_running_requests=256, **spec)  # a build from before the release
    assert development.tokens == plain + 256 * 7 + 100


def test_the_draft_model_is_part_of_the_row_from_0_5_14() -> None:
    spec: dict[str, Any] = {"speculative_algorithm": "EAGLE", "speculative_num_draft_tokens": 4}
    assert predict("Qwen3-32B", "0.5.13", **spec).tokens == predict("Qwen3-32B", "0.5.13").tokens
    assert predict("Qwen3-32B", "0.5.14", **spec).bytes_per_token == 262_144 * 65 // 64
    assert [draft_weights_first(r) for r in ("0.5.13", "0.5.14")] == [False, True]


def test_multimodal_models_keep_room_from_0_5_18() -> None:
    old, new = (predict("Qwen3-VL-8B-Instruct", release).tokens for release in ("0.5.17", "0.5.18"))
    assert (old - new) * 147_456 / GIB == pytest.approx(100 / 1024, abs=1e-3)
    shared = predict("Qwen3-VL-8B-Instruct", "0.5.18", mm_feature_transport="cuda_ipc").tokens
    assert (new - shared) * 147_456 / GIB == pytest.approx(1.0, abs=1e-3)
    assert predict("Qwen3-VL-8B-Instruct", "0.5.18", enable_multimodal=False).tokens == old


def test_recurrent_states_are_taken_first() -> None:
    found = predict("Qwen3.5-27B", mamba_full_memory_ratio=0.9)
    rest = POST - PRE * 0.12
    assert found.tokens * 65_536 / GIB == pytest.approx(rest / 1.9, rel=5e-3)
    assert [term.name for term in found.terms if "recurrent" in term.name] == ["recurrent-state slots", "recurrent states"]


@pytest.mark.parametrize(
    ("release", "args", "slots", "gib"),
    [
        ("0.5.9", {}, 485, 4.736),
        ("0.5.9", {"disable_radix_cache": True, "max_running_requests": 48}, 48, 0.46875),
        ("0.5.7", {"disable_radix_cache": True}, 512, 5.0),
        ("0.5.9", {"max_mamba_cache_size": 160, "dp_size": 2, "enable_dp_attention": True}, 80, 0.78125),
        ("0.5.4", {"speculative_algorithm": "NEXTN", "speculative_num_draft_tokens": 4}, 97, 4.736),
        ("0.5.9", {"speculative_algorithm": "NEXTN", "speculative_num_draft_tokens": 4, "max_running_requests": 48}, 394, 5.72265625),
        ("0.5.13", {"speculative_algorithm": "NEXTN", "speculative_num_draft_tokens": 4, "max_running_requests": 48}, 207, 4.716),
        (
            "0.5.13",
            {"speculative_algorithm": "NEXTN", "speculative_num_draft_tokens": 4, "max_running_requests": 48, "max_mamba_cache_size": 120},
            120,
            (120 + 40 * 4) / 102.4,
        ),
    ],
)
def test_slots_and_states_by_release(release: str, args: dict[str, Any], slots: int, gib: float) -> None:
    found = states(10.0, GIB * 10 // 1024, args, release)  # a slot of 10 MiB, 10 GiB to share
    assert found.slots == slots
    assert found.gib == pytest.approx(gib, abs=0.01)


def test_slots_per_request() -> None:
    assert slots_per_request({"disable_radix_cache": True}) == 1
    assert slots_per_request({}) == 3
    assert slots_per_request({"mamba_scheduler_strategy": "extra_buffer"}) == 5
    assert slots_per_request({"mamba_scheduler_strategy": "extra_buffer", "speculative_algorithm": "EAGLE"}) == 4


def test_an_unknown_model_is_predicted_from_the_pool_line() -> None:
    found = predict(None, logged=262_144.0)
    assert (found.tokens, found.from_log, found.uncertain) == (predict("Qwen3-32B").tokens, True, True)
    assert "not known" in found.note
    assert predict_kv_tokens({"mem_fraction_static": 0.88}, None, PRE, POST) is None
    assert predict_kv_tokens({}, model("Qwen3-32B"), PRE, POST) is None


def test_a_checkpoint_may_ask_for_fp8() -> None:
    found = predict("Qwen3-32B", logged=131_072.0)
    assert (found.bytes_per_token, found.from_log) == (131_072, False)
    assert "FP8" in found.note


def test_a_pool_line_that_is_explained_does_not_change_the_prediction() -> None:
    four_bit = predict("Qwen2.5-1.5B-Instruct", "0.5.11", logged=7_168.0, kv_cache_dtype="fp4_e2m1")
    assert (four_bit.bytes_per_token, "block scales" in four_bit.note) == (8_064, True)
    everywhere = predict("Qwen3-Next-80B-A3B-Instruct", "0.5.7", logged=4 * 24_576.0)
    assert (everywhere.bytes_per_token, "without attention" in everywhere.note) == (24_576, True)
    ascend = predict("DeepSeek-V3.2", "0.5.7", logged=85_888.0, attention_backend="ascend")
    assert (ascend.bytes_per_token, ascend.note) == (78_324, "")


def test_a_pool_line_that_is_not_explained_wins_and_says_so() -> None:
    found = predict("Kimi-K2.5", logged=136_793.0)
    assert (found.bytes_per_token, found.from_log, found.uncertain) == (136_793, True, True)
    assert "1.947 × the 70,272 B" in found.note


def test_a_small_static_share_is_uncertain() -> None:
    found = predict_kv_tokens({"mem_fraction_static": 0.2}, model("Qwen2.5-1.5B-Instruct"), 16.48, 13.46, 27_000.0, "0.5.11", "0.5.11")
    assert found is not None
    assert found.uncertain
    assert found.bound_tokens == int(0.15 * GIB / 28_672) + 1
    assert found.note == ""


def test_releases_that_disagree_make_it_uncertain() -> None:
    args = {"mem_fraction_static": 0.88}
    found = predict_kv_tokens(args, model("DeepSeek-V3.2"), PRE, POST, None, "0.5.3", "0.5.4")
    same = predict_kv_tokens(args, model("DeepSeek-V3.2"), PRE, POST, None, "0.5.4", "0.5.9")
    assert found is not None
    assert same is not None
    assert (found.uncertain, same.uncertain) == (True, False)
    assert found.note.startswith("0.5.3 would give")


def test_the_setting_of_a_launch() -> None:
    found = kv_setting({"dsa_decode_backend": "trtllm", "kv_cache_dtype": "fp8_e4m3", "device": "npu"}, model("DeepSeek-V3.2"), "0.5.17")
    assert (found.raw_fp8_rows, found.dtype, found.wide_index) == (True, "fp8_e4m3", True)
    deep = replace(model("DeepSeek-V3"), draft_layers=3)
    assert kv_setting({"speculative_algorithm": "EAGLE"}, deep, "0.5.14").draft_layers == 1
    assert kv_setting({"speculative_algorithm": "EAGLE", "enable_multi_layer_eagle": True}, deep, "0.5.14").draft_layers == 3
    assert kv_setting({"speculative_algorithm": "NGRAM"}, deep, "0.5.14").draft_layers == 0
    alone = {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": "Qwen/Qwen3-8B"}
    assert kv_setting(alone, deep, "0.5.14").draft_layers == 36
    assert kv_setting({**alone, "speculative_algorithm": "DFLASH"}, deep, "0.5.14").dflash_layers == 36


def test_an_unknown_draft_model_makes_it_uncertain() -> None:
    assert predict("Qwen3-32B", "0.5.14", speculative_algorithm="DFLASH", speculative_draft_model_path="/drafts/mine").uncertain
    assert not predict("Qwen3-32B", "0.5.14", speculative_algorithm="NGRAM").uncertain


def test_a_pool_has_one_page_more_than_tokens() -> None:
    assert logged_bytes_per_token(70_272 * 1064 / GIB, 1000, 64) == pytest.approx(70_272)


@needs_shared
def test_real_logs_are_predicted() -> None:
    rows, lacking = accuracy.comparisons(SHARED / "real")
    errors = sorted(abs(row.error) for row in rows if row.counts)
    assert len(errors) >= 120
    assert len(lacking) <= 8
    assert errors[len(errors) // 2] <= 0.001
    assert sum(error <= 0.01 for error in errors) / len(errors) >= 0.98
    assert all(row.prediction.uncertain for row in rows if not row.counts)
    text = "\n".join(accuracy.table(rows))
    assert text.count("uncertain: static share") == len(rows) - len(errors)
    assert accuracy.summary(rows).startswith(f"{len(errors)} logs: median error 0.0")


def test_an_empty_folder_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert accuracy.main(["--real", str(tmp_path)]) == 1
    assert "No log of this folder can be compared." in capsys.readouterr().out
