"""Bundled models: names, classes, and config.json."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from logforensics.errors import InputError
from logforensics.models import (
    Layers,
    Recurrent,
    all_gpus,
    all_models,
    cached_config,
    find_gpu,
    find_model,
    gpus_named,
    gpus_with_memory,
    maintain,
    model_from_config,
    models_of_class,
)

SHARED = Path(__file__).resolve().parents[3] / "shared"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the reference files are not here")


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("moonshotai/Kimi-K2.5", "moonshotai/Kimi-K2.5"),
        ("/models/Kimi-K2.5", "moonshotai/Kimi-K2.5"),
        ("/models/Kimi-K2.5/", "moonshotai/Kimi-K2.5"),
        ("C:\\models\\Qwen3-32B", "Qwen/Qwen3-32B"),
        ("/root/.cache/modelscope/hub/models/DeepSeek-R1-0528-w4a8-per-channel", "deepseek-ai/DeepSeek-R1"),
        ("vllm-ascend/Qwen3-Next-80B-A3B-Instruct-W8A8", "Qwen/Qwen3-Next-80B-A3B-Instruct"),
        ("Qwen/Qwen3-8B-AWQ", "Qwen/Qwen3-8B"),
        ("unsloth/Qwen3-32B-GGUF/Qwen3-32B-Q4_K_M.gguf", "Qwen/Qwen3-32B"),
        ("~/.cache/huggingface/hub/models--Qwen--Qwen3-32B/snapshots/9216db5781bf21249d130ec9da846c4624c16137", "Qwen/Qwen3-32B"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-FP8", "meta-llama/Llama-3.1-70B-Instruct"),
        ("zai-org/GLM-5.2-FP8", "zai-org/GLM-5.2"),
        ("DeepSeekV3", "deepseek-ai/DeepSeek-V3"),
        ("DeepSeek-R1-Distill-Qwen-32B", "Qwen/Qwen2.5-32B-Instruct"),
        ("GLM-4.5-Air-FP8", "zai-org/GLM-4.5-Air"),
    ],
)
def test_a_model_is_found_by_its_many_names(name: str, model: str) -> None:
    found = find_model(name)
    assert found is not None
    assert found.id == model


@pytest.mark.parametrize("name", ["", "/", "/data/model", "tiny-llama", "/mnt/llama", "my-finetune", "$MODEL_PATH", "../.."])
def test_a_name_that_says_nothing_is_no_model(name: str) -> None:
    assert find_model(name) is None


def test_every_id_and_alias_finds_a_model_of_the_same_shape() -> None:
    for model in all_models():
        found = find_model(model.id)
        assert found is model
        for alias in model.aliases:
            other = find_model(alias)
            assert other is not None
            assert (other.num_layers, other.layout) == (model.num_layers, model.layout), alias


def test_facts_carry_their_source_and_confidence() -> None:
    assert len(all_models()) == 187
    assert all(model.sources and model.confidence in {"config", "log", "secondary", "memory"} for model in all_models())
    assert all(gpu.sources and gpu.confidence in {"log", "secondary", "memory"} for gpu in all_gpus())
    kimi = find_model("Kimi-K2.5")
    assert kimi is not None
    assert kimi.weights[0].gib_per_rank == 72.31
    assert kimi.is_multimodal
    assert not models_of_class("Qwen3ForCausalLM")[0].is_multimodal


def test_a_class_is_shared_by_models() -> None:
    assert [model.id for model in models_of_class("Qwen3NextForCausalLM")] == ["Qwen/Qwen3-Next-80B-A3B-Instruct"]
    assert len(models_of_class("LlamaForCausalLM")) == 14
    assert models_of_class("NoSuchForCausalLM") == ()


@needs_shared
def test_the_data_is_what_maintain_makes_of_the_reference(tmp_path: Path) -> None:
    maintain.main(["--reference", str(SHARED / "reference"), "--target", str(tmp_path)])
    for name in ("models.json", "gpus.json"):
        assert (tmp_path / name).read_text(encoding="utf-8") == (maintain.DATA / name).read_text(encoding="utf-8")


# --- config.json -----------------------------------------------------------------------------------------------------------------------

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}


def test_a_plain_config() -> None:
    model = model_from_config(LLAMA)
    assert (model.layout, model.kv_heads, model.head_dim, model.v_head_dim, model.kv_layers) == ("heads", 8, 128, 128, 32)
    assert (model.architectures, model.dtype, model.layers, model.is_multimodal) == (("LlamaForCausalLM",), "bfloat16", Layers(32), False)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_key_value_heads": None}, {"kv_heads": 32}),
        ({"head_dim": 64}, {"head_dim": 64}),
        ({"multi_query": True, "num_key_value_heads": None}, {"kv_heads": 1}),
        ({"layer_types": ["sliding_attention", "full_attention"] * 16, "sliding_window": 128}, {"layers": Layers(16, 16), "window": 128}),
        ({"sliding_window_pattern": 4}, {"layers": Layers(8, 24)}),
        ({"hybrid_layer_pattern": [0, 1, 1, 1] * 8, "swa_num_key_value_heads": 4}, {"layers": Layers(8, 24), "sliding_kv_heads": 4}),
        ({"attn_type_list": [0] * 28 + [1] * 4}, {"layers": Layers(4, 0, 28), "kv_layers": 4}),
        ({"full_attention_interval": 4}, {"layers": Layers(8, 0, 24), "kv_layers": 8, "recurrent": None}),
        ({"hybrid_override_pattern": "M-*-" * 8}, {"layers": Layers(8, 0, 8, 16), "kv_layers": 8}),
        (
            {"global_head_dim": 512, "num_global_key_value_heads": 2, "head_dim": 256},
            {"head_dim": 512, "kv_heads": 2, "sliding_head_dim": 256},
        ),
        ({"quantization_config": {"quant_method": "fp8"}}, {"quantization": "fp8"}),
        ({"vision_config": {"depth": 27}}, {"vision": True, "is_multimodal": True}),
        ({"mtp_num_hidden_layers": 1}, {"draft_layers": 1}),
    ],
)
def test_what_configs_say_in_their_own_way(config: dict[str, Any], expected: dict[str, Any]) -> None:
    model = model_from_config({**LLAMA, **config})
    assert {name: getattr(model, name) for name in expected} == expected


def test_nested_and_latent_configs() -> None:
    text = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 64, "num_nextn_predict_layers": 1}
    model = model_from_config({"architectures": ["KimiK25ForConditionalGeneration"], "text_config": text, "vision_config": {"a": 1}})
    assert (model.layout, model.kv_lora_rank, model.rope_dim, model.draft_layers, model.vision) == ("latent", 512, 64, 1, True)
    sparse = model_from_config({**text, "index_head_dim": 128, "index_topk_freq": 4})
    assert (sparse.index_dim, sparse.index_layers) == (128, 16)
    deep = model_from_config({"thinker_config": {"text_config": LLAMA}})
    assert deep.num_layers == 32


@pytest.mark.parametrize(
    ("config", "state"),
    [
        (
            {
                "full_attention_interval": 4,
                "linear_num_value_heads": 32,
                "linear_num_key_heads": 16,
                "linear_value_head_dim": 128,
                "linear_key_head_dim": 128,
            },
            Recurrent("gated_delta_net", 32, 128, 16, 128, 4),
        ),
        (
            {"layers_block_type": ["mamba"] * 31 + ["attention"], "mamba_n_heads": 64, "mamba_d_head": 64, "mamba_d_state": 128},
            Recurrent("mamba2", 64, 64, 1, 128, 4),
        ),
        ({"linear_attn_config": {"full_attn_layers": [4, 8], "num_heads": 32, "head_dim": 128}}, Recurrent("kda", 32, 128, 32, 128, 4)),
    ],
)
def test_recurrent_states(config: dict[str, Any], state: Recurrent) -> None:
    assert model_from_config({**LLAMA, **config}).recurrent == state


def test_compressed_rows() -> None:
    config = {"num_hidden_layers": 3, "compress_ratios": [0, 4, 128, 4], "head_dim": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}
    model = model_from_config(config)
    assert (model.layout, model.compress_ratios) == ("compressed", ((0, 1), (4, 2), (128, 1)))


def test_files_folders_and_the_hubs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "hub" / "models--meta-llama--Llama-3.1-8B"
    for age, revision in ((2, "old"), (1, "new")):
        snapshot = repository / "snapshots" / revision
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 30 + age}), encoding="utf-8")
        os.utime(snapshot / "config.json", (1000 - age, 1000 - age))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    found = cached_config("meta-llama/Llama-3.1-8B")
    assert found == repository / "snapshots" / "new" / "config.json"
    assert model_from_config(found).num_layers == 31
    assert model_from_config(repository).num_layers == 31
    assert model_from_config(repository / "snapshots" / "old").num_layers == 32
    assert cached_config("nobody/nothing") is None
    assert cached_config("meta-llama/Llama-3.1-8B", tmp_path / "elsewhere") is None


def test_what_is_no_config_says_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    for path in (tmp_path / "absent.json", tmp_path / "broken.json", tmp_path / "list.json", tmp_path):
        with pytest.raises(InputError, match="config"):
            model_from_config(path)
    with pytest.raises(InputError, match="num_hidden_layers"):
        model_from_config({"architectures": ["CLIPModel"]})
    with pytest.raises(InputError, match="num_attention_heads"):
        model_from_config({"num_hidden_layers": 4})


# --- accelerators ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80"),
        ("H200", "h200-141"),
        ("8x H200", "h200-141"),
        ("RTX PRO 6000", "rtx-pro-6000-96"),
        ("NVIDIA RTX PRO 6000 Blac...", "rtx-pro-6000-96"),
        ("rtx3090", "rtx-3090-24"),
        ("RTX 4090", "rtx-4090-24"),
        ("MI300X", "mi300x-192"),
        ("b200", "b200-180"),
        ("a100-sxm-80", "a100-sxm-80"),
        ("RTX 6000 Ada", "rtx-6000-ada-48"),
        ("GB10", "gb10-128"),
    ],
)
def test_an_accelerator_is_found_by_its_names(name: str, gpu: str) -> None:
    found = find_gpu(name)
    assert found is not None
    assert found.id == gpu


def test_an_ambiguous_name_promises_the_least_memory() -> None:
    assert {gpu.id for gpu in gpus_named("A100")} == {"a100-pcie-40", "a100-pcie-80", "a100-sxm-40", "a100-sxm-80"}
    smallest = find_gpu("A100")
    assert smallest is not None
    assert smallest.memory_mib == 40_960
    assert {gpu.id for gpu in gpus_named("A100 80GB")} == {"a100-pcie-80", "a100-sxm-80"}
    assert find_gpu("abacus") is None
    assert find_gpu("") is None


def test_accelerators_by_memory() -> None:
    assert [gpu.id for gpu in gpus_with_memory(97_887)] == ["rtx-pro-6000-96"]
    assert {gpu.id for gpu in gpus_with_memory(97_880)} >= {"rtx-pro-6000-96", "h20-96"}
    assert "l40s-48" in {gpu.id for gpu in gpus_with_memory(49_140)}  # ECC off
    assert gpus_with_memory(123_456) == ()
