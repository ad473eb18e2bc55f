"""GPU memory at start: weights, KV pool, graph capture, and the first work after them."""

from __future__ import annotations

import math
import re

from logforensics import lazy_re
from logforensics.findings import Action, Arithmetic, Confidence, Evidence, Recommendation, Severity
from logforensics.rules import oom
from logforensics.rules.case import Case
from logforensics.rules.gpu_more import card_gib
from logforensics.rules.registry import Verdict, cite, decrease, environment, increase, other, rule, set_to, step, upgrade
from logforensics.run import Failure
from logforensics.sglang.fraction import GpuBudget, weights_fraction

MAX_USEFUL_FRACTION = 0.97
FRACTION = "--mem-fraction-static"
_NO_ROOM = (
    lazy_re.compile(r"Not enough memory\. Please try to increase --mem-fraction-static"),
    lazy_re.compile(r"Loaded weights leave no GPU memory for the KV cache"),
)
_NEGATIVE = lazy_re.compile(r"profiled value (-\d+)")
_PRINTED_FLOOR = lazy_re.compile(r"minimum viable[^=]*=[^=]*= ?([\d.]+)|above ([\d.]+)")
_PRINTED_FRACTION = lazy_re.compile(r"mem[-_]fraction[-_]static=([\d.]+)")
_HEADROOM = 0.025  # of the memory before loading, for KV, on top of the bare floor


def fraction(case: Case, failure: Failure | None = None) -> float | None:
    """The static fraction in force: printed in the error, else configured."""
    if failure is not None and (found := _PRINTED_FRACTION.search(failure.text)):
        return float(found[1].rstrip("."))
    configured = case.config.number("mem_fraction_static")
    return configured if configured is not None else _wrapped_fraction(case)[1]


def _wrapped_fraction(case: Case) -> tuple[str, float | None]:
    """The fraction as a launcher around SGLang spells it (``--sglang-mem-fraction-static``), with its value; SGLang's own name otherwise."""
    for name, value in (case.command.flags if case.command else {}).items():
        if name.endswith("mem-fraction-static") and name != FRACTION:
            try:
                return name, float(str(value).rstrip(",;"))
            except ValueError:
                return name, None
    return FRACTION, None


def _before_and_after_load(case: Case) -> tuple[float | None, float | None, list[Evidence], list[Arithmetic]]:
    """Free GPU memory (GiB) before and after loading, minimum over the ranks, with the lines and the arithmetic."""
    before, after = case.run.lowest("load_begin"), case.run.lowest("load_end", last=True)
    lines, steps = [], []
    begin = before.avail_gib if before else None
    end = after.avail_gib if after else None
    if before:
        lines.append(before.mark.evidence("avail mem="))
    if after:
        lines.append(after.mark.evidence("avail mem="))
        if begin is None and after.usage_gib is not None and end is not None:
            begin = end + after.usage_gib
            steps.append(step("free before loading", f"{end:.2f} + {after.usage_gib:.2f}", begin, "GiB"))
    return begin, end, lines, steps


def _floor(case: Case, failure: Failure | None) -> tuple[float | None, list[Evidence], list[Arithmetic]]:
    """The smallest fraction that holds the weights, ``1 - A/P``: from the ledger, else as printed.

    Source: model_executor/model_runner.py:profile_max_num_token (to 0.5.6), mem_cache/kv_cache_configurator.py (0.5.16+).
    """
    begin, end, lines, steps = _before_and_after_load(case)
    if begin and end is not None:
        floor = weights_fraction(begin, end)
        steps.append(step("smallest fraction that holds the weights", f"1 - {end:.2f}/{begin:.2f}", floor))
        return floor, lines, steps
    if failure is not None and (found := _PRINTED_FLOOR.search(failure.text)):
        floor = float((found[1] or found[2]).rstrip("."))
        return floor, lines, [step("smallest fraction that holds the weights", "printed in the error", floor)]
    return None, lines, steps


def _no_room(case: Case) -> Failure | None:
    return next((failure for failure in case.failures if any(pattern.search(failure.text) for pattern in _NO_ROOM)), None)


@rule("LF201", "kv_pool_no_room", "The static share leaves nothing for the KV pool")
def kv_pool_no_room(case: Case) -> Verdict | None:
    """The weights are loaded, but `--mem-fraction-static` leaves nothing, or too little, for the KV pool.

    Why: the fraction is a share of the GPU memory that was free before loading (the minimum over the ranks). Weights and KV pool together
    must fit into it: `rest = A - P × (1 - f)`, where P is free before and A is free after loading. When `rest` is not positive SGLang stops.
    Confirm: compare `Load weight begin. avail mem=` (P) with `Load weight end. avail mem=` (A); the floor is `1 - A/P`.
    Fix: RAISE `--mem-fraction-static` above the floor; the printed floor leaves zero KV, so add at least two or three points. Above 0.97 the
    model does not fit: use more GPUs, a quantised checkpoint, or FP8 KV.
    False friends: a CUDA out-of-memory error is the opposite case and needs a LOWER fraction.
    """
    failure = _no_room(case)
    negative = next((override for override in case.run.overrides if _NEGATIVE.search(override.text)), None)
    notice = case.run.notice_with("larger than the profiled value -")
    if failure is None and negative is None and notice is None:
        return _hardly_any_pool(case)
    if failure is not None and _draft_squeezes(case, failure):
        return None
    fits, lines, steps = _floor(case, failure)
    now = fraction(case, failure)
    evidence: list[Evidence | None] = [*(failure.proof("mem-fraction-static") if failure else ()), *lines]
    evidence += [item.mark.evidence("profiled value -") for item in (negative, notice) if item]
    evidence.append(case.config.evidence("mem_fraction_static"))
    explanation = "Weights and KV pool share the static fraction of the GPU memory that was free before loading. The weights take all of it"
    explanation += f": at {now:g} nothing is left for KV." if now is not None else ", so nothing is left for KV."
    fix, extra = _raise_fraction(case, now, fits)
    if now is not None and fits is not None and now > fits + 0.02:
        extra = f"The weights need only {fits:.3f}, so a fraction of {now:g} would leave room: check that the flag reached the server (server_args)."
    return Verdict(
        Severity.CRITICAL,
        Confidence.CERTAIN,
        "kv_pool",
        f"--mem-fraction-static {f'{now:g} ' if now is not None else ''}is too LOW: the weights leave no room for the KV pool",
        f"{explanation} {extra}",
        cite(evidence),
        steps,
        fix,
        missing=[] if fits is not None else ["the lines `Load weight begin/end. avail mem=`: they give the smallest fraction that works"],
    )


def _hardly_any_pool(case: Case) -> Verdict | None:
    """A start that succeeded with next to nothing left of the static share: the pool holds less than a twentieth of the context."""
    least = min(case.run.capacities, key=lambda item: item.max_total_num_tokens, default=None)
    begin, end, lines, steps = _before_and_after_load(case)
    now = fraction(case)
    if least is None or not least.context_len or begin is None or end is None or now is None:
        return None
    rest, floor = GpuBudget(begin, end, now).rest_gib, weights_fraction(begin, end)
    if least.max_total_num_tokens > 0.05 * least.context_len or rest > 0.02 * begin:
        return None
    refused = case.run.notice_with("exceeds the maximum allowed length")
    steps += [
        step("left for the pool", f"{end:.2f} - {begin:.2f} × (1 - {now:g})", rest, "GiB"),
        step("pool", "printed", least.max_total_num_tokens, "tokens"),
    ]
    steps.append(step("smallest fraction that holds the weights", f"1 - {end:.2f}/{begin:.2f}", floor))
    return Verdict(
        Severity.ERROR if refused else Severity.WARNING,
        Confidence.CERTAIN,
        "kv_pool",
        f"--mem-fraction-static {now:g} leaves room for {least.max_total_num_tokens:,} tokens only",
        "The weights take nearly all of the static share. The server runs, but a single request of usual length does not fit into the pool.",
        cite(
            [
                least.mark.evidence("max_total_num_tokens="),
                *lines,
                refused.mark.evidence("exceeds") if refused else None,
                case.config.evidence("mem_fraction_static"),
            ]
        ),
        steps,
        [increase(FRACTION, _above(floor, now), "share of the memory free before loading", "room for requests of the usual length")],
    )


def _speculates(case: Case) -> bool:
    """Whether the server speculates: its configuration, or the words around the flags of the launch command."""
    words = case.command.unknown if case.command else ()
    return bool(case.config.get("speculative_algorithm")) or any("speculative" in word.lower() for word in words)


def _draft_squeezes(case: Case, failure: Failure) -> bool:
    """Whether a speculative draft model is what took the room (weights counted from 0.5.14; loaded first in any case here)."""
    if not _speculates(case):
        return False
    loads = [len(ledger.all("load_begin")) for ledger in case.run.ledgers.values()]
    if any(count > 1 for count in loads) or failure.has_frame("eagle", "draft"):
        return True
    # without the load lines: the fraction is already as high as fractions go, so it is not what is wrong
    now = fraction(case, failure)
    return not loads and now is not None and now >= 0.8


def _raise_fraction(case: Case, now: float | None, floor: float | None) -> tuple[list[Recommendation], str]:
    """How far to raise the fraction, and what to say about it."""
    if floor is not None and floor > MAX_USEFUL_FRACTION:
        why = f"the weights alone need {floor:.3f} of the memory; above {MAX_USEFUL_FRACTION} nothing is left for graphs and activations"
        return [
            increase("--tp-size", case.config.size("tp_size") * 2, "ranks", why),
            other("checkpoint", "use a quantised checkpoint"),
        ], why
    auto = now is not None and case.command is not None and not case.config.typed("mem_fraction_static")
    value = _above(floor, now)
    why = (
        "the floor leaves zero KV, so add room for it"
        if floor is not None
        else "raise it until the start succeeds; the log lacks the figures"
    )
    fix = [increase(_wrapped_fraction(case)[0], value, "share of the memory free before loading", why)]
    chunk = case.config.number("chunked_prefill_size")
    if auto and chunk and chunk > 8192 and case.release.may_be("0.5.3", "0.5.23"):
        fix.append(decrease("--chunked-prefill-size", 8192, "tokens", "each chunk token takes 1.5 MiB from the automatic fraction"))
        fix.append(upgrade("sglang", None, "later releases compute the automatic fraction with more care"))
    return fix, "The printed floor is the point of zero KV; choose more than that." if floor is not None else ""


def _above(floor: float | None, now: float | None) -> float:
    """A fraction to recommend, never below the present one.

    With the floor: the floor plus headroom, rounded up to a hundredth. A fraction below one half belongs to a server that shares its card
    (with a trainer, with another engine) or was typed without the weights in mind: twice as much. Else a step of five points.
    """
    step_up = 0.88 if now is None else 2 * now if now < 0.5 else now + 0.05 if now < 0.94 else now + 0.01
    if floor is None:
        return round(min(MAX_USEFUL_FRACTION, step_up), 3)
    value = math.ceil((floor + _HEADROOM) * 100 - 1e-6) / 100
    small = step_up if now is not None and now < 0.5 else 0.0
    return round(min(MAX_USEFUL_FRACTION, max(value, small, now or 0.0)), 3)


@rule("LF202", "gpu_weights_oom", "The weights do not fit on the GPU")
def gpu_weights_oom(case: Case) -> Verdict | None:
    """The GPU ran out of memory while weights were created or loaded.

    Why: nothing but weights (and the CUDA context) is on the card at that point, so no memory flag can help: `--mem-fraction-static` is not
    even looked at before the weights are loaded.
    Confirm: the error stands before `Load weight end.` of its rank, in a model-loading frame.
    Fix: more GPUs per replica (`--tp-size`), a quantised checkpoint, or a card with more memory.
    False friends: an OOM after `Load weight end.`; another process on the card (compare `Load weight begin. avail mem=` with the card).
    """
    for failure, stage in oom.gpu_ooms(case):
        sizes = oom.figures(oom.root_text(failure))
        now = case.config.number("mem_fraction_static")
        beyond = stage == "unknown" and None not in (sizes.allocated, sizes.total, now) and sizes.allocated > (now + 0.1) * sizes.total  # type: ignore[operator]
        if stage != "load" and not beyond:
            continue
        if (sizes.others or 0) > 1:
            return None
        steps = sizes.steps()
        if beyond:
            steps.append(step("static share", f"{now:g} × {sizes.total:.2f}", now * sizes.total, "GiB"))  # type: ignore[operator]
        begin = case.run.lowest("load_begin")
        tp = case.config.size("tp_size")
        evidence = cite(
            [*failure.proof("out of memory"), begin.mark.evidence("avail mem=") if begin else None, case.config.evidence("tp_size")]
        )
        return Verdict(
            Severity.CRITICAL,
            Confidence.CERTAIN if stage == "load" else Confidence.PROBABLE,
            "load",
            "the weights do not fit on the GPU",
            "The memory ran out while weights were being created or loaded, before any pool existed. "
            "The static fraction is not looked at before that, so changing it cannot help.",
            evidence,
            steps,
            [
                increase("--tp-size", tp * 2, "ranks", "each rank then holds about half of the weights"),
                other("--model-path", "a quantised checkpoint (FP8, AWQ, …) of the same model needs half the memory or less"),
            ],
        )
    return None


@rule("LF203", "cuda_graph_capture_oom", "Memory ran out while capturing CUDA graphs")
def cuda_graph_capture_oom(case: Case) -> Verdict | None:
    """The GPU ran out of memory while CUDA graphs were captured.

    Why: graphs and their private pool live outside the static share, in `P × (1 - f)`. The pool was sized first and took what they need.
    Confirm: the inner error is an out-of-memory error, and the last `Capture … begin` of the rank has no `end`.
    Fix: LOWER `--mem-fraction-static` by what was missing, or capture fewer and smaller batches.
    False friends: SGLang prints the same "Possible solutions" (memory, batch size) for every capture failure; only the inner error counts.
    """
    for failure, stage in oom.gpu_ooms(case):
        if stage != "graph":
            continue
        sizes = oom.figures(oom.root_text(failure))
        begin = case.run.lowest("graph_begin", last=True)
        last = next(
            (item for item in reversed(case.run.memory_steps) if item.stage == "graph_progress" and item.mark.order < failure.said_at),
            None,
        )
        evidence = cite(
            [
                *failure.proof("out of memory"),
                begin.mark.evidence("avail mem=") if begin else None,
                last.mark.evidence("avail_mem=") if last else None,
                case.config.evidence("mem_fraction_static"),
            ]
        )
        steps = sizes.steps()
        fix = [*_lower_fraction(case, sizes, steps), *_smaller_graphs(case, prefill=_prefill_graph(case, begin.detail if begin else None))]
        return Verdict(
            Severity.CRITICAL,
            Confidence.CERTAIN,
            "graph",
            "memory ran out while capturing CUDA graphs: --mem-fraction-static leaves too little beside the pool",
            "Graphs live outside the static share. The weights and the KV pool were sized first and left too little for them.",
            evidence,
            steps,
            fix,
        )
    return None


def _prefill_graph(case: Case, detail: str | None) -> bool:
    """Whether the capture that failed was a prefill (piecewise) graph."""
    last = next((item for item in reversed(case.run.memory_steps) if item.stage in ("graph_begin", "graph_progress")), None)
    text = f"{detail or ''} {last.detail if last else ''}"
    return any(word in text for word in ("prefill", "piecewise", "num_tokens"))


def _lower_fraction(case: Case, sizes: oom.OomFigures, steps: list[Arithmetic]) -> list[Recommendation]:
    """Lower the fraction by what was missing (at least two points), with the arithmetic added to ``steps``."""
    now = fraction(case)
    if now is None:
        return [decrease("--mem-fraction-static", None, "share", "leave more memory beside the static share")]
    points = 0.03
    if sizes.tried is not None and sizes.free is not None and sizes.total:
        points = max(0.02, (math.ceil((sizes.tried - sizes.free) / (sizes.total / 100)) + 1) / 100)
    value = round(max(0.3, now - points), 3)
    steps.append(step("fraction to try", f"{now:g} - {points:g}", value))
    return [
        decrease(
            "--mem-fraction-static",
            value,
            "share of the memory free before loading",
            "frees what was missing and a margin, outside the pool",
        )
    ]


def _smaller_graphs(case: Case, *, prefill: bool) -> list[Recommendation]:
    """Flags that make capture cheaper, in the spelling of the release (the corrected command drops what it lacks)."""
    if prefill:
        return [
            set_to("--cuda-graph-backend-prefill", "disabled", "", "Alternative: no prefill graphs (0.5.14+)"),
            set_to("--disable-piecewise-cuda-graph", value=True, unit="", why="Alternative: no prefill graphs (0.5.10 … 0.5.19)"),
            decrease("--max-total-tokens", None, "tokens", "Alternative: cap the pool instead of lowering the fraction"),
        ]
    largest = case.config.number("cuda_graph_max_bs") or case.config.number("cuda_graph_max_bs_decode")
    limit = min(largest, 64) if largest else 64
    if largest is not None and largest <= 16:
        return []
    return [
        decrease("--cuda-graph-max-bs", int(limit), "requests", "Alternative: fewer and smaller graphs (to 0.5.19)"),
        decrease("--cuda-graph-max-bs-decode", int(limit), "requests", "Alternative: fewer and smaller graphs (0.5.14+)"),
    ]


@rule("LF204", "static_fraction_too_high", "The static share is too large")
def static_fraction_too_high(case: Case) -> Verdict | None:
    """`--mem-fraction-static` is too high: allocating the pool, or the first work after it, ran out of GPU memory.

    Why: only `P × (1 - f)` is left for the request table, graphs, workspaces, activations and NCCL. SGLang's own tuning page asks for
    several GiB there.
    Confirm: the error stands after `Load weight end.`, in pool construction or in the warm-up; `available_gpu_mem=` is small.
    Fix: LOWER `--mem-fraction-static`, or cap `--max-total-tokens`.
    False friends: "Not enough memory. Please try to increase --mem-fraction-static" is the opposite case.
    """
    for failure, stage in oom.gpu_ooms(case):
        if stage not in ("pool", "warmup"):
            continue
        sizes = oom.figures(oom.root_text(failure))
        steps = sizes.steps()
        left = _left_after_start(case)
        loaded = case.run.lowest("load_end", last=True)
        evidence = cite(
            [
                *failure.proof("out of memory"),
                left[0] if left else None,
                loaded.mark.evidence("avail mem=") if loaded else None,
                case.config.evidence("mem_fraction_static"),
            ]
        )
        fix = _lower_fraction(case, sizes, steps)
        where = "while the KV pool was allocated" if stage == "pool" else "in the first work after the start"
        if failure.has_frame("init_attention_backend"):
            where = "in the workspace of the attention backend, after the KV pool"
        return Verdict(
            Severity.CRITICAL,
            Confidence.CERTAIN,
            "kv_pool" if stage == "pool" else "warmup",
            f"--mem-fraction-static is too HIGH: memory ran out {where}",
            "What lies outside the static share is P × (1 - f), whatever the model size. It did not hold the rest of the server.",
            evidence,
            steps,
            fix,
        )
    return _little_left(case)


def _left_after_start(case: Case) -> tuple[Evidence, float] | None:
    """The least free GPU memory after start, GiB, with its line: the capacity line, else the end of graph capture."""
    known = [(capacity.avail_gib, capacity.mark) for capacity in case.run.capacities if capacity.avail_gib is not None]
    if known:
        value, mark = min(known, key=lambda item: (item[0], item[1].order))
        return mark.evidence("available_gpu_mem="), value
    ended = case.run.lowest("graph_end", last=True) or case.run.lowest("pool_end", last=True)
    return (ended.mark.evidence("avail mem="), ended.avail_gib) if ended and ended.avail_gib is not None else None


def _little_left(case: Case) -> Verdict | None:
    """A start that succeeded with less than 1 GiB left: a risk, not a failure, and none at all once it served."""
    left = _left_after_start(case)
    if left is None or left[1] >= 1.0 or case.run.serving.decode_lines > 50:
        return None
    now = fraction(case)
    before = case.run.lowest("load_begin")
    ended = case.run.lowest("graph_end", last=True)
    evidence = [left[0], ended.mark.evidence("avail mem=") if ended else None, case.config.evidence("mem_fraction_static")]
    steps = [step("free after start", "printed", left[1], "GiB")]
    whole = before.avail_gib if before and before.avail_gib else card_gib(case)[0]
    fix: list[Recommendation] = [decrease("--mem-fraction-static", None, "share", "leave about 5 GiB beside the static share")]
    if now is not None and whole:
        value = math.floor((now - (5 - left[1]) / whole) * 100) / 100
        steps.append(step("fraction that leaves 5 GiB", f"{now:g} - (5 - {left[1]:.2f})/{whole:.2f}", value))
        fix = [
            decrease(
                "--mem-fraction-static",
                value,
                "share of the memory free before loading",
                "SGLang's tuning page asks for 5 to 8 GiB after start",
            )
        ]
    return Verdict(
        Severity.INFO if case.run.serving.windows else Severity.WARNING,
        Confidence.PROBABLE,
        "graph",
        f"only {left[1]:.2f} GiB of GPU memory is left after start: the first long prefill may run out",
        "Decode with graphs allocates little, so a start that succeeds proves little. Activations of the next long prefill or image batch come from this rest.",
        cite(evidence),
        steps,
        fix,
    )


@rule("LF205", "prefill_oom", "A prefill ran out of memory")
def prefill_oom(case: Case) -> Verdict | None:
    """The activations of a prefill did not fit beside the pool while serving.

    Why: a long, unchunked or multimodal prefill allocates activations outside the static share. The KV pool is not what is full.
    Confirm: `Tried to allocate X` in a forward_extend or image-feature frame, and the last `Prefill batch` line.
    Fix: a smaller `--chunked-prefill-size`, a lower `--mem-fraction-static`, fewer images per request.
    False friends: retraction lines and "KV cache pool is full" are scheduler decisions, not this error; an OOM in the HTTP process is `frontend_gpu_oom`.
    """
    for failure in case.failures:
        if "Prefill out of memory. Try to lower your batch size" in failure.text:
            return _kv_allocation(case, failure)
    for failure, stage in oom.gpu_ooms(case):
        if stage == "prefill" or (stage == "serving" and not failure.has_frame("decode")):
            return _activations(case, failure)
    return None


def _activations(case: Case, failure: Failure) -> Verdict:
    sizes = oom.figures(oom.root_text(failure))
    steps = sizes.steps()
    vision = oom.in_vision(failure)
    chunk = case.config.number("chunked_prefill_size")
    largest = case.run.serving.prefill
    evidence: list[Evidence | None] = [*failure.proof("out of memory")]
    evidence += [other_rank.evidence("out of memory") for other_rank, _ in oom.gpu_ooms(case)[1:4]]
    if largest:
        evidence.append(largest.last.evidence("#new-token"))
    lowest, highest = case.run.lowest("load_begin"), _highest_before_load(case)
    if lowest and highest and highest[1] - (lowest.avail_gib or 0) > 1:
        evidence += [lowest.mark.evidence("avail mem="), highest[0]]
        steps.append(
            step("this rank started with less", f"{highest[1]:.2f} - {lowest.avail_gib:.2f}", highest[1] - (lowest.avail_gib or 0), "GiB")
        )
    evidence.append(case.config.evidence("chunked_prefill_size", "mem_fraction_static"))
    fix = _lower_fraction(case, sizes, steps)
    new_chunk = 4096 if chunk is None or chunk <= 0 or chunk > 4096 else max(512, int(chunk) // 2)
    smaller = Recommendation(
        "--chunked-prefill-size", Action.SET, new_chunk, "tokens", "activations grow with the tokens of one prefill batch"
    )
    fix.insert(0 if not vision else 1, smaller)
    if vision:
        fix.append(environment("SGLANG_USE_CUDA_IPC_TRANSPORT", 0, "image features are then not kept on the GPU by the front end"))
        fix.append(other("images per request", "limit them (--limit-mm-data-per-request): the vision encoder is not chunked"))
        fix.append(decrease("--limit-mm-data-per-request", None, "", "Alternative: fewer images per request"))
    if case.release.before("0.5.0") and vision:
        fix.append(upgrade("sglang", None, "this release turns chunked prefill off for multimodal models"))
    return Verdict(
        Severity.CRITICAL,
        Confidence.CERTAIN if failure.frames else Confidence.PROBABLE,
        "serving",
        "a prefill ran out of GPU memory" + (" in the vision encoder" if vision else ""),
        "The activations of this prefill did not fit into what the static share leaves. The KV pool is allocated up front and is not what grew.",
        cite(evidence),
        steps,
        fix,
    )


def _highest_before_load(case: Case) -> tuple[Evidence, float] | None:
    steps = [ledger.first("load_begin") for ledger in case.run.ledgers.values()]
    known = [item for item in steps if item is not None and item.avail_gib is not None]
    best = max(known, key=lambda item: item.avail_gib or 0.0, default=None)
    return (best.mark.evidence("avail mem="), best.avail_gib or 0.0) if best else None


def _kv_allocation(case: Case, failure: Failure) -> Verdict:
    """SGLang's own message: the KV allocator refused a prefill that the scheduler had admitted."""
    tried = re.search(r"[Tt]ry to allocate (\d+) tokens", failure.text)
    available = re.search(r"Ava(?:li|il)able tokens: ?(\d+)", failure.text)
    steps = [step("asked for", "from the error text", int(tried[1]), "tokens")] if tried else []
    if available:
        steps.append(step("available", "from the error text", int(available[1]), "tokens"))
    page = case.config.number("page_size")
    fix = [
        upgrade("sglang", None, "the scheduler admitted more than the allocator could give: an accounting defect that later releases mend"),
        set_to("--page-size", 1, "tokens", "pages round every request up; with 1 nothing is lost to rounding"),
        decrease("--max-running-requests", None, "requests", "fewer requests lose fewer part-filled pages"),
    ]
    return Verdict(
        Severity.CRITICAL,
        Confidence.CERTAIN,
        "serving",
        "a prefill was admitted, but the KV allocator had no room for it",
        "This is no CUDA error: the KV pool's allocator refused. "
        + (
            f"With pages of {page:g} tokens every request occupies whole pages, which the admission did not count."
            if page and page > 1
            else ""
        ),
        cite([failure.evidence("out of memory"), case.config.evidence("page_size")]),
        steps,
        fix,
    )


@rule("LF206", "frontend_gpu_oom", "The HTTP process ran out of GPU memory")
def frontend_gpu_oom(case: Case) -> Verdict | None:
    """The HTTP or tokenizer process, not a rank, ran out of GPU memory.

    Why: image preprocessing in the front end uses GPU 0 beside rank 0; its memory is not part of any pool.
    Confirm: `Exception in ASGI application` with an out-of-memory error, no `Scheduler hit an exception`, and Decode lines that go on.
    Fix: lower `--mem-fraction-static` (GPU 0 decides for all ranks), keep features off the GPU, fewer tokenizer workers.
    False friends: `prefill_oom` strikes in a scheduler and ends it.
    """
    struck = [failure for failure, stage in oom.gpu_ooms(case) if stage == "frontend"]
    if not struck:
        return None
    failure = struck[0]
    sizes = oom.figures(oom.root_text(failure))
    steps = sizes.steps()
    heading = case.run.notice_with("Exception in ASGI application")
    fix = _lower_fraction(case, sizes, steps)
    fix.append(environment("SGLANG_USE_CUDA_IPC_TRANSPORT", 0, "features then travel through host memory, not GPU 0"))
    fix.append(environment("SGLANG_MM_FEATURE_CACHE_MB", "256", "caps what the front end keeps on the GPU"))
    if (case.config.number("tokenizer_worker_num") or 1) > 1:
        fix.append(decrease("--tokenizer-worker-num", 1, "processes", "every worker holds its own CUDA context on GPU 0"))
    fix.append(other("images per request", "fewer or smaller images per request"))
    return Verdict(
        Severity.ERROR if case.served() else Severity.CRITICAL,
        Confidence.CERTAIN,
        "serving" if case.served(failure.mark) else "warmup",
        "the HTTP process ran out of GPU memory; the ranks are unharmed",
        "Preprocessing in the front end uses GPU 0 beside rank 0. The requests it was preparing failed; no scheduler raised an error.",
        cite(
            [
                *(piece for item in struck[:4] for piece in item.proof("out of memory")),
                heading.mark.evidence() if heading else None,
                case.config.evidence("mem_fraction_static"),
            ]
        ),
        steps,
        fix,
    )


@rule("LF207", "decode_oom", "A decode ran out of memory")
def decode_oom(case: Case) -> Verdict | None:
    """Decode ran out of KV or GPU memory and could not retract its way out.

    Why: one request outgrew the pool, or activations of a decode did not fit.
    Confirm: `No space left for only one request`, `Failed to retract any request`, `Out of memory even after retracting`, `Decode out of memory`.
    Fix: a shorter `--context-length`, more KV tokens, fewer running requests.
    False friends: `KV cache pool is full. Retract requests.` alone is normal scheduling.
    """
    texts = (
        "No space left for only one request",
        "Failed to retract any request",
        "even after retracting all other requests",
        "Decode out of memory. Try to lower",
    )
    kv = next((failure for failure in case.failures if any(text in failure.text for text in texts)), None)
    cuda = next((failure for failure, stage in oom.gpu_ooms(case) if stage == "decode"), None)
    failure = kv or cuda
    if failure is None:
        return None
    steps = [] if kv else oom.figures(oom.root_text(failure)).steps()
    evidence = cite(
        [
            failure.evidence(),
            case.run.serving.retraction_last and case.run.serving.retraction_last.evidence("Retract"),
            case.config.evidence("context_length"),
        ]
    )
    fix = [
        decrease("--context-length", None, "tokens", "one request must fit into the pool with room to spare"),
        environment("SGLANG_NUM_RESERVED_DECODE_TOKENS", 512, "reserves decode room before a request is admitted"),
        upgrade("sglang", None, "later releases abort the one request instead of the server"),
    ]
    if cuda and not kv:
        fix = [
            *_lower_fraction(case, oom.figures(oom.root_text(failure)), steps),
            decrease("--max-running-requests", None, "requests", "smaller decode batches"),
        ]
    return Verdict(
        Severity.CRITICAL,
        Confidence.CERTAIN,
        "serving",
        "decode ran out of KV memory with nothing left to retract" if kv else "a decode step ran out of GPU memory",
        "The last running request could not get its next token's slot."
        if kv
        else "The activations of a decode step did not fit beside the pool.",
        evidence,
        steps,
        fix,
    )


@rule("LF208", "draft_model_memory", "The draft model is what did not fit")
def draft_model_memory(case: Case) -> Verdict | None:
    """The speculative draft model's weights, KV or graphs are what did not fit.

    Why: from 0.5.14 draft weights and draft KV are inside the static share; before, they came on top of it.
    Confirm: a second `Load weight begin/end` in the same process, or a draft worker in the frames; after a start that succeeded, far more
    `available_gpu_mem` than `P × (1 - f)`.
    Fix: a quantised model, more GPUs, or no draft model.
    False friends: `kv_pool_no_room` without speculation.
    """
    failure = _no_room(case)
    squeezed = failure is not None and _draft_squeezes(case, failure)
    struck = next((item for item, stage in oom.gpu_ooms(case) if stage == "draft"), None)
    cause = struck or (failure if squeezed else None)
    if cause is None:
        return _idle_draft_share(case)
    fits, lines, steps = _floor(case, cause)
    tp = case.config.size("tp_size")
    fix = [
        increase("--tp-size", tp * 2, "ranks", "halves the weights per rank"),
        set_to("--quantization", "fp8", "", "Alternative: halves the weights of the target model"),
        Recommendation("--speculative-draft-model-path", Action.REMOVE, None, "", "Alternative: serve without the draft model"),
    ]
    if fits is not None and fits <= MAX_USEFUL_FRACTION:
        fix.insert(
            0,
            increase(
                "--mem-fraction-static", _above(fits, None), "share of the memory free before loading", "holds both models and some KV"
            ),
        )
    return Verdict(
        Severity.CRITICAL,
        Confidence.PROBABLE,
        "kv_pool",
        "target and draft model together leave no room for the KV pool",
        "Speculative decoding loads a second model into the same memory. Target weights, draft weights and both KV pools did not fit.",
        cite([cause.evidence(), *lines, case.config.evidence("speculative_draft_model_path", "speculative_algorithm")]),
        steps,
        fix,
    )


def _idle_draft_share(case: Case) -> Verdict | None:
    """A speculating server whose pool came out smaller than its share: what was set aside for the draft stays unused.

    Without speculation everything but ``P × (1 - f)`` is in use after the start, so a larger rest was priced for the draft and not taken.
    """
    left, now, cap = _left_after_start(case), fraction(case), case.config.number("max_total_tokens")
    begin = case.run.lowest("load_begin")
    whole = begin.avail_gib if begin and begin.avail_gib else card_gib(case)[0]
    if left is None or now is None or whole is None or cap is not None or not _speculates(case):
        return None
    idle = left[1] - whole * (1 - now)
    if idle < max(4.0, 0.05 * whole):
        return None
    return Verdict(
        Severity.INFO if case.run.serving.windows else Severity.WARNING,
        Confidence.POSSIBLE,
        "capacity",
        f"about {idle:.1f} GiB of the static share stay unused beside the draft model",
        "Draft weights, draft KV and what loading left behind were priced when the pool was sized; less of it is in use now. The pool could be that much larger.",
        cite([left[0], case.config.evidence("speculative_algorithm", "mem_fraction_static")]),
        [
            step("left after start", "printed", left[1], "GiB"),
            step("outside the static share", f"{whole:.2f} × (1 - {now:g})", whole * (1 - now), "GiB"),
            step("unused part of the share", f"{left[1]:.2f} - {whole * (1 - now):.2f}", idle, "GiB"),
        ],
        [
            upgrade("sglang", None, "a release that frees what loading left behind before it sizes the pool"),
            Recommendation("--speculative-algorithm", Action.REMOVE, None, "", "Alternative: a run without the draft shows what it costs"),
        ],
        missing=["the same start without speculation: the difference in tokens is what the draft costs"],
    )
