"""Watching one log: look, read what is new, apply the rules, tell what changed, and know when to stop."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from logforensics.engine import diagnose
from logforensics.errors import InputError
from logforensics.findings import Severity
from logforensics.hardware import Hardware
from logforensics.parsing import progress as bars
from logforensics.parsing.own_packs import with_own
from logforensics.records import record
from logforensics.render.json import diagnosis_to_dict
from logforensics.rules.own import load_rules
from logforensics.secrets import mask
from logforensics.watching.changes import Announcer, Event, changes, is_ready
from logforensics.watching.follow import Follower, Reading, follower
from logforensics.watching.growing import GrowingLog
from logforensics.watching.loading import latest_bars, progress
from logforensics.watching.pulse import Pulse, pulse

if TYPE_CHECKING:
    from logforensics.diagnosis import Diagnosis

_DECISIVE = frozenset(
    {"launches", "kv_pool", "capacity", "host_pool", "host_guard", "errors", "ready", "watchdog", "shutdown", "overrides"}
)
_PAUSE = 10.0  # rest after an evaluation, as a multiple of what it took: watching costs at most a tenth of a core
_LONGEST_PAUSE_S = 10.0
_DECISIVE_PAUSE = 1.0  # ... where a line has come that may decide something
_SETTLE_S = 1.5  # without a new line, after which an open traceback is taken as complete
_BLOCKS_AT_ONCE = 64  # read before the rules are asked, however fast the log grows
_PARTIAL_CHARS = 4096  # of an unfinished line, where its last bar is looked for
_AFTER_ALL_LINES = 1 << 62
_ERRORS_TOLD = 20  # at once
_BATCHES = frozenset({"prefill", "decode", "requests"})


class Until(str, Enum):
    """What a watch may wait for."""

    READY = "ready"
    FAILED = "failed"
    FINDING = "finding"


@record(frozen=True)
class Outcome:
    """How a watch ended.

    Attributes:
        reason: what was waited for (ready, failed, finding), or ended it before: timeout, end (of the stream).
        status: the exit status: 0 reached, 1 a finding at or above the limit, or a failure, came first; 3 the time was up.
    """

    reason: str
    status: int


@record(frozen=True)
class Known:
    """What the user knows, as :func:`logforensics.diagnose` takes it."""

    hardware: Hardware | None = None
    launch_command: str | None = None
    version: str | None = None
    model_config: str | os.PathLike[str] | None = None
    rules: str | os.PathLike[str] | None = None
    patterns: str | os.PathLike[str] | None = None


@dataclass(slots=True)
class State:
    """What is known now, for a view: the JSON form of the diagnosis, the pulse, and the bars of checkpoint loading by rank and kind."""

    form: Mapping[str, Any] = field(default_factory=dict)
    pulse: Pulse | None = None
    loads: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    lines: int = 0
    waiting: bool = True


class Watcher:
    """One log that is watched. :meth:`poll` never blocks; who calls it decides how often."""

    def __init__(self, source: Follower, known: Known | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.source = source
        self.state = State()
        self._known = known or Known()
        self._clock = clock
        self._rules = load_rules(self._known.rules) if self._known.rules is not None else ()
        self._log = GrowingLog(source.name, with_own(self._known.patterns) if self._known.patterns is not None else None)
        self._announcer = Announcer()
        self._fresh: set[str] = set()  # frames with rows that no evaluation has seen
        self._last_line_at = clock()
        self._settled = True
        self._rest_until: dict[bool, float] = {True: 0.0, False: 0.0}  # by whether a decisive line has come
        self._first = True
        self._errors: set[int] = set()
        self.over = False

    def poll(self) -> list[Event]:
        """Read everything that has come and tell what changed."""
        events = list(self._read())
        self._settle()
        if self._due():
            events += self._evaluate()
        return [*events, *self._partial_bar()]

    def finish(self) -> list[Event]:
        """Take everything read so far into account, now."""
        self._fresh |= self._log.settle()
        return self._evaluate() if self._fresh or self.over else []

    # ------------------------------------------------------------------------------------------------ reading

    def _read(self) -> Iterator[Event]:
        reading = Reading()
        for _ in range(_BLOCKS_AT_ONCE):
            reading = self.source.poll()
            if reading.data:
                self._fresh |= self._log.feed(reading.data)
                self._last_line_at, self._settled = self._clock(), False
            if reading.happened:
                self.state.waiting = reading.happened == "waiting"
                yield Event(reading.happened, self.source.name)
            if not reading.more:
                break
        self.state.lines = self._log.lines
        if reading.over and not self.over:
            self.over = True
            self._fresh |= self._log.settle()
            if not self._log.lines:
                raise InputError(f"{self.source.name}: is empty: there is no log to read")

    def _settle(self) -> None:
        if not self._settled and self._clock() - self._last_line_at >= _SETTLE_S:
            self._fresh |= self._log.settle()
            self._settled = True

    # ------------------------------------------------------------------------------------------------ evaluation

    def _due(self) -> bool:
        if not self._fresh:
            return False
        return self.over or self._clock() >= self._rest_until[bool(self._fresh & _DECISIVE)]

    def _evaluate(self) -> list[Event]:
        if not self._log.is_sglang and not self._log.frame("errors").height:
            self._fresh.clear()
            return []
        begin = self._clock()
        fresh, self._fresh = self._fresh, set()
        form = self._form()
        if len(form["run"]["launches"]) != len(self.state.form.get("run", {}).get("launches", ())):
            self.state.loads.clear()
        events = [*changes(self.state.form, form, self.source.place, self.source.name), *self._loads(), *self._new_errors()]
        events += self._announcer.announce(form, self.source.place, self.source.name, final=self.over)
        if fresh & _BATCHES:
            events += self._beat()
        events.sort(key=lambda event: event.line or _AFTER_ALL_LINES)
        self.state.form = form
        if not self._first:  # the first one imports the rules: what it takes says nothing
            cost = self._clock() - begin
            self._rest_until = {True: self._clock() + _DECISIVE_PAUSE * cost, False: self._clock() + min(_LONGEST_PAUSE_S, _PAUSE * cost)}
        self._first = False
        return events

    def _form(self) -> dict[str, Any]:
        """The diagnosis as JSON values. That a log stops where it stops means nothing while it grows."""
        known = self._known
        diagnosis: Diagnosis = diagnose(
            self._log.parsed(self.source.quote),
            hardware=known.hardware,
            launch_command=known.launch_command,
            version=known.version,
            model_config=known.model_config,
            rules=self._rules,
        )
        form = diagnosis_to_dict(diagnosis)
        if not self.over:
            form["findings"] = [finding for finding in form["findings"] if finding["root_cause"] != "log_ends_abruptly"]
        return form

    def _loads(self) -> Iterator[Event]:
        """Bars whose line is complete."""
        for bar in latest_bars(self._log.frame("load_progress")):
            yield from self._load(bar)

    def _partial_bar(self) -> Iterator[Event]:
        """The bar that is being drawn with carriage returns: its line ends only when loading does."""
        found = list(bars.BAR.finditer(self.source.partial[-_PARTIAL_CHARS:]))
        if found:
            yield from self._load({**bars.read_bar(found[-1]), "rank": "", "line": None})

    def _load(self, bar: Mapping[str, Any]) -> Iterator[Event]:
        key = (bar["rank"], bar["kind"])
        if (known := self.state.loads.get(key)) is not None and known["shards_done"] == bar["shards_done"]:
            return
        told = progress(bar)
        self.state.loads[key] = told
        file, line = self.source.place(bar["line"]) if bar["line"] else (self.source.name, None)
        yield Event("progress", file, line, None, told)

    def _new_errors(self) -> Iterator[Event]:
        errors = self._log.frame("errors")
        fresh = errors.filter(~errors["line"].is_in(self._errors))
        for row in fresh.head(_ERRORS_TOLD).iter_rows(named=True):
            file, line = self.source.place(row["line"])
            when = row["time"].isoformat() if row["time"] else None
            yield Event("error", file, line, when, {"kind": row["kind"], "message": mask(row["message"] or "")})
        self._errors |= set(fresh["line"].to_list())
        if fresh.height > _ERRORS_TOLD:
            yield Event("error", self.source.name, None, None, {"kind": "more", "message": f"{fresh.height - _ERRORS_TOLD} more errors"})

    def _beat(self) -> Iterator[Event]:
        now = pulse(self._log.frame("decode"))
        if now is not None and (self.state.pulse is None or now.line != self.state.pulse.line):
            file, line = self.source.place(now.line)
            yield Event("serving", file, line, now.time.isoformat() if now.time else None, now.as_json())
        self.state.pulse = now


# ---------------------------------------------------------------------------------------------------------------- the loop


class Watch:
    """A watch from its beginning to its end: what to wait for, how long, and what ends it before."""

    def __init__(
        self,
        log: str | os.PathLike[str] | Follower,
        *,
        known: Known | None = None,
        until: Until | None = None,
        timeout_s: float | None = None,
        fail_on: Severity | None = Severity.ERROR,
        interval_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.watcher = Watcher(log if isinstance(log, Follower) else follower(log), known, clock=clock)
        self.outcome: Outcome | None = None
        self._until = until
        self._fail_on = fail_on
        self._interval_s = interval_s
        self._clock = clock
        self._deadline = None if timeout_s is None else clock() + timeout_s

    def rounds(self) -> Iterator[list[Event]]:
        """What each look brought, until it is over; the last event is ``end``."""
        while self.outcome is None:
            events = self.watcher.poll()
            self.outcome = self._reached()
            if self.outcome is None and self._time_is_up():
                events += self.watcher.finish()
                self.outcome = self._reached() or self._timed_out()
            if self.outcome is None and self.watcher.over:
                self.outcome = Outcome("end", self.status())
            yield [*events, self._end(self.outcome)] if self.outcome else events
            if self.outcome is None:
                self.watcher.source.wait(self._pause())
        self.watcher.source.close()

    def status(self) -> int:
        """1 where a finding is at or above the limit, else 0."""
        return 1 if self._found() else 0

    def _reached(self) -> Outcome | None:
        """What was waited for, or what makes waiting for it pointless."""
        form = self.watcher.state.form
        reached = {
            Until.READY: is_ready(form),
            Until.FAILED: form.get("verdict") == "failed",
            Until.FINDING: self._found(),
        }
        if self._until is None:
            return None
        if reached[self._until]:
            return Outcome(self._until.value, 0)
        if self._until is Until.READY and (reached[Until.FAILED] or reached[Until.FINDING]):
            return Outcome("failed" if reached[Until.FAILED] else "finding", 1)
        return None

    def _found(self) -> bool:
        limit = self._fail_on
        return limit is not None and any(
            Severity(item["severity"]).rank <= limit.rank for item in self.watcher.state.form.get("findings", ())
        )

    def _time_is_up(self) -> bool:
        return self._deadline is not None and self._clock() >= self._deadline

    def _timed_out(self) -> Outcome:
        """Time without anything to wait for is just how long to watch."""
        return Outcome("timeout", self.status() if self._until is None else 3)

    def _pause(self) -> float:
        if self._deadline is None:
            return self._interval_s
        return max(0.0, min(self._interval_s, self._deadline - self._clock()))

    def _end(self, outcome: Outcome) -> Event:
        form = self.watcher.state.form
        codes = [finding["code"] for finding in form.get("findings", ())]
        data = {"reason": outcome.reason, "status": outcome.status, "verdict": form.get("verdict"), "findings": codes}
        return Event("end", self.watcher.source.name, None, None, data)


def watch(
    log: str | os.PathLike[str],
    *,
    until: str | None = None,
    timeout_s: float | None = None,
    fail_on: str | None = "error",
    interval_s: float = 0.5,
    hardware: Hardware | None = None,
    launch_command: str | None = None,
    version: str | None = None,
    model_config: str | os.PathLike[str] | None = None,
    rules: str | os.PathLike[str] | None = None,
    patterns: str | os.PathLike[str] | None = None,
) -> Iterator[Event]:
    """Follow a server's log and tell what happens, as it happens.

    Args:
        log: a file, which need not exist yet, or ``-`` for standard input.
        until: ``ready``, ``failed`` or ``finding``: what ends the watch; None follows until the stream ends.
        timeout_s: seconds after which the watch ends all the same.
        fail_on: the mildest severity that ends waiting for ``ready`` and that ``finding`` means; None for none.
        interval_s: seconds between two looks at a file.
        hardware: what is known of the machine; see :func:`logforensics.diagnose` for this and the rest.
        launch_command: the command that started the server, where the log lacks it.
        version: the SGLang release, where it is known.
        model_config: a Hugging Face ``config.json``.
        rules: a folder of rules of one's own.
        patterns: a folder of pattern packs of one's own.

    Yields:
        Events; the last one is ``end`` with the reason and the exit status.

    Raises:
        InputError: the log cannot be read.
    """
    session = Watch(
        log,
        known=Known(hardware, launch_command, version, model_config, rules, patterns),
        until=None if until is None else Until(until),
        timeout_s=timeout_s,
        fail_on=None if fail_on is None else Severity(fail_on),
        interval_s=interval_s,
    )
    for events in session.rounds():
        yield from events
