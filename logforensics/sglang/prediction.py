"""Predicted KV tokens of one rank from server_args, the model and two lines of the log (reference/KV_PREDICTION.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from logforensics.models import find_model
from logforensics.records import record
from logforensics.sglang.device import request_table_rows
from logforensics.sglang.fraction import ROUNDING_GIB, GpuBudget, tokens
from logforensics.sglang.kv import DEFAULT_SLIDING_RATIO, KvBytes, KvSetting, kv_bytes, state_slot_bytes
from logforensics.sglang.releases import ByRelease, span
from logforensics.sglang.sharding import positive, sharding
from logforensics.sglang.states import states
from logforensics.sglang.terms import Term, arithmetic
from logforensics.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logforensics.findings import Arithmetic
    from logforensics.models import Model

UNCERTAIN_BELOW_GIB = 1.0  # where less is left, memory that moves between two lines is everything
_MOVES_GIB = 0.15
_AGREES_WITHIN = 0.005  # relative; plus what two printed decimals of K and V make of the pool
_EMBEDDING_CACHE_GIB = 100 / 1024  # multimodal embedding cache, 0.5.18+
_FEATURE_BUFFER_GIB = 1.0  # and where features travel over CUDA IPC or VMM

ENLARGES_FOR_SPECULATION = ByRelease((("0.1.26", False), ("0.4.4", True), ("0.5.8", False)))
ROUNDS_TO_PAGE = ByRelease((("0.1.26", False), ("0.4.4", True)))
DRAFT_WEIGHTS_FIRST = ByRelease((("0.1.26", False), ("0.5.14", True)))
RESERVES_FOR_MULTIMODAL = ByRelease((("0.1.26", False), ("0.5.18", True)))

_DRAFTS_OF_TARGET = frozenset({"EAGLE", "EAGLE3", "NEXTN", "FROZEN_KV_MTP"})
_DFLASH = frozenset({"DFLASH", "DSPARK"})
_NOT_ENLARGED_WITH = "enable_multi_layer_eagle"  # a field of 0.5.7; development builds without it still enlarged (KV_PREDICTION 5)
_LONG_CONTEXT = 131_072  # where neither the flags nor the model say


@record(frozen=True)
class KvPrediction:
    """KV tokens that the memory model predicts for one rank.

    Attributes:
        tokens: predicted ``max_total_num_tokens``.
        bytes_per_token: bytes per token it was divided by.
        rest_gib: memory for all pools of the static share, GiB.
        bound_tokens: how far the two printed decimals and the page may move ``tokens``.
        uncertain: less than 1 GiB is left, the release is not certain where it matters, the draft model is not known, or the bytes per
            token are those of the pool line.
        from_log: the bytes per token were taken from the logged pool, because the model is unknown or contradicts it.
        note: why, in a sentence; empty where nothing is to be said.
        terms: how the figures came about.
    """

    tokens: int
    bytes_per_token: float
    rest_gib: float
    bound_tokens: int
    uncertain: bool
    from_log: bool
    note: str
    terms: tuple[Term, ...]

    @property
    def arithmetic(self) -> tuple[Arithmetic, ...]:
        """The terms in the form findings carry."""
        return arithmetic(self.terms)

    def relative_error(self, logged_tokens: int) -> float:
        """Predicted over logged tokens, less one."""
        return self.tokens / logged_tokens - 1


def predict_kv_tokens(
    args: Mapping[str, Any],
    model: Model | None,
    pre_gib: float,
    post_gib: float,
    logged_pool_bytes_per_token: float | None = None,
    release_low: str | None = None,
    release_high: str | None = None,
) -> KvPrediction | None:
    """Predict ``max_total_num_tokens`` of one rank.

    Args:
        args: server_args of the launch.
        model: its architecture, None where unknown.
        pre_gib: free GPU memory before loading, GiB, the minimum over the ranks.
        post_gib: free after loading, GiB, the minimum over the ranks; from 0.5.14 after the draft model too (``draft_weights_first``).
        logged_pool_bytes_per_token: what the pool line shows (``logged_bytes_per_token``), None without one.
        release_low: oldest release that fits the log.
        release_high: newest release that fits.

    Returns:
        The prediction, or None where neither the model nor the log gives the bytes per token, or the fraction is unknown.

    Raises:
        InputError: a release cannot be read.
    """
    releases = span(release_low, release_high)
    newest = _predict(args, model, GpuBudget(pre_gib, post_gib, _fraction(args)), logged_pool_bytes_per_token, releases[-1])
    if newest is None or releases[0] == releases[-1]:
        return newest
    oldest = _predict(args, model, GpuBudget(pre_gib, post_gib, _fraction(args)), logged_pool_bytes_per_token, releases[0])
    if oldest is None or abs(oldest.tokens - newest.tokens) <= newest.bound_tokens:
        return newest
    return replace(
        newest, uncertain=True, note=newest.note or f"{releases[0]} would give {oldest.tokens:,} tokens, {releases[-1]} {newest.tokens:,}"
    )


def draft_weights_first(release: str) -> bool:
    """Whether the release loads the draft model before it sizes the pools, so that the last ``Load weight end`` counts."""
    return DRAFT_WEIGHTS_FIRST.at(release)


def logged_bytes_per_token(pool_gib: float, pool_tokens: int, page_size: int) -> float:
    """Bytes per token that a pool line shows: its buffers have one page more than tokens."""
    return pool_gib * GIB / (pool_tokens + page_size)


def kv_setting(args: Mapping[str, Any], model: Model, release: str) -> KvSetting:
    """What the bytes per token of a launch depend on."""
    algorithm = _algorithm(args)
    backends = {
        args.get("dsa_prefill_backend") or args.get("nsa_prefill_backend"),
        args.get("dsa_decode_backend") or args.get("nsa_decode_backend"),
    }
    return KvSetting(
        release=release,
        dtype=str(args.get("kv_cache_dtype") or "auto"),
        sharding=sharding(args),
        draft_layers=0 if algorithm in _DFLASH else _draft_layers(args, model) or 0,
        dflash_layers=_draft_layers(args, model) or 0 if algorithm in _DFLASH else 0,
        sliding_ratio=float(args.get("swa_full_tokens_ratio") or DEFAULT_SLIDING_RATIO),
        raw_fp8_rows="trtllm" in backends,
        wide_index=args.get("attention_backend") == "ascend" or args.get("device") == "npu",
        one_pool=bool(args.get("disable_hybrid_swa_memory")),
    )


@record(frozen=True)
class _Cell:
    """The divisor: from the architecture (``expected``), or from the log where ``expected`` is None; ``note`` says what is odd."""

    bytes: float
    expected: KvBytes | None
    note: str = ""

    @property
    def terms(self) -> tuple[Term, ...]:
        if self.expected is None:
            return (Term("bytes per token", "from the logged pool", self.bytes, "B", "log"),)
        return (*self.expected.terms, Term("bytes per token", "sum", self.bytes, "B", "architecture"))


def _predict(args: Mapping[str, Any], model: Model | None, budget: GpuBudget, logged: float | None, release: str) -> KvPrediction | None:
    little = budget.rest_gib < UNCERTAIN_BELOW_GIB
    cell = _cell(args, model, release, logged, None if little else 2 * ROUNDING_GIB / budget.rest_gib)
    if cell is None or budget.fraction <= 0:
        return None
    charges = (*_multimodal(args, model, release), *_states(args, model, budget.rest_gib, release))
    room = (budget.rest_gib - sum(float(term.value) for term in charges if term.unit == "GiB")) * GIB
    profiled = tokens(room, cell.bytes)
    profile = Term("KV tokens", f"{room / GIB:.3f} GiB / {cell.bytes:,.0f} B", profiled, "tokens", "floor(memory / bytes per token)")
    page = positive(args, "page_size") if ROUNDS_TO_PAGE.at(release) else 1
    limits = _limits(args, model, profiled, page, release)
    slack = _MOVES_GIB if little else budget.rounding_gib
    return KvPrediction(
        tokens=int(limits[-1].value) if limits else profiled,
        bytes_per_token=cell.bytes,
        rest_gib=budget.rest_gib,
        bound_tokens=int(slack * GIB / cell.bytes) + page,
        uncertain=little or cell.expected is None or (model is not None and _draft_layers(args, model) is None),
        from_log=cell.expected is None,
        note=cell.note,
        terms=(budget.term, *cell.terms, *charges, profile, *limits),
    )


def _limits(args: Mapping[str, Any], model: Model | None, profiled: int, page: int, release: str) -> tuple[Term, ...]:
    """What happens to the profiled tokens: the last term is the result; nothing where nothing happens."""
    extra = _enlargement(args, model, profiled, release)
    limit = positive(args, "max_total_tokens", 0)
    total = profiled + sum(int(term.value) for term in extra)
    total = (min(total, limit) if limit else total) // page * page
    if total == profiled:
        return extra
    how = f"in pages of {page}" + (f", at most {limit:,} (--max-total-tokens)" if limit else "")
    return (*extra, Term("KV tokens after limits", how, total, "tokens", "server_args"))


def _algorithm(args: Mapping[str, Any]) -> str:
    return str(args.get("speculative_algorithm") or "").upper()


def _draft_layers(args: Mapping[str, Any], model: Model) -> int | None:
    """Layers of the draft model whose KV may be part of the row; 0 without one, None where it is a model of its own that is not known."""
    algorithm = _algorithm(args)
    if algorithm in _DRAFTS_OF_TARGET:
        return (model.draft_layers or 1) if args.get("enable_multi_layer_eagle") else 1
    if algorithm not in _DFLASH | {"STANDALONE"}:
        return 0
    draft = find_model(str(args.get("speculative_draft_model_path") or ""))
    return draft.num_layers if draft else None


def _fraction(args: Mapping[str, Any]) -> float:
    value = args.get("mem_fraction_static")
    return float(value) if isinstance(value, (int, float)) else 0.0


def _cell(args: Mapping[str, Any], model: Model | None, release: str, logged: float | None, rounding: float | None) -> _Cell | None:
    """Bytes per token to divide by: the architecture's where the pool line agrees or its difference is explained, else the pool line's.

    ``rounding`` is how far the pool line may be off, relative; None where the pool is too small to compare.
    """
    setting = kv_setting(args, model, release) if model else None
    expected = kv_bytes(model, setting) if model and setting else None
    if model is None or setting is None or expected is None:
        return _Cell(logged, None, "the model is not known; bytes per token are those of the logged pool") if logged else None
    if logged is None or rounding is None or abs(logged / expected.stored - 1) <= _AGREES_WITHIN + rounding:
        return _Cell(expected.sized, expected)
    packed = kv_bytes(model, replace(setting, dtype="fp8_e4m3"))
    if setting.dtype == "auto" and packed and abs(logged / packed.stored - 1) <= _AGREES_WITHIN + rounding:
        return _Cell(
            packed.sized, packed, "the pool line shows an FP8 KV cache although --kv-cache-dtype is auto: the checkpoint asks for it"
        )
    cause = bytes_disagreement(logged, expected, model)
    shown = f"the pool line shows {logged / expected.stored:.3f} × the {expected.stored:,.0f} B of the architecture: "
    return _Cell(expected.sized, expected, shown + cause) if cause else _Cell(logged, None, shown + "not explained")


def bytes_disagreement(logged: float, expected: KvBytes, model: Model) -> str:
    """Why a logged pool holds other bytes per token than the architecture says, although it was sized by it; empty where nothing fits."""
    causes = (
        (expected.full, "the line leaves the index out"),
        (expected.full * 8 / 9, "the line leaves the block scales of a 4-bit cache out"),
        (expected.full * model.num_layers / (model.kv_layers or model.num_layers), "rows are stored for layers without attention too"),
    )
    return next((cause for stored, cause in causes if stored != expected.stored and abs(logged / stored - 1) <= _AGREES_WITHIN), "")


def _multimodal(args: Mapping[str, Any], model: Model | None, release: str) -> tuple[Term, ...]:
    """0.5.18+ keeps room for multimodal features (kv_cache_configurator.py:mm_runtime_reservation_gb)."""
    if model is None or not model.is_multimodal or not RESERVES_FOR_MULTIMODAL.at(release) or args.get("enable_multimodal") is False:
        return ()
    shared = str(args.get("mm_feature_transport") or "") in {"cuda_ipc", "cuda_vmm", "vmm"}
    reserve = _EMBEDDING_CACHE_GIB + (_FEATURE_BUFFER_GIB if shared else 0)
    return (Term("reserve for multimodal features", "100 MiB embedding cache" + (" + 1 GiB" if shared else ""), reserve, "GiB", "0.5.18+"),)


def _states(args: Mapping[str, Any], model: Model | None, rest_gib: float, release: str) -> tuple[Term, ...]:
    slot = state_slot_bytes(model, sharding(args).attention_tp, state_bytes=_state_bytes(args)) if model else None
    return states(rest_gib, slot, args, release).terms if slot else ()


def _state_bytes(args: Mapping[str, Any]) -> int:
    return 2 if str(args.get("mamba_ssm_dtype") or "float32") in {"bfloat16", "float16"} else 4


def _enlargement(args: Mapping[str, Any], model: Model | None, profiled: int, release: str) -> tuple[Term, ...]:
    """0.4.4 to 0.5.6 add room for draft and verify tokens on top of the profiled tokens (model_runner.py:init_memory_pool)."""
    algorithm = _algorithm(args)
    enlarges = ENLARGES_FOR_SPECULATION.at(release) and _NOT_ENLARGED_WITH not in args
    if algorithm not in _DRAFTS_OF_TARGET | {"STANDALONE"} or not enlarges:
        return ()
    context = positive(args, "context_length", (model.max_positions if model else None) or _LONG_CONTEXT)
    requests = request_table_rows(profiled, context, positive(args, "max_running_requests", 0) or None)
    steps, topk = positive(args, "speculative_num_steps", 0), positive(args, "speculative_eagle_topk")
    drafts = positive(args, "speculative_num_draft_tokens", 0)
    extra = requests * (steps * topk + drafts) + 100
    how = f"{requests} × ({steps} × {topk} + {drafts}) + 100"
    return (Term("enlarged for speculation", how, extra, "tokens", "model_runner.py:init_memory_pool (0.4.4 to 0.5.6)"),)
