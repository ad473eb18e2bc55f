"""Admission: requests held back without a limit, too few requests, requests taken back, requests unevenly spread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from logforensics.findings import Arithmetic, Confidence, Recommendation, Severity
from logforensics.rules.case import Case
from logforensics.rules.load import Spell, capacity_of, holds, is_excerpt, longest, plateau, running_cap, steps_arithmetic
from logforensics.rules.performance import cell_bytes, tokens_at
from logforensics.rules.registry import Verdict, cite, decrease, increase, other, remove, rule, set_to, step
from logforensics.run import BatchWindow
from logforensics.run.model import Balance, Occupancy

_HELD_SHARE = 0.3
_GUIDE_USAGE = 0.9
_HINT_USAGE = 0.8  # the guide's own good example runs at 0.82 with a queue of 317
_DEFECT_USAGE = 0.1
_NEAR_CAP = 0.75  # of the request limit: so many running are not held back much
_CONSERVATIVENESS = 0.3  # the guide's value for a pool that stays below 0.9 with a queue
_RETRACTING = 1.3  # the guide's factor for frequent retractions


@rule("LF503", "conservative_admission", "Requests wait although pool and request limit have room")
def conservative_admission(case: Case) -> Verdict | None:
    """The scheduler holds requests back although the KV pool and the request limit have room.

    Why: a request is admitted only if the pool can also hold what the running requests may still write:
    `ratio × min(max_new_tokens − generated, 4096)` each, ratio 0.7 × `--schedule-conservativeness`, falling with time (PR 1811). With
    `--disable-radix-cache` and `ignore_eos` (every `bench_*` client) the full `max_new_tokens` are reserved at ratio 1: no clip, no decay.
    Threshold: `#queue-req` > 0, KV usage < 0.9 and fewer requests than the limit on decode lines that follow each other without a prefill
    between them, for 30 % of the time or a minute and a tenth of it. SGLang's tuning guide: usage below 0.9 with a queue → 0.3. Its own
    good example has usage 0.82 with 317 waiting, so 0.8 to 0.9 is a hint only.
    Confirm: compare `#running-req` with `max_running_requests=` of the capacity line, and `max_tokens` of the requests with what they use.
    Fix: `--schedule-conservativeness 0.3`; a smaller `max_tokens` of the client; with ignore_eos keep the radix cache on.
    False friends: the request limit; recurrent-state slots or a sliding-window pool that is full; a prompt longer than what is free. Usage
    near zero, a queue and no prefill for long is a scheduler defect (`batch_is_full` that sticks), not a tuning question.
    """
    if case.config.get("disaggregation_mode") in ("prefill", "decode"):
        return None
    found = longest(case, lambda window: _held(case, window))
    if found is not None and holds(case, found[1], _HELD_SHARE):
        return _held_back(case, *found)
    return _full_reservation(case)


def _held(case: Case, window: BatchWindow) -> Callable[[Occupancy], bool]:
    """States in which a prefill could have run and did not, and no request limit explains the batch: the known one, or one that never moves."""
    kinds = {"steady", "decode"} if is_excerpt(case) and case.run.serving.prefill is None else {"steady"}
    cap = running_cap(case, capacity_of(case, window.rank)) or plateau(case, window)
    below = cap - 1 if cap is not None else 1 << 31
    return lambda state: state.kind in kinds and state.waiting and state.band == "room" and 0 < state.running < below


def _held_back(case: Case, window: BatchWindow, held: Spell) -> Verdict:
    capacity = capacity_of(case, window.rank)
    cap = running_cap(case, capacity)
    steps = [*steps_arithmetic(window), step("time held back", f"{held.seconds:.0f} s", round(held.share, 3), "of the serving time")]
    if held.usage > 0:
        steps.append(
            step(
                "requests the pool would hold at this size",
                f"{held.running:.0f} / {held.usage:.2f}",
                int(held.running / held.usage),
                "requests",
            )
        )
    defect = held.usage < _DEFECT_USAGE
    doubt = (
        " With the pool this empty a defect of the scheduler is possible: an upgrade is worth a try before any tuning." if defect else ""
    )
    return Verdict(
        Severity.INFO if held.usage >= _HINT_USAGE or (cap is not None and held.running > _NEAR_CAP * cap) else Severity.WARNING,
        Confidence.POSSIBLE if defect or cap is None else Confidence.PROBABLE,
        "serving",
        f"up to {held.queue_max} requests wait at usage {held.usage:.2f} with {held.running:.0f} running"
        + (f" of {cap} allowed" if cap else ""),
        f"For {held.share:.0%} of the serving time no prefill ran although requests waited and the pool was below {_GUIDE_USAGE}: what is reserved "
        f"for the tokens that running requests may still write holds the others back.{doubt}",
        cite(
            [
                held.mark.evidence("#queue-req"),
                held.last.evidence("#queue-req"),
                capacity.mark.evidence("max_running_requests=") if capacity else None,
            ]
        ),
        steps,
        _relax(case),
        () if cap is not None else ("the max_total_num_tokens= line, which has the effective request limit",),
    )


def _relax(case: Case) -> list[Recommendation]:
    fix: list[Recommendation] = []
    if case.config.get("disable_radix_cache"):
        fix.append(
            remove(
                "--disable-radix-cache",
                "the normal admission path clips and decays the reservation, the one without radix cache and with ignore_eos does not",
            )
        )
    now = case.config.number("schedule_conservativeness")
    if now is None or now > _CONSERVATIVENESS:
        fix.append(
            decrease("--schedule-conservativeness", _CONSERVATIVENESS, "ratio", "SGLang's tuning guide for usage below 0.9 with a queue")
        )
    fix.append(
        decrease(
            "max_tokens of the requests",
            None,
            "tokens",
            "Alternative: the reservation follows what a request may write, not what it writes",
        )
    )
    fix.append(
        increase(
            "--mem-fraction-static",
            None,
            "share",
            "Alternative: if the requests do write that much, the reservation is real and needs a larger pool",
        )
    )
    return fix


def _full_reservation(case: Case) -> Verdict | None:
    """Prefill lines alone: the radix cache is off, a long queue waits, and little of the pool is in use."""
    window = max(case.run.serving.prefills, key=lambda item: item.queue_max, default=None)
    if window is None or case.run.serving.windows or not case.config.get("disable_radix_cache"):
        return None
    cap = running_cap(case, capacity_of(case, window.rank))
    line = window.held
    if (
        line is None
        or line.running < 8
        or line.usage >= 0.5
        or line.queue < line.running // 2
        or (cap is not None and line.running >= cap - 1)
    ):
        return None
    steps = [
        step(
            "requests the pool would hold at this size",
            f"{line.running} / {line.usage:.2f}",
            int(line.running / max(line.usage, 0.01)),
            "requests",
        )
    ]
    steps += _reservation(case, line.running, line.usage)
    return Verdict(
        Severity.WARNING,
        Confidence.PROBABLE,
        "serving",
        f"{line.queue} requests wait with {line.usage:.0%} of the pool in use",
        "The radix cache is off. Requests with ignore_eos, which benchmark clients send, are then admitted only if the pool can hold all of their "
        "max_new_tokens at once; neither the clip nor --schedule-conservativeness applies.",
        cite([line.mark.evidence("#queue-req"), case.config.evidence("disable_radix_cache")]),
        steps,
        _relax(case),
        ("decode lines after the last prefill", "the max_total_num_tokens= line", "the clients' max_tokens"),
    )


def _reservation(case: Case, running: int, usage: float) -> list[Arithmetic]:
    """What the benchmark in the launch command reserves, where its lengths are given there."""
    flags = case.command.flags if case.command else {}
    try:
        prompt, output = int(flags["--random-input-len"]), int(flags["--random-output-len"])
    except (KeyError, TypeError, ValueError):
        return []
    pool = running * prompt / max(usage, 0.01)
    return [
        step("KV tokens, from usage", f"{running} × {prompt} / {usage:.2f}", round(pool), "tokens"),
        step(
            "requests that fit with all their output reserved",
            f"{pool:,.0f} / ({prompt} + {output})",
            int(pool / (prompt + output)),
            "requests",
        ),
    ]


@rule("LF504", "client_underfeed", "The client does not send enough requests")
def client_underfeed(case: Case) -> Verdict | None:
    """The server could run more: nothing ever waits, few requests run, and the pool is nearly empty.

    Why: throughput grows with the batch. A client with few connections, or one that prepares each request slowly (images), leaves the GPU
    waiting for it.
    Threshold: `#queue-req` 0 on every line (SGLang's tuning guide: often 0 means the client is too slow), never more than 5 % of the request
    limit running, usage ≤ 0.25. A warning for batches of 2 to 32 over a minute of serving; a larger batch uses a card well, and one request
    at a time is a latency test or a quiet hour: remarks.
    Confirm: the concurrency of the client, or the CPU load of the tokenizer process.
    Fix: more concurrency; more preprocessing workers.
    False friends: a closed-loop benchmark at its own concurrency; the end of a run, when requests drain; a prefill node of a PD pair.
    """
    windows = case.run.serving.windows
    if not windows or case.config.get("disaggregation_mode") in ("prefill", "decode"):
        return None
    most, lines = sum(window.running_max for window in windows), sum(window.lines for window in windows)
    cap = running_cap(case, capacity_of(case, windows[0].rank))
    if lines < 5 or any(window.queue_max or window.usage_max > 0.25 for window in windows):
        return None
    allowed = cap * len(windows) if cap is not None else None
    if most > 0.05 * allowed if allowed is not None else not _nothing_else_shows(case, windows):
        return None
    long = is_excerpt(case) or max(window.seconds for window in windows) >= 60
    loud = long and min(window.running_median for window in windows) >= 2 and max(window.running_max for window in windows) <= 32
    window = max(windows, key=lambda item: item.lines)
    capacity = capacity_of(case, window.rank)
    return Verdict(
        Severity.WARNING if loud else Severity.INFO,
        Confidence.PROBABLE if loud and cap is not None else Confidence.POSSIBLE,
        "serving",
        f"at most {most} requests at a time, none ever waits, and {max(item.usage_max for item in windows):.0%} of the KV pool is used",
        "The server waits for its client: no limit of the server binds. More requests at once would raise the throughput.",
        cite([window.last.evidence("#running-req"), capacity.mark.evidence("max_running_requests=") if capacity else None]),
        [
            *steps_arithmetic(window),
            *([step("share of the request limit in use", f"{most} / {allowed}", round(most / allowed, 4))] if allowed else []),
        ],
        [increase("client concurrency", None, "requests", "raise it until a queue appears or the latency goal is missed")],
    )


def _nothing_else_shows(case: Case, windows: Sequence[BatchWindow]) -> bool:
    """Whether an excerpt without limits shows a nearly empty pool and neither a slide, nor eager batches, nor drafts."""
    if not is_excerpt(case) or any(window.usage_max > 0.1 or window.running_max > 16 or window.slope for window in windows):
        return False
    return not any(window.graph and window.graph.off_lines for window in windows) and all(
        window.accept_len_mean is None for window in windows
    )


@rule("LF510", "dp_imbalance", "Load is uneven over the data-parallel ranks")
def dp_imbalance(case: Case) -> Verdict | None:
    """One data-parallel rank is full and has a queue while another has less than half of its load.

    Why: requests are dealt out without a look at their length (round robin), or stick to a rank (prefix affinity, bootstrap room). Under DP
    attention all ranks step together, so the fullest one sets the pace.
    Threshold: within the same ten seconds usage or running requests differ by more than a factor of two while the fuller rank has a queue, in
    a fifth of the loaded time and at least three times. Without a queue it is a remark.
    Confirm: `token usage` and `#queue-req` of the lines with the same time stamp and different DP tags.
    Fix: a load-aware `--load-balance-method`; a cache-aware router that also looks at load.
    False friends: ranks that run dry at the end of a benchmark; ranks of another node, which this log does not have.
    """
    balance = case.run.serving.balance
    if balance is None:
        return None
    waiting = balance.uneven_waiting >= (1 if is_excerpt(case) else 3) and balance.uneven_waiting >= 0.2 * balance.buckets
    if not waiting and (balance.uneven < 0.5 * balance.buckets or balance.high_running < 8):
        return None
    high, low = balance.high_rank.label, balance.low_rank.label
    return Verdict(
        Severity.WARNING if waiting else Severity.INFO,
        Confidence.PROBABLE,
        "serving",
        f"{high} runs {balance.high_running:.0f} requests at usage {balance.high_usage:.2f} while {low} runs {balance.low_running:.0f} at {balance.low_usage:.2f}",
        f"In {balance.uneven} of {balance.buckets} intervals of ten seconds the load differed by more than a factor of two over {balance.ranks} ranks"
        + (f", in {balance.uneven_waiting} of them with requests waiting on the fuller rank." if waiting else "."),
        cite([balance.high.evidence("#running-req"), balance.low.evidence("#running-req") if balance.low else None]),
        _spread_arithmetic(balance),
        [
            set_to(
                "--load-balance-method",
                "total_tokens" if not case.release.before("0.5.8") else "shortest_queue",
                "",
                "deals requests out by load, not in turn",
            ),
            other("router policy", "Alternative: a cache-aware router with a load threshold in front of the ranks"),
        ],
    )


def _spread_arithmetic(balance: Balance) -> list[Arithmetic]:
    found = []
    for label, high, low in (
        ("running requests", balance.high_running, balance.low_running),
        ("KV usage", balance.high_usage, balance.low_usage),
    ):
        ratio = round(high / low, 2) if low else "no lower load"
        found.append(step(f"{label}, highest over lowest", f"{high:.2f} / {low:.2f}", ratio))
    return found


@rule("LF514", "retraction_thrash", "Requests are admitted and retracted over and over")
def retraction_thrash(case: Case) -> Verdict | None:
    """Running requests are pushed back to the queue again and again: their KV is thrown away and computed a second time.

    Why: admission reserves only a share of what a request may still write. When outputs are longer than that estimate the pool fills
    during decode and requests are retracted; with a low `#new_token_ratio` and many admissions this repeats.
    Threshold: three retractions within a minute, and more than one a minute over the time they span (SGLang's tuning guide: about one a
    minute is fine, frequent ones ask for a conservativeness of 1.3). Every rank prints the same line, so lines of different ranks with the
    same ratios within two seconds count once.
    Confirm: `#new_token_ratio: a -> b` with a small a, usage > 0.95.
    Fix: `--schedule-conservativeness` 1.3 times as large; a lower `--max-running-requests`; more KV tokens.
    False friends: `Decode out of memory happened` is no error; one line from each of 16 ranks is one event.
    """
    events = case.run.serving.retractions
    if len(events) < 3 or case.run.serving.retractions_per_minute < 3:
        return None
    first, last = events[0], events[-1]
    seconds = (last.mark.time - first.mark.time).total_seconds() if first.mark.time and last.mark.time else 0.0
    per_minute = len(events) * 60 / max(seconds, 60.0)
    if per_minute <= 1:
        return None
    now = case.config.number("schedule_conservativeness") or 1.0
    ratios = [event.ratio_old for event in events if event.ratio_old is not None]
    steps = [
        step("retractions, each rank's line counted once", f"{len(events)} in {seconds:.0f} s", len(events), "events"),
        step("in the busiest minute", "count", case.run.serving.retractions_per_minute, "events"),
        step("requests retracted", "sum", sum(event.requests for event in events), "requests"),
    ]
    if ratios:
        steps.append(step("lowest #new_token_ratio before a retraction", "minimum", min(ratios), "share of max_new_tokens reserved"))
    return Verdict(
        Severity.WARNING,
        Confidence.CERTAIN if len(events) > 5 else Confidence.PROBABLE,
        "serving",
        f"{len(events)} retractions in {seconds:.0f} s" if seconds else f"{len(events)} retractions",
        "The scheduler admits more than the pool can decode and takes requests back; each loses its KV and is prefilled again.",
        cite([events[place].mark.evidence("#retracted_reqs") for place in sorted({0, len(events) // 2, len(events) - 1})]),
        steps,
        _less_thrash(case, now),
        caused_by="LF501",
    )


def _less_thrash(case: Case, now: float) -> list[Recommendation]:
    """Admit less, or have more room."""
    window = max(case.run.serving.windows, key=lambda item: item.running_max, default=None)
    capacity = capacity_of(case, window.rank if window else None)
    fits = None
    if capacity is not None and window is not None and window.num_tokens_max and window.running_max:
        fits = max(1, int(capacity.max_total_num_tokens / (window.num_tokens_max / window.running_max)) - 1)
    fraction, tokens = case.config.number("mem_fraction_static"), None
    if capacity is not None and fraction is not None and cell_bytes(case):
        tokens = tokens_at(case, capacity, fraction + 0.01)
    gain = f"; 0.01 more gives about {tokens - capacity.max_total_num_tokens:,} tokens" if tokens and capacity else ""
    return [
        increase("--schedule-conservativeness", round(now * _RETRACTING, 2), "ratio", "SGLang's tuning guide for frequent retractions"),
        decrease("--max-running-requests", fits, "requests", "Alternative: bounds admission whatever the estimate says"),
        increase("--mem-fraction-static", None, "share", f"Alternative: more KV tokens, if memory for activations allows{gain}"),
    ]
