"""Recognising a trouble by its class, its sentence, its frames and its process: data, and the few questions rules ask of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from logforensics import lazy_re
from logforensics.findings import Evidence
from logforensics.records import record
from logforensics.rules.case import Case
from logforensics.run.model import Mark, Rank
from logforensics.run.troubles import Trouble

SCHEDULER = ("Scheduler", "TpModelWorkerClient", "TpModelWorker", "DataParallelController")
# What a dying server prints whatever the cause: never a cause by itself.
_NOISE = lazy_re.compile(
    r"^(?:SystemExit|KeyboardInterrupt|asyncio\.CancelledError|CancelledError|psutil\.|ProcessLookupError|BrokenPipeError|EOFError|GeneratorExit)"
    r"|^terminate: |^fatal: Aborted|has no attribute '_cache'|Loop\._read_from_self|uvloop|resource_tracker|leaked semaphore"
    r"|Exception raised from |CUDA kernel errors might be|Compile with `TORCH_USE_CUDA_DSA`|Dumping requests before crash|During handling of the above"
    r"|subprocess exited with code|Server process exited|died during initialization|exited during startup|scheduler is dead"
    r"|ClientDisconnect|EndOfStream|destroy_process_group\(\) was not called|^unfinished traceback: $"
)
_AFTERMATH = lazy_re.compile(r"CUDA-capable device\(s\) is/are busy or unavailable|driver shutting down|CUDA error: initialization error")


@record(frozen=True)
class Sign:
    """How a family of troubles is recognised; every part that is given must hold."""

    text: re.Pattern[str] | None = None
    frames: tuple[str, ...] = ()
    process: tuple[str, ...] = ()
    unless: re.Pattern[str] | None = None
    either: bool = False  # text or frames is enough
    origins: tuple[str, ...] = ("exception", "notice", "watchdog")

    def matches(self, trouble: Trouble) -> bool:
        """Whether a trouble carries this sign."""
        if trouble.origin not in self.origins or (self.process and trouble.process not in self.process):
            return False
        if self.unless is not None and self.unless.search(trouble.text):
            return False
        by_text = self.text is not None and self.text.search(trouble.text) is not None
        by_frames = bool(self.frames) and trouble.has_frame(*self.frames)
        if self.either:
            return by_text or by_frames
        return (by_text or self.text is None) and (by_frames or not self.frames)


def stopped_at(case: Case) -> Mark | None:
    """Where an operator's stop began, or None."""
    for event in case.run.shutdowns:
        if event.event == "sigterm":
            return event.mark
    return next((failure.mark for failure in case.failures if failure.kind == "KeyboardInterrupt"), None)


def after(mark: Mark, stop: Mark | None) -> bool:
    """Whether a line was written after a stop began: by its stamp (an export may begin with the newest line), else by its place."""
    if stop is None:
        return False
    if mark.source == stop.source and mark.time is not None and stop.time is not None and mark.time != stop.time:
        return mark.time > stop.time
    return stop.is_before(mark)


def is_noise(trouble: Trouble) -> bool:
    """What a dying server prints whatever the cause."""
    return _is_noisy(trouble.texts[-1].split("\n", 1)[0]) or (_AFTERMATH.search(trouble.text) is not None and len(trouble.texts) == 1)


@lru_cache(maxsize=4096)
def _is_noisy(sentence: str) -> bool:
    return _NOISE.search(sentence) is not None


def active(case: Case) -> list[Trouble]:
    """Troubles that may be a cause: no shutdown noise, nothing after an operator's stop, in the order they happened."""
    return list(case.active_troubles)


def without_noise(case: Case) -> tuple[Trouble, ...]:
    """What :func:`active` returns; worked out once for a case."""
    stop = stopped_at(case)
    return tuple(item for item in case.run.troubles if not is_noise(item) and not after(item.mark._replace(time=item.when), stop))


def matching(case: Case, *signs: Sign) -> list[Trouble]:
    """Active troubles that carry any of the signs, in order."""
    return [item for item in active(case) if any(sign.matches(item) for sign in signs)]


def ranks_of(troubles: Iterable[Trouble]) -> list[Rank]:
    """The ranks of some troubles, in the order they appear, each once."""
    return list(dict.fromkeys(item.rank for item in troubles if item.rank != Rank()))


def said(ranks: Sequence[Rank]) -> str:
    """``TP3``, ``TP3 and TP5``, ``TP3, TP5 and 6 more``; a neutral word where the log names no rank."""
    names = [rank.label for rank in ranks]
    if not names:
        return "a rank"
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def cited(troubles: Sequence[Trouble], needle: str = "", limit: int = 6) -> list[Evidence]:
    """Cite some troubles: the first ones, and the first of each further rank."""
    seen: set[tuple[Rank, str]] = set()
    chosen = []
    for item in troubles:
        key = (item.rank, item.identity)
        if key not in seen:
            seen.add(key)
            chosen.append(item.evidence(needle if needle in item.text else ""))
    return chosen[:limit]


def where(case: Case, trouble: Trouble) -> str:
    """The stage in which a trouble struck, in the words of the findings."""
    if case.served(trouble.mark) or _serving_frames(trouble):
        return "serving"
    reached = [name for name, stage in case.run.stages.items() if stage.first.order < trouble.mark.order]
    if "capacity" in reached:
        return "warmup"
    for name, word in (("graph_begin", "graph"), ("pool_end", "graph"), ("load_end", "kv_pool"), ("load_begin", "load")):
        if name in reached:
            return word
    return "init_dist" if "init_dist_begin" in reached else "launch"


def _serving_frames(trouble: Trouble) -> bool:
    return trouble.has_frame(
        "event_loop", "process_batch_result", "recv_requests", "forward_thread_func", "run_batch", "handle_generate_request"
    )


def last_batch(case: Case, before: Mark) -> Mark | None:
    """The last batch line before a watchdog fired."""
    marks = [window.last for window in case.run.serving.windows]
    if case.run.serving.prefill:
        marks.append(case.run.serving.prefill.last)
    earlier = [mark for mark in marks if mark.is_before(before)]
    return max(earlier, key=lambda mark: mark.order, default=None)
