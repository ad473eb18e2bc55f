"""Reading a Hugging Face ``config.json`` into a :class:`Model`.

Configs of one generation differ from the next in names and nesting only; each fact is a list of the keys it has gone by.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logforensics.errors import InputError
from logforensics.models.model import Layers, Layout, Model, Recurrent

_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config", "language_model_config")
_TOWERS = ("vision_config", "audio_config", "vision_tower", "mm_vision_tower")
_NUM_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num", "num_attention_groups", "n_head_kv")
_HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim")
_WIDTH = ("hidden_size", "n_embd", "d_model")
_DRAFT = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
_POSITIONS = ("max_position_embeddings", "seq_length", "n_positions", "max_seq_len")

# What a layer is called, by kind of attention: entries of layer_types and layers_block_type, letters of hybrid_override_pattern.
_KINDS = {
    "full": frozenset({"full_attention", "attention", "global", "*", "hybrid"}),
    "sliding": frozenset({"sliding_attention", "chunked_attention", "local"}),
    "linear": frozenset({"linear_attention", "mamba", "mamba2", "kda", "M", "conv"}),
}


def model_from_config(source: str | os.PathLike[str] | Mapping[str, Any]) -> Model:
    """The architecture that a Hugging Face config describes.

    Args:
        source: the parsed config, a ``config.json``, a folder that holds one, or a repository's folder in the hub's cache.

    Raises:
        InputError: there is no config, it is no JSON object, or it lacks what a KV cache's size follows from.
    """
    if isinstance(source, Mapping):
        return _read(source, str(source.get("_name_or_path") or "config"))
    path = _config_file(Path(source).expanduser())
    try:
        parsed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the model config {path}: {error}") from error
    if not isinstance(parsed, dict):
        raise InputError(f"the model config {path} is no JSON object: give the config.json of the checkpoint")
    return _read(parsed, str(path))


def cached_config(model_id: str, cache: str | os.PathLike[str] | None = None) -> Path | None:
    """The ``config.json`` of a model in the local Hugging Face cache; None where it was never downloaded.

    Args:
        model_id: hub id such as ``Qwen/Qwen3-32B``.
        cache: the hub's cache folder; by default ``$HF_HUB_CACHE``, ``$HF_HOME/hub`` or ``~/.cache/huggingface/hub``.
    """
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    hub = Path(cache or os.environ.get("HF_HUB_CACHE") or home / "hub").expanduser()
    return _newest(hub / f"models--{model_id.replace('/', '--')}")


def _config_file(path: Path) -> Path:
    if not path.is_dir():
        return path
    direct = path / "config.json"
    found = direct if direct.is_file() else _newest(path)
    if found is None:
        raise InputError(f"no config.json in {path}: give the folder of the checkpoint, or the file itself")
    return found


def _newest(repository: Path) -> Path | None:
    snapshots = repository.glob("snapshots/*/config.json")
    return max(snapshots, key=lambda found: found.stat().st_mtime, default=None)


def _read(config: Mapping[str, Any], name: str) -> Model:
    text = _text_part(config)
    num_layers = _first(text, _NUM_LAYERS) or len(_kinds_by_layer(text))
    if not num_layers:
        raise InputError(f"the model config {name} has no number of layers (num_hidden_layers): is it the config.json of a language model?")
    layers = _layers(text, num_layers)
    return Model(
        id=name,
        architectures=tuple(config.get("architectures") or text.get("architectures") or ()),
        num_layers=num_layers,
        layers=layers,
        kv_layers=layers.full if layers.linear else num_layers,
        draft_layers=_first(text, _DRAFT) or _first(config, _DRAFT),
        vocab_size=text.get("vocab_size"),
        max_positions=_first(text, _POSITIONS),
        dtype=text.get("torch_dtype") or text.get("dtype") or config.get("torch_dtype") or config.get("dtype"),
        quantization=(config.get("quantization_config") or text.get("quantization_config") or {}).get("quant_method"),
        vision=any(config.get(tower) for tower in _TOWERS) or None,
        window=text.get("sliding_window"),
        recurrent=_recurrent(text) if layers.linear else None,
        sources=(name,),
        **_attention(text, name),
    )


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a config, however deep it is nested."""
    for part in _TEXT_PARTS:
        if isinstance(config.get(part), Mapping):
            return _text_part(config[part])
    return config


def _attention(text: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The fields of Model that say how one token's KV looks in one layer."""
    if text.get("compress_ratios"):
        ratios = tuple(sorted(Counter(text["compress_ratios"]).items()))
        index = {"index_dim": text.get("index_head_dim"), "rope_dim": text.get("qk_rope_head_dim")}
        return {"layout": "compressed", "compress_ratios": ratios, "head_dim": text.get("head_dim"), **index}
    if text.get("kv_lora_rank"):
        return _latent(text)
    return _per_head(text, name)


def _latent(text: Mapping[str, Any]) -> dict[str, Any]:
    layout: Layout = "latent"
    index = text.get("index_head_dim")
    every = _first(text, ("index_topk_freq",)) or 1
    return {
        "layout": layout,
        "heads": _first(text, _HEADS),
        "kv_lora_rank": text["kv_lora_rank"],
        "rope_dim": text.get("qk_rope_head_dim") or 0,
        "index_dim": index,
        "index_layers": -(-(_first(text, _NUM_LAYERS) or 0) // every) if index else None,
    }


def _per_head(text: Mapping[str, Any], name: str) -> dict[str, Any]:
    heads = _first(text, _HEADS)
    width = _first(text, _WIDTH)
    head_dim = _first(text, _HEAD_DIM) or (width // heads if width and heads else None)
    if heads is None or head_dim is None:
        raise InputError(f"the model config {name} lacks num_attention_heads, head_dim or hidden_size: its KV size cannot be known")
    kv_heads = 1 if text.get("multi_query") and not text.get("num_kv_heads") else _first(text, _KV_HEADS) or heads
    layout: Layout = "heads"
    own = {"layout": layout, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "v_head_dim": text.get("v_head_dim") or head_dim}
    return own | _sliding_heads(text, own)


def _sliding_heads(text: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """KV heads of the sliding layers, where a config tells them apart; some name the full layers ``global`` instead."""
    if text.get("global_head_dim"):
        full = text["global_head_dim"]
        kv_heads = text.get("num_global_key_value_heads") or own["kv_heads"]
        sliding = {"sliding_kv_heads": own["kv_heads"], "sliding_head_dim": own["head_dim"], "sliding_v_head_dim": own["head_dim"]}
        return {"kv_heads": kv_heads, "head_dim": full, "v_head_dim": full, **sliding}
    names = {
        "sliding_kv_heads": "swa_num_key_value_heads",
        "sliding_head_dim": "swa_head_dim",
        "sliding_v_head_dim": "swa_v_head_dim",
    }
    return {ours: text[theirs] for ours, theirs in names.items() if text.get(theirs)}


def _layers(text: Mapping[str, Any], num_layers: int) -> Layers:
    """Layers by kind, from whichever list, pattern or interval the config has."""
    linear = text.get("linear_attn_config")
    if isinstance(linear, Mapping) and linear.get("full_attn_layers"):
        full = len(linear["full_attn_layers"])
        return Layers(full=full, linear=num_layers - full)
    kinds = Counter(_kinds_by_layer(text)[:num_layers])
    if kinds:
        return Layers(full=kinds["full"], sliding=kinds["sliding"], linear=kinds["linear"], none=kinds["none"])
    interval = text.get("full_attention_interval")
    if interval:
        return Layers(full=num_layers // interval, linear=num_layers - num_layers // interval)
    pattern = text.get("sliding_window_pattern")
    if isinstance(pattern, int) and pattern > 1:
        return Layers(full=num_layers // pattern, sliding=num_layers - num_layers // pattern)
    return Layers(full=num_layers)


def _kinds_by_layer(text: Mapping[str, Any]) -> list[str]:
    if text.get("hybrid_layer_pattern"):  # MiMo: 1 is sliding
        return ["sliding" if entry else "full" for entry in text["hybrid_layer_pattern"]]
    if text.get("attn_type_list"):  # MiniMax: 1 is full
        return ["full" if entry else "linear" for entry in text["attn_type_list"]]
    named = text.get("layer_types") or text.get("layers_block_type") or text.get("hybrid_override_pattern") or ()
    return [next((kind for kind, names in _KINDS.items() if entry in names), "none") for entry in named]


def _recurrent(text: Mapping[str, Any]) -> Recurrent | None:
    """The state of one linear layer; None where the config lacks its sizes."""
    kda = text.get("linear_attn_config")
    if isinstance(kda, Mapping):
        heads, size = kda.get("num_heads"), kda.get("head_dim")
        return Recurrent("kda", heads, size, heads, size, kda.get("short_conv_kernel_size", 4)) if heads and size else None
    if text.get("linear_num_value_heads"):
        return Recurrent(
            "gated_delta_net",
            text["linear_num_value_heads"],
            text["linear_value_head_dim"],
            text["linear_num_key_heads"],
            text["linear_key_head_dim"],
            text.get("linear_conv_kernel_dim", 4),
        )
    heads = text.get("mamba_num_heads") or text.get("mamba_n_heads")
    size = text.get("mamba_head_dim") or text.get("mamba_d_head")
    state = text.get("ssm_state_size") or text.get("mamba_d_state")
    if not heads or not isinstance(size, int) or not state:
        return None
    groups = text.get("n_groups") or text.get("mamba_n_groups") or 1
    return Recurrent("mamba2", heads, size, groups, state, text.get("conv_kernel") or text.get("mamba_d_conv") or 4)


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The first of these keys that holds a number."""
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)
