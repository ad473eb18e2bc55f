"""Stalls: a scheduler that makes no progress, and a health check that gets no answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from logforensics import lazy_re
from logforensics.evidence import ThreadStack
from logforensics.findings import Arithmetic, Confidence, Evidence, Recommendation, Severity
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite, decrease, environment, increase, other, rule, set_to, step, upgrade
from logforensics.rules.signs import after, last_batch, said, stopped_at, where
from logforensics.run.model import Mark, WatchdogEvent
from logforensics.run.troubles import Trouble

_DUMP_LINES = 2000  # a dump of all ranks
_OTHER_WATCHDOGS = ("nccl", "health_check")
_STACKS = (  # what the innermost frames of the stuck thread say, the telling ones first
    (
        "compile",
        lazy_re.compile(
            r"file_baton|filelock|FileLock|_jit_build|cpp_extension|load_inline|ninja|deep_gemm.*compil|compile_utils|jit_kernels.*build|nvcc"
        ),
    ),
    (
        "collective",
        lazy_re.compile(
            r"all_reduce|all_gather|allgather|reduce_scatter|barrier \(|broadcast|custom_all_reduce|ncclComm|deep_ep|dispatch \("
        ),
    ),
    ("transfer", lazy_re.compile(r"mooncake|nixl|kv_manager|disaggregation/")),
    ("grammar", lazy_re.compile(r"xgrammar|outlines|llguidance|constrained/")),
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
    progress = last_batch(case, first.mark)
    ranks = list(dict.fromkeys(event.rank for event in fired if event.rank.label != "the only rank"))
    steps = _stall(first, progress)
    serving = case.run.serving.windows and case.run.serving.windows[0].first.order < first.mark.order
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
    return after(mark, stopped_at(case))


def _as_trouble(case: Case, event: WatchdogEvent) -> Trouble:
    return next(item for item in case.run.troubles if item.origin == "watchdog" and item.mark == event.mark)


def _stall(event: WatchdogEvent, progress: Mark | None) -> list[Arithmetic]:
    steps = [step("watchdog period", "printed", event.timeout_s, "s")] if event.timeout_s else []
    if progress and progress.time and event.mark.time and event.mark.time > progress.time:
        stall = (event.mark.time - progress.time).total_seconds()
        steps.append(step("stall", f"{event.mark.time:%H:%M:%S} - {progress.time:%H:%M:%S} (last batch line)", stall, "s"))
    return steps


def _stuck_in(case: Case, event: WatchdogEvent) -> tuple[str | None, Evidence | None]:
    """What the py-spy dump after a watchdog says the worker thread was doing, with the telling line."""
    threads = [thread for thread in _threads(case, event.mark) if thread.matters]
    threads.sort(key=lambda thread: "forward_thread" not in thread.name)
    for thread in threads:
        for kind, pattern in _STACKS:
            frame = next((frame for frame in thread.frames[:12] if pattern.search(frame.text)), None)
            if frame is not None:
                return kind, frame.evidence
    worker = next((thread for thread in threads if "forward_thread" in thread.name and thread.frames), None)
    if worker is None:
        return None, None
    own = next((frame for frame in worker.frames if not re.search(r"torch/|__call__|__torch_function__", frame.text)), worker.frames[0])
    return "device", own.evidence


class _StackLine(NamedTuple):
    """A line of a stack."""

    text: str
    evidence: Evidence


class _Thread(NamedTuple):
    """A thread of a py-spy dump, innermost frame first."""

    name: str
    frames: list[_StackLine]

    @property
    def matters(self) -> bool:
        """Whether the scheduler's work runs on it."""
        return "forward_thread" in self.name or "MainThread" in self.name


def _threads(case: Case, mark: Mark) -> list[_Thread]:
    """Threads of the py-spy dumps after a line, and of dumps beside the log; a dump in it is one notice of many lines, or a notice a line."""
    found: list[_Thread] = []
    for notice in case.run.notices:
        if notice.mark.source != mark.source or not mark.line <= notice.mark.line < mark.line + _DUMP_LINES:
            continue
        for offset, text in enumerate(notice.text.split("\n")):
            if head := re.match(r'\s*Thread .*"(.+)"', text):
                found.append(_Thread(head[1], []))
            elif found and re.match(r"\s{2,}\S+.* \(.+:\d+\)", text):
                found[-1].frames.append(_StackLine(text, Evidence(mark.source, notice.mark.line + offset)))
    return found + [_beside(source, stack) for source, stack in case.side.all(ThreadStack)]


def _beside(source: str, stack: ThreadStack) -> _Thread:
    lines = [_StackLine(frame, Evidence(source, stack.line + place, needle=frame)) for place, frame in enumerate(stack.frames, 1)]
    return _Thread(stack.thread, lines)


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
    progress = last_batch(case, last.mark)
    alive = any(window.last.order > first.mark.order for window in case.run.serving.windows)
    alive = alive or (case.run.serving.prefill is not None and case.run.serving.prefill.last.order > first.mark.order)
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
