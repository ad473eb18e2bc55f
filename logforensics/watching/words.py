"""Events in words: the lines that ``watch`` prints where there is no terminal to draw on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from logforensics.findings import Action, Recommendation, Severity
from logforensics.render import words
from logforensics.render.runs import run_rows
from logforensics.watching.changes import Event
from logforensics.watching.pulse import Pulse, sparkline

ONE_RANK_STAGES = ("launch", "capacity", "ready", "serving")
"""Stages whose line only the first rank prints."""
_ADVICE_SHOWN = 4
_PERCENT_STEP = 10
_BEAT_S = 10.0
_INDENT = " " * 10


class Lines:
    """Turns events into lines of text; remembers what it said, so that a bar or a busy server does not fill the screen."""

    def __init__(self, clock: Callable[[], float], *, quiet: bool = False, verbose: bool = False, ascii_only: bool = False) -> None:
        self._clock = clock
        self._quiet, self._verbose, self._ascii_only = quiet, verbose, ascii_only
        self._percent: dict[tuple[str, str], int] = {}
        self._beat_at = float("-inf")

    def tell(self, event: Event, pulse: Pulse | None = None) -> list[str]:
        """The lines for an event; none where it is not worth one."""
        if self._quiet and event.kind not in ("finding", "end"):
            return []
        if event.kind == "progress" and not self._step(event.data):
            return []
        if event.kind == "serving" and not self._due():
            return []
        if event.kind == "finding":
            return finding_lines(event) if self._verbose or event.data["severity"] != Severity.INFO.value else []
        text = sentence(event, pulse, ascii_only=self._ascii_only)
        return [f"{clock(event.time)}  {line}" for line in text]

    def _step(self, bar: Mapping[str, Any]) -> bool:
        key, percent = (bar["rank"], bar["kind"]), bar["percent"]
        last = self._percent.get(key)
        if not self._verbose and last is not None and percent >= last and percent < 100 and percent - last < _PERCENT_STEP:
            return False
        self._percent[key] = percent
        return True

    def _due(self) -> bool:
        if not self._verbose and self._clock() - self._beat_at < _BEAT_S:
            return False
        self._beat_at = self._clock()
        return True


def clock(time: str | None) -> str:
    """``14:02:41`` of an ISO time, blanks where there is none."""
    return time[11:19] if time else " " * 8


def sentence(event: Event, pulse: Pulse | None = None, *, ascii_only: bool = False) -> list[str]:
    """An event that is no finding, in a line or a few."""
    data = event.data
    simple: dict[str, str] = {
        "waiting": f"{event.file} does not exist yet; waiting for it",
        "opened": f"following {event.file}",
        "rotated": f"{event.file} was rotated away; following the new one",
        "truncated": f"{event.file} was cut; following from its new beginning",
        "ready": "ready: the server answers requests",
    }
    if event.kind in simple:
        return [simple[event.kind]]
    if event.kind == "launch":
        return [f"server start: {_server(data)} ({event.file}:{event.line})"]
    if event.kind == "stage":
        return [_stage(data)]
    if event.kind == "progress":
        return [f"loading {data['percent']} %: {progress_words(data)}"]
    if event.kind == "serving":
        course = f"  {sparkline(pulse.course['gen_throughput'], ascii_only=ascii_only)}" if pulse else ""
        return [pulse_words(data) + course]
    if event.kind == "error":
        return [f"{data['kind']}: {words.cut(data['message'], 200)} ({event.file}:{event.line})" if event.line else data["message"]]
    if event.kind == "withdrawn":
        return [f"{data['code']} no longer holds"]
    if event.kind == "end":
        return [f"end of the watch: {data['reason']}" + (f", {data['verdict']}" if data["verdict"] else "")]
    return [f"{label}  {text}".strip() for label, text in figures(event)]


def _server(data: Mapping[str, Any]) -> str:
    rows = dict(run_rows({key: data[key] for key in ("version_low", "version_high", "layout")}))
    parts = [str(data["model"] or "unknown model"), f"SGLang {rows['SGLang']}" if "SGLang" in rows else "", rows.get("layout", "")]
    return ", ".join(part for part in parts if part)


def _stage(data: Mapping[str, Any]) -> str:
    ranks = (
        f" on {data['ranks']} of {words.plural(data['of_ranks'], 'rank')}"
        if data["of_ranks"] > 1 and data["stage"] not in ONE_RANK_STAGES
        else ""
    )
    return f"{words.stage_name(data['stage'])}{ranks}"


def figures(event: Event) -> list[tuple[str, str]]:
    """Memory and limits, as the diagnosis words them."""
    wrapped: dict[str, Mapping[str, Any]] = {
        "memory": {"memory": event.data},
        "host_memory": {"memory": {"host": event.data}},
        "limits": {"limits": [event.data]},
    }
    return run_rows(wrapped.get(event.kind, {}))


def progress_words(bar: Mapping[str, Any]) -> str:
    """``13 of 64 shards, 2.56 shards/s, about 20 s left``."""
    text = f"{bar['shards_done']} of {bar['shards_total']} shards"
    if bar["rate_per_s"]:
        text += f", {bar['rate_per_s']:.2f} shards/s"
    if bar["eta_s"] and bar["shards_done"] < bar["shards_total"]:
        text += f", about {duration(bar['eta_s'])} left"
    return f"{text} ({bar['rank']})" if bar["rank"] else text


def pulse_words(data: Mapping[str, Any]) -> str:
    """The figures of now on one line."""
    accepted = f", accepted {data['accept_len']:.2f}" if data["accept_len"] else ""
    return (
        f"{data['gen_throughput']:,.0f} token/s, {data['running_req']:,} running, {data['queue_req']:,} waiting, "
        f"KV usage {data['token_usage']:.2f}{accepted}"
    )


def finding_lines(event: Event) -> list[str]:
    """A finding in a few lines: what, which rule, where, and what to do."""
    data = event.data
    badge = data["severity"].upper().ljust(8)
    where = f" · {event.file}:{event.line}" if event.line else ""
    worse = " (worse than announced before)" if data["worse"] else ""
    lines = [f"{badge}  {data['title']}{worse}", f"{_INDENT}{data['code']} {data['root_cause']} · {data['confidence']}{where}"]
    advices = data["recommendations"]
    lines += [f"{_INDENT}→ {advice_words(advice)}" for advice in advices[:_ADVICE_SHOWN]]
    if len(advices) > _ADVICE_SHOWN:
        lines.append(f"{_INDENT}  and {len(advices) - _ADVICE_SHOWN} more, which diagnose shows")
    return lines


def advice_words(advice: Mapping[str, Any]) -> str:
    """A recommendation of the JSON form in the imperative."""
    text = words.recommendation(Recommendation(advice["flag"], Action(advice["action"]), advice["value"], advice["unit"]))
    return f"{text}: {advice['rationale']}" if advice["action"] == Action.OTHER.value and advice["rationale"] else text


def duration(seconds: float) -> str:
    """``45 s``, ``3 min 20 s``, ``1 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 // 60 else "")
