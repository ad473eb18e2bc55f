"""What is known of a model's architecture, in numbers; how SGLang turns it into bytes is in ``logforensics.sglang.kv``."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Literal

from logforensics import lazy_re
from logforensics.records import record

if TYPE_CHECKING:
    from collections.abc import Mapping

Layout = Literal["heads", "latent", "compressed", "unknown"]
_MULTIMODAL = lazy_re.compile(r"ForConditionalGeneration|VL|Llava|MiniCPM[VO]|MiniCPMV2_6|Phi4MM|Vision")


@record(frozen=True)
class Layers:
    """Layers by kind of attention; ``none`` are those without any (MLP, MoE, no-op). A layer may count twice (Falcon-H1)."""

    full: int
    sliding: int = 0
    linear: int = 0
    none: int = 0


@record(frozen=True)
class Recurrent:
    """The state one linear-attention or Mamba layer keeps for a request, in elements.

    Gated DeltaNet and KDA count value heads as ``heads`` and key heads as ``groups``; Lightning has no convolution (``conv_kernel`` 0).
    """

    kind: str
    heads: int
    head_dim: int
    groups: int
    state_size: int
    conv_kernel: int


@record(frozen=True)
class LoggedWeights:
    """Weights as a real log printed them: GiB per rank at a TP size, with the class and checkpoint that were loaded."""

    class_name: str
    checkpoint: str
    tp: int
    gib_per_rank: float
    device: str


@record(frozen=True)
class Model:
    """One architecture.

    Attributes:
        id: Hugging Face id, or the path a config was read from.
        aliases: other names of the same architecture: quantised and later releases.
        architectures: classes as ``Load weight end. type=`` prints them.
        layout: how KV is kept: one row per head, one latent row (MLA), compressed rows (DeepSeek-V4), or unknown.
        num_layers: hidden layers.
        layers: layers by kind.
        kv_layers: layers for which SGLang allocates KV rows when it keeps one pool.
        heads: query heads.
        kv_heads: KV heads of the full-attention layers.
        head_dim: K elements per head.
        v_head_dim: V elements per head.
        kv_lora_rank: elements of the latent row (MLA).
        rope_dim: elements of the rotary part of the latent row (MLA).
        index_dim: elements of one index key (DSA).
        index_layers: layers with an index of their own.
        index_pool: tokens that share one index key.
        index_bytes: index bytes per token over all layers, where it is neither DSA nor none (QSA, MiniMax sparse).
        sliding_kv_heads: KV heads of the sliding-window layers, where they differ.
        sliding_head_dim: K elements per head there.
        sliding_v_head_dim: V elements per head there.
        window: sliding window in tokens.
        recurrent: the state of one linear layer.
        compress_ratios: layers by compression ratio (DeepSeek-V4).
        draft_layers: multi-token-prediction layers that come with the checkpoint.
        vocab_size: entries of the vocabulary.
        max_positions: longest context of the config, tokens.
        dtype: element type of the checkpoint's activations.
        quantization: method of quantization_config.
        parameters_b: parameters in billions (of packed formats this is not the size).
        vision: the config has a vision or audio tower; None where only the class name can tell.
        weights: weights that real logs printed.
        verified_logs: how many logs agreed with these facts.
        confidence: config, log, secondary or memory, from sure to unsure.
        sources: where the facts were read.
        notes: what to mind.
    """

    id: str
    architectures: tuple[str, ...]
    layout: Layout
    num_layers: int
    layers: Layers
    kv_layers: int | None = None
    aliases: tuple[str, ...] = ()
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    v_head_dim: int | None = None
    kv_lora_rank: int | None = None
    rope_dim: int | None = None
    index_dim: int | None = None
    index_layers: int | None = None
    index_pool: int | None = None
    index_bytes: int | None = None
    sliding_kv_heads: int | None = None
    sliding_head_dim: int | None = None
    sliding_v_head_dim: int | None = None
    window: int | None = None
    recurrent: Recurrent | None = None
    compress_ratios: tuple[tuple[int, int], ...] = ()
    draft_layers: int | None = None
    vocab_size: int | None = None
    max_positions: int | None = None
    dtype: str | None = None
    quantization: str | None = None
    parameters_b: float | None = None
    vision: bool | None = None
    weights: tuple[LoggedWeights, ...] = ()
    verified_logs: int = 0
    confidence: str = "config"
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def is_multimodal(self) -> bool:
        """Whether SGLang loads a vision or audio tower with it, by the config or the class name."""
        return self.vision if self.vision is not None else any(_MULTIMODAL.search(name) for name in self.architectures)


def model_from_record(record: Mapping[str, Any]) -> Model:
    """A model from one record of ``data/models.json``: the attributes by name, empty ones left out."""
    known = {field.name for field in fields(Model)}
    values: dict[str, Any] = {name: _tuple(value) for name, value in record.items() if name in known}
    values["layers"] = Layers(**record["layers"])
    if "recurrent" in record:
        values["recurrent"] = Recurrent(**record["recurrent"])
    values["weights"] = tuple(LoggedWeights(**entry) for entry in record.get("weights", ()))
    return Model(**values)


def _tuple(value: Any) -> Any:
    return tuple(_tuple(item) for item in value) if isinstance(value, list) else value
