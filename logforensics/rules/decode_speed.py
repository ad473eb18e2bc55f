"""Decode steps that are slower, or worth less, than they could be."""

from __future__ import annotations

import math
import re

from logforensics import lazy_re
from logforensics.findings import Arithmetic, Confidence, Evidence, Recommendation, Severity
from logforensics.rules.case import Case
from logforensics.rules.load import accept_len, capacity_of, is_excerpt, on_cpu, running_cap, steps_arithmetic
from logforensics.rules.registry import Verdict, cite, decrease, increase, other, remove, rule, set_to, step, upgrade
from logforensics.run import BatchWindow
from logforensics.run.model import GraphUse, Mark

_SIZES = lazy_re.compile(r"\[([0-9, ]+)\]")
_TYPICAL_REQUEST = 2048  # tokens a request holds, for the batch a pool could hold
_CEILING_FACTOR = 8
_LARGE_CEILING = 128  # a batch of this size fills a card: what crosses it loses little
_LOW_ACCEPTANCE = 1 / 3  # of the drafted tokens
_LEAST_VERIFIED, _LEAST_IN_EXCERPT = 16, 4  # running requests summed over lines: each stands for 40 steps
_LONG_DRAFTS = ("NGRAM", "LOOKAHEAD", "DFLASH", "DSPARK")  # draft blocks of which few tokens are meant to be taken
_DEFAULT_STEPS = 3


# ------------------------------------------------------------------------------------------------ CUDA graph


@rule("LF505", "cuda_graph_not_used", "Decode runs without its CUDA graph")
def cuda_graph_not_used(case: Case) -> Verdict | None:
    """Decode batches run eagerly: they are larger than the largest captured graph, or graphs are off.

    Why: a graph is captured for a list of batch sizes (`bs=[…]`); a larger batch is launched kernel by kernel. The ceiling follows the
    card (8 below 20 GB, 32 below 60 GB …) while the request limit follows the pool, so a small model on a small card has a ceiling of 32
    and a limit of 4096. Crossing it locks itself in: slower steps keep requests longer, the batch stays large (19 of 20 runs never came
    back in sglang #33483).
    Threshold: `cuda graph: False` on decode lines whose batch is larger than every batch with True, at a tenth of the decode time or twice;
    graphs switched off where decode is at least half of the work. Before anything ran: a request limit 8 times the ceiling and a pool that
    could hold 8 times as many requests of 2,048 tokens; a remark where the ceiling is 128 or more.
    Confirm: `#running-req` of the False lines against the captured sizes; steps/s per request on both sides.
    Fix: `--cuda-graph-max-bs` (`--cuda-graph-max-bs-decode` from 0.5.20) above the largest batch; else `--max-running-requests` at the ceiling.
    False friends: prefill lines say False as a rule; under DP attention a rank's decode is eager while another rank prefills.
    """
    if on_cpu(case):
        return None
    ceiling, source = _ceiling(case)
    windows = [window for window in case.run.serving.windows if window.graph]
    window = max(windows, key=lambda item: item.graph.off_lines if item.graph else 0, default=None)
    if window is not None and window.graph is not None and window.graph.off_lines:
        if case.config.get("disable_cuda_graph") or not (window.graph.on_lines or ceiling):
            return _switched_off(case, window, window.graph)
        return _above_ceiling(case, window, window.graph, ceiling, source)
    return _may_cross(case, ceiling, source, windows)


def _ceiling(case: Case) -> tuple[int | None, Evidence | None]:
    """The largest captured decode batch: from the capture lines, else from the resolved server_args."""
    for item in case.run.memory_steps:
        text = item.detail or ""
        if item.stage not in ("graph_begin", "graph_batch_sizes") or re.search("draft|prefill|extend", text, re.IGNORECASE):
            continue
        if (sizes := _SIZES.search(text)) and (numbers := re.findall(r"\d+", sizes[1])):
            return max(map(int, numbers)), item.mark.evidence("bs")
    for name in ("cuda_graph_max_bs_decode", "cuda_graph_max_bs"):
        if value := case.config.number(name):
            return int(value), case.config.evidence(name)
    return None, None


def _graph_flag(case: Case) -> str:
    """The flag's name in this release; 0.5.14 to 0.5.19 take both."""
    return "--cuda-graph-max-bs-decode" if case.release.since("0.5.20") else "--cuda-graph-max-bs"


def _size_above(batch: int) -> int:
    """The next power of two: the captured sizes stay few."""
    return 1 << max(0, math.ceil(math.log2(max(batch, 1))))


def _raise_ceiling(case: Case, value: int, ceiling: int | None) -> list[Recommendation]:
    name = _graph_flag(case)
    new = "" if case.release.before("0.5.20") or name.endswith("-decode") else "; from 0.5.20 on it is --cuda-graph-max-bs-decode"
    fix = [increase(name, value, "requests", f"captures graphs up to this batch; a few hundred MiB more memory{new}")]
    if ceiling:
        fix.append(
            set_to(
                "--max-running-requests",
                ceiling,
                "requests",
                "Alternative: keeps batches inside the captured sizes, at the cost of waiting",
            )
        )
    return fix


def _above_ceiling(case: Case, window: BatchWindow, graph: GraphUse, ceiling: int | None, source: Evidence | None) -> Verdict | None:
    lowest, highest = graph.off_running_min or 0, graph.off_running_max or 0
    known = ceiling if ceiling is not None else graph.on_running_max
    if known is None or highest <= known or (graph.off_lines < 2 and graph.off_share < 0.1):
        return None
    if ceiling is None and lowest <= known:
        return None
    steps = [*steps_arithmetic(window), step("share of decode time without a graph", "weighted by interval", round(graph.off_share, 3))]
    if ceiling is None:
        steps.append(step("ceiling lies between", f"{known} ran in a graph, {lowest} did not", f"{known} … {lowest - 1}", "requests"))
    else:
        steps.append(step("largest captured batch", "printed", ceiling, "requests"))
    return Verdict(
        Severity.WARNING,
        Confidence.CERTAIN if ceiling is not None else Confidence.PROBABLE,
        "serving",
        f"batches of {lowest} to {highest} requests run without a CUDA graph",
        f"Graphs reach up to {known} requests"
        + ("" if ceiling is not None else " or a little more")
        + "; larger batches are launched kernel by kernel, "
        "which makes each step slower and so keeps the batch large.",
        cite([graph.off_mark and graph.off_mark.evidence("graph: False"), graph.on_mark and graph.on_mark.evidence("graph: True"), source]),
        steps,
        _raise_ceiling(case, _size_above(highest), ceiling),
    )


def _switched_off(case: Case, window: BatchWindow, graph: GraphUse) -> Verdict | None:
    if graph.on_lines or graph.off_mark is None:
        return None
    prefill = sum(item.seconds for item in case.run.serving.prefills if item.rank == window.rank)
    decodes = (window.lines >= 2 if is_excerpt(case) else window.steady_lines >= 5) and prefill <= 0.5 * window.seconds
    off = bool(case.config.get("disable_cuda_graph"))
    return Verdict(
        Severity.WARNING if decodes else Severity.INFO,
        Confidence.CERTAIN if off else Confidence.PROBABLE,
        "serving",
        "no decode batch runs in a CUDA graph" + (": graphs are switched off" if off else ""),
        "Every decode step is launched kernel by kernel; small batches lose most."
        + ("" if decodes else " Decode is a small part of the work here, so little is lost."),
        cite([graph.off_mark.evidence("graph: False"), case.config.evidence("disable_cuda_graph") if off else None]),
        steps_arithmetic(window),
        [remove("--disable-cuda-graph", "captures graphs at start")]
        if off
        else [increase(_graph_flag(case), _size_above(graph.off_running_max or 1), "requests", "no batch of this size is captured")],
    )


def _may_cross(case: Case, ceiling: int | None, source: Evidence | None, windows: list[BatchWindow]) -> Verdict | None:
    """Before anything ran: how far above the captured sizes request limit and pool let the batch grow."""
    capacity = capacity_of(case, None)
    cap = running_cap(case, capacity)
    if ceiling is None or capacity is None or cap is None or windows or source is None:
        return None
    holds = min(cap, capacity.max_total_num_tokens // _TYPICAL_REQUEST)
    if min(holds, cap) < _CEILING_FACTOR * ceiling:
        return None
    left = f"; {capacity.avail_gib:.2f} GiB are free after start" if capacity.avail_gib is not None else ""
    fix = _raise_ceiling(case, min(4 * ceiling, cap), ceiling)
    steps = [
        step("request limit over captured batch", f"{cap} / {ceiling}", round(cap / ceiling, 1), "times"),
        step(
            f"requests of {_TYPICAL_REQUEST:,} tokens the pool holds",
            f"{capacity.max_total_num_tokens:,} / {_TYPICAL_REQUEST:,}",
            holds,
            "requests",
        ),
    ]
    return Verdict(
        Severity.INFO if ceiling >= _LARGE_CEILING or case.run.serving.prefill is not None else Severity.WARNING,
        Confidence.PROBABLE,
        "cuda_graph",
        f"CUDA graphs end at {ceiling} requests, up to {cap} may run",
        f"Once the batch grows past {ceiling}, decode runs without a graph, requests stay longer, and the batch does not fall back{left}.",
        cite([source, capacity.mark.evidence("max_running_requests=")]),
        steps,
        fix,
        ("decode lines under load, which say `cuda graph: False` and the batch",),
    )


# ------------------------------------------------------------------------------------------------ speculation


@rule("LF507", "spec_low_acceptance", "Drafted tokens are rejected")
def spec_low_acceptance(case: Case) -> Verdict | None:
    """Speculative decoding costs draft and verify work, but few drafted tokens are accepted.

    Why: a step yields `accept len` tokens, one of which the model would have made anyway. Steps/s per request = throughput / (running ×
    accept len) separates worse drafts from slower steps.
    Threshold: less than a third of the drafted tokens, (accept len − 1) / steps; 1.05 for block drafts (DFlash, n-gram). Measured: one MTP
    step 1.6 to 1.9, EAGLE-3 3.2 to 5.4 is good, 1.6 to 2.2 with 3 steps disappoints (sglang #11948). Three steps are assumed where the log
    does not say. Exactly 1.00 means broken or switched off.
    Confirm: `accept len` under the same prompts with another draft, or without CUDA graph and DP attention.
    Fix: a draft trained for this model; fewer steps; no speculation at high batch; an upgrade where a defect is known.
    False friends: adaptive speculation switches itself off; acceptance falls with temperature and on unusual text; slow steps.
    """
    windows = case.run.serving.windows
    known = accept_len(windows)
    if known is None or known[1] < (_LEAST_IN_EXCERPT if is_excerpt(case) and not case.run.failures else _LEAST_VERIFIED):
        return None
    length, weight = known
    algorithm = str(case.config.get("speculative_algorithm", "")).upper()
    asked = case.config.number("speculative_num_steps") or (case.config.number("speculative_num_draft_tokens") or 0) - 1
    drafted = asked if asked >= 1 else _DEFAULT_STEPS
    share = max(0.0, length - 1) / drafted
    broken = length <= 1.05
    if not broken and (share >= _LOW_ACCEPTANCE or algorithm.startswith(_LONG_DRAFTS)):
        return None
    worst = min((window for window in windows if window.accept_mark), key=lambda window: window.accept_len_mean or 0.0)
    best = max((window for window in windows if window.accept_mark), key=lambda window: window.accept_len_mean or 0.0)
    speed = sum(window.throughput_mean for window in windows if not window.rank.pp)
    steps = [
        step(
            "accepted length",
            f"mean over {weight} running requests on {sum(window.lines for window in windows)} lines",
            round(length, 3),
            "tokens/step",
        ),
        step("accepted share of the drafts", f"({length:.2f} - 1) / {drafted:.0f}", round(share, 3)),
        *steps_arithmetic(best),
        step(
            "throughput if half of the drafts were accepted",
            f"{speed:.1f} × {1 + drafted / 2:.1f} / {length:.2f}",
            round(speed * (1 + drafted / 2) / length, 1),
            "token/s",
        ),
    ]
    return Verdict(
        Severity.WARNING,
        Confidence.CERTAIN if broken or weight >= 20 * _LEAST_VERIFIED else Confidence.PROBABLE,
        "serving",
        f"{length:.2f} tokens per step: {share:.0%} of the drafted tokens are accepted" if not broken else "no drafted token is accepted",
        "The draft's work is mostly thrown away."
        if not broken
        else "An accepted length of 1.00 means that drafts are wrong every time, or that speculation switched itself off.",
        cite(
            [
                worst.accept_mark and worst.accept_mark.evidence("accept len"),
                best.last.evidence("accept len"),
                case.config.evidence("speculative_algorithm"),
            ]
        ),
        steps,
        _better_drafts(case, algorithm, length, int(drafted), broken=broken),
    )


def _better_drafts(case: Case, algorithm: str, length: float, drafted: int, *, broken: bool) -> list[Recommendation]:
    fix: list[Recommendation] = []
    if case.dp_attention and not case.config.get("disable_cuda_graph") and not case.release.since("0.5.0"):
        fix.append(upgrade("sglang", None, "MTP with DP attention and CUDA graph halved the acceptance before it was fixed (PR 6081)"))
        fix.append(
            set_to(
                "--disable-cuda-graph",
                value=True,
                unit="",
                why="Work-around and test: if acceptance comes back, the graph path is at fault",
            )
        )
    elif broken:
        fix.append(upgrade("sglang", None, "no draft accepted at all is a defect of the draft path or a draft for another model"))
    if algorithm not in ("NEXTN", "MTP"):
        fix.append(
            set_to("--speculative-draft-model-path", "a draft trained for this model", "", "acceptance is a property of draft and text")
        )
    if drafted > 1 and not broken:
        fix.append(
            decrease("--speculative-num-steps", max(1, round(length - 1)), "steps", "Alternative: drafts no more than what is accepted")
        )
    fix.append(remove("--speculative-algorithm", "Alternative: at large batches verification costs more than it gives; compare without"))
    return fix


# ------------------------------------------------------------------------------------------------ slow steps


@rule("LF511", "context_growth_slowdown", "Steps slow down as contexts grow")
def context_growth_slowdown(case: Case) -> Verdict | None:
    """With the same number of running requests the throughput slides down while their contexts grow.

    Why: attention reads all of a request's KV at each step. How steep it gets depends on the backend: Triton's MLA decode of 0.4.x lost
    most, FlashInfer's MLA backend was 3.9 times as fast at 32k input (sglang PR 3550).
    Threshold: at least six steady lines of one batch size over which tokens grow by 2 % or more, a falling straight line in the logarithms
    (correlation −0.7), nothing waiting. A remark, as it is how attention works; a warning where the loss reaches 30 %, or where a few lines
    were cut out that show nothing else.
    Confirm: plot throughput against `#token` at equal `#running-req`.
    Fix: another attention backend; shorter contexts; more TP or context parallelism for the attention.
    False friends: fewer running requests; prefills in between; a lower accepted length.
    """
    if on_cpu(case):
        return None
    sliding = [(window, window.slope) for window in case.run.serving.windows if window.slope is not None and window.queue_max == 0]
    falling = [item for item in sliding if item[1].elasticity < 0 and item[1].correlation <= -0.7]
    if not falling:
        return None
    window, slope = max(falling, key=lambda item: item[1].lines)
    loss = 1 - slope.speed_last / slope.speed_first
    alone = is_excerpt(case) and window.lines <= 2 * slope.lines
    per_thousand = (slope.speed_last - slope.speed_first) / (slope.tokens_last - slope.tokens_first) * 1000
    steps = [
        *steps_arithmetic(window),
        step(
            "change per 1,000 tokens of context",
            f"({slope.speed_last:g} - {slope.speed_first:g}) / ({slope.tokens_last:,} - {slope.tokens_first:,})",
            round(per_thousand, 3),
            "token/s",
        ),
        step("elasticity", "d ln(throughput) / d ln(tokens), least squares", round(slope.elasticity, 3)),
        step("loss if contexts double", f"1 - 2^{slope.elasticity:.3f}", round(1 - 2**slope.elasticity, 3), "of the throughput"),
    ]
    return Verdict(
        Severity.WARNING if alone or loss >= 0.3 else Severity.INFO,
        Confidence.PROBABLE if slope.correlation <= -0.9 else Confidence.POSSIBLE,
        "serving",
        f"{slope.speed_first:.1f} to {slope.speed_last:.1f} token/s with {slope.running} running while contexts grow from {slope.tokens_first:,} to {slope.tokens_last:,} tokens",
        "Batch, queue and pool do not change: the steps get longer because attention has more to read. Scheduling is not at fault.",
        cite([slope.first.evidence("gen throughput"), slope.last.evidence("gen throughput")]),
        steps,
        _faster_attention(case),
        ("the attention backend (server_args)",) if case.run.launch is None else (),
    )


def _faster_attention(case: Case) -> list[Recommendation]:
    now = case.config.get("attention_backend")
    fix: list[Recommendation] = []
    if case.release.may_be("0.4.3", "0.4.7") and not case.config.get("enable_flashinfer_mla") and now in (None, "triton"):
        fix.append(
            set_to(
                "--enable-flashinfer-mla",
                value=True,
                unit="",
                why="for MLA models of 0.4.3 to 0.4.7; later releases choose an MLA backend by themselves",
            )
        )
    wanted = "flashinfer" if now != "flashinfer" else "fa3"
    fix.append(
        set_to("--attention-backend", wanted, "", f"Alternative: compare backends at this context length{f'; now {now}' if now else ''}")
    )
    return fix


@rule("LF512", "overlap_disabled", "The overlap scheduler is off")
def overlap_disabled(case: Case) -> Verdict | None:
    """CPU scheduling and GPU work run one after the other: the overlap scheduler is off.

    Why: with overlap the CPU prepares the next batch while the GPU computes. Some features switch it off by themselves (pipeline
    parallelism, `no_buffer` recurrent-state caching, some speculation), which shows in one line early in the log.
    Threshold: `disable_overlap_schedule` in force. A warning where SGLang switched it off itself, the release has a setting that keeps it, and
    decode is most of the work; else a remark.
    Confirm: steps/s per request with and without, at small batches.
    Fix: `extra_buffer` state caching for hybrid models; leave out `--disable-overlap-schedule`.
    False friends: a prefill node of a PD pair; a work-around that someone chose on purpose.
    """
    forced = next((item for item in case.run.overrides if item.flag == "disable_overlap_schedule"), None)
    if not case.config.get("disable_overlap_schedule") and (forced is None or str(forced.new) != "True"):
        return None
    window = max(case.run.serving.windows, key=lambda item: item.lines, default=None)
    if case.config.get("disaggregation_mode") == "prefill" or (window is None and forced is None):
        return None
    prefill = sum(item.seconds for item in case.run.serving.prefills)
    decodes = (window is None and is_excerpt(case)) or (
        window is not None and window.steady_lines >= 5 and prefill < 0.5 * sum(item.seconds for item in case.run.serving.windows)
    )
    mamba = forced is not None and "mamba" in forced.text
    fix = [remove("--disable-overlap-schedule", "it is on by default where the release allows it")] if forced is None else []
    if mamba:
        flag = "--mamba-radix-cache-strategy" if case.release.since("0.5.14") else "--mamba-scheduler-strategy"
        fix.append(set_to(flag, "extra_buffer", "", "keeps the overlap scheduler and the prefix cache; takes state slots"))
        fix.append(set_to("--disable-radix-cache", value=True, unit="", why="Alternative: where prompts share no prefix"))
    return Verdict(
        Severity.WARNING if mamba and decodes and not case.run.failures else Severity.INFO,
        Confidence.CERTAIN,
        "serving" if window else "launch",
        "the overlap scheduler is off" + (": SGLang switched it off itself" if forced else ""),
        (forced.text.strip() if forced else "It was switched off by --disable-overlap-schedule.")
        + " The GPU waits while the CPU schedules the next batch.",
        cite(
            [
                forced.mark.evidence("verlap") if forced else case.config.evidence("disable_overlap_schedule"),
                window.last.evidence("gen throughput") if window else None,
            ]
        ),
        steps_arithmetic(window) if window else [],
        fix,
    )


@rule("LF515", "kv_dtype_slow_path", "The KV dtype takes a slow path")
def kv_dtype_slow_path(case: Case) -> Verdict | None:
    """Decode steps are far slower than any card needs, with a quantised KV dtype.

    Why: not every attention backend has a fast kernel for each KV dtype on each card; what is missing is converted or emulated at every step.
    Threshold: an FP8 or FP4 KV dtype, at most 8 running requests, and fewer than 8 steps/s per request over five steady lines; the slowest
    healthy server we have logs of makes 14 with one request of 64k tokens on NPUs, 43 to 330 on GPUs.
    Confirm: the same command with `--kv-cache-dtype auto`.
    Fix: `--kv-cache-dtype auto` or another `--attention-backend`.
    False friends: CPU servers; graphs that are off; long contexts; offloaded weights; decode that shares its time with prefill.
    """
    dtype = str(case.config.get("kv_cache_dtype", "auto"))
    if not re.search("fp8|fp4|float8|int8|int4", dtype) or on_cpu(case) or case.config.get("cpu_offload_gb"):
        return None
    slow = [
        item
        for item in case.run.serving.windows
        if item.steady_lines >= 5 and item.steps_median and item.steps_median < 8 and item.running_median <= 8
    ]
    window = min(slow, key=lambda item: item.steps_median or 0.0, default=None)
    if window is None or (window.graph is not None and window.graph.off_share > 0.5):
        return None
    backend = case.config.get("attention_backend")
    return Verdict(
        Severity.WARNING,
        Confidence.POSSIBLE,
        "serving",
        f"{window.steps_median:.1f} steps/s with {window.running_median:.0f} running and a KV dtype of {dtype}",
        f"Batch and context are small, no prefill interferes, and yet each step takes {1000 / (window.steps_median or 1):.0f} ms: the {dtype} path of the attention backend "
        f"{backend or '(not printed)'} is the first suspect.",
        cite([window.last.evidence("gen throughput"), case.config.evidence("kv_cache_dtype")]),
        steps_arithmetic(window),
        [
            set_to("--kv-cache-dtype", "auto", "", "the model's own dtype; takes twice the bytes per token"),
            set_to(
                "--attention-backend",
                "flashinfer" if backend != "flashinfer" else "triton",
                "",
                "Alternative: another backend may have a kernel for it",
            ),
        ],
        ("the same run with --kv-cache-dtype auto",),
    )


@rule("LF516", "node_slow_step", "Steps are slower than on the same server before, or on its twin")
def node_slow_step(case: Case) -> Verdict | None:
    """Every step takes longer with the same batch, contexts and acceptance: the reason lies outside the log.

    Why: clocks throttled by heat or power, a neighbour on the card or the host, a slow network link, a NUMA or PCIe fault.
    Threshold: steps/s per request of the last third of at least 30 steady lines (one batch size, contexts within 25 %) below 80 % of the
    first third: within one run they stay within 7 % on every real log we have. Or one plain data-parallel replica below 80 % of the median
    of its twins.
    Confirm: `nvidia-smi -q -d CLOCK,PERFORMANCE`, `dmesg`; the same command on another node.
    Fix: move the load, then look at the node.
    False friends: growing contexts, more running requests, prefill in between, lower acceptance. Ranks under DP attention step together, so
    a slow one slows all; two runs on two nodes can only be told by comparing their logs.
    """
    if on_cpu(case):
        return None
    drifts = [
        (window, window.drift)
        for window in case.run.serving.windows
        if window.drift is not None and window.drift.after < 0.8 * window.drift.before
    ]
    if drifts:
        window, drift = max(drifts, key=lambda item: item[1].lines)
        found = f"steps/s per request fell from {drift.before:.1f} to {drift.after:.1f} with {drift.running} running"
        steps = [step("last third over first third", f"{drift.after:.2f} / {drift.before:.2f}", round(drift.after / drift.before, 3))]
        return _slow_node(found, [drift.first, drift.last], [*steps_arithmetic(window), *steps])
    if case.dp_attention:
        return None
    twins = sorted(
        (
            item
            for item in case.run.serving.windows
            if item.rank.dp is not None and not item.rank.pp and item.steady_lines >= 10 and item.steps_median
        ),
        key=lambda item: item.steps_median or 0.0,
    )
    alike = [item for item in twins if abs(item.running_median - twins[0].running_median) <= 0.2 * max(twins[0].running_median, 1)]
    if len(alike) < 2:
        return None
    slowest, median = alike[0], alike[len(alike) // 2]
    ratio = (slowest.steps_median or 0.0) / (median.steps_median or 1.0)
    if ratio >= 0.8:
        return None
    found = f"{slowest.rank.label} makes {slowest.steps_median:.1f} steps/s per request, {median.rank.label} {median.steps_median:.1f} with as many running"
    return _slow_node(
        found,
        [slowest.last, median.last],
        [step("slowest over median replica", f"{slowest.steps_median:.2f} / {median.steps_median:.2f}", round(ratio, 3))],
    )


def _slow_node(found: str, marks: list[Mark], steps: list[Arithmetic]) -> Verdict:
    return Verdict(
        Severity.WARNING,
        Confidence.POSSIBLE,
        "serving",
        found,
        "Batch, contexts, acceptance and prefill are the same; what changed is not in the log.",
        cite([mark.evidence("gen throughput") for mark in marks]),
        steps,
        [other("the node", "look at clocks, power limits, temperature, other processes and the network of the slow node")],
        ("nvidia-smi -q -d CLOCK,PERFORMANCE,POWER during the slow time", "dmesg of the node"),
    )
