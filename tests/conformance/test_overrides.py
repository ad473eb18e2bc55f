"""The messages of ../shared/reference/OVERRIDES.md that change a flag: every flag, with its value where the wording tells it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

import pytest

from logforensics.parsing.lines import LineReader

OVERRIDES = Path(__file__).resolve().parents[3] / "shared" / "reference" / "OVERRIDES.md"
pytestmark = pytest.mark.skipif(not OVERRIDES.exists(), reason="../shared is not here")

STAMP = "[2026-07-06 05:00:03] "
# the fields of cuda_graph_config that the rows name by their own flags
GRAPHS = {
    "disable_cuda_graph", "cuda_graph_backend_prefill", "cuda_graph_backend_decode", "cuda_graph_bs_prefill", "cuda_graph_max_seq_len_prefill",
    "cuda_graph_prefill_max_context", "cuda_graph_tc_compiler",
}  # fmt: skip
# The table names what is assigned near a message, which is not always what the message says. These say nothing of that flag:
NO_CHANGE = {
    "attention_backend=aiter with context_len=": "says that the fraction is used as it is",
    "--enable-linear-replayssm-spec with --mamba-ssm-dtype=": "advice about the value in use",
    "AMD/ROCm: Using 1-stage all-reduce kernel": "keeps the custom all-reduce, the other branch turns it off",
    "DeepSeek V4 attention: trtllm backend enabled": "the limit of running requests has a message of its own",
    "--enable-lora is set to False": "is the user's own setting",
    "Symmetric memory is enabled, setting symmetric memory prealloc": "sets an environment variable",
    "DSA with TP mode is active": "the other branch turns the graph off",
    "Piecewise CUDA graph is enabled, use MLA": "states what is in use",
    "GptOssForCausalLM on Intel XPU currently supports": "states a limit",
    "Enable TF32 matmul for MiniMaxM2": "sets enable_tf32_matmul; the next statement sets the runner",
    "SGLANG_MOE_NVFP4_DISPATCH is set": "sets an environment variable",
    "No FP8 expert weights found": "the other branch sets it",
    "Use trtllm_mla as the default prefill and decode": "sets the two attention backends; the flag beside it belongs to DCP",
    "Kimi-K3 DSPARK: decode attention backend": "keeps what it names, prefill",
    "DWDP with --disaggregation-mode null": "advice; the sizes are in `DWDP enabled:`",
    "DCP on a PD prefill server": "advice",
    "EXPERIMENTAL: Decode radix cache with DP attention": "the next message says it",
    "--{replace}=compressed is deprecated": "advice to the user",
    "Debug mode for CUDA graph is enabled": "sets an environment variable",
    "CUDA IPC pool-handle caching is": "about a cache, not about the transport",
    "--speculative-draft-window-size has no effect": "advice",
    "Non-overlap (synchronous) spec v2": "states what is in use",
    "DeepSeek MTP does not require": "advice",
    "skip_tokenizer_init=True: string-based": "the three messages before it say it",
}
# flags that the same block sets under a condition, or in some releases, or that a message of their own tells
UNSAID: dict[str, set[str]] = {
    "Context parallel feature is still": {"attn_dp_size", "dp_size", "moe_dense_tp_size", "moe_a2a_backend", "ep_size"},
    "MLA prefill context parallel is still": {"attn_dp_size", "dp_size"},
    "For MLA CP, we have": {"attn_dp_size", "dp_size"},
    "HYV4 MXFP8: defaulting": {"attention_backend"},
    "Use flashinfer_trtllm as MoE runner backend on SM100 for Gemma-4": {"quantization"},
    "Use flashinfer_trtllm as MoE runner backend on sm100 for DeepseekV3ForCausalLM": {"fp8_gemm_runner_backend"},
    "Reset swa_full_tokens_ratio to 1.0 for Step3p5": {"disable_hybrid_swa_memory"},
    "Disable hybrid SWA memory for Step3p5": {"swa_full_tokens_ratio"},
    "DP attention is enabled. chunked prefill size": {"enable_dp_attention_local_control_broadcast", "cuda_graph_config"},
    "UNO uses {field}=1": {"speculative_num_steps", "speculative_eagle_topk"},  # whichever it names, see the pack's sample
}


@dataclass(frozen=True)
class Row:
    template: str
    flags: tuple[tuple[str, str], ...]


def rows() -> list[Row]:
    """The messages of part 1 with the flags that are assigned beside them."""
    found = []
    for line in OVERRIDES.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\) \| ", line.strip("|"))]
        if len(cells) == 7 and cells[3].startswith("`"):
            template = cells[2].replace("\\|", "|")
            if not any(template.startswith(known) for known in NO_CHANGE):
                found.append(Row(template, tuple(re.findall(r"`(\w+)` = `([^`]*)", cells[3]))))
    return found


def messages(template: str) -> Iterator[str]:
    """What the template prints: every alternative, with a value for each hole."""
    pieces = re.split(r"(\(\?.*?\?\)|\[\?.*?\?\])", template)
    choices = [
        [part.strip("?") for part in piece[1:-1].split("|")]
        if piece.startswith("(?")
        else [piece[2:-2], ""]
        if piece.startswith("[?")
        else [piece]
        for piece in pieces
    ]
    for chosen in islice(product(*choices), 12):
        yield re.sub(r"\{(\w+)(:[^}]*)?\}", lambda hole: _value(hole[1], hole[2] or ""), "".join(chosen))


def _value(name: str, spec: str) -> str:
    if spec.endswith("f"):
        return "0.123"
    if name in ("sorted", "aligned"):
        return "[8, 16]"
    if name == "updates":
        return "{'radix_eviction_policy': 'priority', 'prefill_decode_interval': 22, 'decode_attention_backend': 'flashinfer'}"
    numbers = ("size", "tokens", "steps", "num", "port", "worker_num", "q_len", "page_resolved", "old_value", "max_running_requests")
    if spec == ":d" or name.endswith(numbers):
        return "7"
    if name == "get" or name.endswith("backend"):
        return "backend7"
    return {"field": "speculative_num_steps", "enabled": "True"}.get(name, f"{name}7")


def _constant(text: str) -> str | None:
    """The value of a literal; None for an expression."""
    if re.fullmatch(r"-?\d+(?:\.\d+)?|True|False|None", text):
        return text
    quoted = re.fullmatch(r"'([^']*)'", text)
    return quoted[1] if quoted else None


def read(message: str) -> dict[str, str | None]:
    reader = LineReader()
    reader.feed(1, STAMP + message, known=True)
    reader.close()
    return {row["flag"]: row.get("new") for _, _, _, row in reader.take().get("overrides", [])}


def missing(row: Row) -> list[str]:
    """What an example of the message does not give."""
    lost = []
    for message in messages(row.template):
        found = read(message)
        for flag, value in row.flags:
            if any(row.template.startswith(start) and flag in names for start, names in UNSAID.items()):
                continue
            names = GRAPHS if flag == "cuda_graph_config" else {flag}
            got = [found[name] for name in names if name in found]
            constant = _constant(value)
            if not got:
                lost.append(f"{message}: no {flag} in {found}")
            elif flag != "cuda_graph_config" and constant is not None and got[0] != constant and str(got[0]) not in message:
                lost.append(f"{message}: {flag} {got[0]} instead of {constant}")
    return lost


def test_the_table_is_read() -> None:
    assert len(rows()) > 150


@pytest.mark.parametrize("row", rows() if OVERRIDES.exists() else [], ids=lambda row: row.template[:60])
def test_every_flag_of_a_message_is_a_row(row: Row) -> None:
    assert missing(row) == []
