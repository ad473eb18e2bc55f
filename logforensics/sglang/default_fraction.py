"""The ``--mem-fraction-static`` that SGLang computes when none is given, by release (MEMORY_MODEL §1.4).

``f = (card − reserve) / card``: the reserve is an estimate of activations and graphs, in MiB, and the card is the smallest
``memory.total`` of nvidia-smi. Source: server_args.py:__post_init__ (to 0.5.2), _handle_gpu_memory_settings (0.5.3 to 0.5.18),
arg_groups/memory_hook.py:handle_gpu_memory_settings (0.5.19+).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from logforensics.records import record
from logforensics.sglang.releases import ByRelease
from logforensics.sglang.sharding import Sharding, positive, sharding
from logforensics.sglang.terms import Term

if TYPE_CHECKING:
    from collections.abc import Mapping

GIB_IN_MIB = 1024
_FLOOR_MIB, _FLOOR_ABOVE_MIB = 10 * GIB_IN_MIB, 60 * GIB_IN_MIB
_VISION_FACTOR = 0.95
_SOURCE = "handle_gpu_memory_settings"


@record(frozen=True)
class CardClass:
    """Defaults for cards below a size: tokens of a prefill chunk, and the largest captured decode batch at TP < 4 and from TP 4 on."""

    below_mib: float
    chunk: int
    graph_small_tp: int
    graph_large_tp: int


_INF = float("inf")
_ABOVE_35 = (
    CardClass(60 * GIB_IN_MIB, 4096, 32, 160),
    CardClass(160 * GIB_IN_MIB, 8192, 256, 512),
    CardClass(_INF, 16384, 512, 512),
)
_SMALL = CardClass(20 * GIB_IN_MIB, 2048, 8, 8)
CARD_CLASSES = ByRelease(
    (
        ("0.5.3", (_SMALL, CardClass(35 * GIB_IN_MIB, 2048, 24, 80), *_ABOVE_35)),
        ("0.5.20", (_SMALL, CardClass(35 * GIB_IN_MIB, 4096, 48, 160), *_ABOVE_35)),
    )
)
UNKNOWN_CARD = ByRelease((("0.4.8", 0.88), ("0.5.20", 0.95)))
SPECULATION_MIB = ByRelease((("0.5.3", 2048), ("0.5.10", 4096), ("0.5.14", 0)))
STANDALONE_MIB = ByRelease((("0.5.3", 6144), ("0.5.14", 0)))
CAPTURES_PREFILL = ByRelease((("0.5.3", False), ("0.5.10", True)))
DEEPEP_MIB = ByRelease((("0.5.3", 0), ("0.5.15", 2048)))
GRAPHS_CAPPED_BY_REQUESTS = ByRelease((("0.5.3", False), ("0.5.22", True)))
DISABLED_GRAPHS_ARE_FREE = ByRelease((("0.5.3", False), ("0.5.16", True)))
DECODE_ROLE_BY_REQUESTS = ByRelease((("0.5.3", False), ("0.5.15", True)))

# to 0.4.5 (and 0.4.6 up to 80 GiB): by tensor-parallel size, largest first
_BY_TP = ByRelease(
    (
        ("0.1.26", ((16, 0.79), (8, 0.82), (4, 0.85), (2, 0.87), (1, 0.88))),
        ("0.4.2", ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87), (1, 0.88))),
    )
)
# 0.4.8 to 0.5.2: reserve in GiB, constant and per rank, by size of the card
_RESERVE_BY_CARD = ((35 * GIB_IN_MIB, 2.8, 0.1), (90 * GIB_IN_MIB, 9.5, 0.5), (160 * GIB_IN_MIB, 12.0, 0.5), (_INF, 32.0, 0.0))


@record(frozen=True)
class DefaultFraction:
    """A computed fraction with the reserve it comes from."""

    fraction: float
    terms: tuple[Term, ...]


@record(frozen=True)
class _Launch:
    """What the rules look at: the typed flags, the card (MiB), the sharding, the release, and whether KV is latent."""

    args: Mapping[str, Any]
    card_mib: float
    spread: Sharding
    release: str
    latent: bool

    @property
    def ranks(self) -> int:
        return self.spread.tp * self.spread.pp

    @property
    def algorithm(self) -> str:
        return str(self.args.get("speculative_algorithm") or "").upper()


def default_fraction(
    args: Mapping[str, Any], card_mib: float | None, release: str, *, latent: bool = False, vision_factor: float | None = None
) -> DefaultFraction:
    """The ``mem_fraction_static`` of a launch that gives none.

    Args:
        args: the typed flags by field name (``chunked_prefill_size``, ``cuda_graph_max_bs``, …).
        card_mib: smallest ``memory.total`` of the cards, MiB; None where unknown.
        release: SGLang release.
        latent: the model keeps latent rows (MLA), whose prefill graphs are charged 1.5 GiB from 0.5.10.
        vision_factor: for a multimodal model, the factor its encoder costs (``vision_factor``).
    """
    terms: tuple[Term, ...] = ()
    fraction = UNKNOWN_CARD.at(release)
    if card_mib is not None:
        fraction, terms = _RULES.at(release)(_Launch(args, card_mib, sharding(args), release, latent))
    if vision_factor is not None:
        expression = f"{fraction:g} × {vision_factor:g}"
        fraction *= vision_factor
        terms = (*terms, Term("less for the encoder", expression, fraction, "of free memory", "adjust_mem_fraction_for_vlm"))
    return DefaultFraction(fraction, terms)


def vision_factor(layers: int = 24, hidden_size: int = 1024) -> float:
    """The factor for a vision encoder: 0.95, and a tenth less for each time it is as large again as ViT-L/14, within 0.8 and 1.05.

    Source: adjust_mem_fraction_for_vlm (0.5.8, 0.5.23), which reads ``num_hidden_layers`` of vision_config and takes 24 where a config
    names its layers otherwise.
    """
    size = layers * hidden_size**2 / (24 * 1024**2)
    return _VISION_FACTOR * max(0.8, min(1.05, 1 - 0.1 * (size - 1)))


def _by_tp(launch: _Launch) -> tuple[float, tuple[Term, ...]]:
    fraction = next(value for size, value in _BY_TP.at(launch.release) if launch.spread.tp >= size)
    return fraction, (
        Term("by tensor-parallel size", f"TP {launch.spread.tp}", fraction, "of free memory", "server_args.py:__post_init__"),
    )


def _by_tp_or_13_gib(launch: _Launch) -> tuple[float, tuple[Term, ...]]:
    return (
        _by_tp(launch) if launch.card_mib <= 80 * GIB_IN_MIB else _of_reserve(launch, [("constant", "13 GiB", 13.0 * GIB_IN_MIB)], digits=6)
    )


def _by_card(launch: _Launch) -> tuple[float, tuple[Term, ...]]:
    constant, per_rank = next((base, each) for limit, base, each in _RESERVE_BY_CARD if launch.card_mib < limit)
    reserve = [
        ("activations and graphs", f"{constant} GiB + {per_rank} × {launch.ranks} ranks", (constant + per_rank * launch.ranks) * GIB_IN_MIB)
    ]
    if launch.algorithm:
        reserve.append(("speculation", "2 GiB", 2.0 * GIB_IN_MIB))
    if launch.args.get("enable_dp_attention"):
        reserve.append(("DP attention", "4 GiB", 4.0 * GIB_IN_MIB))
    return _of_reserve(launch, reserve)


def _by_parts(launch: _Launch) -> tuple[float, tuple[Term, ...]]:
    reserve = [*_activations(launch), *_graphs(launch)]
    total = sum(mib for _, _, mib in reserve)
    if launch.card_mib > _FLOOR_ABOVE_MIB and total < _FLOOR_MIB:
        reserve.append(("at least 10 GiB on large cards", "10 GiB", _FLOOR_MIB - total))
    return _of_reserve(launch, [*reserve, *_on_top(launch)])


_RULES: ByRelease[Callable[[_Launch], tuple[float, tuple[Term, ...]]]] = ByRelease(
    (("0.1.26", _by_tp), ("0.4.6", _by_tp_or_13_gib), ("0.4.8", _by_card), ("0.5.3", _by_parts))
)

_Part = tuple[str, str, float]  # name, expression, MiB


def _activations(launch: _Launch) -> list[_Part]:
    card, args = _card_class(launch), launch.args
    chunk = args.get("chunked_prefill_size")
    size = chunk if isinstance(chunk, int) and chunk > 0 else card.chunk if chunk is None else positive(args, "max_prefill_tokens", 16384)
    if args.get("disaggregation_mode") == "decode" and DECODE_ROLE_BY_REQUESTS.at(launch.release):
        size = positive(args, "max_running_requests", _graph_batch(launch)) * positive(args, "speculative_num_draft_tokens")
    return [
        ("constant", "512 MiB", 512.0),
        ("prefill activations", f"{max(size, 2048)} tokens × 1.5 MiB", max(size, 2048) * 1.5),
        ("ranks", f"{launch.ranks} × 128 MiB", launch.ranks * 128.0),
    ]


def _graphs(launch: _Launch) -> list[_Part]:
    role = launch.args.get("disaggregation_mode")
    decode = [] if role == "prefill" and DECODE_ROLE_BY_REQUESTS.at(launch.release) else _decode_graphs(launch)
    return [*decode, *(_prefill_graphs(launch) if role != "decode" else [])]


def _decode_graphs(launch: _Launch) -> list[_Part]:
    batch, groups = _graph_batch(launch), launch.spread.attention_dp
    off = _is_set(launch.args, "disable_cuda_graph", "disable_decode_cuda_graph") and DISABLED_GRAPHS_ARE_FREE.at(launch.release)
    parts: list[_Part] = [] if off else [("decode graphs", f"batch {batch} × 2 MiB", batch * 2.0)]
    if groups > 1 or launch.args.get("enable_dp_attention"):
        each = 4.5 if batch > 300 else 3.0
        parts.append(("DP attention", f"batch {batch} × {groups} groups × {each} MiB", batch * groups * each))
    return parts


def _prefill_graphs(launch: _Launch) -> list[_Part]:
    off = _is_set(launch.args, "disable_piecewise_cuda_graph", "disable_prefill_cuda_graph")
    if off or not CAPTURES_PREFILL.at(launch.release):
        return []
    if launch.latent:
        return [("prefill graphs", "1.5 GiB (MLA)", 1536.0)]
    sizes = len(_prefill_sizes(positive(launch.args, "chunked_prefill_size", _card_class(launch).chunk)))
    return [("prefill graphs", f"{sizes} sizes × 8 MiB", sizes * 8.0)]


def _is_set(args: Mapping[str, Any], *fields: str) -> bool:
    return any(args.get(field) for field in fields)


def _on_top(launch: _Launch) -> list[_Part]:
    """What is added after the floor of 10 GiB."""
    parts: list[_Part] = []
    if launch.algorithm and launch.algorithm != "NGRAM":
        mib = (STANDALONE_MIB if launch.algorithm == "STANDALONE" else SPECULATION_MIB).at(launch.release)
        parts += [("speculation", f"{mib} MiB", float(mib))] if mib else []
    if launch.args.get("moe_a2a_backend") == "deepep" and launch.args.get("disaggregation_mode") != "prefill":
        mib = DEEPEP_MIB.at(launch.release)
        parts += [("DeepEP buffers", f"{mib} MiB", float(mib))] if mib else []
    return parts


def _card_class(launch: _Launch) -> CardClass:
    return next(card for card in CARD_CLASSES.at(launch.release) if launch.card_mib < card.below_mib)


def _graph_batch(launch: _Launch) -> int:
    """Largest captured decode batch: given, or by card, and then not above max_running_requests from 0.5.22 on."""
    given = positive(launch.args, "cuda_graph_max_bs", 0) or positive(launch.args, "cuda_graph_max_bs_decode", 0)
    card = _card_class(launch)
    default = card.graph_small_tp if launch.spread.tp < 4 else card.graph_large_tp
    if GRAPHS_CAPPED_BY_REQUESTS.at(launch.release):
        default = min(default, positive(launch.args, "max_running_requests", default))
    return given or default


def _prefill_sizes(largest: int) -> list[int]:
    """Token counts captured for prefill, up to ``largest`` (generate_prefill_cuda_graph_batch_sizes)."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, largest + 1, 512))
    return [size for first, end, step in steps for size in range(first, end, step) if size <= largest]


def _of_reserve(launch: _Launch, reserve: list[_Part], *, digits: int = 3) -> tuple[float, tuple[Term, ...]]:
    total = sum(mib for _, _, mib in reserve)
    fraction = round((launch.card_mib - total) / launch.card_mib, digits)
    terms = [Term(f"reserve: {name}", how, mib, "MiB", _SOURCE) for name, how, mib in reserve]
    expression = f"({launch.card_mib:,.0f} − {total:,.0f}) / {launch.card_mib:,.0f} MiB"
    return fraction, (*terms, Term("mem_fraction_static", expression, fraction, "of free memory", _SOURCE))
