"""Prompts: what their computation costs, whom it keeps waiting, and how much of it the prefix cache saves."""

from __future__ import annotations

import math

from logforensics.findings import Arithmetic, Confidence, Recommendation, Severity
from logforensics.rules.case import Case
from logforensics.rules.load import capacity_of, is_excerpt
from logforensics.rules.registry import Verdict, cite, decrease, increase, other, remove, rule, set_to, step, upgrade
from logforensics.run.model import HitWindow, PrefillWindow
from logforensics.units import GIB

_BACKLOG_SECONDS = 5.0
_BUSY_SHARE, _FULL_LINES, _BUSY_SECONDS = 0.6, 0.4, 30.0
_STARVED_SHARE, _STARVED_SECONDS = 0.5, 30.0
_STARVED_HINT_SHARE, _STARVED_HINT_SECONDS = 0.3, 10.0
_NO_REUSE = 0.05
_KEPT_FREE_GIB = 8.0  # SGLang's tuning guide: 5 to 8 GB free after start are right
_IDLE_GIB = 20.0


# ------------------------------------------------------------------------------------------------ computing


@rule("LF508", "prefill_compute_bound", "Prefill is the limit")
def prefill_compute_bound(case: Case) -> Verdict | None:
    """Prompts arrive faster than they can be computed: every prefill batch is full, and tokens pile up in front of it.

    Why: prefill is bound by arithmetic. Once a batch fills the GPU, a larger chunk does not raise tokens/s (sglang: 10k token/s with chunks
    of 16,384 and of 32,768); it only makes running requests wait longer for their turn.
    Threshold: full batches, half of the time in prefill and `#pending-token` / `input throughput` ≥ 5 s with requests waiting; where the release prints no pending tokens
    (before 0.5.11), prefill for 60 % of the time, requests waiting for half of it and 30 s, and 40 % of the batches full.
    Confirm: input throughput stays the same when the chunk is changed.
    Fix: half the chunk (no throughput lost, decode gets more turns); more GPUs or replicas; prefix reuse; a prefill node of its own.
    False friends: a prefill node of a PD pair, which is meant to be busy (a remark); a full KV pool that makes prompts wait; slow image
    preprocessing (gaps between prefill lines, nothing waiting).
    """
    window = max(case.run.serving.prefills, key=_backlog, default=None)
    if window is None:
        return None
    backlog, full = _backlog(window), _chunk_full(case, window)
    busy = window.seconds >= _BUSY_SHARE * window.total_seconds and window.waiting_seconds >= max(0.5 * window.total_seconds, _BUSY_SECONDS)
    piling = backlog >= _BACKLOG_SECONDS and window.seconds >= 0.5 * window.total_seconds
    if not full or not window.queue_max or not (piling or (busy and window.lines >= 20)):
        return None
    steps = _prefill_arithmetic(window, backlog)
    waiting = (
        f", {window.pending_max:,} tokens ({backlog:.0f} s) wait"
        if window.pending_max and backlog
        else f", up to {window.queue_max} requests wait"
    )
    return Verdict(
        Severity.INFO if case.config.get("disaggregation_mode") == "prefill" and backlog < _BACKLOG_SECONDS else Severity.WARNING,
        Confidence.PROBABLE,
        "serving",
        f"prefill batches of {window.largest_new_token:,} tokens are full{waiting}",
        "The GPU computes prompts as fast as it can. A larger chunk would not help: it only keeps running requests waiting longer.",
        cite([(window.pending_mark or window.largest).evidence("#new-token"), window.last.evidence("#new-token")]),
        steps,
        _cheaper_prefill(case, window),
        () if window.input_throughput else ("a release that prints input throughput and #pending-token (0.5.11 on)",),
    )


def _backlog(window: PrefillWindow) -> float:
    """Seconds of prefill that wait: pending tokens over the throughput of full batches."""
    return window.pending_max / window.input_throughput if window.pending_max and window.input_throughput else 0.0


def _chunk_full(case: Case, window: PrefillWindow) -> bool:
    """Whether batches fill the token budget: the one in force, or (most lines equal) the largest batch seen."""
    capacity = capacity_of(case, window.rank)
    chunk = (capacity.chunked_prefill_size if capacity else None) or case.config.number("chunked_prefill_size")
    if chunk and chunk > 0 and window.largest_new_token < 0.9 * chunk:
        return False
    return window.full_lines >= _FULL_LINES * window.lines


def _prefill_arithmetic(window: PrefillWindow, backlog: float) -> list[Arithmetic]:
    steps = [
        step(
            "time in prefill",
            f"{window.seconds:.0f} / {window.total_seconds:.0f} s",
            round(window.seconds / max(window.total_seconds, 1e-9), 3),
        ),
        step("batches that fill the budget", f"{window.full_lines} / {window.lines}", round(window.full_lines / window.lines, 3)),
    ]
    if window.input_throughput:
        steps.append(step("input throughput of full batches", "median", round(window.input_throughput, 1), "token/s"))
    if backlog and window.pending_max:
        steps.append(step("backlog", f"{window.pending_max:,} / {window.input_throughput:,.0f}", round(backlog, 1), "s"))
    return steps


def _cheaper_prefill(case: Case, window: PrefillWindow) -> list[Recommendation]:
    """A smaller chunk costs nothing while it still fills the GPU; more computing power is the cure."""
    fix: list[Recommendation] = []
    chunk = _chunk(case, window)
    if chunk > 4096:
        half = max(4096, chunk // 2)
        fix.append(
            decrease(
                "--chunked-prefill-size",
                half,
                "tokens",
                "no throughput is lost while batches stay full, and running requests get turns more often",
            )
        )
    fix.append(increase("--dp-size", case.config.size("dp_size") * 2, "replicas", "Alternative: twice the prefill; needs more GPUs"))
    fix.append(increase("--tp-size", case.config.size("tp_size") * 2, "ranks", "Alternative: splits each prefill; needs more GPUs"))
    fix.append(other("prefill-decode disaggregation", "Alternative: prompts on nodes of their own"))
    return fix


def _chunk(case: Case, window: PrefillWindow) -> int:
    """The token budget of a prefill batch: in force, configured, else the largest batch seen."""
    capacity = capacity_of(case, window.rank)
    value = (capacity.chunked_prefill_size if capacity else None) or case.config.number("chunked_prefill_size") or 0
    return int(value) if value > 0 else window.largest_new_token


@rule("LF509", "prefill_starves_decode", "Prefill keeps running requests from decoding")
def prefill_starves_decode(case: Case) -> Verdict | None:
    """Prefill batches follow each other while running requests get no decode step.

    Why: the scheduler prefers prefill: as long as a chunk or a waiting request can run, decode waits. Clients see it as a stall between
    two tokens.
    Threshold: three or more prefill lines in a row with requests running; a warning when they hold half of the time and one such run lasts
    30 s, or in an excerpt when the tokens still pending take 10 s more. A remark from a third of the time and 10 s on. Measured with 256k
    prompts: 1.4 token/s per request, 18 with `--prefill-decode-interval 4`, 32 with 8, the same aggregate (PR 40443).
    Confirm: `#running-req` on prefill lines without a decode line between them; inter-token latency of the clients.
    Fix: `--prefill-decode-interval` (0.5.19 on); a smaller chunk; `--enable-mixed-chunk`; prefill and decode on nodes of their own.
    False friends: the ramp at the start of a benchmark; a retraction whose victims are prefilled again.
    """
    window = max(case.run.serving.prefills, key=lambda item: (item.starved_seconds, item.starved_longest_lines), default=None)
    if window is None or window.starved_first is None or window.starved_last is None or case.config.get("disaggregation_mode") == "prefill":
        return None
    share = window.starved_seconds / window.total_seconds if window.total_seconds else 0.0
    excerpt = is_excerpt(case) and window.starved_longest_lines >= 4 and _backlog(window) >= _STARVED_HINT_SECONDS
    loud = excerpt or (share >= _STARVED_SHARE and window.starved_longest_seconds >= _STARVED_SECONDS)
    if not loud and not (share >= _STARVED_HINT_SHARE and window.starved_longest_seconds >= _STARVED_HINT_SECONDS):
        return None
    steps = [
        step(
            "time in prefill while requests were running", f"{window.starved_seconds:.0f} / {window.total_seconds:.0f} s", round(share, 3)
        ),
        step(
            "longest without a decode line", f"{window.starved_longest_lines} prefill lines", round(window.starved_longest_seconds, 1), "s"
        ),
    ]
    if backlog := _backlog(window):
        steps.append(step("prefill still pending", f"{window.pending_max:,} / {window.input_throughput:,.0f}", round(backlog, 1), "s"))
    return Verdict(
        Severity.WARNING if loud else Severity.INFO,
        Confidence.PROBABLE,
        "serving",
        f"{window.starved_running} running requests wait for {window.starved_longest_lines} prefill batches in a row",
        f"For {share:.0%} of the time prefill ran while requests that were being generated stood still.",
        cite([window.starved_first.evidence("#running-req"), window.starved_last.evidence("#running-req")]),
        steps,
        _turns_for_decode(case, window),
    )


def _turns_for_decode(case: Case, window: PrefillWindow) -> list[Recommendation]:
    fix: list[Recommendation] = []
    if not case.release.before("0.5.19"):
        fix.append(set_to("--prefill-decode-interval", 4, "decode rounds", "decode rounds forced after each prefill batch"))
    chunk = _chunk(case, window)
    if chunk > 2048:
        fix.append(decrease("--chunked-prefill-size", max(2048, chunk // 2), "tokens", "shorter prefill batches"))
    if not case.config.get("speculative_algorithm"):
        fix.append(set_to("--enable-mixed-chunk", value=True, unit="", why="Alternative: decode tokens ride in prefill batches"))
    fix.append(other("prefill-decode disaggregation", "Alternative: prompts on nodes of their own"))
    return fix


# ------------------------------------------------------------------------------------------------ reusing


@rule("LF506", "low_prefix_hit", "Prefixes that could be reused are computed again")
def low_prefix_hit(case: Case) -> Verdict | None:
    """Prompts whose prefix was computed before are computed again.

    Why: a hybrid model reuses a prefix only where its window or state pool still has it: a small side pool evicts while the KV pool is
    nearly empty. A full KV pool evicts too. `no_buffer` state caching matches only whole earlier prompts.
    Threshold: less than 5 % of the prompt tokens cached over ten requests while a side pool is ≥ 0.9 full and the KV pool < 0.5; or half of
    the tokens cached in one tenth of the run and less than a tenth of them in the last two. A hybrid model that never reuses a token over
    twenty requests is a remark.
    Confirm: cached / (cached + new) of the prefill lines over time, beside `swa token usage` and `mamba usage`.
    Fix: a larger side pool (`--swa-full-tokens-ratio`, `--mamba-full-memory-ratio`); `extra_buffer` state caching; a host tier.
    False friends: prompts without a common prefix (random benchmarks); the radix cache switched off on purpose.
    """
    if case.config.get("disable_radix_cache"):
        return None
    for window in sorted(case.run.serving.prefills, key=lambda item: -item.new_token):
        if (found := _evicting_side_pool(case, window) or _lost_reuse(window) or _never_matches(case, window)) is not None:
            return found
    return None


def _reuse(window: PrefillWindow) -> float:
    prompt = window.new_token + window.cached_token
    return window.cached_token / prompt if prompt else 0.0


def _reuse_arithmetic(window: PrefillWindow) -> list[Arithmetic]:
    prompt = window.new_token + window.cached_token
    return [step("prompt tokens from the prefix cache", f"{window.cached_token:,} / {prompt:,}", round(_reuse(window), 4))]


def _evicting_side_pool(case: Case, window: PrefillWindow) -> Verdict | None:
    few = window.new_seq < (1 if is_excerpt(case) else 10)
    full = [hit for hit in window.hits if max(hit.swa_usage or 0.0, hit.mamba_usage or 0.0) >= 0.9 and (hit.token_usage or 0.0) < 0.5]
    if few or _reuse(window) >= _NO_REUSE or len(full) < 0.5 * len(window.hits) or not full:
        return None
    hit = full[0]
    window_pool = (hit.swa_usage or 0.0) >= 0.9
    name = "sliding-window pool" if window_pool else "recurrent-state pool"
    fix = (
        [increase("--swa-full-tokens-ratio", None, "window tokens : full tokens", "a larger window pool keeps the ends of more prefixes")]
        if window_pool
        else [increase("--mamba-full-memory-ratio", None, "states : KV", "more state slots keep more prefixes")]
    )
    return Verdict(
        Severity.WARNING,
        Confidence.PROBABLE,
        "serving",
        f"{_reuse(window):.1%} of the prompt tokens are reused; the {name} is full, the KV pool at {hit.token_usage or 0:.2f}",
        f"A prefix can be reused only where the {name} still holds it. It evicts long before the KV pool does.",
        cite([hit.first.evidence("#cached-token"), hit.last.evidence("#cached-token")]),
        _reuse_arithmetic(window),
        fix,
    )


def _lost_reuse(window: PrefillWindow) -> Verdict | None:
    """Reuse that was there and is gone while the pools are full."""
    best = max(window.hits, key=lambda hit: hit.cached_share, default=None)
    late = window.hits[-2:]
    if best is None or len(window.hits) < 6 or best.cached_share < 0.5 or any(hit.cached_share >= 0.1 * best.cached_share for hit in late):
        return None
    if not any(_fullest(hit) >= 0.9 for hit in late):
        return None
    return Verdict(
        Severity.WARNING,
        Confidence.PROBABLE,
        "serving",
        f"prefix reuse fell from {best.cached_share:.0%} to {late[-1].cached_share:.0%} of the prompt tokens as the pool filled",
        "Prefixes are evicted before they are asked for again.",
        cite([best.first.evidence("#cached-token"), late[-1].last.evidence("#cached-token")]),
        [*_reuse_arithmetic(window), step("usage at the end", "median of the last tenth", _fullest(late[-1]))],
        [
            set_to("--enable-hierarchical-cache", value=True, unit="", why="a host tier keeps evicted prefixes"),
            increase("--mem-fraction-static", None, "share", "Alternative: a larger device pool evicts later"),
        ],
    )


def _fullest(hit: HitWindow) -> float:
    return max(hit.token_usage or 0.0, hit.swa_usage or 0.0, hit.mamba_usage or 0.0)


def _never_matches(case: Case, window: PrefillWindow) -> Verdict | None:
    hybrid = any(hit.mamba_usage is not None for hit in window.hits)
    if not hybrid or window.cached_token or window.new_seq < 20:
        return None
    flag = "--mamba-radix-cache-strategy" if case.release.since("0.5.14") else "--mamba-scheduler-strategy"
    return Verdict(
        Severity.INFO,
        Confidence.POSSIBLE,
        "serving",
        f"not one of {window.new_token:,} prompt tokens came from the prefix cache",
        "The radix cache is on, but a hybrid model with no_buffer state caching matches only whole earlier prompts. Whether these prompts share a prefix is not in the log.",
        cite([window.first.evidence("#cached-token"), window.last.evidence("#cached-token")]),
        _reuse_arithmetic(window),
        [set_to(flag, "extra_buffer", "", "keeps states inside a prompt, so that a shared prefix can match")],
        ("whether the prompts share a prefix",),
    )


@rule("LF513", "hicache_no_benefit", "HiCache copies, but nothing is reused")
def hicache_no_benefit(case: Case) -> Verdict | None:
    """The host tier is on, but prompts share no prefix, or the device pool could hold them: copies without a gain.

    Why: HiCache writes KV to host memory to read it back when a prefix returns. Without reuse there is only the copying (measured with
    random prompts: same requests/s, time to first token 22 % worse, sglang #7059). While much of the GPU's memory is unused, a larger device
    pool gives the same reach without any copy.
    Threshold: less than 5 % of at least 100,000 prompt tokens cached over 20 prefill lines (10,000 over 3 in an excerpt); or, before anything ran, at least 20 GiB and half
    of the device pool unused on each GPU.
    Confirm: `#cached-token` of the prefill lines with HiCache on and off.
    Fix: leave out `--enable-hierarchical-cache`; or raise `--mem-fraction-static` first.
    False friends: a cold start; a storage tier that other servers fill.
    """
    pools = [pool for pool in case.run.host_pools if pool.label in ("kv", "full", "")] or list(case.run.host_pools)
    if not pools and not case.config.get("enable_hierarchical_cache"):
        return None
    total = sum(pool.gb for pool in case.run.host_pools)
    steps = [step("host memory for HiCache", f"{len(case.run.host_pools)} pools", round(total, 1), "GB")] if total else []
    window = max(case.run.serving.prefills, key=lambda item: item.new_token, default=None)
    off = remove("--enable-hierarchical-cache", "no prefix comes back in this workload: its copies gain nothing")
    if window is not None:
        lines, tokens = (3, 10_000) if is_excerpt(case) else (20, 100_000)
        if window.lines < lines or window.new_token + window.cached_token < tokens or _reuse(window) >= _NO_REUSE:
            return None
        return Verdict(
            Severity.WARNING,
            Confidence.POSSIBLE if is_excerpt(case) else Confidence.PROBABLE,
            "serving",
            f"HiCache is on, but {_reuse(window):.1%} of the prompt tokens are reused",
            "Prompts share hardly any prefix, so what is copied to the host is never asked for again.",
            cite(
                [
                    window.first.evidence("#cached-token"),
                    window.last.evidence("#cached-token"),
                    pools[0].mark.evidence("GB") if pools else None,
                ]
            ),
            [*_reuse_arithmetic(window), *steps],
            [off],
        )
    return _idle_beside_host_tier(case, steps, off)


def _idle_beside_host_tier(case: Case, steps: list[Arithmetic], off: Recommendation) -> Verdict | None:
    """Before anything ran: a host tier beside a GPU that is mostly unused."""
    if not case.run.host_pools:
        return None
    left = case.run.lowest("graph_end", last=True) or case.run.lowest("pool_end", last=True)
    free = left.avail_gib if left else None
    each = max(pool.gb for pool in case.run.host_pools)
    ratio = case.config.number("hicache_ratio") or 2.0
    device = (
        sum(pool.gib or 0.0 for pool in case.run.kv_pools if pool.rank == case.run.kv_pools[0].rank)
        if case.run.kv_pools
        else each * 1e9 / GIB / ratio
    )
    if left is None or free is None or device <= 0 or free < _IDLE_GIB or free < 0.5 * device:
        return None
    steps.append(step("unused on each GPU over its KV pool", f"{free:.2f} / {device:.2f} GiB", round(free / device, 2), "times"))
    return Verdict(
        Severity.WARNING,
        Confidence.POSSIBLE,
        "hicache",
        f"each rank keeps {each:.1f} GB of host cache while {free:.1f} GiB of its GPU are unused",
        "A device pool that took the unused memory would hold as much without copies over PCIe. Whether prompts share prefixes at all is not in the log; "
        "if they do not, the host tier only costs.",
        cite([left.mark.evidence("avail mem"), case.run.host_pools[0].mark.evidence("GB")]),
        steps,
        [
            *_larger_fraction(case, free),
            off,
            *([upgrade("sglang", None, "faster copies between host and device")] if case.release.before("0.5.0") else []),
        ],
        ("prefill lines with #cached-token under the real load",),
    )


def _larger_fraction(case: Case, free: float) -> list[Recommendation]:
    """The fraction that leaves 8 GiB, as far as the memory before loading or the card's size is known."""
    before, now = case.run.lowest("load_begin"), case.config.number("mem_fraction_static")
    card = case.hardware.gpu_memory_bytes / GIB if case.hardware.gpu_memory_bytes else None
    base = before.avail_gib if before and before.avail_gib else card
    value = math.floor(min(now + (free - _KEPT_FREE_GIB) / base, 0.9) * 100 + 1e-9) / 100 if now is not None and base else None
    why = f"{free:.1f} GiB are unused; {_KEPT_FREE_GIB:g} stay free"
    return [increase("--mem-fraction-static", value, "share of the memory free before loading", why)]
