"""Loading and capture: too slow for a time limit, slow without one, and graph capture that fails for reasons other than memory."""

from __future__ import annotations

import math

from logforensics.findings import Action, Arithmetic, Confidence, Recommendation, Severity
from logforensics.rules import signatures, signs
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite, environment, other, rule, set_to, step, upgrade
from logforensics.rules.signatures import Hit
from logforensics.run.model import LoadBar, MemoryStep
from logforensics.run.troubles import Trouble
from logforensics.sglang.releases import ByRelease

_BARRIER_SECONDS = ByRelease((("0.4.4", 300), ("0.5.6", 480)))  # model_runner.py: UNBALANCED_MODEL_LOADING_TIMEOUT_S
_SLOW_GIB_PER_SECOND = 0.2  # per rank: below it not even one busy hard disk array is used well
_SLOW_SECONDS = 300
_CAPTURE_FRAMES = ("capture_one_batch_size", "cuda_graph_runner.py", "cuda_graph_backend", "init_device_graphs", "init_cuda_graphs")


@rule("LF316", "load_timeout", "A time limit struck because loading was slow")
def load_timeout(case: Case) -> Verdict | None:
    """A barrier or start limit struck because some ranks were still loading.

    Why: after loading, ranks wait for each other for 300 s (0.4.4 to 0.5.5) or 480 s (0.5.6 on). Slow or uneven storage, or heavy
    transformations of some shards, make a rank later than that.
    Confirm: `could finish the model loading, but there are other ranks that didn't finish loading`, and no other error before it.
    Fix: a warm cache or local disk, fewer bytes, a longer limit where the release has one.
    False friends: the text names OOM first, but a rank that ran out of memory says so in its own error; then this line is only a consequence.
    """
    found = signatures.hits(case, "load_timeout")
    if not found or _fell_before(case, found[0].trouble) or (found[0].signature.name == "start_limit" and not _was_loading(case)):
        return None
    slowest = _slowest_bar(case)
    steps, value = _time_needed(case, slowest)
    late = [rank.label for rank, ledger in case.run.ledgers.items() if ledger.first("load_begin") and not ledger.first("load_end")]
    fix = [
        environment(
            "SGLANG_MODEL_LOADING_TIMEOUT_S",
            value,
            "seconds; only where the release reads it (none up to 0.5.23 does: there the limit is a constant of model_runner.py)",
        ),
        other("storage", "local disk or a warm page cache: read the checkpoint once (`cat *.safetensors > /dev/null`) before the start"),
        upgrade("sglang", None, "the barrier waits 300 s to 0.5.5 and 480 s from 0.5.6"),
        other("checkpoint", "a quantised checkpoint has half the bytes or less"),
    ]
    verdict = signatures.verdict(
        case, "load_timeout", arithmetic=steps, fix=fix, title="ranks waited in vain for others that were still loading"
    )
    if verdict is None:
        return None
    ledger_lines = [slowest.mark.evidence("Completed") if slowest else None]
    return Verdict(
        verdict.severity,
        Confidence.PROBABLE,
        "load",
        verdict.title + (f": {', '.join(late[:8])}" if late else ""),
        "Loading was too slow or too uneven for the limit. Nothing before it in this log is an error of its own.",
        cite([*verdict.evidence, *ledger_lines]),
        steps,
        fix,
        missing=["the log of the ranks that were late: whether they were still loading or had failed"] if not late else [],
    )


def _was_loading(case: Case) -> bool:
    """Whether a rank had begun to load and had not finished, or shards were still counted."""
    ledgers = case.run.ledgers.values()
    return any(ledger.first("load_begin") and not ledger.first("load_end") for ledger in ledgers) or any(
        not bar.finished for bar in case.run.bars
    )


def _fell_before(case: Case, barrier: Trouble) -> bool:
    """Whether another failure of this start explains why a rank never arrived."""
    return any(item.origin == "exception" and item.order < barrier.order and "loading" not in item.text for item in signs.active(case))


def _slowest_bar(case: Case) -> LoadBar | None:
    return max((bar for bar in case.run.bars if bar.elapsed_s), key=lambda bar: bar.elapsed_s or 0.0, default=None)


def _time_needed(case: Case, bar: LoadBar | None) -> tuple[list[Arithmetic], int]:
    """The limit, how long loading took or will take, and a limit (seconds) that would have done."""
    limits = _BARRIER_SECONDS.over(case.release.low, case.release.high)
    steps = [step("barrier", f"constant of {case.release.text}", limit, "s") for limit in limits]
    needed = 0.0
    if bar is not None and bar.elapsed_s and bar.done:
        needed = bar.elapsed_s / bar.done * bar.total
        steps.append(step("seconds per shard", f"{bar.elapsed_s:g} / {bar.done}", bar.elapsed_s / bar.done, "s"))
        steps.append(step("whole checkpoint", f"{bar.elapsed_s / bar.done:.2f} × {bar.total}", needed, "s"))
    return steps, max(1800, math.ceil(needed * 1.25 / 600) * 600)


@rule("LF317", "slow_loading", "Loading took far longer than storage should need")
def slow_loading(case: Case) -> Verdict | None:
    """Loading finished, but far more slowly than storage should give.

    Why: cold network storage, a checkpoint read once per rank, memory pressure, or a decompressing file system.
    Threshold: more than 300 s at less than 0.2 GiB/s per rank; a local NVMe disk gives 2 GiB/s and more, shared by the ranks.
    Where only the progress bar is there: 600 s at 4 s per shard or more.
    Confirm: `Load weight end. elapsed=` against `mem usage=`; the seconds per shard of the progress bar.
    Fix: local disk or a warm page cache; fewer bytes.
    False friends: the first start after a download compiles and repacks as well; a second start tells.
    """
    slow = [item for item in case.run.memory_steps if item.stage == "load_end" and _is_slow(item)]
    bar = _slowest_bar(case)
    steps: list[Arithmetic]
    if slow:
        worst = max(slow, key=lambda item: item.elapsed_s or 0.0)
        seconds, gib, line = worst.elapsed_s or 0.0, worst.usage_gib or 0.0, worst.mark.evidence("elapsed=")
        steps = [step("speed", f"{gib:.2f} / {seconds:.1f}", gib / seconds, "GiB/s per rank")]
    elif bar is not None and bar.finished and _is_slow_bar(bar):
        seconds, line = bar.elapsed_s or 0.0, bar.mark.evidence("Completed")
        steps = [step("seconds per shard", f"{seconds:g} / {bar.total}", seconds / bar.total, "s")]
    else:
        return None
    return Verdict(
        Severity.WARNING if not case.run.serving.windows else Severity.INFO,
        Confidence.PROBABLE,
        "load",
        f"loading took {seconds:.0f} s: {steps[0].value:.2f} {steps[0].unit if slow else 's per shard'}",
        "A local disk gives gigabytes per second. This start waited for storage (or swapped).",
        cite([line, bar.mark.evidence("Completed") if bar is not None else None]),
        steps,
        [
            other("storage", "local disk or a warm page cache"),
            other("checkpoint", "a quantised checkpoint has half the bytes or less"),
            Recommendation(
                "--model-loader-extra-config",
                Action.SET,
                '{"enable_multithread_load": true, "num_threads": 8}',
                "",
                "Alternative: several files at once",
            ),
        ],
    )


def _is_slow_bar(bar: LoadBar) -> bool:
    """Twice the limit of time at more than four seconds per shard, where no line says how many bytes were loaded."""
    return (bar.elapsed_s or 0.0) >= 2 * _SLOW_SECONDS and (bar.elapsed_s or 0.0) / max(bar.total, 1) >= 4


def _is_slow(item: MemoryStep) -> bool:
    if item.elapsed_s is None or item.usage_gib is None or item.elapsed_s < _SLOW_SECONDS:
        return False
    return 0 < item.usage_gib / item.elapsed_s < _SLOW_GIB_PER_SECOND


@rule("LF315", "cuda_graph_failure", "Graph capture failed for a reason other than memory")
def cuda_graph_failure(case: Case) -> Verdict | None:
    """Graph capture failed, and memory is not why.

    Why: something in the captured path is not allowed during capture (a synchronisation, an allocation on another stream, values that
    are not known yet), or the code of the captured path raises.
    Confirm: the inner error under `Capture cuda graph failed`, and plenty of `avail mem` on `Capture … begin`.
    Fix: leave the graph out that fails (`--disable-cuda-graph`, for the prefill graph its own flag), or a release that mends the path.
    False friends: "Possible solutions" (smaller fraction, smaller batch) is printed for every inner error, also for a missing kernel, a lost
    peer or an import error; those have their own findings.
    """
    found = signatures.hits(case, "cuda_graph_failure")
    hit = found[0] if found else None
    struck = hit.trouble if hit is not None else _in_capture(case)
    if struck is None:
        return None
    begin = case.run.lowest("graph_begin", last=True)
    inner = hit.groups.get("inner", "") if hit is not None else struck.head
    steps = [step("free when capture began", "printed", begin.avail_gib, "GiB")] if begin and begin.avail_gib is not None else []
    same = signatures.proof(found) if found else []
    return Verdict(
        signatures.severity(case, struck),
        Confidence.CERTAIN if hit is not None else Confidence.PROBABLE,
        "graph",
        f"graph capture failed: {inner.strip()[:160]}",
        "The inner error is not about memory, so the printed hints (smaller fraction, smaller batch sizes) do not apply.",
        cite([*(same or [struck.evidence(), struck.mark.evidence()]), begin.mark.evidence("avail mem=") if begin else None]),
        steps,
        _without_the_graph(case, hit),
    )


def _in_capture(case: Case) -> Trouble | None:
    """An exception inside capture that no table knows."""
    if case.served():
        return None
    return next(
        (
            item
            for item in signs.active(case)
            if item.origin == "exception" and item.has_frame(*_CAPTURE_FRAMES) and signatures.claim(item) is None
        ),
        None,
    )


def _without_the_graph(case: Case, hit: Hit | None) -> list[Recommendation]:
    """Flags that leave the failing graph out, in the spelling of each range of releases (the corrected command drops what it lacks)."""
    prefill = hit is not None and (hit.signature.name == "piecewise" or hit.trouble.has_frame("piecewise", "prefill_cuda_graph"))
    if prefill:
        fix = [
            Recommendation("--disable-piecewise-cuda-graph", Action.SET, value=True, rationale="no prefill graph (to 0.5.19)"),
            set_to("--cuda-graph-backend-prefill", "disabled", "", "no prefill graph (0.5.14+)"),
        ]
    else:
        fix = [
            Recommendation(
                "--disable-cuda-graph",
                Action.SET,
                value=True,
                rationale="decode then runs without graphs: much slower, but it shows whether capture is the only problem",
            ),
            set_to("--cuda-graph-backend-decode", "disabled", "", "the same (0.5.14+)"),
        ]
    kv_type = str(case.config.get("kv_cache_dtype", "") or "")
    if "fp4" in kv_type or (hit is not None and "KV cache" in hit.groups.get("inner", "")):
        fix.append(set_to("--kv-cache-dtype", "fp8_e4m3", "", "Alternative: a KV type that needs no calibration"))
    fix.append(upgrade("sglang", None, "a release in which this path can be captured"))
    return [*fix, other("source", "Alternative: mend the code that the frames name, such as a synchronisation in a captured path")]
