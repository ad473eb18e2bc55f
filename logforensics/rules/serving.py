"""A serving scheduler's own failures: exceptions that nothing else explains, and accounting that does not add up."""

from __future__ import annotations

import re

from logforensics import lazy_re
from logforensics.findings import Arithmetic, Confidence, Evidence, Recommendation, Severity
from logforensics.rules.case import Case
from logforensics.rules.distributed import LOST
from logforensics.rules.registry import Verdict, cite, environment, increase, other, remove, rule, set_to, step, upgrade
from logforensics.rules.signs import SCHEDULER, Sign, active, cited, last_batch, matching, ranks_of, said, where
from logforensics.run.troubles import Trouble

# ---------------------------------------------------------------------------------------------------------------- the fallback

_FEATURES = (  # frame -> the feature it belongs to: field of server_args, flag
    ("two_batch_overlap", "enable_two_batch_overlap", "--enable-two-batch-overlap"),
    ("eplb", "enable_eplb", "--enable-eplb"),
    ("hiradix_cache", "enable_hierarchical_cache", "--enable-hierarchical-cache"),
    ("hicache", "enable_hierarchical_cache", "--enable-hierarchical-cache"),
    ("deepep", "enable_deepep_moe", "--enable-deepep-moe"),
    ("mix_with_running", "enable_mixed_chunk", "--enable-mixed-chunk"),
    ("torch_compile", "enable_torch_compile", "--enable-torch-compile"),
)


@rule("LF410", "scheduler_exception", "A Python exception in the scheduler")
def scheduler_exception(case: Case) -> Verdict | None:
    """A Python exception in the scheduler's own logic ended it. This finding stands only where no other explains the exception.

    Why: a defect, often met by the content of one request (an option a feature does not support, an unusual shape), so load and memory look normal.
    Confirm: the FIRST `Scheduler hit an exception`; the innermost frame inside sglang names the feature. The same error on all ranks in one second is one error.
    Fix: upgrade; leave out the feature that the frames name; keep the request that does it away; report it with the traceback.
    False friends: everything after it (`Received sigquit`, `Killed`, lost peers) is the consequence.
    """
    struck = [item for item in active(case) if item.origin == "exception" and item.process in SCHEDULER and not LOST.matches(item)]
    if not struck:
        return None
    first = struck[0]
    same = [item for item in struck if item.identity == first.identity]
    ranks = ranks_of(same)
    name = first.frames[-1] if first.frames else None
    place = f" in {name[2]} ({name[0].rsplit('/', 1)[-1]}:{name[1]})" if name else ""
    load = last_batch(case, first.mark)
    explanation = f"{first.head}{place}. "
    if len(ranks) > 1:
        explanation += f"{len(ranks)} ranks raise the same error: one error, and their order means nothing. "
    explanation += "Nothing else in the log explains it, so the code or the content of a request is the cause."
    return Verdict(
        Severity.CRITICAL,
        Confidence.PROBABLE,
        where(case, first),
        f"the scheduler{f' ({said(ranks)})' if ranks else ''} raised {first.kind.rsplit('.', 1)[-1]}{place}",
        explanation,
        cite([*cited(same), Evidence(first.mark.source, first.mark.line), load.evidence() if load else None]),
        [step("ranks that raise it", "distinct tags", len(ranks))] if ranks else [],
        [*_without_feature(case, first), *_GENERIC],
        missing=["the request that was running (`--crash-dump-folder` keeps it)"],
    )


_GENERIC = (
    upgrade("sglang", None, "defects of the scheduler are mended release by release"),
    other("sglang", "report it, or fix or revert the branch, with this traceback and the request that does it"),
    other("client", "leave out the unusual option of the request that does it"),
)


def _without_feature(case: Case, trouble: Trouble) -> list[Recommendation]:
    """Leave out the feature whose code raised, where it is in use."""
    for needle, field, flag in _FEATURES:
        if trouble.has_frame(needle) and case.config.get(field) not in (None, False):
            return [remove(flag, "the exception stands in its code")]
    return []


# ---------------------------------------------------------------------------------------------------------------- accounting


@rule("LF411", "scheduler_bug_running_req_leak", "The scheduler counts requests that are gone")
def running_request_leak(case: Case) -> Verdict | None:
    """The scheduler counts running requests that are gone, so new ones wait although nothing runs.

    Why: a request that was aborted or finished is not taken off the running list.
    Threshold: more running requests than tokens in use over the whole window, and requests waiting: every live request holds at least one token.
    Confirm: `#running-req` constant and high, `#token` near 0, `#queue-req` above 0.
    Fix: upgrade; restart for now.
    False friends: PD decode with requests in transfer; idle data-parallel ranks print `#running-req: 1, #token: 0`.
    """
    for window in case.run.serving.windows:
        tokens = window.num_tokens_max
        if tokens is None or window.lines < 10 or window.running_median < 2 or window.queue_median < 1 or tokens >= window.running_median:
            continue
        return Verdict(
            Severity.ERROR,
            Confidence.PROBABLE,
            "serving",
            f"{window.running_median:.0f} requests count as running, but they hold {tokens} tokens",
            "Every live request holds at least one token, so most of the counted ones are gone. Admission waits for them.",
            cite([window.first.evidence("#running-req"), window.last.evidence("#running-req")]),
            [
                step(
                    "running requests without a token",
                    f"{window.running_median:.0f} - {tokens}",
                    window.running_median - tokens,
                    "requests",
                )
            ],
            [upgrade("sglang", None, "the accounting was mended"), other("restart", "clears the count for now")],
            missing=["how the requests ended (client aborts, time limits)"],
        )
    return None


_LEAK = Sign(lazy_re.compile(r"(?:memory|pool|cache) leak( detected)?|KV cache pool leak|leak detected"), origins=("exception", "notice"))
_TERM = lazy_re.compile(
    r"(available|evictable|protected|session_held|max_total|total)(?:_num_tokens|_tokens|_size|_num)?(?:\(\))? ?[=:] ?(\d+)"
)


@rule("LF412", "kv_leak", "The pool's accounting check failed")
def kv_leak(case: Case) -> Verdict | None:
    """The idle check of a pool found tokens missing, or too many.

    Why: `available + evictable + protected` must equal the pool when nothing runs. Less: slots were lost (a leak). More: slots were freed twice (an
    over-free). It is an accounting defect; more memory does not help.
    Confirm: the sum, and its sign. A difference that is a multiple of the page size or of a request's length tells what was lost.
    Fix: upgrade; `--disable-overlap-schedule` avoids freeing a request whose last step is in flight; fewer retractions; from 0.5.6
    `SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE=0` warns instead of raising.
    False friends: "memory leak" does not mean that memory runs out. To 0.4.7 the printed `available_size` already contains `evictable`.
    """
    struck = [item for item in matching(case, _LEAK) if not re.search(r"leaked semaphore|resource_tracker|leaked shared", item.text)]
    if not struck:
        return None
    first = struck[0]
    difference, steps = _imbalance(case, first)
    raised = first.origin == "exception"
    words = "the pool's accounting does not add up"
    if difference is not None:
        words = f"the pool {'lost' if difference > 0 else 'got back'} {abs(difference)} {steps[0].unit} {'(a leak)' if difference > 0 else 'too many (freed twice)'}"
    retractions = case.run.serving.retraction_events
    fix = [
        upgrade("sglang", None, "an accounting defect; more memory does not help"),
        set_to(
            "--disable-overlap-schedule",
            value=True,
            unit="",
            why="Alternative: a request is then never freed while its last step is in flight",
        ),
    ]
    if retractions or not first.has_frame("disagg"):
        fix.append(increase("--schedule-conservativeness", 1.3, "×", "Alternative: fewer retractions, the usual path of such a loss"))
    if case.config.number("max_total_tokens"):
        fix.append(remove("--max-total-tokens", "the cap keeps the pool small, which takes the failing path more often"))
    if case.release.since("0.5.6"):
        fix.append(environment("SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE", 0, "Alternative: warn instead of ending the scheduler"))
    last = last_batch(case, first.mark)
    return Verdict(
        Severity.CRITICAL if raised else Severity.WARNING,
        Confidence.CERTAIN if difference else Confidence.PROBABLE,
        "serving",
        words,
        "The check runs when nothing does: what is available, evictable and protected must be the whole pool. "
        + (
            "More than the pool came back: something was freed twice. A larger pool does not help."
            if difference is not None and difference < 0
            else "Slots were lost. The pool was not too small."
        ),
        cite(
            [
                *cited(struck, "leak", 3),
                last.evidence("token usage") if last else None,
                case.config.evidence("max_total_tokens", "page_size"),
            ]
        ),
        steps,
        fix,
    )


def _imbalance(case: Case, trouble: Trouble) -> tuple[int | None, list[Arithmetic]]:
    """Pool minus what the check found: positive is a leak, negative an over-free."""
    line, _, rest = trouble.text.partition("\n")
    terms: dict[str, int] = {name: int(value) for name, value in _TERM.findall(line)}
    contained = "evictable" not in terms  # the older wording: available already contains evictable
    for name, value in _TERM.findall(rest):
        terms.setdefault(name, int(value))
    pool = terms.get("max_total") or terms.get("total")
    if pool is None or "available" not in terms:
        return None, []
    parts = ["available", *([] if contained else ["evictable"]), "protected", "session_held"]
    values = [terms[name] for name in parts if name in terms]
    difference = pool - sum(values)
    unit = "request slots" if "req_to_token" in line else "tokens"
    steps = [step("missing from the pool", f"{pool} - ({' + '.join(map(str, values))})", difference, unit)]
    if unit != "tokens":
        return difference, steps
    page = int(case.config.number("page_size") or 0)
    pages = [size for size in ([page] if page > 1 else [128, 64, 32, 16]) if difference and difference % size == 0]
    if pages:
        steps.append(step(f"in pages of {pages[0]}", f"{difference} / {pages[0]}", difference // pages[0], "pages"))
    for length in (4096, 2048, 1024, 512):
        if difference and abs(difference) >= length and difference % length == 0 and not page > 1:
            steps.append(step(f"in requests of {length}", f"{difference} / {length}", difference // length, "requests"))
            break
    return difference, steps
