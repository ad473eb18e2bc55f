"""Which limit holds requests back: the KV pool, or the number of running requests."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from logforensics.findings import Arithmetic, Confidence, Evidence, Recommendation, Severity
from logforensics.rules.case import Case
from logforensics.rules.load import (
    SPECULATION_DEFAULTS,
    Spell,
    capacity_of,
    holds,
    is_number,
    longest,
    plateau,
    running_cap,
    steps_arithmetic,
)
from logforensics.rules.registry import Verdict, cite, decrease, increase, other, rule, set_to, step
from logforensics.run import BatchWindow, Capacity, Override
from logforensics.run.model import Occupancy
from logforensics.sglang.fraction import tokens_at as linear_tokens
from logforensics.sglang.prediction import logged_bytes_per_token

_FULL_SHARE = 0.5  # of the scheduler's time
_CAP_SHARE = 0.3
_MOST_SLOTS = 5  # per request: extra buffers with the overlap scheduler (configs/mamba_utils.py, 0.5.20)
_FRACTION_STEPS = (0.03, 0.05, 0.08)
_LARGEST_SHOWN = 0.97
_FREE_GIB = 4.0  # stays free when a higher fraction is proposed


def cell_bytes(case: Case) -> tuple[float, Evidence, str] | None:
    """KV bytes per token and rank from the logged pool: printed size over (tokens + one page).

    Source: mem_cache/memory_pool.py allocates ``T + page_size`` rows.
    """
    for pool in case.run.kv_pools:
        if pool.kind in ("mha", "mla") and pool.num_tokens and pool.gib:
            page = int(case.config.number("page_size") or 1)
            value = logged_bytes_per_token(pool.gib, pool.num_tokens, page)
            return value, pool.mark.evidence("#tokens:"), f"{pool.gib:.2f} GiB / ({pool.num_tokens:,} + {page})"
    return None


def tokens_at(case: Case, capacity: Capacity, fraction: float) -> int | None:
    """KV tokens of a scheduler at another static fraction; None where the log lacks one of the figures."""
    before, cell, now = case.run.lowest("load_begin"), cell_bytes(case), case.config.number("mem_fraction_static")
    if before is None or before.avail_gib is None or cell is None or now is None:
        return None
    return linear_tokens(fraction, now=capacity.max_total_num_tokens, fraction_now=now, pre_gib=before.avail_gib, bytes_per_token=cell[0])


@rule("LF501", "kv_capacity_bound", "The KV pool is full while requests wait")
def kv_capacity_bound(case: Case) -> Verdict | None:
    """The KV pool is full while requests wait: the scheduler can admit nothing more.

    Why: admission counts device tokens only. With `token usage` near 1 a waiting request has to wait until another one ends.
    Threshold: usage ≥ 0.95 with `#queue-req` > 0 for half of the serving time, or for a minute and a tenth of it (SGLang's tuning guide
    calls > 0.9 good use; the queue is what makes it a limit). Time is that of decode and prefill lines together, idle time apart.
    Confirm: batch lines with usage ≥ 0.95 and a queue; retractions.
    Fix: more KV tokens (a higher fraction, FP8 KV, more GPUs or DP attention), or less demand per request (context, output length).
    False friends: usage 0.98 with an empty queue is a well-used server; recurrent-state slots at 1.00 are a request limit, not a KV limit;
    HiCache does not raise the number of running requests.
    """
    found = longest(case, lambda _: lambda state: state.waiting and state.band == "full")
    if found is None:
        return None
    window, full = found
    retracting = case.run.serving.retraction_events > 0 and window.waiting_share > _FULL_SHARE and window.usage_median >= 0.9
    if not holds(case, full, _FULL_SHARE) and not retracting:
        return None
    capacity = capacity_of(case, window.rank)
    evidence: list[Evidence | None] = [full.mark.evidence("token usage"), full.last.evidence("token usage")]
    evidence += [capacity.mark.evidence("max_total_num_tokens") if capacity else None, case.config.evidence("mem_fraction_static")]
    steps, fix = _levers(case, window, full, capacity, evidence)
    tokens = f" of {capacity.max_total_num_tokens:,} tokens" if capacity else ""
    pool = "sliding-window pool" if _window_pool_binds(window) else "KV pool"
    when = f" ({full.when})" if full.when else ""
    return Verdict(
        Severity.WARNING,
        Confidence.CERTAIN,
        "serving",
        f"the {pool}{tokens} is full while up to {full.queue_max} requests wait",
        f"For {full.seconds:.0f} s, {full.share:.0%} of the serving time{when}, the pool was full with requests waiting. "
        f"About {full.running:.0f} requests run then; no more fit, whatever the request limit says.",
        cite(evidence),
        steps,
        fix,
    )


def _window_pool_binds(window: BatchWindow) -> bool:
    """Whether the sliding-window pool is the full one and the full-attention pool has room."""
    return (window.swa_usage_median or 0.0) >= 0.9 > (window.full_usage_median or 0.0)


def _levers(
    case: Case, window: BatchWindow, full: Spell, capacity: Capacity | None, evidence: list[Evidence | None]
) -> tuple[list[Arithmetic], list[Recommendation]]:
    """What each lever would give."""
    steps = steps_arithmetic(window)
    steps.append(step("time with a full pool and a queue", f"{full.seconds:.0f} s", round(full.share, 3), "of the serving time"))
    running = max(full.running, 1.0)
    total = capacity.max_total_num_tokens if capacity else window.num_tokens_max
    per_request = total * full.usage / running if total else None
    if per_request and total:
        steps.append(step("KV tokens", "printed" if capacity else "most that were in use", total, "tokens"))
        steps.append(step("tokens a running request holds", f"{total:,} × {full.usage:.2f} / {running:.1f}", round(per_request), "tokens"))
        steps.append(step("requests that fit", f"{total:,} / {per_request:,.0f}", int(total / per_request), "requests"))
    if cell := cell_bytes(case):
        evidence.append(cell[1])
        steps.append(step("KV bytes per token and rank", cell[2], round(cell[0]), "bytes"))
        steps += _by_architecture(case)
    fix: list[Recommendation] = []
    if _window_pool_binds(window):
        fix.append(increase("--swa-full-tokens-ratio", None, "window tokens : full tokens", "the sliding-window pool is the full one"))
    if capacity is None:
        fix.append(increase("--mem-fraction-static", None, "share", "more KV tokens, as long as several GiB stay free after start"))
    else:
        fix += _fraction_lever(case, capacity, steps)
    return steps, [*fix, *_other_levers(case, total, per_request)]


def _by_architecture(case: Case) -> list[Arithmetic]:
    """The bytes per token that the model's architecture gives, beside those of the log."""
    if case.kv_prediction is None or case.kv_prediction[1].from_log:
        return []
    terms = [term for term in case.kv_prediction[1].terms if term.unit == "B per token"]
    expression = " + ".join(f"{term.name} {term.expression}" for term in terms)
    return [step("the same by the architecture", expression, round(case.kv_prediction[1].bytes_per_token), "bytes")] if terms else []


def _fraction_lever(case: Case, capacity: Capacity, steps: list[Arithmetic]) -> list[Recommendation]:
    """Raise the fraction as far as 4 GiB stay free after start; nothing where less is free already."""
    now = case.config.number("mem_fraction_static")
    before = case.run.lowest("load_begin")
    if now is None or before is None or not before.avail_gib:
        return [increase("--mem-fraction-static", None, "share", "more KV tokens, as long as several GiB stay free after start")]
    left = capacity.avail_gib
    room = (left - _FREE_GIB) / before.avail_gib if left is not None else 0.03
    value = math.floor(min(now + room, 0.95) * 100 + 1e-9) / 100
    if value <= now:
        return []
    tokens = tokens_at(case, capacity, value)
    steps += _fraction_table(case, capacity, now, before.avail_gib, value)
    gain = f"about {tokens:,} KV tokens ({tokens / capacity.max_total_num_tokens - 1:+.0%})" if tokens else "more KV tokens"
    risk = f"; {left:.1f} GiB are free after start, {_FREE_GIB:g} stay" if left is not None else ""
    if any(item.stage == "load_end" and "ForConditionalGeneration" in (item.detail or "") for item in case.run.memory_steps):
        risk += "; images and video need some of that, so go in steps"
    return [increase("--mem-fraction-static", value, "share of the memory free before loading", gain + risk)]


def _fraction_table(case: Case, capacity: Capacity, now: float, before_gib: float, advised: float) -> list[Arithmetic]:
    """KV tokens at some fractions: linear in the fraction, not proportional to it. What more tokens leave free is shown beside them."""
    steps = []
    for fraction in sorted({advised, *(round(now + more, 3) for more in _FRACTION_STEPS)}):
        tokens = tokens_at(case, capacity, fraction)
        if tokens is None or fraction > _LARGEST_SHOWN:
            continue
        left = f", {capacity.avail_gib - (fraction - now) * before_gib:.1f} GiB stay free" if capacity.avail_gib is not None else ""
        expression = f"{capacity.max_total_num_tokens:,} + ({fraction:g} - {now:g}) × {before_gib:.2f} GiB / c{left}"
        steps.append(step(f"KV tokens at --mem-fraction-static {fraction:g}", expression, tokens, "tokens"))
    return steps


def _other_levers(case: Case, total: int | None, per_request: float | None) -> list[Recommendation]:
    fix: list[Recommendation] = []
    dtype = str(case.config.get("kv_cache_dtype", "auto"))
    if "fp8" not in dtype and "fp4" not in dtype:
        tokens = f"about {2 * total:,} KV tokens" if total else "about twice the KV tokens"
        fix.append(set_to("--kv-cache-dtype", "fp8_e4m3", "", f"Alternative: {tokens}; half the bytes per token, check the quality first"))
    fix += _layout_levers(case)
    if total and per_request:
        fits = max(1, int(total / per_request))
        fix.append(
            decrease(
                "--max-running-requests",
                fits,
                "requests",
                f"Alternative: about {fits} requests fit; a cap avoids retraction, it adds no throughput",
            )
        )
        fix.append(decrease("client concurrency", fits, "requests", "Alternative: send no more requests at once than fit"))
    if case.run.serving.retraction_events:
        now = case.config.number("schedule_conservativeness") or 1.0
        fix.append(
            increase(
                "--schedule-conservativeness",
                round(now * 1.3, 2),
                "ratio",
                "Alternative: fewer retractions (SGLang's guide: 1.3), not more room",
            )
        )
    if case.config.get("enable_hierarchical_cache"):
        fix.append(
            other(
                "HiCache",
                "its host tier extends the reach of prefix reuse, not the number of running requests: admission counts device tokens",
            )
        )
    return fix


def _layout_levers(case: Case) -> list[Recommendation]:
    """More pool from more cards, or from not keeping the same tokens on all of them."""
    tp, dp = case.config.size("tp_size"), case.config.size("dp_size")
    if any(pool.kind == "mla" for pool in case.run.kv_pools):
        if case.dp_attention or tp == 1:
            return []
        return [
            set_to(
                "--enable-dp-attention",
                True,  # noqa: FBT003 - the flag's value
                "",
                f"Alternative: MLA KV is whole on every TP rank; DP attention gives up to {tp} times the requests",
            ),
            increase("--dp-size", tp, "groups", "Alternative: the number of attention groups, with --enable-dp-attention"),
        ]
    return [
        increase("--tp-size", tp * 2, "ranks", "Alternative: halves weights and KV per rank; needs more GPUs"),
        increase("--dp-size", dp * 2, "replicas", "Alternative: a second replica doubles the pool; needs more GPUs"),
    ]


@rule("LF502", "max_running_requests_cap", "The request limit binds while the KV pool has room")
def max_running_requests_cap(case: Case) -> Verdict | None:
    """The effective limit of running requests binds while the KV pool has room.

    Why: the limit in force is the smallest of the flag (divided by the DP size under DP attention), the recurrent-state slots of a hybrid
    model, and the default that speculative decoding sets (48, or 32 in 0.4.4).
    Threshold: requests wait, KV usage < 0.95, and as many requests run as the limit allows (one less with a chunked prefill) for 30 % of
    the serving time, or a minute and a tenth of it. Where the log does not say the limit, a batch size that never moves while requests
    wait is one. A limit below the one asked for is reported even before anything waits.
    Confirm: `max_running_requests=` on the capacity line (effective) against server_args (asked for).
    Fix: raise what sets the limit: the flag, `--max-mamba-cache-size`, or an explicit `--max-running-requests` with speculation.
    False friends: a full KV pool; a client that sends just as many requests (queue 0).
    """
    capped = next((item for item in case.run.overrides if item.flag == "max_running_requests" and is_number(item.new)), None)
    found = longest(case, lambda window: _at_cap(case, window))
    binding = found if found is not None and holds(case, found[1], _CAP_SHARE) else None
    window = binding[0] if binding else None
    capacity = capacity_of(case, window.rank if window else None)
    asked = case.config.number("max_running_requests")
    cap = _limit(case, window, capacity)
    if cap is None or not (binding or _is_shortfall(case, cap, asked, capped, capacity)):
        return None
    evidence, steps, fix = _cap_proof(case, cap, capped, capacity, asked)
    if binding:
        evidence = [binding[1].mark.evidence("#running-req"), *evidence]
        steps = [
            *steps_arithmetic(binding[0]),
            step("time at the limit with requests waiting", f"{binding[1].seconds:.0f} s", round(binding[1].share, 3)),
            *steps,
        ]
    below = binding is not None and binding[1].running_high < cap
    one_less = (
        " One less than the limit runs: a chunked prefill takes a place of its own (sglang #30294), or `batch_is_full` sticks (#35537)."
        if below
        else ""
    )
    waiting = f" while up to {binding[1].queue_max} wait and the pool is at {binding[1].usage:.2f}" if binding else ""
    idle = binding is None and bool(case.run.serving.windows)
    return Verdict(
        Severity.INFO if idle else Severity.WARNING,
        Confidence.CERTAIN if binding and running_cap(case, capacity) else Confidence.PROBABLE,
        "serving" if binding else "capacity",
        f"at most {cap} requests can run{waiting}",
        f"The limit in force is {cap}"
        + (f", although {asked:g} were asked for" if asked and asked != cap else "")
        + f". The KV pool is not what holds requests back.{one_less}",
        cite(evidence),
        steps,
        fix,
    )


def _limit(case: Case, window: BatchWindow | None, capacity: Capacity | None) -> int | None:
    """The limit in force: printed or configured, else the batch size that never moves."""
    return running_cap(case, capacity) or (plateau(case, window) if window else None)


def _at_cap(case: Case, window: BatchWindow) -> Callable[[Occupancy], bool]:
    """States in which as many requests run as may; one less counts: a chunked prefill takes a place of its own."""
    cap = running_cap(case, capacity_of(case, window.rank)) or plateau(case, window)
    if cap is None:
        return lambda _: False
    return lambda state: state.running >= max(1, cap - 1) and state.waiting and state.band != "full"


def _is_shortfall(case: Case, cap: int, asked: float | None, capped: Override | None, capacity: Capacity | None) -> bool:
    """Whether the limit is lower than what was asked for, by state slots rather than by division or pool size."""
    if capped is not None and "mamba" in capped.text:
        return True
    if asked is None or cap >= asked or case.dp_attention or case.config.size("dp_size") > 1:
        return False
    half_pool = capacity.max_total_num_tokens // 2 if capacity else None
    return cap != half_pool


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
    if (capped is not None and "mamba" in capped.text) or _is_shortfall(case, cap, asked, None, capacity):
        evidence.append(pool.mark.evidence("max_mamba_cache_size") if pool else None)
        return evidence, steps, _more_slots(cap, pool.slots if pool else None, asked, steps, capped)
    fits = _requests_that_fit(case, capacity) or cap * 2
    if cap in SPECULATION_DEFAULTS and case.config.get("speculative_algorithm"):
        why = "speculative decoding sets this default when the flag is not given; choose it from the pool"
        return evidence, steps, [increase("--max-running-requests", fits, "requests", why)]
    dp = case.config.size("dp_size") if case.dp_attention else 1
    if dp > 1:
        steps.append(step("per scheduler under DP attention", f"{(asked or cap * dp):g} // {dp}", cap, "requests"))
    return evidence, steps, [increase("--max-running-requests", fits * dp, "requests", "the pool has room for more running requests")]


def _more_slots(cap: int, slots: int | None, asked: float | None, steps: list[Arithmetic], capped: Override | None) -> list[Recommendation]:
    """Recurrent-state slots: requests × slots per request are needed.

    Source: slots per request 1 without radix cache, 3 no_buffer, 4 or 5 with extra buffers (configs/mamba_utils.py, 0.5.20).
    """
    text = capped.text if capped else ""
    printed = re.search(r"max_mamba_cache_size[=:] ?(\d+)", text)
    each = re.search(r"(\d+) (?:state )?slots? per request", text)
    have = slots or (int(printed[1]) if printed else None)
    per_request = int(each[1]) if each else max(1, have // cap) if have else _MOST_SLOTS
    wanted = int(asked) if asked and asked > cap else cap * 2
    steps.append(
        step("slots per request", "printed" if each else f"{have} // {cap}" if have else "extra buffers with overlap", per_request, "slots")
    )
    steps.append(step(f"slots for {wanted} requests", f"{wanted} × {per_request}", wanted * per_request, "slots"))
    return [
        increase(
            "--max-mamba-cache-size", wanted * per_request, "slots", f"holds {wanted} running requests; takes memory from the KV pool"
        ),
        set_to("--mamba-ssm-dtype", "bfloat16", "", "Alternative: halves the bytes of a state"),
        increase("--mamba-full-memory-ratio", None, "states : KV", "Alternative: a larger share for states"),
        increase("--mem-fraction-static", None, "share", "Alternative: more memory for both"),
        decrease("--max-running-requests", cap, "requests", "Alternative: ask for what can run"),
    ]


def _requests_that_fit(case: Case, capacity: Capacity | None) -> int | None:
    """Requests that the pool holds at the size seen so far."""
    window = max(case.run.serving.windows, key=lambda item: item.running_max, default=None)
    if capacity is None or window is None or not window.num_tokens_max or not window.running_max:
        return None
    each = window.num_tokens_max / window.running_max
    fits = int(capacity.max_total_num_tokens / max(each, 1))
    return max(1, min(fits, window.running_max + window.queue_max * 2))
