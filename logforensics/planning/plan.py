"""A launch before it happens: what its flags, the model and the machine decide, stage by stage."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

from logforensics.planning import weights
from logforensics.planning.weights import NOTHING, Span, Weights
from logforensics.records import record
from logforensics.sglang.default_fraction import DefaultFraction, default_fraction, vision_factor
from logforensics.sglang.flags import find_flag
from logforensics.sglang.kv import KvBytes, kv_bytes
from logforensics.sglang.prediction import KvPrediction, draft_weights_first, kv_setting, predict_kv_tokens
from logforensics.sglang.sharding import Sharding, sharding
from logforensics.sglang.terms import Term

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logforensics.command import LaunchCommand
    from logforensics.hardware import Hardware
    from logforensics.models import Gpu, Model
    from logforensics.rules import Release

_LAYOUT = ("tp_size", "pp_size", "dp_size", "nnodes")
_MIB_PER_GIB = 1024
# What driver, context and communication buffers take before weights load (GiB), from the logs in gpus.json.
_BEFORE_LOAD = {"nvidia": Span(0.9, 1.3, 1.9), "amd": Span(2.0, 3.5, 5.0)}
_MORE_WITH_RANKS = Span(0.3, 1.0, 1.8)
_UNIFIED_FREE = Span(108.0, 114.0, 116.0)  # GB10, by the logs in gpus.json


@record(frozen=True)
class Plan:
    """What can be known before the launch. Sizes are GiB of one GPU unless they say otherwise.

    Attributes:
        command: the launch.
        args: its flags by field name, typed; a value that only a run gives is text.
        release: the release, as a range.
        version: the version as the user or an image tag says it, None where nobody does.
        hardware: the machine.
        gpu: the accelerator, where its name is known.
        model: the architecture, where it is known.
    """

    command: LaunchCommand
    args: Mapping[str, Any]
    release: Release
    version: str | None
    hardware: Hardware
    gpu: Gpu | None
    model: Model | None

    # ------------------------------------------------------------------------------------------------ layout

    @property
    def model_name(self) -> str:
        """Model path or, where that is only a mount point, the served name."""
        path, served = str(self.args.get("model_path") or ""), str(self.args.get("served_model_name") or "")
        return served if served and "/" in served and path.strip("/").count("/") == 0 else path

    @property
    def layout_known(self) -> bool:
        """Whether the parallel sizes are numbers and not variables that only a run fills."""
        return not any(isinstance(self.args.get(name), str) for name in _LAYOUT)

    @cached_property
    def spread(self) -> Sharding:
        """The parallel groups."""
        return sharding(self.args)

    @property
    def nodes(self) -> int:
        """Machines that the server spans."""
        return int(self.number("nnodes") or self.command.place.nodes or 1)

    @property
    def on_cpu(self) -> bool:
        """Whether the launch uses no accelerator."""
        return str(self.args.get("device") or "") == "cpu"

    def number(self, field: str) -> float | None:
        """A numeric flag, None where it is absent or not a number."""
        value = self.args.get(field)
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def has(self, field: str) -> bool:
        """Whether a flag is given and not off."""
        value = self.args.get(field)
        return value is not None and value is not False

    @property
    def spoken(self) -> str:
        """The release that formulas are taken from: the newest that fits."""
        return self.release.high

    # ------------------------------------------------------------------------------------------------ memory, stage by stage

    @cached_property
    def card_gib(self) -> float | None:
        """Memory of one card."""
        if self.hardware.gpu_memory_bytes is not None:
            return self.hardware.gpu_memory_bytes / (1 << 30)
        return self.gpu.memory_mib / _MIB_PER_GIB if self.gpu and self.gpu.memory_mib else None

    @cached_property
    def free_gib(self) -> Span | None:
        """Free before loading (P)."""
        if self.gpu is not None and self.gpu.unified:
            return _UNIFIED_FREE
        if self.card_gib is None or self.on_cpu:
            return None
        taken = _BEFORE_LOAD.get(self.gpu.vendor if self.gpu else "nvidia", _BEFORE_LOAD["amd"])
        if self.spread.tp * self.spread.pp > 1:
            taken = taken + _MORE_WITH_RANKS
        return Span(self.card_gib - taken.high, self.card_gib - taken.mid, self.card_gib - taken.low)

    @cached_property
    def weights(self) -> Weights | None:
        """Weights of one rank."""
        if not self.layout_known or self.has("cpu_offload_gb") or str(self.args.get("load_format")) == "dummy":
            return None
        fp4 = self.gpu is None or self.gpu.fp4
        return weights.estimate(self.model_name, self.model, self.args, self.spread, has_fp4=fp4)

    @cached_property
    def drafts(self) -> tuple[Span, tuple[Term, ...]]:
        """Weights of the draft model of one rank, and how they were estimated."""
        if self.weights is None:
            return NOTHING, ()
        return weights.draft_weights(self.model_name, self.model, self.args, self.spread, self.weights)

    @cached_property
    def fraction(self) -> DefaultFraction | None:
        """The static fraction: typed, else as the release computes it."""
        typed = self.number("mem_fraction_static")
        if typed is not None:
            return DefaultFraction(typed, (Term("mem_fraction_static", "given", typed, "of free memory", "--mem-fraction-static"),))
        return self.computed_fraction

    @cached_property
    def computed_fraction(self) -> DefaultFraction | None:
        """The fraction that the release would compute for this launch."""
        if self.card_gib is None or not self.layout_known:
            return None
        vision = vision_factor() if self.model is not None and self.model.is_multimodal else None
        latent = self.model is not None and self.model.layout == "latent"
        card = self.card_gib * _MIB_PER_GIB
        ends = dict.fromkeys((self.release.high, self.release.low))
        found = [default_fraction(self.args, card, release, latent=latent, vision_factor=vision) for release in ends]
        return max(found, key=lambda item: item.fraction)  # where the release is not known, the kinder one

    @cached_property
    def resident_gib(self) -> Span | None:
        """Weights that lie inside the static share: the draft's too where the release loads it first."""
        if self.weights is None:
            return None
        return self.weights.gib + self.drafts[0] if draft_weights_first(self.spoken) else self.weights.gib

    @cached_property
    def rest_gib(self) -> Span | None:
        """What the static share leaves for KV and states."""
        if self.resident_gib is None or self.free_gib is None or self.fraction is None:
            return None
        f, p, w = self.fraction.fraction, self.free_gib, self.resident_gib
        return Span(f * p.low - w.high, f * p.mid - w.mid, f * p.high - w.low)

    @cached_property
    def outside_gib(self) -> float | None:
        """What stays beside the static share: P × (1 - f)."""
        return None if self.free_gib is None or self.fraction is None else self.free_gib.mid * (1 - self.fraction.fraction)

    @cached_property
    def kv(self) -> KvBytes | None:
        """Bytes of KV per token and rank."""
        return kv_bytes(self.model, kv_setting(self.args, self.model, self.spoken)) if self.model and self.layout_known else None

    @cached_property
    def prediction(self) -> KvPrediction | None:
        """Predicted KV tokens at the likeliest weights."""
        return self._prediction(0.5)

    @cached_property
    def tokens(self) -> Span | None:
        """KV tokens at the highest, likeliest and lowest weights."""
        found = [self._prediction(at) for at in (0.0, 0.5, 1.0)]
        if any(item is None for item in found):
            return None
        low, mid, high = (float(item.tokens) for item in found if item is not None)
        return Span(low, mid, high)

    def _prediction(self, at: float) -> KvPrediction | None:
        if self.model is None or self.free_gib is None or self.resident_gib is None or self.fraction is None:
            return None
        free, held = self.free_gib.mid, self.resident_gib
        loaded = held.high if at == 0.0 else held.low if at == 1.0 else held.mid
        args = {**self.args, "mem_fraction_static": self.fraction.fraction}
        return predict_kv_tokens(args, self.model, free, max(free - loaded, 0.0), None, self.spoken, self.spoken)


def arguments(command: LaunchCommand, release: str | None) -> dict[str, Any]:
    """The flags of a command by field name; numbers that no server can mean (``impossible``) are left out."""
    args: dict[str, Any] = {}
    for name, value in command.flags.items():
        flag = (find_flag(command.typed.get(name, name), release) if release else None) or find_flag(name)
        if flag is not None and not impossible(flag.field, value):
            args[flag.field] = value
    return args


def impossible(field: str, value: Any) -> bool:
    """Whether a number lies where no server can start with it: not finite, a fraction outside 0 … 1, a size below 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if not math.isfinite(value) or abs(value) > _LARGEST:
        return True
    if field == "mem_fraction_static":
        return not 0 < value < 1
    return field in _SIZES and value < 1


_LARGEST = 10**12
_SIZES = frozenset(
    {"tp_size", "pp_size", "dp_size", "ep_size", "nnodes", "page_size", "context_length", "max_running_requests", "max_total_tokens"}
)
