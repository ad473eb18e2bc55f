"""Serving performance: which limit binds, by the decode lines weighted with the time each stands for."""

from __future__ import annotations

import math
import re

from logforensics.findings import Action, Arithmetic, Confidence, Evidence, Recommendation, Severity
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite, decrease, increase, other, rule, set_to, step
from logforensics.run import BatchWindow, Capacity, Override
from logforensics.units import GIB

_BINDING_SHARE = 0.5  # of the serving time
_MIN_LINES = 5
_SPECULATION_DEFAULTS = (32, 48)


def cell_bytes(case: Case) -> tuple[float, Evidence, str] | None:
    """KV bytes per token and rank from the logged pool: printed size over (tokens + one page).

    Source: mem_cache/memory_pool.py allocates ``T + page_size`` rows.
    """
    for pool in case.run.kv_pools:
        if pool.kind in ("mha", "mla") and pool.num_tokens and pool.gib:
            page = int(case.config.number("page_size") or 1)
            value = pool.gib * GIB / (pool.num_tokens + page)
            return value, pool.mark.evidence("#tokens:"), f"{pool.gib:.2f} GiB / ({pool.num_tokens:,} + {page})"
    return None


def tokens_at(case: Case, capacity: Capacity, fraction: float) -> int | None:
    """KV tokens at another static fraction: linear in it with slope P/c.

    Source: model_runner.py:profile_max_num_token; ``T = (A - P (1 - f)) / c``.
    """
    before, cell, now = case.run.lowest("load_begin"), cell_bytes(case), case.config.number("mem_fraction_static")
    if before is None or before.avail_gib is None or cell is None or now is None:
        return None
    return int(capacity.max_total_num_tokens + (fraction - now) * before.avail_gib * GIB / cell[0])


def _busiest(case: Case) -> BatchWindow | None:
    windows = [window for window in case.run.serving.windows if window.lines >= _MIN_LINES]
    return max(windows, key=lambda window: (window.full_share, window.waiting_share), default=None)


def _capacity_of(case: Case, window: BatchWindow) -> Capacity | None:
    """The capacity line of the scheduler that printed a window: its own DP rank where each prints one."""
    own = [item for item in case.run.capacities if item.rank.dp == window.rank.dp]
    return (own or list(case.run.capacities) or [None])[-1]  # type: ignore[list-item]


def running_cap(case: Case, capacity: Capacity | None) -> int | None:
    """The effective limit of running requests of one scheduler.

    Under DP attention the configured limit is divided by the DP size (server_args.py:__post_init__; managers/scheduler.py, 0.4.2+).
    """
    values = [float(override.new) for override in case.run.overrides if override.flag == "max_running_requests" and _is_number(override.new)]
    if capacity is not None and capacity.max_running_requests:
        values.append(float(capacity.max_running_requests))
    if not values:
        configured = case.config.number("max_running_requests")
        if configured:
            values.append(configured // case.config.size("dp_size") if case.dp_attention else configured)
    return int(min(values)) if values else None


def _is_number(text: str | None) -> bool:
    return text is not None and re.fullmatch(r"\d+(?:\.\d+)?", text) is not None


@rule("LF501", "kv_capacity_bound", "The KV pool is full while requests wait")
def kv_capacity_bound(case: Case) -> Verdict | None:
    """The KV pool is full while requests wait: the scheduler can admit nothing more.

    Why: admission counts device tokens only. With `token usage` near 1 a waiting request has to wait until another one ends.
    Threshold: usage ≥ 0.95 with `#queue-req` > 0 for at least half of the serving time (SGLang's tuning guide calls > 0.9 good use; the
    queue is what makes it a limit).
    Confirm: `Decode batch` lines with usage ≥ 0.95 and a queue.
    Fix: more KV tokens (a higher fraction, FP8 KV, more GPUs or DP attention), or less demand per request (context, output length).
    False friends: usage 0.98 with an empty queue is a well-used server; HiCache does not raise the number of running requests.
    """
    window = _busiest(case)
    if window is None:
        return None
    retracting = case.run.serving.retraction_events > 0 and window.usage_max >= 0.95  # noqa: PLR2004
    if window.full_share < _BINDING_SHARE and not (retracting and window.waiting_share > _BINDING_SHARE and window.usage_median >= 0.9):  # noqa: PLR2004
        return None
    capacity = _capacity_of(case, window)
    evidence = [window.full_mark.evidence("token usage") if window.full_mark else None, window.last.evidence("token usage")]
    evidence += [capacity.mark.evidence("max_total_num_tokens") if capacity else None, case.config.evidence("mem_fraction_static")]
    steps, fix = _levers(case, window, capacity, evidence)
    tokens = f" of {capacity.max_total_num_tokens:,} tokens" if capacity else ""
    return Verdict(
        Severity.WARNING,
        Confidence.CERTAIN,
        "serving",
        f"the KV pool{tokens} is full while up to {window.queue_max} requests wait",
        f"For {window.full_share:.0%} of the serving time the pool was at {window.usage_median:.2f} of its tokens with requests waiting. "
        f"About {window.running_median:.0f} requests run; no more fit, whatever the request limit says.",
        cite(evidence),
        steps,
        fix,
    )


def _levers(
    case: Case, window: BatchWindow, capacity: Capacity | None, evidence: list[Evidence | None]
) -> tuple[list[Arithmetic], list[Recommendation]]:
    """What each lever would give."""
    steps: list[Arithmetic] = [step("throughput of this scheduler", "weighted by interval", round(window.throughput_mean, 1), "token/s")]
    fix: list[Recommendation] = []
    per_request = None
    if window.num_tokens_max and window.running_max:
        per_request = window.num_tokens_max / max(window.running_median, 1)
        steps.append(step("tokens a running request holds", f"{window.num_tokens_max:,} / {window.running_median:.0f}", round(per_request), "tokens"))
    if capacity is None:
        fix.append(increase("--mem-fraction-static", None, "share", "more KV tokens"))
        return steps, [*fix, *_other_levers(case, None, per_request)]
    total = capacity.max_total_num_tokens
    steps.append(step("KV tokens", "printed", total, "tokens"))
    cell = cell_bytes(case)
    if cell:
        evidence.append(cell[1])
        steps.append(step("KV bytes per token and rank", cell[2], round(cell[0]), "bytes"))
    fix += _fraction_lever(case, capacity, steps)
    return steps, [*fix, *_other_levers(case, total, per_request)]


def _fraction_lever(case: Case, capacity: Capacity, steps: list[Arithmetic]) -> list[Recommendation]:
    """Raise the fraction as far as 4 GiB stay free after start; nothing where less is free already."""
    now = case.config.number("mem_fraction_static")
    before = case.run.lowest("load_begin")
    if now is None or before is None or not before.avail_gib:
        return [increase("--mem-fraction-static", None, "share", "more KV tokens, as long as several GiB stay free after start")]
    left = capacity.avail_gib if capacity.avail_gib is not None else None
    room = (left - 4.0) / before.avail_gib if left is not None else 0.03
    value = math.floor(min(now + room, 0.95) * 100 + 1e-9) / 100
    if value <= now:
        return []
    tokens = tokens_at(case, capacity, value)
    if tokens:
        steps.append(step(f"KV tokens at --mem-fraction-static {value:g}", f"T + ({value:g} - {now:g}) × {before.avail_gib:.2f} GiB / c", tokens, "tokens"))
    gain = f"about {tokens:,} KV tokens ({tokens / capacity.max_total_num_tokens - 1:+.0%})" if tokens else "more KV tokens"
    risk = f"; {left:.1f} GiB are free after start, 4 stay" if left is not None else ""
    return [increase("--mem-fraction-static", value, "share of the memory free before loading", gain + risk)]


def _other_levers(case: Case, total: int | None, per_request: float | None) -> list[Recommendation]:
    fix: list[Recommendation] = []
    dtype = str(case.config.get("kv_cache_dtype", "auto"))
    if "fp8" not in dtype and "fp4" not in dtype:
        tokens = f"about {2 * total:,} KV tokens" if total else "about twice the KV tokens"
        fix.append(set_to("--kv-cache-dtype", "fp8_e4m3", "", f"Alternative: {tokens}; half the bytes per token, check the quality first"))
    tp, mla = case.config.size("tp_size"), any(pool.kind == "mla" for pool in case.run.kv_pools)
    if mla:
        if not case.dp_attention and tp > 1:
            fix.append(set_to("--enable-dp-attention", True, "", f"Alternative: MLA KV is whole on every TP rank; DP attention gives up to {tp} times the requests"))
            fix.append(increase("--dp-size", tp, "groups", "Alternative: the number of attention groups, with --enable-dp-attention"))
    else:
        fix.append(increase("--tp-size", tp * 2, "ranks", "Alternative: halves weights and KV per rank; needs more GPUs"))
        fix.append(increase("--dp-size", case.config.size("dp_size") * 2, "replicas", "Alternative: a second replica doubles the pool; needs more GPUs"))
    if total and per_request:
        fits = int(total / per_request)
        fix.append(decrease("--max-running-requests", max(1, fits), "requests", f"Alternative: about {fits} requests fit; a cap avoids retraction, it adds no throughput"))
        fix.append(other("client concurrency", "send no more requests at once than fit"))
    if case.config.get("enable_hierarchical_cache"):
        fix.append(other("HiCache", "its host tier extends the reach of prefix reuse, not the number of running requests: admission counts device tokens"))
    return fix


@rule("LF502", "max_running_requests_cap", "The request limit binds while the KV pool has room")
def max_running_requests_cap(case: Case) -> Verdict | None:
    """The effective limit of running requests binds while the KV pool has room.

    Why: the limit in force is the smallest of the flag (divided by the DP size under DP attention), the recurrent-state slots of a hybrid
    model, and the default that speculative decoding sets (48, or 32 in 0.4.4).
    Threshold: requests wait, usage < 0.9, and as many requests run as the limit allows (one less with a chunked prefill) for at least 30 %
    of the serving time.
    Confirm: `max_running_requests=` on the capacity line (effective) against server_args (asked for).
    Fix: raise what sets the limit: the flag, `--max-mamba-cache-size`, or an explicit `--max-running-requests` with speculation.
    False friends: a full KV pool; a client that sends just as many requests (queue 0).
    """
    capped = next((item for item in case.run.overrides if item.flag == "max_running_requests" and _is_number(item.new)), None)
    windows = [window for window in case.run.serving.windows if window.lines]
    window = max(windows, key=lambda item: item.waiting_roomy_share, default=None)
    capacity = _capacity_of(case, window) if window else (case.run.capacities[-1] if case.run.capacities else None)
    cap = running_cap(case, capacity)
    binding = window is not None and cap is not None and window.waiting_roomy_share >= 0.3 and _at_cap(window, cap)  # noqa: PLR2004
    asked = case.config.number("max_running_requests")
    shrunk = cap is not None and asked is not None and not case.dp_attention and cap < asked and _is_shortfall(case, capped)
    if not binding and not shrunk:
        return None
    assert cap is not None  # noqa: S101 - both conditions imply it
    evidence, steps, fix = _cap_proof(case, cap, capped, capacity, asked)
    if binding and window is not None:
        evidence = [window.roomy_mark.evidence("#running-req") if window.roomy_mark else None, *evidence]
        steps.append(step("share of the time that requests waited with room in the pool", "weighted by interval", round(window.waiting_roomy_share, 3)))
    waiting = f" while up to {window.queue_max} wait and the pool is at {window.usage_median:.2f}" if binding and window else ""
    return Verdict(
        Severity.WARNING,
        Confidence.CERTAIN if binding else Confidence.PROBABLE,
        "serving" if binding else "capacity",
        f"at most {cap} requests can run{waiting}",
        f"The limit in force is {cap}" + (f", although {asked:g} were asked for" if asked and asked != cap else "") + ". The KV pool is not what holds requests back.",
        cite(evidence),
        steps,
        fix,
    )


def _at_cap(window: BatchWindow, cap: int) -> bool:
    """Whether the waiting lines ran at the cap; one less counts: a chunked prefill takes a place of its own."""
    return bool(window.roomy_running) and max(window.roomy_running) in (cap, cap - 1)


def _is_shortfall(case: Case, capped: Override | None) -> bool:
    """Whether something printed says the limit was lowered below what was asked."""
    return capped is not None or any(pool.kind == "mamba" for pool in case.run.kv_pools)


def _cap_proof(
    case: Case, cap: int, capped: Override | None, capacity: Capacity | None, asked: float | None
) -> tuple[list[Evidence | None], list[Arithmetic], list[Recommendation]]:
    """Where the cap comes from, and how to raise it."""
    evidence: list[Evidence | None] = [
        capped.mark.evidence("capped to") if capped else None,
        capacity.mark.evidence("max_running_requests=") if capacity else None,
        case.config.evidence("max_running_requests"),
    ]
    steps = [step("effective limit", "the smallest in force", cap, "requests")]
    pool = next((item for item in case.run.kv_pools if item.kind == "mamba" and item.slots), None)
    if capped is not None and "mamba" in capped.text or (pool is not None and asked is not None and cap < asked):
        evidence.append(pool.mark.evidence("max_mamba_cache_size") if pool else None)
        return evidence, steps, _more_slots(case, cap, pool.slots if pool else None, asked, steps, capped)
    if cap in _SPECULATION_DEFAULTS and case.config.get("speculative_algorithm"):
        value = _requests_that_fit(case, capacity) or cap * 2
        why = "speculative decoding sets this default when the flag is not given; choose it from the pool"
        return evidence, steps, [Recommendation("--max-running-requests", Action.INCREASE, value, "requests", why)]
    dp = case.config.size("dp_size") if case.dp_attention else 1
    value = (_requests_that_fit(case, capacity) or cap * 2) * dp
    if dp > 1:
        steps.append(step("per scheduler under DP attention", f"{(asked or cap * dp):g} // {dp}", cap, "requests"))
    return evidence, steps, [increase("--max-running-requests", value, "requests", "the pool has room for more running requests")]


def _more_slots(
    case: Case, cap: int, slots: int | None, asked: float | None, steps: list[Arithmetic], capped: Override | None
) -> list[Recommendation]:
    """Recurrent-state slots: requests × slots per request are needed.

    Source: slots per request 1 without radix cache, 3 no_buffer, 4 or 5 with extra buffers (configs/mamba_utils.py, 0.5.20).
    """
    text = capped.text if capped else ""
    printed = re.search(r"max_mamba_cache_size[=:] ?(\d+)", text)
    each = re.search(r"(\d+) (?:state )?slots? per request", text)
    have = slots or (int(printed[1]) if printed else None)
    per_request = int(each[1]) if each else (have // cap if have else None)
    wanted = int(asked) if asked and asked > cap else cap * 2
    fix = []
    if per_request and have:
        need = wanted * per_request
        steps.append(step("slots per request", f"{have} // {cap}", per_request, "slots"))
        steps.append(step(f"slots for {wanted} requests", f"{wanted} × {per_request}", need, "slots"))
        fix.append(increase("--max-mamba-cache-size", need, "slots", f"holds {wanted} running requests; takes memory from the KV pool"))
    else:
        fix.append(increase("--max-mamba-cache-size", None, "slots", "more recurrent-state slots, taken from the KV pool"))
    fix.append(set_to("--mamba-ssm-dtype", "bfloat16", "", "Alternative: halves the bytes of a state"))
    fix.append(increase("--mamba-full-memory-ratio", None, "states : KV", "Alternative: a larger share for states"))
    fix.append(increase("--mem-fraction-static", None, "share", "Alternative: more memory for both"))
    fix.append(decrease("--max-running-requests", cap, "requests", "Alternative: ask for what can run"))
    return fix


def _requests_that_fit(case: Case, capacity: Capacity | None) -> int | None:
    """Requests that the pool holds at the size seen so far."""
    window = max(case.run.serving.windows, key=lambda item: item.running_max, default=None)
    if capacity is None or window is None or not window.num_tokens_max or not window.running_max:
        return None
    each = window.num_tokens_max / window.running_max
    fits = int(capacity.max_total_num_tokens / max(each, 1))
    return max(1, min(fits, window.running_max + window.queue_max * 2))
