"""Notes: what people often believe of a flag and what it does instead, said when the flag is used. No finding, because nothing is wrong.

Each note is named after its trap (``logforensics explain TRAP`` tells more).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from logforensics.planning.outside import context_length, running_requests
from logforensics.sglang.flags import release_at_least
from logforensics.sglang.host_guard import processes_on_host
from logforensics.sglang.host_pool import PINNING, Pinning, pinned_bytes
from logforensics.units import GB, GIB, gb

if TYPE_CHECKING:
    from logforensics.planning.plan import Plan


def notes_for(plan: Plan) -> tuple[str, ...]:
    """Every note that a plan calls for, each ending in the name of its trap."""
    if not plan.layout_known:
        return ("the parallel sizes are variables that only a run fills: memory and layout were not checked",)
    found = ((name, note(plan)) for name, note in NOTES.items())
    return tuple(f"{text} [{name}]" for name, text in found if text)


def _size_per_rank(plan: Plan) -> str | None:
    size, ranks = plan.number("hicache_size"), processes_on_host(plan.args).total
    if not size or not plan.has("enable_hierarchical_cache"):
        return None
    return f"--hicache-size is GB (1e9) for each rank: {ranks} × {size:g} GB = {ranks * size:g} GB on each machine"


def _power_of_two(plan: Plan) -> str | None:
    size = plan.number("hicache_size")
    if not size or not plan.has("enable_hierarchical_cache") or PINNING.at(plan.spoken) is not Pinning.POWER_OF_TWO:
        return None
    return f"this release pins a power of two: {size:g} GB takes {pinned_bytes(int(size * GB), plan.spoken) / GIB:g} GiB of each rank"


def _no_more_requests(plan: Plan) -> str | None:
    if not plan.has("enable_hierarchical_cache"):
        return None
    tokens = f" (about {plan.tokens.mid:,.0f})" if plan.tokens and plan.tokens.mid > 0 else ""
    return f"HiCache extends prefix reuse; running requests need device tokens{tokens}, whatever the host holds"


def _container(plan: Plan) -> str | None:
    if not plan.has("enable_hierarchical_cache") or release_at_least(plan.spoken, "0.5.21") or plan.command.place.memory_bytes is None:
        return None
    return f"the container may use {gb(plan.command.place.memory_bytes)}; this release looks at the memory of the whole node"


def _speculation_cap(plan: Plan) -> str | None:
    if plan.number("max_running_requests") or not plan.has("speculative_algorithm") or plan.release.before("0.4.4"):
        return None
    return f"speculation sets --max-running-requests to 48 where it is not given: {running_requests(plan)} for each scheduler here"


def _divided_requests(plan: Plan) -> str | None:
    given, groups = plan.number("max_running_requests"), plan.spread.attention_dp
    if not given or groups == 1:
        return None
    return f"--max-running-requests {given:g} is divided by the {groups} attention groups: {given // groups:g} for each scheduler"


def _divided_chunk(plan: Plan) -> str | None:
    chunk, groups = plan.number("chunked_prefill_size"), plan.spread.attention_dp
    if not chunk or chunk < 0 or groups == 1 or plan.release.before("0.4.5"):
        return None
    return f"--chunked-prefill-size {chunk:g} is divided by the {groups} attention groups: {chunk // groups:g} tokens a batch; --max-prefill-tokens is not"


def _conservativeness(plan: Plan) -> str | None:
    if plan.spread.attention_dp == 1:
        return None
    value = plan.number("schedule_conservativeness") or 1.0
    return f"DP attention multiplies --schedule-conservativeness by 0.3: {value * 0.3:g} here"


def _latent_copies(plan: Plan) -> str | None:
    if plan.model is None or plan.model.layout != "latent" or plan.spread.attention_tp == 1:
        return None
    ranks = plan.spread.attention_tp
    return f"latent KV (MLA) is whole on each of the {ranks} ranks: tensor parallelism does not shrink it, DP attention gives each group its own requests"


def _replicated_heads(plan: Plan) -> str | None:
    heads = plan.model.kv_heads if plan.model and plan.model.layout == "heads" else None
    if not heads or plan.spread.attention_tp <= heads:
        return None
    return f"{heads} KV heads on {plan.spread.attention_tp} ranks are replicated: KV per rank is that of {heads} ranks"


def _request_table(plan: Plan) -> str | None:
    context = context_length(plan)
    rows = running_requests(plan) or 2048
    size = (rows + 1) * context * 4 / GIB
    return (
        f"the request table takes {size:.1f} GiB beside the static share: {rows} requests × {context:,} positions × 4 B"
        if size >= 1
        else None
    )


def _automatic_fraction(plan: Plan) -> str | None:
    if plan.number("mem_fraction_static") is not None or plan.computed_fraction is None:
        return None
    return f"no --mem-fraction-static is given: this release computes {plan.computed_fraction.fraction:.3f}"


def _chunk_reserve(plan: Plan) -> str | None:
    chunk = plan.number("chunked_prefill_size")
    if plan.number("mem_fraction_static") is not None or not chunk or chunk <= 16384 or not release_at_least(plan.spoken, "0.5.3"):
        return None
    return f"a chunk of {chunk:g} tokens takes {chunk * 1.5 / 1024:.0f} GiB from the automatic fraction"


def _dp_meaning(plan: Plan) -> str | None:
    dp = plan.number("dp_size")
    if not dp or dp <= 1:
        return None
    if plan.spread.attention_dp > 1:
        return f"with DP attention --dp-size {dp:g} are groups inside the {plan.spread.tp} ranks, no replicas"
    return f"--dp-size {dp:g} are whole replicas: {dp:g} × {plan.spread.tp * plan.spread.pp} GPUs"


def _uncounted_replicas(plan: Plan) -> str | None:
    if plan.spread.replicas == 1 or not plan.has("enable_hierarchical_cache") or not release_at_least(plan.spoken, "0.5.19"):
        return None
    return f"SGLang's host-memory check does not count the {plan.spread.replicas} replicas on a machine"


def _typed_beats_auto(plan: Plan) -> str | None:
    if not plan.has("hicache_host_memory_fraction") or not (plan.number("hicache_size") or plan.number("hicache_ratio")):
        return None
    return "an explicit --hicache-size or --hicache-ratio switches --hicache-host-memory-fraction off"


def _ratio_default(plan: Plan) -> str | None:
    if not plan.has("enable_hierarchical_cache") or plan.number("hicache_size") or plan.number("hicache_ratio"):
        return None
    if release_at_least(plan.spoken, "0.5.21"):
        return "without size and ratio this release fits the host pools to the machine"
    return "without size and ratio the host pool of each rank is twice its device pool"


def _capped_pool(plan: Plan) -> str | None:
    given = plan.number("max_total_tokens")
    if not given or plan.tokens is None or given <= plan.tokens.high:
        return None
    return f"--max-total-tokens {given:,.0f} is only a cap: about {plan.tokens.mid:,.0f} tokens fit"


def _states(plan: Plan) -> str | None:
    if plan.model is None or not plan.model.layers.linear or plan.number("max_mamba_cache_size"):
        return None
    return "recurrent states take their share of the pool first and cap running requests; --max-mamba-cache-size or --mamba-full-memory-ratio sets it"


def _two_pools(plan: Plan) -> str | None:
    if plan.kv is None or not plan.kv.sliding:
        return None
    return "sliding-window layers have a pool of their own; the token count is that of the full-attention layers"


def _worker_tokens(plan: Plan) -> str | None:
    workers = max(plan.spread.attention_dp, plan.spread.replicas)
    if workers == 1 or plan.tokens is None or plan.tokens.mid <= 0:
        return None
    return f"about {plan.tokens.mid:,.0f} KV tokens are those of one of {workers} schedulers; the server has {workers} times that"


def _draft_share(plan: Plan) -> str | None:
    if not plan.has("speculative_algorithm") or str(plan.args.get("speculative_algorithm")).upper() == "NGRAM":
        return None
    inside = release_at_least(plan.spoken, "0.5.14")
    return (
        "draft weights and draft KV are part of the static share (0.5.14+): fewer tokens"
        if inside
        else "draft weights and draft KV come on top of the static share before 0.5.14"
    )


NOTES: Mapping[str, Callable[[Plan], str | None]] = {
    "hicache-size-per-rank": _size_per_rank,
    "pow2-pinning": _power_of_two,
    "hicache-not-concurrency": _no_more_requests,
    "container-limit": _container,
    "max-running-48": _speculation_cap,
    "dp-divides-running": _divided_requests,
    "dp-divides-chunk": _divided_chunk,
    "dp-conservativeness": _conservativeness,
    "mla-replicated": _latent_copies,
    "gqa-replicated": _replicated_heads,
    "request-table": _request_table,
    "default-fraction": _automatic_fraction,
    "chunk-raises-reserve": _chunk_reserve,
    "dp-size-meaning": _dp_meaning,
    "replicas-uncounted": _uncounted_replicas,
    "auto-size-off": _typed_beats_auto,
    "ratio-default": _ratio_default,
    "max-total-ignored": _capped_pool,
    "mamba-caps-running": _states,
    "swa-token-count": _two_pools,
    "tokens-per-worker": _worker_tokens,
    "spec-shrinks-pool": _draft_share,
}
