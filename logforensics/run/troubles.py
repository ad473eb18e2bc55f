"""Everything that went wrong in a run, as one list in the order it happened.

Exceptions, fatal lines, watchdogs and the error lines of libraries (NCCL, gloo, Mooncake, the device) become :class:`Trouble`. Tracebacks
that were pasted without their opening line, or that stand inside a wrapper's stamps, are put together again from the lines around them.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from logforensics import lazy_re
from logforensics.findings import Evidence
from logforensics.records import record
from logforensics.run.model import Failure, Mark, Notice, Rank, ShutdownEvent, WatchdogEvent

if TYPE_CHECKING:
    from logforensics.run.model import Run

Frames = tuple[tuple[str, int, str], ...]

_SUSPECT = lazy_re.compile(
    r"error|fail|refused|timed? ?out|reset by|closed by|NOT connected|peer ranks|abort|ssert|segfault|fatal|leak|illegal|\bXid\b|NVRM|fallen off"
    r"|exceeded|broken|inactive|not registered|unable|cannot|could not|couldn't|crash|killed|exception|healthy before|NCCL WARN"
    r"|fault by|Watchdog caught|mismatch|reconnect|invalid",
    re.IGNORECASE,
)
_STAMPS = lazy_re.compile(
    r"^(?:\s*[\w.-]{1,60}\s+\| |(?:ERROR|WARNING|INFO|CRITICAL)\s+(?=\d{4}-)|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\s(?! *error \d)|stderr [FP] |stdout [FP] )+"
)
_FRAME = lazy_re.compile(r'^\s*File "([^"]{1,400})", line (\d+)(?:,)? in ([\w<>. ]{1,200})?')
_RAISED = lazy_re.compile(
    r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Aborted|Full|Empty|Refused|Fault|Invalid|Violation))(?:: (.*)|:?\s*$)",
    re.DOTALL,
)
_RANK = lazy_re.compile(r"\[rank ?(\d+)\]|\bRank (\d+)\]|\brank=(\d+)\b|\b[Rr]ank (\d+) (?:is|scheduler)\b")
_ADDRESS = lazy_re.compile(r"\[?\b(\d{1,3}(?:\.\d{1,3}){3})\b\]?(?:(?::|<|, port=|', port=)(\d{1,5})\b)?")
_HEADING = lazy_re.compile(r"Exception in ASGI application|\b(\w+) hit an exception")
_REPEATS = 200  # of one sentence on one rank
_LOOK_AROUND = 400  # lines of a torn traceback
_NATIVE = ("fatal", "terminate", "segfault")


@record(frozen=True)
class Trouble:
    """Something that went wrong: where it stands, who said it, its texts (root cause first) and its frames."""

    origin: str  # exception, notice, watchdog or shutdown
    kind: str
    texts: tuple[str, ...]
    mark: Mark  # where it begins
    line: int  # the line to cite
    end: int
    rank: Rank
    process: str | None = None
    frames: Frames = ()
    order: int = 0  # place in the order of events, 0 first
    when: datetime | None = None  # its time, or that of the last stamped line before it

    @property
    def said_at(self) -> int:
        """Place of the line to cite, to be compared with the order of marks."""
        return self.mark.order + self.line - self.mark.line

    @property
    def text(self) -> str:
        """All texts in one string."""
        return "\n".join(self.texts)

    @property
    def head(self) -> str:
        """The first line of the root text, for people."""
        return self.texts[0].split("\n", 1)[0][:200]

    @property
    def peers(self) -> tuple[tuple[str, int | None], ...]:
        """Addresses in the text, with their ports."""
        found = ((ip, int(port) if port else None) for ip, port in _ADDRESS.findall(self.text))
        return tuple(dict.fromkeys(found))

    @property
    def identity(self) -> str:
        """The text without numbers: the same error on another rank has the same identity."""
        return re.sub(r"0x[0-9a-f]+|\d+", "#", self.head)

    def has_frame(self, *needles: str) -> bool:
        """Whether any frame's file or function contains one of the needles."""
        return any(needle in name or needle in function for name, _, function in self.frames for needle in needles)

    def evidence(self, needle: str = "") -> Evidence:
        """Cite the line that says it."""
        return Evidence(self.mark.source, self.line, needle=needle)


def troubles_of(run: Run) -> tuple[Trouble, ...]:
    """All troubles of a run in the order they happened.

    Within one file the order of the lines counts (reversed in a newest-first export), in files that were merged their place in time.
    """
    direction = _directions(run)
    found = [*_exceptions(run, direction), *_seldom(_notices(run, direction)), *map(_of_watchdog, run.watchdogs), *_deaths(run.shutdowns)]
    times = _clocks(run)
    dated = [replace(item, when=item.mark.time or _last_time(times.get(item.mark.source, ()), item.mark.line)) for item in found]

    def key(item: Trouble) -> int:
        return item.mark.order if item.mark.place is not None else direction.get(item.mark.source, 1) * item.mark.line

    return tuple(replace(item, order=place) for place, item in enumerate(sorted(dated, key=key)))


# ---------------------------------------------------------------------------------------------------------------- order in time


def _clocks(run: Run) -> dict[str, list[tuple[int, datetime]]]:
    """Stamped lines of every source, in line order."""
    marks: set[Mark] = {failure.mark for failure in run.failures} | {event.mark for event in run.shutdowns}
    marks |= {event.mark for event in run.watchdogs} | {notice.mark for notice in run.notices} | {step.mark for step in run.memory_steps}
    clocks: dict[str, list[tuple[int, datetime]]] = {}
    for mark in sorted(marks, key=lambda mark: (mark.source, mark.line)):
        if mark.time is not None:
            clocks.setdefault(mark.source, []).append((mark.line, mark.time))
    return clocks


def _last_time(clock: Sequence[tuple[int, datetime]], line: int) -> datetime | None:
    """The stamp of the last stamped line at or before ``line``."""
    at = bisect_right(clock, line, key=lambda entry: entry[0])
    return clock[at - 1][1] if at else None


def _directions(run: Run) -> dict[str, int]:
    """-1 for a source whose stamps fall from line to line (an export with the newest line first), else 1."""
    directions = {}
    for source, clock in _clocks(run).items():
        steps = [(later > earlier) - (later < earlier) for (_, earlier), (_, later) in itertools.pairwise(clock)]
        directions[source] = -1 if steps and steps.count(-1) > steps.count(1) else 1
    stamps = [found[0] for notice in run.notices if (found := re.search(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.,]\d{3,9}", notice.text[:60]))]
    falling = sum(later < earlier for earlier, later in itertools.pairwise(stamps))
    if len(directions) <= 1 and len(stamps) > 2 and falling > (len(stamps) - 1) / 2:
        return dict.fromkeys({notice.mark.source for notice in run.notices}, -1)
    return directions


# ---------------------------------------------------------------------------------------------------------------- kinds of troubles


def _exceptions(run: Run, direction: Mapping[str, int]) -> Iterator[Trouble]:
    by_line = {(notice.mark.source, notice.mark.line): notice for notice in run.notices}
    for failure in run.failures:
        upwards = direction.get(failure.mark.source, 1) < 0
        frames = failure.frames or _frames_around(by_line, failure.mark, below=upwards != (failure.kind in _NATIVE))
        yield Trouble(
            "exception",
            failure.kind,
            failure.texts,
            failure.mark,
            failure.message_line,
            failure.line_end,
            _rank_of(failure.rank, failure.message),
            failure.process or _process_of(failure, frames, by_line, -1 if upwards else 1),
            frames,
        )


def _process_of(failure: Failure, frames: Frames, by_line: Mapping[tuple[str, int], Notice], direction: int) -> str | None:
    """Which process raised, where the heading stands on a line of its own or the frames name it."""
    for above in (direction, 2 * direction):
        notice = by_line.get((failure.mark.source, failure.mark.line - above))
        if notice is not None and (found := _HEADING.search(notice.text)):
            return found[1] or "ASGI"
    files = " ".join(name for name, _, _ in frames)
    if "managers/detokenizer_manager" in files:
        return "DetokenizerManager"
    if "managers/scheduler" in files or "tp_worker" in files:
        return "Scheduler"
    if "tokenizer_manager" in files or "http_server" in files or "entrypoints/openai" in files:
        return "TokenizerManager"
    return None


def _frames_around(by_line: Mapping[tuple[str, int], Notice], mark: Mark, *, below: bool) -> Frames:
    """Frames of a traceback that lacks its opening line: the ``File …`` lines above; those below where the interpreter itself died."""
    found: list[tuple[str, int, str]] = []
    misses = 0
    step = 1 if below else -1
    for distance in range(1, _LOOK_AROUND):
        notice = by_line.get((mark.source, mark.line + step * distance))
        text = _STAMPS.sub("", notice.text) if notice else ""
        if frame := _FRAME.match(text):
            found.append((frame[1], int(frame[2]), (frame[3] or "").strip()))
            misses = 0
        else:
            misses += 1
        if misses > 2 or (misses and text.startswith("Fatal Python error")):  # a frame may be followed by its source line and carets
            break
    return tuple(reversed(found))  # outermost first: above, the search goes inwards out; below, Python prints the innermost first


def _notices(run: Run, direction: Mapping[str, int]) -> Iterator[Trouble]:
    by_line = {(notice.mark.source, notice.mark.line): notice for notice in run.notices}
    for notice in run.notices:
        if _SUSPECT.search(notice.text) is None or _FRAME.match(notice.text):
            continue
        text = _STAMPS.sub("", notice.text)
        raised = _RAISED.match(text)
        if raised is not None:
            frames = _frames_around(by_line, notice.mark, below=direction.get(notice.mark.source, 1) < 0)
            texts = (f"{raised[1]}: {raised[2] or ''}",)
            process = _process_of_frames(frames)
            yield Trouble("exception", raised[1], texts, notice.mark, notice.mark.line, notice.mark.line, notice.rank, process, frames)
        elif _FRAME.match(text) is None:
            rank = _rank_of(notice.rank, text)
            yield Trouble("notice", notice.level, (text,), notice.mark, notice.mark.line, notice.mark.line, rank)


def _seldom(troubles: Iterable[Trouble]) -> Iterator[Trouble]:
    """Without the thousandth repetition of a sentence: what it says is known by then."""
    counts: Counter[tuple[str, Rank]] = Counter()
    for item in troubles:
        key = (item.identity, item.rank)
        counts[key] += 1
        if item.origin != "notice" or counts[key] <= _REPEATS:
            yield item


def _process_of_frames(frames: Frames) -> str | None:
    files = " ".join(name for name, _, _ in frames)
    return "DetokenizerManager" if "detokenizer_manager" in files else "Scheduler" if "managers/scheduler" in files else None


def _of_watchdog(event: WatchdogEvent) -> Trouble:
    rank = _rank_of(event.rank, event.text)
    return Trouble("watchdog", event.name, (event.text,), event.mark, event.mark.line, event.mark.line, rank, event.name)


def _deaths(events: Iterable[ShutdownEvent]) -> Iterator[Trouble]:
    """Lines that say a child ended with a status of its own."""
    for event in events:
        if event.event in ("child_crashed", "scheduler_dead", "exit_code") and event.exit_code is not None:
            kind = f"exit {event.exit_code}"
            yield Trouble("shutdown", kind, (event.text,), event.mark, event.mark.line, event.mark.line, event.rank)


def _rank_of(rank: Rank, text: str) -> Rank:
    """The rank of the line's tags, else the one its text names."""
    if rank != Rank():
        return rank
    found = _RANK.search(text)
    return Rank(tp=int(next(group for group in found.groups() if group))) if found else rank
