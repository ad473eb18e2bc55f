"""Features that fail while serving: speculation, adapters, grammars, and the detokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from logforensics import lazy_re
from logforensics.findings import Action, Confidence, Recommendation, Severity
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite, increase, other, remove, rule, set_to, step, upgrade
from logforensics.rules.signs import SCHEDULER, Sign, active, cited, is_noise, matching, ranks_of, said, where
from logforensics.run.troubles import Trouble

_START_FRAMES = ("load_model", "init_memory_pool", "init_torch_distributed", "server_args", "model_config")
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
    unless=lazy_re.compile(
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
    after = retraction is not None and retraction.order < first.mark.order and first.mark.order - retraction.order < 200
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
    lazy_re.compile(
        r"[Ll]o[Rr][Aa].{0,120}(?:fail|error|not (?:loaded|found|supported|compatible)|incompatible|mismatch|exceed|invalid|already)|Failed to load LoRA|prepare_lora_batch"
    ),
    frames=("/lora/", "lora_manager", "lora_registry", "mem_pool.prepare", "prepare_lora_batch", "load_lora_adapter", "lora_backend"),
    either=True,
    unless=lazy_re.compile(r"out of memory|illegal memory|device-side assert", re.IGNORECASE),
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
    lazy_re.compile(
        r"grammar_matcher\.cc|grammar_compiler\.cc|RecursionGuard|GrammarMatcher|[Gg]rammar (?:compil|backend).{0,60}(?:fail|error|time)"
        r"|Failed to compile grammar|llguidance|Grammar.{0,20}exception"
    ),
    frames=("constrained/", "xgrammar", "outlines", "llguidance", "update_regex_vocab_mask", "accept_token", "fill_vocab_mask"),
    either=True,
    unless=lazy_re.compile(r"out of memory|illegal memory|device-side assert|No module named|cannot import", re.IGNORECASE),
)
_REFUSED_GRAMMAR = lazy_re.compile(
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
