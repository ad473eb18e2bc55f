"""Rebuilding the launch line behind a logged server_args record: what a person would have typed to get it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logforensics.command.model import DEFAULT_PROGRAM, LaunchCommand
from logforensics.sglang.flags import default, flag_by_field, nearest_release, release_at_least, releases, spelling_for

if TYPE_CHECKING:
    from collections.abc import Mapping

# Read first on a launch line; everything else follows in the order of server_args.
_FIRST = (
    "model_path", "tokenizer_path", "served_model_name", "trust_remote_code", "tp_size", "dp_size", "pp_size", "ep_size", "attn_dp_size",
    "enable_dp_attention", "nnodes", "node_rank", "dist_init_addr", "host", "port", "mem_fraction_static",
)  # fmt: skip

# Worked out by SGLang, or of no use in another run.
_NEVER_TYPED = frozenset({
    "additional_ports", "boundary_reduction", "cuda_graph_bs", "cuda_graph_bs_decode", "cuda_graph_bs_prefill", "cuda_graph_config",
    "cuda_graph_max_bs_prefill", "cuda_graph_tc_compiler", "disaggregation_decode_extra_slots", "encoder_transfer_backend",
    "enable_dp_attention_local_control_broadcast", "ep_dispatch_algorithm", "expert_distribution_recorder_buffer_size", "forward_hooks",
    "hicache_host_memory_fraction", "kt_amx_method", "kt_method", "load_balance_method", "mamba_radix_cache_strategy",
    "mamba_scheduler_strategy", "mm_feature_transport", "nccl_port", "piecewise_cuda_graph_max_tokens", "piecewise_cuda_graph_tokens",
    "random_seed", "speculative_draft_model_revision", "stat_loggers", "uvicorn_access_log_exclude_prefixes",
})  # fmt: skip

# What the platform gets when nothing is typed. Backends that people choose on purpose (triton, flashinfer, …) are not here: writing
# down what ran is never wrong, leaving out what was typed may be.
_CHOSEN: Mapping[str, frozenset[Any]] = {
    "attention_backend": frozenset({"fa3", "trtllm_mha", "trtllm_mla", "aiter", "ascend", "torch_native", "intel_amx"}),
    "mm_attention_backend": frozenset({"fa3", "triton_attn", "ascend_attn", "aiter_attn", "sdpa"}),
    "sampling_backend": frozenset({"flashinfer", "ascend"}),
    "grammar_backend": frozenset({"xgrammar"}),
    "device": frozenset({"cuda"}),
    "page_size": frozenset({1}),
    "speculative_moe_runner_backend": frozenset({"auto"}),
    "hicache_ratio": frozenset({2.0}),
    "swa_full_tokens_ratio": frozenset({0.8}),
    "mamba_full_memory_ratio": frozenset({0.9}),
    "dcp_comm_backend": frozenset({"ag_rs"}),
    "prefill_decode_interval": frozenset({0}),
    "kt_threadpool_count": frozenset({2}),
}

# How server_args shows that nothing was given.
_UNSET: tuple[Any, ...] = (None, "None", "", "<redacted>", [], {})

# Fields that SGLang fills from another field when they are not typed.
_COPIES: Mapping[str, str] = {
    "tokenizer_path": "model_path",
    "served_model_name": "model_path",
    "decode_attention_backend": "attention_backend",
    "prefill_attention_backend": "attention_backend",
    "speculative_draft_attention_backend": "attention_backend",
    "speculative_draft_model_quantization": "quantization",
}

# Fields that follow from other fields when those were typed.
_BROUGHT_ABOUT: Mapping[str, tuple[str, ...]] = {
    "cuda_graph_max_bs": ("disable_cuda_graph",),
    "disable_piecewise_cuda_graph": ("enable_multimodal", "disable_cuda_graph"),
    "enable_dp_attention": ("attn_dp_size",),
    "hicache_ratio": ("hicache_size",),
    "sampling_backend": ("device",),
}


def _typing_order(name: str) -> tuple[int, bool]:
    return (_FIRST.index(name), False) if name in _FIRST else (len(_FIRST), True)


def _as_typed(name: str, fields: Mapping[str, Any], release: str) -> Any:
    """The value a person would have typed for a field, or None where nobody would have."""
    value, usual = _before_division(name, fields, release), default(name, release)
    if value in _UNSET or _same(value, usual) or name in _NEVER_TYPED:
        return None
    if _same(value, fields.get(_COPIES.get(name, ""))) or any(_same(value, chosen) for chosen in _CHOSEN.get(name, ())):
        return None
    if name == "mem_fraction_static" and isinstance(value, float) and round(value, 4) != value:  # nobody types 0.8387624218749999
        return None
    if value is False and usual is not True:  # a switch that SGLang resolved to "no"
        return None
    follows = any(_as_typed(other, fields, release) is not None for other in _BROUGHT_ABOUT.get(name, ()))
    return None if follows else value


def _before_division(name: str, fields: Mapping[str, Any], release: str) -> Any:
    """Undo what DP attention does to the typed value before server_args is logged; typed again, it would be done twice."""
    value = fields.get(name)
    if not fields.get("enable_dp_attention") or not isinstance(value, (int, float)):
        return value
    if name == "chunked_prefill_size" and value > 0:
        groups = max(n if isinstance(n := fields.get(field_name), int) else 1 for field_name in ("dp_size", "attn_dp_size"))
        return value * (groups if release_at_least(release, "0.4.5") else 2)
    if name == "schedule_conservativeness" and not _same(value, default(name, release)):
        return round(value / 0.3, 6)
    return value


def _same(one: object, other: object) -> bool:
    """Equal, and of the same kind: 1 is not True."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def from_server_args(fields: Mapping[str, object], release: str | None) -> LaunchCommand:
    """Rebuild the launch line behind a logged server_args record: what a person would have typed to get it.

    A field is written when its value differs from the release's default and the tables below do not know it as something SGLang works
    out by itself. Without a release the newest one is assumed.
    """
    spoken = nearest_release(release or "") or releases()[-1]
    flags: dict[str, Any] = {}
    typed: dict[str, str] = {}
    for name in sorted(fields, key=_typing_order):
        flag, spelling = flag_by_field(name), spelling_for(name, spoken)
        value = _as_typed(name, fields, spoken)
        if flag is None or spelling is None or value is None:
            continue
        if value is False:  # off where on is the default: --no-x
            spelling = next((s for s in flag.implied if spoken in flag.spellings[s]), spelling)
        if flag.takes_list and isinstance(value, dict):  # lora_paths: name=path words
            value = [f"{key}={item}" for key, item in value.items()]
        flags[flag.name], typed[flag.name] = value, spelling
    return LaunchCommand(DEFAULT_PROGRAM, flags, typed)
