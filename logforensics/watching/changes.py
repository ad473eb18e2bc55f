"""What is new in a run since the last look: two diagnoses in their JSON form become events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from logforensics.findings import Severity
from logforensics.records import record

SCHEMA = "logforensics.watch/1"
_FEW_BATCHES = 20
_STAGES_WITH_EVENTS_OF_THEIR_OWN = ("launch", "ready", "serving")


@record(frozen=True)
class Event:
    """Something that happened.

    Attributes:
        kind: waiting, opened, rotated, truncated, launch, stage, progress, memory, host_memory, limits, ready, serving, error, finding,
            withdrawn, or end (see docs/howto/watch.md).
        file: the log.
        line: the line it stands on, None where it is not about one.
        time: the line's time in ISO 8601, None where it has none.
        data: everything else, as plain JSON values with secrets masked.
    """

    kind: str
    file: str
    line: int | None = None
    time: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The event as one JSON object."""
        return {"schema": SCHEMA, "event": self.kind, "file": self.file, "line": self.line, "time": self.time, **self.data}


Form = Mapping[str, Any]
_Found = Iterator[tuple[str, int | None, str | None, dict[str, Any]]]  # kind, line, time, data


def changes(old: Form, new: Form, place: Callable[[int], tuple[str, int]], name: str) -> list[Event]:
    """Events that lead from one form to the next, in a sensible order.

    Args:
        old: the JSON form of the last diagnosis; empty at first.
        new: the JSON form now.
        place: gives file and line for a line number of the watch.
        name: the log.
    """
    before: Mapping[str, Any] = old.get("run") or {}
    after: Mapping[str, Any] = new["run"]
    if len(after["launches"]) != len(before.get("launches", ())):
        before = {}
    events = []
    for topic in (_launch, _stages, _memory, _host, _limits, _ready):
        for kind, line, time, data in topic(before, after):
            file, number = place(line) if line is not None else (name, None)
            events.append(Event(kind, file, number, time, data))
    return events


def _launch(old: Form, new: Form) -> _Found:
    if new["launches"] and not old:
        last = new["launches"][-1]
        keys = ("model", "model_path", "version_low", "version_high", "layout", "ranks_per_host")
        yield "launch", last["line"], last["time"], {key: new[key] for key in keys} | {"number": len(new["launches"])}


def _stages(old: Form, new: Form) -> _Found:
    """A stage when its first rank reaches it, and once more when all ranks that speak have."""
    seen = {stage["stage"]: stage["ranks"] for stage in old.get("stages", ())}
    expected = max(1, len(new["ranks"]), new["ranks_per_host"] or 0)
    for stage in new["stages"]:
        name, ranks = stage["stage"], stage["ranks"]
        if name in _STAGES_WITH_EVENTS_OF_THEIR_OWN or ranks == seen.get(name):
            continue
        if name not in seen or ranks == expected:
            yield "stage", stage["last_line"], stage["last_time"], {"stage": name, "ranks": ranks, "of_ranks": expected}


def _memory(old: Form, new: Form) -> _Found:
    seen = {ledger["rank"]: ledger for ledger in (old.get("memory") or {}).get("gpu", ())}
    changed = [ledger for ledger in new["memory"]["gpu"] if ledger != seen.get(ledger["rank"], {}) and _has_figures(ledger)]
    if changed:
        yield "memory", None, None, {"gpu": changed}


def _has_figures(ledger: Form) -> bool:
    return any(value is not None for key, value in ledger.items() if key != "rank")


def _host(old: Form, new: Form) -> _Found:
    host = new["memory"]["host"]
    if host and host != (old.get("memory") or {}).get("host"):
        lines = [item["line"] for item in (*host["pools"], *host["refused"])]
        yield "host_memory", max(lines, default=None), None, host


def _limits(old: Form, new: Form) -> _Found:
    for limit in new["limits"][len(old.get("limits", ())) :]:
        yield "limits", limit["line"], None, {key: value for key, value in limit.items() if key != "line"}


def _ready(old: Form, new: Form) -> _Found:
    if not _is_ready(old) and _is_ready(new):
        stage = next(stage for stage in new["stages"] if stage["stage"] in ("ready", "serving"))
        yield "ready", stage["line"], stage["time"], {}


def _is_ready(run: Form) -> bool:
    return any(stage["stage"] in ("ready", "serving") for stage in run.get("stages", ()))


def is_ready(form: Form) -> bool:
    """Whether the last server start of the log answers requests."""
    return _is_ready(form.get("run") or {})


def _hasty(finding: Form, run: Form) -> bool:
    """Whether a remark about speed or load rests on the first few batches, which say little."""
    if finding["stage"] != "serving" or Severity(finding["severity"]).rank < Severity.WARNING.rank:
        return False
    batches: int = sum(window["lines"] for window in (run["serving"] or {}).get("windows", ()))
    return 0 < batches < _FEW_BATCHES


@dataclass(slots=True)
class Announcer:
    """Tells each finding once per server start, once more if it gets worse, and once that it no longer holds."""

    told: dict[tuple[int, str], str] = field(default_factory=dict)
    withdrawn: set[tuple[int, str]] = field(default_factory=set)

    def announce(self, form: Form, place: Callable[[int], tuple[str, int]], name: str, *, final: bool) -> Iterator[Event]:
        """Events about findings that are new, worse, or gone; ``final``: nothing will follow, so what there is has to do."""
        launch = len(form["run"]["launches"])
        current = set()
        for finding in form["findings"]:
            if not final and _hasty(finding, form["run"]):
                continue
            key = (launch, finding["code"])
            current.add(key)
            known = self.told.get(key)
            if known is None or Severity(finding["severity"]).rank < Severity(known).rank:
                self.told[key] = finding["severity"]
                yield _finding(finding, place, name, worse=known is not None)
        for key in self.told.keys() - current - self.withdrawn:
            if key[0] == launch:
                self.withdrawn.add(key)
                yield Event("withdrawn", name, None, None, {"code": key[1]})


def _finding(finding: Form, place: Callable[[int], tuple[str, int]], name: str, *, worse: bool) -> Event:
    """The event of a finding; its evidence stands where the files are now."""
    evidence = []
    for item in finding["evidence"]:
        file, line = place(item["line"])
        evidence.append({"file": file, "line": line, "text": item["text"]})
    at: tuple[str, int | None] = place(finding["evidence"][0]["line"]) if evidence else (name, None)
    return Event("finding", at[0], at[1], None, {**finding, "evidence": evidence, "worse": worse})
