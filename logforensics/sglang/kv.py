"""Bytes of KV cache per token and rank: what SGLang divides its budget by, and what its pools then hold (MEMORY_MODEL §2).

Sources, by release: model_executor/model_runner.py:profile_max_num_token (to 0.5.6), model_runner_kv_cache_mixin.py:get_cell_size_per_token
(0.5.7 to 0.5.10), model_executor/pool_configurator.py:DefaultPoolConfigurator and HybridSWAPoolConfigurator (0.5.11+),
configs/model_config.py:is_hybrid_swa_model.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from logforensics.records import record
from logforensics.sglang.flags import release_at_least
from logforensics.sglang.releases import ByRelease
from logforensics.sglang.sharding import Sharding
from logforensics.sglang.terms import Term

if TYPE_CHECKING:
    from logforensics.models import Model

DEFAULT_SLIDING_RATIO = 0.8  # --swa-full-tokens-ratio
_V4_SLIDING_RATIO, _V4_PAGE, _V4_RING = 0.1, 256, 8  # DeepSeek-V4: window pool, page and state ring of pool_configurator.py (0.5.23)
_INDEX_BLOCK = 128  # index elements per FP8 scale of 4 bytes
_LATENT_BLOCK = 128  # latent elements per FP8 scale of 4 bytes
_CELL = "pool_configurator.py:_compute_cell_size"


@record(frozen=True)
class Elements:
    """How one stored element is kept: its bytes, and the values that share one scale byte (0: none)."""

    bytes: float
    block: int = 0

    @property
    def each(self) -> float:
        """Bytes per element, scales included."""
        return self.bytes + (1 / self.block if self.block else 0)


ELEMENTS = {
    "auto": Elements(2),
    "bf16": Elements(2),
    "bfloat16": Elements(2),
    "float16": Elements(2),
    "float32": Elements(4),
    "fp8_e4m3": Elements(1),
    "fp8_e5m2": Elements(1),
    "int8": Elements(1),
    "mxfp8": Elements(1, 32),
    "fp4_e2m1": Elements(0.5, 16),
    "nvfp4": Elements(0.5, 16),
    "fp4_mx_block16": Elements(0.5, 16),
}

COUNTS_V_HEAD_DIM = ByRelease((("0.1.26", False), ("0.5.7", True)))  # before, V was taken to be as wide as K
COUNTS_INDEX = ByRelease((("0.1.26", False), ("0.5.4", True)))
SIZES_FP8_ROW_WITH_SCALES = ByRelease((("0.1.26", False), ("0.5.17", True)))  # before, 576 B were sized and 656 stored
INDEX_ON_OWN_LAYERS_ONLY = ByRelease((("0.1.26", False), ("0.5.18", True)))
SPLITS_EXACTLY = ByRelease((("0.1.26", False), ("0.5.11", True)))  # before, tokens were sized uniformly and shifted between the pools
DRAFT_IN_CELL = ByRelease((("0.1.26", False), ("0.5.14", True)))
DFLASH_IN_CELL = ByRelease((("0.1.26", False), ("0.5.11", True)))

# Classes with a pool of their own for sliding-window layers, by first release; other models with such layers keep one uniform pool.
TWO_POOLS_SINCE = {
    "Llama4ForConditionalGeneration": "0.5.8",
    "GptOssForCausalLM": "0.5.8",
    "MiMoV2FlashForCausalLM": "0.5.8",
    "Step3p5ForCausalLM": "0.5.9",
    "MiMoV2ForCausalLM": "0.5.11",
    "Gemma4ForCausalLM": "0.5.11",
    "Gemma4ForConditionalGeneration": "0.5.11",
    "LagunaForCausalLM": "0.5.12",
    "Step3p7ForConditionalGeneration": "0.5.13",
    "Gemma4UnifiedForConditionalGeneration": "0.5.13",
    "UnlimitedOCRForCausalLM": "0.5.15",
    "MellumForCausalLM": "0.5.16",
    "InklingForConditionalGeneration": "0.5.16",
    "MuseGlimmerForCausalLM": "0.5.18",
    "MuseGlimmerForConditionalGeneration": "0.5.18",
}


@record(frozen=True)
class KvSetting:
    """What the bytes per token depend on beside the model.

    Attributes:
        release: SGLang release.
        dtype: ``--kv-cache-dtype``.
        sharding: parallel groups.
        draft_layers: layers of the draft model of EAGLE, MTP or STANDALONE speculation; 0 without.
        dflash_layers: layers of a DFLASH draft model.
        sliding_ratio: ``--swa-full-tokens-ratio``.
        raw_fp8_rows: the DSA backend keeps FP8 rows without scales (trtllm, some tilelang and HIP backends).
        wide_index: the backend keeps DSA index keys in 2 bytes without scale (Ascend).
        one_pool: sliding layers share the full pool whatever the class (``--disable-hybrid-swa-memory``).
    """

    release: str
    dtype: str = "auto"
    sharding: Sharding = field(default_factory=Sharding)
    draft_layers: int = 0
    dflash_layers: int = 0
    sliding_ratio: float = DEFAULT_SLIDING_RATIO
    raw_fp8_rows: bool = False
    wide_index: bool = False
    one_pool: bool = False

    @property
    def elements(self) -> Elements:
        """How an element is stored; an unknown dtype counts as 2 bytes."""
        return ELEMENTS.get(self.dtype, ELEMENTS["auto"])


@record(frozen=True)
class KvBytes:
    """Bytes per token on one rank.

    Attributes:
        sized: what SGLang divides its budget by; per token of the full-attention pool where there are two.
        full: per token of the main pool as stored, DSA index left out.
        sliding: per token of the sliding-window pool; 0 where there is none.
        index: per token of the index, as stored.
        draft: per token of the draft pool, where it is part of ``sized``.
        terms: how ``sized`` came about.
    """

    sized: float
    full: float
    sliding: float
    index: float
    draft: float
    terms: tuple[Term, ...]

    @property
    def stored(self) -> float:
        """Per token of the pool that the ``KV Cache is allocated`` line shows: main pool and index."""
        return self.full + self.index


def kv_bytes(model: Model, setting: KvSetting) -> KvBytes | None:
    """Bytes of KV cache per token and rank; None where the facts of the model do not suffice."""
    if model.layout == "compressed":
        return _compressed(model)
    if model.layout == "latent":
        return _with_draft(_latent(model, setting), model, setting)
    if model.layout == "heads" and model.kv_heads and model.head_dim:
        two_pools = has_two_pools(model, setting.release) and not setting.one_pool
        return _two_pools(model, setting) if two_pools else _with_draft(_uniform(model, setting), model, setting)
    return None


def has_two_pools(model: Model, release: str) -> bool:
    """Whether the release keeps sliding-window layers of this model in a pool of their own."""
    since = [TWO_POOLS_SINCE[name] for name in model.architectures if name in TWO_POOLS_SINCE]
    return model.layers.sliding > 0 and any(release_at_least(release, first) for first in since)


def heads_per_rank(kv_heads: int, attention_tp: int) -> int:
    """KV heads on one rank: whole heads, and at least one, which is then replicated (model_config.py:get_num_kv_heads)."""
    return max(1, kv_heads // attention_tp)


def stage_layers(layers: int, pp: int) -> int:
    """Layers of the largest pipeline stage, which decides the tokens of all (PP stages take the minimum of their token counts)."""
    return -(-layers // pp)


def index_row(model: Model, *, wide: bool = False) -> int:
    """Bytes of one DSA index key: FP8 with a 4-byte scale per 128 elements, or 2 bytes an element (``wide``); 0 without an index."""
    if not model.index_dim:
        return 0
    row = model.index_dim * 2 if wide else model.index_dim + model.index_dim // _INDEX_BLOCK * 4
    return -(-row // (model.index_pool or 1))


def latent_row(model: Model, elements: Elements, *, scaled: bool) -> float:
    """Bytes of one latent row (MLA, DSA); never divided by TP.

    Args:
        model: a model with ``kv_lora_rank``.
        elements: how an element is stored.
        scaled: FP8 rows of a DSA model keep scales and a 2-byte rotary part: 656 B instead of 576.
    """
    rank, rope = model.kv_lora_rank or 0, model.rope_dim or 0
    if scaled and model.index_dim and elements.bytes == 1:
        return rank + rank // _LATENT_BLOCK * 4 + rope * 2
    return (rank + rope) * elements.each


def _latent(model: Model, setting: KvSetting) -> KvBytes:
    layers = stage_layers(model.kv_layers or model.num_layers, setting.sharding.pp)
    stored = latent_row(model, setting.elements, scaled=not setting.raw_fp8_rows)
    sized = stored if SIZES_FP8_ROW_WITH_SCALES.at(setting.release) else latent_row(model, setting.elements, scaled=False)
    indexed = layers
    if INDEX_ON_OWN_LAYERS_ONLY.at(setting.release) and model.index_layers:
        indexed = stage_layers(model.index_layers, setting.sharding.pp)
    index = index_row(model) * indexed if COUNTS_INDEX.at(setting.release) else 0
    terms = [Term("latent rows", f"{sized:g} B × {layers} layers", sized * layers, "B per token", _CELL)]
    if index:
        terms.append(Term("index keys", f"{index_row(model)} B × {indexed} layers", index, "B per token", _CELL))
    return KvBytes(
        sized=sized * layers + index,
        full=stored * layers,
        sliding=0,
        index=index_row(model, wide=setting.wide_index) * indexed,
        draft=0,
        terms=tuple(terms),
    )


def _uniform(model: Model, setting: KvSetting) -> KvBytes:
    layers = stage_layers(model.kv_layers or model.num_layers, setting.sharding.pp)
    width, per_layer = _head_row(model.kv_heads or 1, model.head_dim or 0, model.v_head_dim, setting)
    index = model.index_bytes or 0
    terms = [Term("K and V", f"{width} × {layers} layers", per_layer * layers, "B per token", _CELL)]
    if index:
        terms.append(Term("index keys", "all sparse layers", index, "B per token", _CELL))
    return KvBytes(sized=per_layer * layers + index, full=per_layer * layers, sliding=0, index=index, draft=0, terms=tuple(terms))


def _head_row(kv_heads: int, head_dim: int, v_head_dim: int | None, setting: KvSetting) -> tuple[str, float]:
    """Bytes per token and layer of K and V on one rank, with the expression."""
    heads = heads_per_rank(kv_heads, setting.sharding.attention_tp)
    v_dim = v_head_dim if v_head_dim and COUNTS_V_HEAD_DIM.at(setting.release) else head_dim
    each = setting.elements.each
    return f"{heads} heads × ({head_dim} + {v_dim}) × {each:g} B", heads * (head_dim + v_dim) * each


def _two_pools(model: Model, setting: KvSetting) -> KvBytes:
    """Sliding layers in a pool of ``ratio`` times the tokens; T counts tokens of the full pool."""
    full_layers, sliding_layers = (stage_layers(n, setting.sharding.pp) for n in (model.layers.full, model.layers.sliding))
    width, per_full = _head_row(model.kv_heads or 1, model.head_dim or 0, model.v_head_dim, setting)
    sliding_dim = model.sliding_head_dim or model.head_dim or 0
    v_dim = model.sliding_v_head_dim or model.sliding_head_dim or model.v_head_dim
    sliding_width, per_sliding = _head_row(model.sliding_kv_heads or model.kv_heads or 1, sliding_dim, v_dim, setting)
    ratio = setting.sliding_ratio
    if SPLITS_EXACTLY.at(setting.release):
        sliding_share = ratio * per_sliding * sliding_layers
    else:
        sliding_share, sliding_width = ratio * per_full * sliding_layers, width
    draft = per_full * setting.draft_layers if DRAFT_IN_CELL.at(setting.release) else 0
    terms = (
        Term("full-attention layers", f"{width} × {full_layers} layers", per_full * full_layers, "B per token", _CELL),
        Term("sliding layers", f"{ratio:g} × {sliding_width} × {sliding_layers} layers", sliding_share, "B per token", _CELL),
        *([Term("draft layers", f"{setting.draft_layers} × {per_full:g} B", draft, "B per token", _CELL)] if draft else []),
    )
    sized = per_full * full_layers + sliding_share + draft
    return KvBytes(sized, per_full * full_layers, per_sliding * sliding_layers, 0, draft, terms)


def _with_draft(target: KvBytes, model: Model, setting: KvSetting) -> KvBytes:
    """Add the draft model's KV where the release sizes it together with the target's: ``c × (1 + draft layers / layers)``."""
    layers = stage_layers(model.kv_layers or model.num_layers, setting.sharding.pp)
    drafts = (setting.draft_layers if DRAFT_IN_CELL.at(setting.release) else 0) + (
        setting.dflash_layers if DFLASH_IN_CELL.at(setting.release) else 0
    )
    if not drafts:
        return target
    draft = target.sized * drafts / layers
    term = Term("draft layers", f"{target.sized:g} B × {drafts} / {layers}", draft, "B per token", _CELL)
    return KvBytes(int(target.sized + draft), target.full, target.sliding, target.index, draft, (*target.terms, term))


def _compressed(model: Model) -> KvBytes:
    """DeepSeek-V4: FP8 rows whatever the flag, one per 4 or 128 tokens, a window pool at a tenth, a ring of states for the 4-fold layers."""
    ratios = dict(model.compress_ratios)
    width, rope, index = model.head_dim or 0, model.rope_dim or 0, model.index_dim or 0
    row = width + rope + 8
    full = sum(row / ratio * layers for ratio, layers in ratios.items() if ratio)
    index_bytes = (index + index // _INDEX_BLOCK * 4) / 4 * ratios.get(4, 0)
    ring = _V4_RING / _V4_PAGE * 4 * (width + index) * 4
    sliding = row * model.num_layers + ring * ratios.get(4, 0)
    source = "pool_configurator.py:DSV4PoolConfigurator (0.5.23)"
    terms = (
        Term("compressed rows", f"{row} B / ratio, over the layers", full, "B per token", source),
        Term("index keys", f"{ratios.get(4, 0)} layers, one key per 4 tokens", index_bytes, "B per token", source),
        Term("window pool", f"{_V4_SLIDING_RATIO} × {sliding:g} B", _V4_SLIDING_RATIO * sliding, "B per token", source),
    )
    return KvBytes(full + index_bytes + _V4_SLIDING_RATIO * sliding, full, sliding, index_bytes, 0, terms)


def state_slot_bytes(model: Model, attention_tp: int, *, state_bytes: int = 4, conv_bytes: int = 2) -> int | None:
    """Bytes of one recurrent-state slot of all linear layers on one rank; None where the model has none or its sizes are unknown.

    Source: configs/mamba_utils.py (0.5.23): the last ``kernel - 1`` inputs of the convolution, and one state matrix per head.

    Args:
        model: the model.
        attention_tp: ranks that share the heads.
        state_bytes: bytes of a state element: ``--mamba-ssm-dtype``, float32 by default.
        conv_bytes: bytes of a convolution element, bfloat16.
    """
    state = model.recurrent
    if state is None or not state.conv_kernel or state.heads % attention_tp:
        return None
    groups = -(-state.groups // attention_tp) * attention_tp  # groups are padded to a multiple of the ranks
    inputs = (state.heads * state.head_dim + 2 * groups * state.state_size) // attention_tp
    matrix = state.heads // attention_tp * state.head_dim * state.state_size
    return model.layers.linear * (inputs * (state.conv_kernel - 1) * conv_bytes + matrix * state_bytes)
