"""Bytes of KV cache per token and rank, recurrent states, sharding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from logforensics.models import Layers, Model, all_models, find_model, model_from_config
from logforensics.sglang.kv import ELEMENTS, KvSetting, has_two_pools, index_row, kv_bytes, state_slot_bytes
from logforensics.sglang.sharding import Sharding, sharding
from logforensics.units import GB, GIB

SHARED = Path(__file__).resolve().parents[3] / "shared"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the reference files are not here")


def model(name: str) -> Model:
    found = find_model(name)
    assert found is not None, name
    return found


def cell(name: str, *, release: str = "0.5.23", tp: int = 1, **setting: Any) -> float:
    found = kv_bytes(model(name), KvSetting(release, sharding=Sharding(tp=tp), **setting))
    assert found is not None
    return found.sized


# MEMORY_MODEL §2: bf16 at TP 1, 4 and 8, fp8 at TP 8
WORKED = [
    ("Llama-3.1-8B-Instruct", 131_072, 32_768, 16_384, 8_192),
    ("Llama-3.1-70B-Instruct", 327_680, 81_920, 40_960, 20_480),
    ("Mixtral-8x7B-Instruct-v0.1", 131_072, 32_768, 16_384, 8_192),
    ("Qwen3-8B", 147_456, 36_864, 18_432, 9_216),
    ("Qwen3-32B", 262_144, 65_536, 32_768, 16_384),
    ("Qwen3-30B-A3B", 98_304, 24_576, 24_576, 12_288),
    ("Qwen3-235B-A22B", 192_512, 48_128, 48_128, 24_064),
    ("GLM-4.5", 376_832, 94_208, 47_104, 23_552),
    ("DeepSeek-V3", 70_272, 70_272, 70_272, 35_136),
    ("Kimi-K2.5", 70_272, 70_272, 70_272, 35_136),
    ("DeepSeek-V3.2", 78_324, 78_324, 78_324, 48_068),
    ("GLM-5", 100_152, 100_152, 100_152, 61_464),
    ("gpt-oss-20b", 44_236, 11_059, 5_529, 2_764),
    ("gpt-oss-120b", 66_355, 16_588, 8_294, 4_147),
    ("gemma-3-27b-it", 507_904, 126_976, 63_488, 31_744),
    ("Qwen3-Next-80B-A3B-Instruct", 24_576, 12_288, 12_288, 6_144),
    ("Qwen3.5-397B-A17B", 30_720, 15_360, 15_360, 7_680),
]


@pytest.mark.parametrize(("name", "tp1", "tp4", "tp8", "fp8"), WORKED)
def test_the_worked_table_of_the_memory_model(name: str, tp1: int, tp4: int, tp8: int, fp8: int) -> None:
    assert [int(cell(name, tp=tp)) for tp in (1, 4, 8)] == [tp1, tp4, tp8]
    assert int(cell(name, tp=8, dtype="fp8_e4m3")) == fp8


@needs_shared
def test_every_model_of_the_reference_has_its_bytes_at_every_tp() -> None:
    facts = {fact["id"]: fact for fact in json.loads((SHARED / "reference" / "models.json").read_text(encoding="utf-8"))}
    compared = 0
    for known in all_models():
        wanted = facts[known.id]["kv_bytes"]
        for dtype, key in (("auto", "bf16_by_tp"), ("fp8_e4m3", "fp8_by_tp")):
            for tp, expected in (wanted[key] or {}).items():
                found = kv_bytes(known, KvSetting("0.5.23", dtype=dtype, sharding=Sharding(tp=int(tp))))
                assert found is not None
                assert found.sized == pytest.approx(expected, abs=0.01), (known.id, dtype, tp)
                compared += 1
        for tp, key in ((1, "state_slot_bytes_tp1"), (8, "state_slot_bytes_tp8")):
            assert state_slot_bytes(known, tp) == facts[known.id][key], known.id
    assert compared == 1850


# MEMORY_MODEL §9 and MODELS §2: figures other people's logs printed
@pytest.mark.parametrize(
    ("name", "tp", "tokens", "printed", "unit"),
    [
        ("Qwen3-235B-A22B", 4, 367_404, 2 * 8.23, GIB),  # vLLM issue 21348
        ("Qwen3-30B-A3B", 1, 1_669_816, 2 * 76.44, GIB),  # PR 18263
        ("Kimi-K2-Instruct", 1, 715_072, 46.80, GIB),  # a vLLM log
        ("Llama-3.1-8B-Instruct", 4, 2 * 1_005_629, 65.90, GB),  # issue 7059, host pool at ratio 2
        ("Kimi-K2.5", 8, 158_999, 10.41, GIB),  # the founding case's last run
    ],
)
def test_public_logs(name: str, tp: int, tokens: int, printed: float, unit: int) -> None:
    assert tokens * cell(name, tp=tp) / unit == pytest.approx(printed, abs=0.011)


def test_pr_29263_index_pool_of_glm_5_2() -> None:
    glm = model("GLM-5.2")
    assert 150 * GB // (576 * 78) * index_row(glm) * 78 / GB == pytest.approx(34.38, abs=0.01)


def test_latent_rows_are_never_divided_and_dp_attention_stops_the_split_of_heads() -> None:
    assert cell("Kimi-K2.5", tp=1) == cell("Kimi-K2.5", tp=8)
    assert cell("Llama-3.1-8B-Instruct", tp=8) == 16_384
    whole = kv_bytes(model("Llama-3.1-8B-Instruct"), KvSetting("0.5.9", sharding=Sharding(tp=8, attention_dp=8)))
    assert whole is not None
    assert whole.sized == 131_072


def test_a_pipeline_stage_holds_its_layers() -> None:
    half = kv_bytes(model("Kimi-K2.5"), KvSetting("0.5.9", sharding=Sharding(tp=8, pp=2)))
    assert half is not None
    assert half.sized == 1152 * 31  # the larger stage of 61 layers


@pytest.mark.parametrize(
    ("release", "raw", "sized", "stored"),
    [
        ("0.5.16", False, (576 + 132) * 61, (656 + 132) * 61),  # the pool overruns its budget by 11 %
        ("0.5.17", False, (656 + 132) * 61, (656 + 132) * 61),
        ("0.5.17", True, (656 + 132) * 61, (576 + 132) * 61),
    ],
)
def test_fp8_rows_of_dsa_by_release(release: str, raw: bool, sized: int, stored: int) -> None:  # noqa: FBT001
    found = kv_bytes(model("DeepSeek-V3.2"), KvSetting(release, dtype="fp8_e4m3", raw_fp8_rows=raw))
    assert found is not None
    assert found.stored == stored
    assert raw or found.sized == sized


def test_the_index_by_release_and_backend() -> None:
    assert cell("DeepSeek-V3.2", release="0.5.3") == 70_272
    assert cell("DeepSeek-V3.2", release="0.5.4") == 78_324
    ascend = kv_bytes(model("DeepSeek-V3.2"), KvSetting("0.5.7", wide_index=True))
    assert ascend is not None
    assert (ascend.sized, ascend.stored) == (78_324, 85_888)  # KV_PREDICTION 3
    assert (cell("GLM-5.2", release="0.5.17"), cell("GLM-5.2", release="0.5.18")) == (100_152, 92_628)


def test_four_bit_and_block_scaled_formats() -> None:
    assert cell("Qwen2.5-1.5B-Instruct", dtype="fp4_e2m1") == 8_064  # KV_PREDICTION 4: 28 × 2 × 128 × 2 × 0.5625
    assert cell("Qwen3-8B", dtype="mxfp8") == 147_456 / 2 * (1 + 1 / 32)
    assert KvSetting("0.5.9", dtype="something-new").elements == ELEMENTS["auto"]


def test_v_heads_count_apart_from_0_5_7() -> None:
    mimo = model("MiMo-V2-Flash")
    old, new = (kv_bytes(mimo, KvSetting(release, one_pool=True)) for release in ("0.5.6", "0.5.7"))
    assert old is not None
    assert new is not None
    assert (old.sized, new.sized) == (4 * 384 * 48 * 2, 4 * 320 * 48 * 2)


def test_two_pools_by_release() -> None:
    oss = model("gpt-oss-20b")
    assert [has_two_pools(oss, release) for release in ("0.5.7", "0.5.8")] == [False, True]
    assert cell("gpt-oss-20b", release="0.5.7") == 49_152
    assert cell("gpt-oss-20b", release="0.5.8") == pytest.approx(49_152 * (0.8 * 12 + 12) / 24)  # equal heads: both rules agree
    assert cell("gpt-oss-20b", one_pool=True) == 49_152
    assert not has_two_pools(model("gemma-3-27b-it"), "0.5.23")
    assert cell("gpt-oss-20b", sliding_ratio=0.1) == pytest.approx(2048 * 12 * 1.1)


def test_draft_layers_count_from_0_5_14() -> None:
    assert cell("DeepSeek-V3", release="0.5.13", draft_layers=1) == 70_272
    assert cell("DeepSeek-V3", release="0.5.14", draft_layers=1) == 71_424
    assert cell("gpt-oss-20b", release="0.5.14", draft_layers=1) == pytest.approx(44_236.8 + 2048)
    assert cell("Qwen3-8B", release="0.5.11", dflash_layers=6) == 147_456 * 42 // 36


def test_a_model_without_facts_has_no_bytes() -> None:
    assert kv_bytes(Model("x", (), "unknown", 10, Layers(10)), KvSetting("0.5.9")) is None
    assert state_slot_bytes(model("Qwen3-8B"), 1) is None
    assert state_slot_bytes(model("Qwen3.5-27B"), 32) is None  # 48 heads do not divide


def test_state_slots_of_gated_delta_net() -> None:
    assert state_slot_bytes(model("Qwen3-Next-80B-A3B-Instruct"), 8) == 9_658_368
    assert state_slot_bytes(model("Qwen3.5-397B-A17B"), 1) == 192_061_440
    slot = state_slot_bytes(model("Qwen3.5-27B"), 1)
    assert slot is not None
    assert 217 * slot / GIB == pytest.approx(30.52 + 0.60, abs=0.011)  # a real log: 216 charged slots and one more


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, Sharding()),
        ({"tp_size": 8, "dp_size": 4, "enable_dp_attention": True}, Sharding(tp=8, attention_dp=4)),
        ({"tp_size": 2, "dp_size": 4}, Sharding(tp=2, replicas=4)),
        ({"tp_size": 8, "attn_dp_size": 8, "dp_size": 1}, Sharding(tp=8, attention_dp=8)),
        ({"tp_size": 8, "attn_cp_size": 2, "pp_size": 2}, Sharding(tp=8, attention_cp=2, pp=2)),
        ({"tp_size": True, "pp_size": "2"}, Sharding()),
    ],
)
def test_sharding(args: dict[str, Any], expected: Sharding) -> None:
    assert sharding(args) == expected
    assert Sharding(tp=8, attention_dp=4).attention_tp == 2


def test_a_config_gives_the_same_bytes_as_the_bundled_facts() -> None:
    config = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 128, "index_head_dim": 128}
    found = kv_bytes(model_from_config(config), KvSetting("0.5.9"))
    assert found is not None
    assert found.sized == cell("DeepSeek-V3.2", release="0.5.9")
