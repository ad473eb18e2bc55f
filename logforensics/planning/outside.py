"""What a launch will want beside the static share, ``P × (1 - f)``: named demands with bounds, in GiB of one GPU.

These are estimates: SGLang's own reserve (1.5 MiB for each token of a chunk) is generous, real activations of a chunk are a sixth of it or
less, and libraries take buffers that no flag names. The sum says how tight a fraction is, not to the GiB whether it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from logforensics.sglang.default_fraction import CARD_CLASSES
from logforensics.sglang.device import request_table_bytes, request_table_rows
from logforensics.sglang.flags import release_at_least
from logforensics.sglang.prediction import draft_weights_first
from logforensics.sglang.terms import Term
from logforensics.units import GIB

if TYPE_CHECKING:
    from logforensics.planning.plan import Plan

_ACTIVATION_MIB_PER_TOKEN = 0.25
_LONGEST_CHUNK = 32_768  # tokens; longer chunks are usually cut by the prompts themselves
_GRAPH_MIB_PER_REQUEST = 2.0
_GRAPH_BASE_GIB = 0.7
_LATENT_PREFILL_GRAPHS_GIB = 1.5
_DEEPEP_GIB = 7.5  # non-PyTorch memory of DeepEP servers in logs, less context and NCCL
_SYMMETRIC_GIB = 4.0  # --enable-symm-mem pre-allocates from 0.5.9
_VISION_GIB = 1.5
_BYTES = 4
_DEFAULT_CONTEXT = 32_768


def demands(plan: Plan) -> list[Term]:
    """What is known to want a place beside the static share, the earliest first: pool construction, graphs, the first prefill."""
    found = [_request_table(plan), *_drafts(plan), *_communication(plan), *_graphs(plan), *_activations(plan)]
    return [term for term in found if term.value > 0.005]


def graph_demands(plan: Plan) -> list[Term]:
    """The demands that must be met when graph capture ends."""
    return [term for term in demands(plan) if term.source != "prefill"]


def context_length(plan: Plan) -> int:
    """Longest request in tokens: given, else the model's."""
    given = plan.number("context_length")
    return int(given) if given else (plan.model.max_positions if plan.model and plan.model.max_positions else _DEFAULT_CONTEXT)


def running_requests(plan: Plan) -> int | None:
    """The request limit of one scheduler: given (divided by the attention groups), or what speculation sets."""
    given = plan.number("max_running_requests")
    if given is None and plan.has("speculative_algorithm") and release_at_least(plan.spoken, "0.4.5"):
        given = 48.0
    return max(int(given) // plan.spread.attention_dp, 1) if given else None


def graph_batch(plan: Plan) -> int:
    """Largest decode batch that is captured; 0 without graphs."""
    if plan.has("disable_cuda_graph") or str(plan.args.get("cuda_graph_backend_decode") or "") == "disabled":
        return 0
    listed = plan.args.get("cuda_graph_bs") or plan.args.get("cuda_graph_bs_decode")
    if isinstance(listed, list) and all(isinstance(size, int) for size in listed) and listed:
        return int(max(listed))
    given = plan.number("cuda_graph_max_bs") or plan.number("cuda_graph_max_bs_decode")
    if given:
        return int(given)
    limit = running_requests(plan)
    card = next((c for c in CARD_CLASSES.at(plan.spoken) if (plan.card_gib or 80) * 1024 < c.below_mib), None)
    size = 160 if card is None else card.graph_small_tp if plan.spread.tp < 4 else card.graph_large_tp
    return min(size, limit) if limit else size


def _request_table(plan: Plan) -> Term:
    context = context_length(plan)
    tokens = plan.tokens.mid if plan.tokens else 0
    rows = request_table_rows(int(tokens), context, running_requests(plan))
    size = request_table_bytes(rows, context, int(plan.number("speculative_num_draft_tokens") or 0))
    return Term("request table", f"({rows} + 1) rows × {context:,} positions × 4 B", size / GIB, "GiB", "pools")


def _drafts(plan: Plan) -> list[Term]:
    """To 0.5.13 the draft model and its KV come on top of the static share; an unknown release counts as one of those."""
    if draft_weights_first(plan.release.low) or not plan.has("speculative_algorithm"):
        return []
    span, terms = plan.drafts
    found = [Term(term.name, term.expression, span.mid, "GiB", "pools") for term in terms]
    if plan.kv and plan.tokens and plan.model:
        draft_kv = plan.tokens.mid * plan.kv.sized / plan.model.num_layers / GIB
        found.append(Term("draft KV", f"{plan.tokens.mid:,.0f} tokens × 1 layer", draft_kv, "GiB", "pools"))
    return found


def _communication(plan: Plan) -> list[Term]:
    found = []
    if str(plan.args.get("moe_a2a_backend") or "") == "deepep" or plan.has("enable_deepep_moe"):
        found.append(Term("DeepEP buffers", "estimate", _DEEPEP_GIB, "GiB", "graphs"))
    if plan.has("enable_symm_mem") and release_at_least(plan.spoken, "0.5.9"):
        found.append(Term("symmetric memory", "pre-allocated from 0.5.9", _SYMMETRIC_GIB, "GiB", "graphs"))
    return found


def _graphs(plan: Plan) -> list[Term]:
    batch = graph_batch(plan)
    if not batch:
        return []
    pools = 3 if plan.has("speculative_algorithm") else 1  # target, draft and draft extension each have graphs of their own
    size = pools * _GRAPH_BASE_GIB + batch * _GRAPH_MIB_PER_REQUEST / 1024
    found = [Term("decode graphs", f"{pools} × {_GRAPH_BASE_GIB} GiB + batch {batch} × 2 MiB", size, "GiB", "graphs")]
    latent = plan.model is not None and plan.model.layout == "latent"
    if latent and release_at_least(plan.spoken, "0.5.10") and not plan.has("disable_piecewise_cuda_graph"):
        found.append(Term("prefill graphs", "1.5 GiB (MLA)", _LATENT_PREFILL_GRAPHS_GIB, "GiB", "graphs"))
    if plan.model is not None and plan.model.index_dim and plan.model.layout == "latent":
        rows, context = batch * int(plan.number("speculative_num_draft_tokens") or 1), context_length(plan)
        found.append(
            Term(
                "index scores and page table in graphs",
                f"{rows} rows × {context:,} × 2 × 4 B",
                rows * context * 2 * _BYTES / GIB,
                "GiB",
                "graphs",
            )
        )
    return found


def _activations(plan: Plan) -> list[Term]:
    chunk = plan.number("chunked_prefill_size")
    card = next((c for c in CARD_CLASSES.at(plan.spoken) if (plan.card_gib or 80) * 1024 < c.below_mib), None)
    size = (
        chunk
        if chunk and chunk > 0
        else float(card.chunk if card else 8192)
        if chunk is None
        else float(plan.number("max_prefill_tokens") or 16384)
    )
    tokens = min(size / plan.spread.attention_dp, _LONGEST_CHUNK)
    found = [
        Term(
            "prefill activations",
            f"{tokens:,.0f} tokens × {_ACTIVATION_MIB_PER_TOKEN} MiB",
            tokens * _ACTIVATION_MIB_PER_TOKEN / 1024,
            "GiB",
            "prefill",
        )
    ]
    if plan.model is not None and plan.model.is_multimodal and not plan.has("language_only"):
        found.append(Term("vision encoder", "estimate for a batch of images", _VISION_GIB, "GiB", "prefill"))
    return found
