"""How much GPU memory the weights of a launch will take on one rank, as an estimate with bounds.

A name and its parameters do not give a checkpoint's size to the byte: mixed formats keep some layers in 16 bits, loaders repack, DP
attention replicates. So every figure has a low and a high end; what is certain follows from the low one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from logforensics import lazy_re
from logforensics.records import record
from logforensics.sglang.terms import Term
from logforensics.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logforensics.models import Model
    from logforensics.sglang.sharding import Sharding

_BILLION = 10**9


@record(frozen=True)
class Span:
    """An estimate: lowest, likeliest and highest value."""

    low: float
    mid: float
    high: float

    def __add__(self, other: Span) -> Span:
        return Span(self.low + other.low, self.mid + other.mid, self.high + other.high)

    def scaled(self, factor: float) -> Span:
        """Every value times a factor."""
        return Span(self.low * factor, self.mid * factor, self.high * factor)


NOTHING = Span(0, 0, 0)

# Bytes per parameter of a checkpoint in this format, mixed layers included.
FORMATS: Mapping[str, Span] = {
    "fp32": Span(3.9, 4.0, 4.1),
    "bf16": Span(1.97, 2.0, 2.04),
    "fp8": Span(0.99, 1.02, 1.09),
    "int8": Span(0.99, 1.03, 1.12),
    "fp4": Span(0.5, 0.585, 0.70),
    "int4": Span(0.5, 0.58, 0.70),
    "gguf": Span(0.3, 0.6, 1.1),
}
# A name's or flag's word for a format; the first that fits.
_WORDS = (
    (lazy_re.compile(r"nvfp4|mxfp4|(?<![a-z])fp4|modelopt_fp4|petit_nvfp4"), "fp4"),
    (lazy_re.compile(r"w4a8|w4a16|int4|4bit|awq|gptq|marlin|bnb|bitsandbytes|autoround|w4afp8|moe_wna16"), "int4"),
    (lazy_re.compile(r"gguf|q[2-8]_k"), "gguf"),
    (lazy_re.compile(r"w8a8_int8|w8a8|int8|8bit|modelslim"), "int8"),
    (lazy_re.compile(r"fp8|w8a8_fp8|float8|blockwise_int8"), "fp8"),
    (lazy_re.compile(r"bf16|bfloat16|fp16|(?<![a-z])half(?![a-z])"), "bf16"),
)
# Checkpoints whose published format is none of the above: bytes per parameter (from logs and public issues).
_NATIVE: Mapping[str, Span] = {
    "moonshotai/Kimi-K2.5": Span(0.59, 0.605, 0.63),  # 72.31 GiB on each of 8 ranks
    "openai/gpt-oss-120b": Span(0.54, 0.56, 0.60),
    "openai/gpt-oss-20b": Span(0.60, 0.66, 0.72),
    "deepseek-ai/DeepSeek-V4-Pro": Span(0.53, 0.56, 0.64),
    "deepseek-ai/DeepSeek-V4-Flash": Span(0.53, 0.57, 0.64),
}
_WITHOUT_FP4 = Span(0.64, 0.68, 0.72)  # DeepSeek-V4 on cards without FP4: the floor of 0.9113 on 8 H200 (issue 2128) is 127 GiB a rank
_SIZE_IN_NAME = lazy_re.compile(r"(?<![\w.])(?:(\d{1,2})x)?(\d{1,4}(?:\.\d+)?)b(?![a-z0-9])")
_HUB_ID = lazy_re.compile(r"[\w.-]+/[\w.-]+")
_MIXTURE_SHARES = 0.83  # of experts x size: 8x7B has 46.7 billion parameters, not 56
_ATTENTION_SHARE, _ATTENTION_MOST = 0.017, 11.4  # of a large mixture's parameters, and in billions: replicated by DP attention
_FP8_ONLINE = frozenset({"fp8", "w8a8_fp8", "mxfp8"})


@record(frozen=True)
class Weights:
    """GiB of one rank, and how they were estimated.

    ``certain`` is False where only the name tells the model's size, or nothing tells the number format of a local copy.
    """

    gib: Span
    parameters_b: float
    certain: bool
    terms: tuple[Term, ...]


def estimate(name: str, model: Model | None, args: Mapping[str, Any], spread: Sharding, *, has_fp4: bool = True) -> Weights | None:
    """The weights of one rank; None where neither the model nor its name tells how many parameters there are.

    Args:
        name: model path or id.
        model: what is known of it.
        args: typed flags by field name.
        spread: parallel groups.
        has_fp4: whether the card has FP4 arithmetic.
    """
    parameters = (model.parameters_b if model else None) or parameters_of_name(name)
    if not parameters:
        return None
    form, each = bytes_per_parameter(name, model, args, has_fp4=has_fp4)
    told = _format_in(name) is not None or args.get("quantization") is not None or _HUB_ID.fullmatch(name) is not None
    ranks = spread.tp * spread.pp
    whole = each.scaled(parameters * _BILLION / GIB)
    rank = whole.scaled(1 / ranks)
    terms = [
        Term("weights", f"{parameters:g} billion × {each.mid:g} B ({form})", whole.mid, "GiB", "model facts"),
        Term("weights of one rank", f"{whole.mid:.1f} GiB / {ranks}", rank.mid, "GiB", "tensor and pipeline parallel"),
    ]
    if spread.attention_dp > 1:
        billions = min(_ATTENTION_SHARE * parameters, _ATTENTION_MOST) * (1 - 1 / spread.attention_dp)
        copied = FORMATS["fp8"].scaled(billions * _BILLION / GIB)
        rank = rank + Span(0, copied.mid / 2, copied.high)
        terms.append(Term("attention copied by DP attention", f"up to {billions:.1f} billion × 1 B", copied.mid / 2, "GiB", "estimate"))
    known = model is not None and model.parameters_b is not None
    return Weights(rank, parameters, known and told, tuple(terms))


def draft_weights(
    name: str, model: Model | None, args: Mapping[str, Any], spread: Sharding, target: Weights
) -> tuple[Span, tuple[Term, ...]]:
    """GiB of the draft model on one rank, and how they were estimated; nothing without speculation."""
    algorithm = str(args.get("speculative_algorithm") or "").upper()
    if not algorithm or algorithm in ("NGRAM", "NONE"):
        return NOTHING, ()
    own = str(args.get("speculative_draft_model_path") or "")
    if own and own != name:
        size = parameters_of_name(own)
        each = (size or 1.0) * 2 * _BILLION / GIB / spread.tp
        drafts = Span(0.2 * each, each, 2 * each) if size is None else Span(0.5 * each, each, 1.3 * each)
        return drafts, (Term("draft model", f"{size or 1:g} billion × 2 B / {spread.tp}", drafts.mid, "GiB", "its name"),)
    layers = model.num_layers if model else 60
    per_layer = target.parameters_b / layers * _BILLION / GIB / (spread.tp * spread.pp)
    drafts = Span(0.5 * per_layer, 1.2 * per_layer, 2.3 * per_layer)  # often kept in 16 bits, with an embedding of its own
    return drafts, (Term("draft layer", f"{target.parameters_b:g} billion / {layers} layers", drafts.mid, "GiB", "model facts"),)


def bytes_per_parameter(name: str, model: Model | None, args: Mapping[str, Any], *, has_fp4: bool = True) -> tuple[str, Span]:
    """The checkpoint's number format and its bytes per parameter: by name, by flags, else as the model is published."""
    by_name = _format_in(name)
    if by_name is not None:
        return by_name, FORMATS[by_name]
    quantization = str(args.get("quantization") or "").lower()
    by_flag = next((form for pattern, form in _WORDS if pattern.search(quantization)), None)
    if by_flag is not None:
        published = FORMATS[by_flag]
        online = quantization in _FP8_ONLINE and not (model and model.quantization)
        return by_flag, Span(published.low, published.mid, FORMATS["bf16"].high) if online else published
    if model is not None and model.id in _NATIVE:
        hopper = model.id.startswith("deepseek-ai/DeepSeek-V4") and not has_fp4
        return "as published", _WITHOUT_FP4 if hopper else _NATIVE[model.id]
    published_form = next((form for pattern, form in _WORDS if model and pattern.search(str(model.quantization or "").lower())), "bf16")
    if str(args.get("dtype") or "") in ("float32", "float"):
        published_form = "fp32"
    return published_form, FORMATS[published_form]


def _format_in(name: str) -> str | None:
    """The number format that the last part of a name tells."""
    base = re.split(r"[\\/]", name.rstrip("/").lower())[-1]
    return next((form for pattern, form in _WORDS if pattern.search(base)), None)


def parameters_of_name(name: str) -> float | None:
    """Billions of parameters that a name tells: ``Llama-3-70B`` 70, ``Mixtral-8x7B`` 46.5; None where it tells none."""
    base = re.split(r"[\\/]", name.rstrip("/").lower())[-1]
    for found in _SIZE_IN_NAME.finditer(re.sub(r"[_-]", " ", base)):
        experts, size = int(found[1] or 1), float(found[2])
        return experts * size * (_MIXTURE_SHARES if experts > 1 else 1)
    return None
