"""Failures of a serving scheduler: stalls, its own exceptions, accounting, speculation, adapters, grammars, and the detokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from logforensics.findings import Action, Arithmetic, Confidence, Evidence, Recommendation, Severity
from logforensics.rules.case import Case
from logforensics.rules.distributed import LOST
from logforensics.rules.registry import Verdict, cite, decrease, environment, increase, other, remove, rule, set_to, step, upgrade
from logforensics.rules.signs import Sign, active, cited, is_noise, matching, ranks_of, said, stopped_at, where
from logforensics.run.model import Mark, WatchdogEvent
from logforensics.run.troubles import Trouble

SCHEDULER = ("Scheduler", "TpModelWorkerClient", "TpModelWorker", "DataParallelController")

# ---------------------------------------------------------------------------------------------------------------- stalls

_OTHER_WATCHDOGS = ("nccl", "health_check")
_STACKS = (  # what the innermost frames of the stuck thread say, the telling ones first
    (
        "compile",
        re.compile(
            r"file_baton|filelock|FileLock|_jit_build|cpp_extension|load_inline|ninja|deep_gemm.*compil|compile_utils|jit_kernels.*build|nvcc"
        ),
    ),
    (
        "collective",
        re.compile(r"all_reduce|all_gather|allgather|reduce_scatter|barrier \(|broadcast|custom_all_reduce|ncclComm|deep_ep|dispatch \("),
    ),
    ("transfer", re.compile(r"mooncake|nixl|kv_manager|disaggregation/")),
    ("grammar", re.compile(r"xgrammar|outlines|llguidance|constrained/")),
)
_STACK_WORDS = {
    "compile": "The stuck thread waits for a kernel to be compiled or for the lock of such a build.",
    "collective": "The stuck thread stands in a collective: another rank did not come.",
    "transfer": "The stuck thread waits for a KV transfer.",
    "grammar": "The stuck thread builds or applies a grammar.",
    "device": "The stuck thread waits for the device: the queue is blocked by an earlier kernel, such as a collective.",
}


@rule("LF401", "watchdog_timeout", "No forward progress for the watchdog period")
def watchdog_timeout(case: Case) -> Verdict | None:
    """A scheduler made no progress for the watchdog period, and SGLang ended it.

    Why: a collective whose peer did not come, a custom all-reduce between cards without usable peer access, a kernel build that waits for a stale lock, a
    deadlock. Nothing failed; something waited.
    Confirm: the last batch line, then `Watchdog timeout`. It polls every half period, so it fires one to one and a half periods after the last step. The
    py-spy stack of the thread `forward_thread_func` (or of the main thread) names the reason.
    Fix: by the stack: `--disable-custom-all-reduce` or `--enable-p2p-check`; delete the stale lock (`~/.cache/flashinfer`, `~/.cache/torch_extensions`) and build
    ahead; the rank that is missing. A longer `--watchdog-timeout` only delays the end, except for a first compilation.
    False friends: a stall after an exception of another rank is its echo; `Killed` after it is SGLang's own clean-up; a soft watchdog only reports.
    """
    fired = [event for event in case.run.watchdogs if event.name not in _OTHER_WATCHDOGS and not _stopped_before(case, event.mark)]
    if not fired:
        return None
    first = fired[0]
    soft = all("soft=True" in event.text for event in fired)
    kind, stack = _stuck_in(case, first)
    progress = _last_progress(case, first.mark)
    ranks = list(dict.fromkeys(event.rank for event in fired if event.rank.label != "the only rank"))
    steps = _stall(first, progress)
    serving = case.run.serving.windows and case.run.serving.windows[0].first.line < first.mark.line
    missing = [] if kind else ["the py-spy stack of the stuck thread (install py-spy; `py-spy dump --pid` of the scheduler)"]
    return Verdict(
        Severity.WARNING if soft else Severity.CRITICAL,
        Confidence.CERTAIN if kind else Confidence.PROBABLE,
        "serving" if serving else "warmup" if "capacity" in case.run.stages else where(case, _as_trouble(case, first)),
        f"{said(ranks) if ranks else _name(first)} made no progress for {steps[-1].value if len(steps) > 1 else first.timeout_s or 0:.0f} s: it hangs",
        f"{_STACK_WORDS[kind] if kind else 'Why it hangs cannot be decided from this log: it has no stack of the stuck thread.'} {_symmetry(case, ranks)}".strip(),
        cite(
            [
                *(event.mark.evidence("atchdog timeout") for event in fired[:3]),
                progress.evidence() if progress else None,
                stack,
                case.config.evidence("disable_custom_all_reduce", "watchdog_timeout"),
            ]
        ),
        steps,
        _for_stall(case, kind),
        missing=missing,
    )


def _name(event: WatchdogEvent) -> str:
    return "the scheduler" if event.name == "Scheduler" else f"the {event.name} process"


def _stopped_before(case: Case, mark: Mark) -> bool:
    stop = stopped_at(case)
    return stop is not None and stop[0] == mark.source and stop[1] < mark.line


def _as_trouble(case: Case, event: WatchdogEvent) -> Trouble:
    return next(item for item in case.run.troubles if item.origin == "watchdog" and item.mark == event.mark)


def _last_progress(case: Case, before: Mark) -> Mark | None:
    """The last batch line before a watchdog fired."""
    marks = [window.last for window in case.run.serving.windows]
    if case.run.serving.prefill:
        marks.append(case.run.serving.prefill.last)
    earlier = [mark for mark in marks if mark.source == before.source and mark.line < before.line]
    return max(earlier, key=lambda mark: mark.line, default=None)


def _stall(event: WatchdogEvent, progress: Mark | None) -> list[Arithmetic]:
    steps = [step("watchdog period", "printed", event.timeout_s, "s")] if event.timeout_s else []
    if progress and progress.time and event.mark.time and event.mark.time > progress.time:
        stall = (event.mark.time - progress.time).total_seconds()
        steps.append(step("stall", f"{event.mark.time:%H:%M:%S} - {progress.time:%H:%M:%S} (last batch line)", stall, "s"))
    return steps


def _stuck_in(case: Case, event: WatchdogEvent) -> tuple[str | None, Evidence | None]:
    """What the py-spy dump after a watchdog says the worker thread was doing, with the telling line."""
    after = [
        item
        for item in case.run.notices
        if item.mark.source == event.mark.source and event.mark.line <= item.mark.line < event.mark.line + 2000
    ]
    threads: list[list[Evidence]] = []
    texts: list[list[str]] = []
    wanted = False
    for notice in after:
        if found := re.match(r'\s*Thread .*"(.+)"', notice.text):
            wanted = "forward_thread" in found[1] or "MainThread" in found[1]
            if wanted:
                threads.append([])
                texts.append([found[1]])
        elif wanted and re.match(r"\s{2,}\S+.* \(.+:\d+\)", notice.text):
            threads[-1].append(notice.mark.evidence())
            texts[-1].append(notice.text)
    order = sorted(range(len(texts)), key=lambda place: "forward_thread" not in texts[place][0])
    for place in order:
        for kind, pattern in _STACKS:
            line = next((at for at, text in enumerate(texts[place][1:12]) if pattern.search(text)), None)
            if line is not None:
                return kind, threads[place][line]
    if order and threads[order[0]] and "forward_thread" in texts[order[0]][0]:
        inner = next((at for at, text in enumerate(texts[order[0]][1:]) if not re.search(r"torch/|__call__|__torch_function__", text)), 0)
        return "device", threads[order[0]][inner]
    return None, None


def _symmetry(case: Case, ranks: Sequence[object]) -> str:
    """Whether all ranks hang, or some did not report."""
    size = case.config.size("tp_size")
    if size < 2 or not ranks:
        return ""
    if len(ranks) >= size:
        return "All ranks hang together: no rank failed first."
    return f"{len(ranks)} of {size} ranks report it; one that does not is the one to look at."


def _for_stall(case: Case, kind: str | None) -> list[Recommendation]:
    fix: list[Recommendation] = []
    if kind == "compile":
        fix.append(
            other(
                "kernel cache",
                "delete the stale lock left by a killed build (~/.cache/flashinfer, ~/.cache/torch_extensions, ~/.deep_gemm), then build ahead",
            )
        )
        fix.append(increase("--watchdog-timeout", 3600, "s", "a first compilation may take longer than the period"))
        return fix
    several = case.config.size("tp_size") > 1 or len(case.run.ranks) > 1
    if kind in (None, "collective", "device") and several and not case.config.get("disable_custom_all_reduce"):
        fix.append(
            set_to(
                "--disable-custom-all-reduce",
                value=True,
                unit="",
                why="its kernel hangs between cards without usable peer access; NCCL does not",
            )
        )
        fix.append(set_to("--enable-p2p-check", value=True, unit="", why="Alternative: tests peer access instead of trusting it"))
    if kind == "transfer":
        fix.append(other("logs", "read the log of the other instance: it did not answer"))
    if kind == "grammar":
        fix.append(set_to("--grammar-backend", "llguidance", "", "Alternative: another grammar backend"))
    fix.append(other("--watchdog-timeout", "raising it would only delay the end"))
    fix.append(upgrade("sglang", None, "Alternative: if the stack names a lock of the scheduler"))
    return fix


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
_START_FRAMES = ("load_model", "init_memory_pool", "init_torch_distributed", "server_args", "model_config")


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
    load = _last_progress(case, first.mark)
    explanation = f"{first.head}{place}. "
    if len(ranks) > 1:
        explanation += f"{len(ranks)} ranks raise the same error: one error, and their order means nothing. "
    explanation += "Nothing else in the log explains it, so the code or the content of a request is the cause."
    return Verdict(
        Severity.CRITICAL,
        Confidence.PROBABLE,
        where(case, first),
        f"the scheduler ({said(ranks)}) raised {first.kind.rsplit('.', 1)[-1]}{place}",
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


_LEAK = Sign(re.compile(r"(?:memory|pool|cache) leak( detected)?|KV cache pool leak|leak detected"), origins=("exception", "notice"))
_TERM = re.compile(
    r"(?:self\.)?(?:\w+\.)?(available|evictable|protected|session_held|max_total|total)(?:_num_tokens|_tokens|_size|_num)?(?:\(\))? ?[=:] ?(\d+)"
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
    last = _last_progress(case, first.mark)
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


# ---------------------------------------------------------------------------------------------------------------- features

_SPECULATIVE = Sign(
    frames=(
        "speculative/",
        "eagle_worker",
        "eagle_utils",
        "spec_info",
        "ngram_worker",
        "forward_draft",
        "multi_layer_eagle",
        "standalone_worker",
        "dflash",
    ),
    origins=("exception",),
    unless=re.compile(
        r"out of memory|illegal memory|device-side assert|leak|mem-fraction|collective operation timeout|NCCL|ECC", re.IGNORECASE
    ),
)


@rule("LF413", "spec_decode_crash", "Speculative decoding crashed")
def spec_decode_crash(case: Case) -> Verdict | None:
    """Code of speculative decoding raised while serving.

    Why: draft and target keep separate index tables; after a retraction, with mixed chunks, or for an unusual batch they disagree.
    Confirm: a frame of `speculative/` or of a draft worker in the first exception, after the server was up. A retraction line just before it is a clue.
    Fix: upgrade; fewer running requests so that nothing is retracted; serve without speculation to confirm.
    False friends: out of memory in the draft model at start (`draft_model_memory`), a bad memory access.
    """
    struck = [item for item in matching(case, _SPECULATIVE) if not item.has_frame(*_START_FRAMES, "graph_runner")]
    if not struck or where(case, struck[0]) not in ("serving", "warmup"):
        return None
    first = struck[0]
    retraction = case.run.serving.retraction_last
    after = retraction is not None and retraction.line < first.mark.line and first.mark.line - retraction.line < 200
    fix = [upgrade("sglang", None, "the tables of draft and target were brought into agreement release by release")]
    running = [window.running_max for window in case.run.serving.windows if window.running_max]
    queue = case.run.serving.prefill.queue_max if case.run.serving.prefill else 0
    if after or running:
        safe = max(4, min(16, (max(running, default=18)) // 2))
        fix.append(Recommendation("--max-running-requests", Action.SET, safe, "requests", "fewer requests fit without a retraction"))
    if after:
        fix.append(increase("--mem-fraction-static", None, "share", "Alternative: a larger pool retracts later"))
        fix.append(increase("--schedule-conservativeness", 1.3, "×", "Alternative: admission that retracts less"))
    fix.append(remove("--speculative-algorithm", "Alternative: without speculation, to confirm"))
    explanation = f"{first.head} stands in the code of speculative decoding."
    if after:
        explanation += " A retraction just before it changed the batch: the draft's tables still had the old size."
    return Verdict(
        Severity.CRITICAL,
        Confidence.CERTAIN if after else Confidence.PROBABLE,
        where(case, first),
        f"speculative decoding crashed on {said(ranks_of(struck)[:1])}" + (" right after a retraction" if after else ""),
        explanation,
        cite(
            [*cited(struck), retraction.evidence("etract") if after and retraction else None, case.config.evidence("speculative_algorithm")]
        ),
        [step("longest queue before it", "prefill lines", queue, "requests")] if queue else [],
        fix,
    )


_LORA = Sign(
    re.compile(
        r"[Ll]o[Rr][Aa].{0,120}(?:fail|error|not (?:loaded|found|supported|compatible)|incompatible|mismatch|exceed|invalid|already)|Failed to load LoRA|prepare_lora_batch"
    ),
    frames=("/lora/", "lora_manager", "lora_registry", "mem_pool.prepare", "prepare_lora_batch", "load_lora_adapter", "lora_backend"),
    either=True,
    unless=re.compile(r"out of memory|illegal memory|device-side assert", re.IGNORECASE),
)


@rule("LF414", "lora_failure", "LoRA loading or application failed")
def lora_failure(case: Case) -> Verdict | None:
    """An adapter could not be loaded, or applying one raised.

    Why: the adapter's rank, target modules or base do not fit; a batch mixes requests with and without an adapter in a release that cannot.
    Confirm: frames in `lora/`, or a sentence about the adapter.
    Fix: upgrade; name an adapter in every request; `--max-lora-rank` and `--lora-target-modules` that cover all adapters.
    False friends: out of memory in LoRA code is a memory finding.
    """
    struck = [item for item in matching(case, _LORA) if item.origin == "exception" or item.kind == "error"]
    if not struck:
        return None
    first = struck[0]
    text = "\n".join(item.text for item in struck)
    nameless = re.search(r"KeyError: None", text) is not None
    fix: list[Recommendation] = []
    if nameless:
        fix += [
            upgrade("sglang", "0.4.7", "later releases skip requests without an adapter"),
            other("client", "name an adapter in every request meanwhile"),
        ]
    elif re.search(r"rank|target.?module|shape|size mismatch|incompatible|not compatible", text):
        fix += [
            increase("--max-lora-rank", _rank_in(text), "", "must cover the largest adapter"),
            set_to("--lora-target-modules", "all", "", "must cover every module the adapters touch"),
        ]
    fix.append(other("adapter", "check its adapter_config.json against the base model (rank, target modules, base)"))
    if not nameless:
        fix.append(upgrade("sglang", None, "support of adapters grew release by release"))
    fatal = first.process in SCHEDULER or not case.served()
    return Verdict(
        Severity.CRITICAL if fatal and first.origin == "exception" else Severity.ERROR,
        Confidence.CERTAIN if first.frames or nameless else Confidence.PROBABLE,
        where(case, first),
        "a request without an adapter met a batch with adapters" if nameless else "a LoRA adapter could not be loaded or applied",
        f"{first.head} stands in the code of LoRA."
        + (" The adapter table has no entry for a request without one: mixed traffic triggers it." if nameless else ""),
        cite([*cited(struck), case.config.evidence("lora_paths", "enable_lora", "max_loras_per_batch")]),
        [],
        fix,
    )


def _rank_in(text: str) -> int | None:
    found = [int(value) for value in re.findall(r"rank[^\d\n]{0,20}(\d{1,4})", text)]
    return max(found, default=None)


_GRAMMAR = Sign(
    re.compile(
        r"grammar_matcher\.cc|grammar_compiler\.cc|RecursionGuard|GrammarMatcher|[Gg]rammar (?:compil|backend).{0,60}(?:fail|error|time)"
        r"|Failed to compile grammar|llguidance|Grammar.{0,20}exception"
    ),
    frames=("constrained/", "xgrammar", "outlines", "llguidance", "update_regex_vocab_mask", "accept_token", "fill_vocab_mask"),
    either=True,
    unless=re.compile(r"out of memory|illegal memory|device-side assert|No module named|cannot import", re.IGNORECASE),
)
_REFUSED_GRAMMAR = re.compile(
    r"Hit invalid (?:json_schema|regex|ebnf|grammar)|Skip invalid (?:json_schema|regex|ebnf|grammar)|[Ii]nvalid grammar request|Failed to convert JSON Schema"
)


@rule("LF415", "grammar_failure", "The structured-output backend failed")
def grammar_failure(case: Case) -> Verdict | None:
    """The structured-output backend raised inside the scheduler, or refused a grammar.

    Why: a token or structure that the matcher does not accept: a special token, a nesting deeper than its guard, a schema it cannot compile. Releases that
    let the exception end the scheduler lose all requests for one.
    Confirm: frames in `constrained/`, or `grammar_matcher.cc`, `RecursionGuard` in the text.
    Fix: upgrade the grammar library; another `--grammar-backend`; a limit of tokens per request ends a runaway structure before the guard does.
    False friends: a refused schema (HTTP 400) concerns one request.
    """
    struck = matching(case, _GRAMMAR)
    struck = [item for item in struck if item.origin == "exception" or (item.kind == "error" and not _REFUSED_GRAMMAR.search(item.text))]
    refused = [item for item in active(case) if _REFUSED_GRAMMAR.search(item.text) and item.kind in ("error", "warning")]
    if not struck:
        return _refused_grammar(refused)
    first = struck[0]
    ranks = ranks_of([item for item in struck if item.identity == first.identity])
    backend = str(case.config.get("grammar_backend") or "xgrammar")
    deep = re.search(r"[Cc]urrent depth: (\d+), [Mm]ax allowed: (\d+)", first.text)
    fix = [
        upgrade(
            backend if backend in ("xgrammar", "outlines", "llguidance") else "xgrammar",
            None,
            "its matcher was mended and rewritten in later versions",
        ),
        set_to(
            "--grammar-backend",
            "outlines" if backend == "llguidance" else "llguidance",
            "",
            "Alternative: another backend accepts what this one refuses",
        ),
    ]
    if deep:
        fix.append(set_to("max_tokens", 4096, "tokens per request", "ends a runaway structure before the guard does"))
    fix.append(upgrade("sglang", None, "later releases fail the one request instead of the scheduler"))
    fatal = first.process in SCHEDULER or not first.process
    return Verdict(
        Severity.CRITICAL if fatal and first.origin == "exception" else Severity.ERROR,
        Confidence.CERTAIN,
        "serving" if case.served(first.mark) or first.frames or deep else where(case, first),
        "the grammar backend raised inside the scheduler" if fatal else "the grammar backend failed",
        f"{first.head}. "
        + (
            f"{len(ranks)} ranks raise it alike, because they follow the same tokens: one error, and their order means nothing."
            if len(ranks) > 1
            else "One request's structure did it."
        ),
        cite([*cited(struck), case.config.evidence("grammar_backend")]),
        [step("nesting above the guard", f"{deep[1]} - {deep[2]}", int(deep[1]) - int(deep[2]), "levels")] if deep else [],
        fix,
    )


def _refused_grammar(refused: Sequence[Trouble]) -> Verdict | None:
    if not refused:
        return None
    return Verdict(
        Severity.WARNING,
        Confidence.CERTAIN,
        "serving",
        f"{len(refused)} grammars of requests were refused",
        "The schema, expression or grammar of these requests cannot be compiled. Only they failed.",
        cited(refused, limit=3),
        [step("refused grammars", "lines", len(refused))],
        [
            other("client", "correct the schema or expression"),
            set_to("--grammar-backend", "llguidance", "", "Alternative: another backend accepts more of JSON Schema"),
        ],
    )


@rule("LF416", "detokenizer_failure", "The detokenizer crashed")
def detokenizer_failure(case: Case) -> Verdict | None:
    """The detokenizer process raised; the schedulers and the GPUs are healthy.

    Why: the tokenizer lacks an attribute or a token that a decoding step wants.
    Confirm: `DetokenizerManager hit an exception`.
    Fix: upgrade; a Hugging Face tokenizer with `--tokenizer-path`; `--skip-tokenizer-init` where token ids suffice.
    False friends: `couldn't get a response from detokenizer` is a heartbeat: the scheduler was busy; exit code -15 after SIGTERM is a normal stop;
    `Address already in use` in this process is a port conflict.
    """
    struck = [item for item in active(case) if item.origin == "exception" and item.process == "DetokenizerManager" and not is_noise(item)]
    struck = [item for item in struck if "Address already in use" not in item.text]
    died = [
        item
        for item in active(case)
        if item.origin == "shutdown" and "detokenizer" in item.text and item.kind not in ("exit 0", "exit -15", "exit -9", "exit -3")
    ]
    if not struck and not (died and not _exceptions_before(case, died[0])):
        return None
    shown = struck or died
    return Verdict(
        Severity.CRITICAL,
        Confidence.CERTAIN if struck else Confidence.PROBABLE,
        "serving" if case.served(shown[0].mark) or shown[0].has_frame("event_loop") else where(case, shown[0]),
        "the detokenizer process crashed",
        f"{shown[0].head}. Schedulers and GPUs are healthy; without the detokenizer no text comes out.",
        cited(shown),
        [],
        [
            upgrade("sglang", None, "a gap between the decoding step and this tokenizer"),
            set_to(
                "--tokenizer-path", "a Hugging Face tokenizer of the model", "", "Alternative: a tokenizer that has what the step wants"
            ),
            set_to("--skip-tokenizer-init", value=True, unit="", why="Alternative: where clients can work with token ids"),
        ],
        missing=[] if struck else ["the traceback of the detokenizer"],
    )


def _exceptions_before(case: Case, trouble: Trouble) -> bool:
    return any(item.origin == "exception" and item.order < trouble.order for item in active(case))


@rule("LF417", "health_check_failure", "The health endpoint timed out")
def health_check_failure(case: Case) -> Verdict | None:
    """The health endpoint got no answer in time.

    Why: it sends a one-token request through the scheduler. A long prefill, a compilation or a full queue delays the answer beyond the limit (20 s); an
    orchestrator then restarts a server that works.
    Confirm: `Health check failed. Server couldn't get a response from detokenizer`, while batch lines go on.
    Fix: `SGLANG_HEALTH_CHECK_TIMEOUT` above the longest step; a liveness probe that tolerates it; smaller prefill chunks.
    False friends: the detokenizer is not broken; after a crash or a stop the failing check is a consequence.
    """
    failed = [event for event in case.run.watchdogs if event.name == "health_check" and not _stopped_before(case, event.mark)]
    if not failed:
        return None
    first, last = failed[0], failed[-1]
    progress = _last_progress(case, last.mark)
    alive = any(window.last.line > first.mark.line for window in case.run.serving.windows)
    alive = alive or (case.run.serving.prefill is not None and case.run.serving.prefill.last.line > first.mark.line)
    steps = [step("failed checks", "lines", len(failed))]
    if first.timeout_s:
        steps.append(step("limit", "printed", first.timeout_s, "s"))
    chunk = case.config.number("chunked_prefill_size")
    fix = [
        environment("SGLANG_HEALTH_CHECK_TIMEOUT", 60, "above the longest step that is normal here; the default is 20 s"),
        other(
            "liveness probe",
            "a longer period and more failures before a restart; use /health (not /health_generate) where the server is merely busy",
        ),
        decrease(
            "--chunked-prefill-size",
            4096 if chunk is None or chunk > 4096 else max(512, int(chunk) // 2),
            "tokens",
            "Alternative: shorter prefill steps",
        ),
    ]
    return Verdict(
        Severity.WARNING if alive else Severity.ERROR,
        Confidence.PROBABLE,
        "serving",
        f"{len(failed)} health checks got no answer in time" + (" while the server worked" if alive else ""),
        "The check sends a request through the scheduler, which was busy or stuck. It says nothing about the detokenizer. "
        + (
            "Batches went on after it, so the server was busy, not dead."
            if alive
            else "No batch line follows, so whether it was busy or stuck cannot be decided from this log."
        ),
        cite(
            [
                first.mark.evidence("Health check failed"),
                last.mark.evidence("Health check failed"),
                progress.evidence() if progress else None,
            ]
        ),
        steps,
        fix,
        missing=[] if alive else ["the py-spy stack of the scheduler at that moment", "the rest of the log"],
    )
