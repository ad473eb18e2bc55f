"""The live view: one screen that is redrawn in place. Log text in it is shown, never interpreted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from logforensics.render.runs import run_rows
from logforensics.render.untrusted import ascii_form, visible
from logforensics.render.words import stage_name
from logforensics.watching import words
from logforensics.watching.pulse import POINTS, sparkline

if TYPE_CHECKING:
    from rich.console import RenderableType

    from logforensics.watching.changes import Event
    from logforensics.watching.pulse import Pulse
    from logforensics.watching.watcher import State

_LABEL = 9
_BAR = 20
_SEVERITY = {"critical": "bold white on red", "error": "bold red", "warning": "bold yellow", "info": "cyan"}
_LEDGER = (
    ("free_before_load_gib", "free"),
    ("weights_gib", "weights"),
    ("kv_gib", "KV"),
    ("graphs_gib", "graphs"),
    ("left_gib", "left"),
)
_COURSES = (
    ("gen_throughput", "{gen_throughput:,.0f} token/s", None),
    ("running_req", "{running_req:,} running", None),
    ("queue_req", "{queue_req:,} waiting", None),
    ("token_usage", "KV usage {token_usage:.2f}", 1.0),
)


class View:
    """Draws a state for a terminal."""

    def __init__(self, name: str, *, ascii_only: bool = False) -> None:
        self._name = name
        self._ascii_only = ascii_only

    def draw(self, state: State) -> RenderableType:
        """The whole screen."""
        run = state.form.get("run") or {}
        sections: list[tuple[str, list[RenderableType]]] = [
            ("Start", list(self._stages(run))),
            ("Loading", list(self._loads(state))),
            ("GPU", list(self._memory(run))),
            *self._facts(run),
            ("Serving", list(self._serving(state.pulse))),
            ("Findings", list(self._findings(state.form))),
        ]
        grid = Table.grid(padding=(0, 1), expand=False)
        grid.add_column(width=_LABEL, style="bold")
        grid.add_column(overflow="fold")
        for label, content in sections:
            for place, line in enumerate(content):
                grid.add_row(label if place == 0 else "", line)
        return Group(self._header(state, run), grid)

    def finding(self, event: Event) -> RenderableType:
        """A finding when it is announced: it stays in the scrollback above the live part."""
        first, *rest = words.finding_lines(event)
        severity = event.data["severity"]
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=_LABEL)
        grid.add_column(overflow="fold")
        grid.add_row(Text(severity.upper(), _SEVERITY[severity]), self._text(first[_LABEL + 1 :], "bold"))
        for line in rest:
            grid.add_row("", self._text(line.strip(), "green" if "→" in line else "dim"))
        return Group(grid, "")

    def line(self, text: str) -> Text:
        """Any other line above the live part."""
        return Text(self._safe(text))

    # ------------------------------------------------------------------------------------------------ sections

    def _header(self, state: State, run: Mapping[str, Any]) -> Text:
        text = Text(self._safe(self._name), "bold cyan")
        if state.waiting:
            return text.append("  does not exist yet; waiting for it", "yellow")
        rows = dict(run_rows({key: run.get(key) for key in ("version_low", "version_high", "layout", "dp_attention")}))
        parts = [run.get("model"), f"SGLang {rows['SGLang']}" if "SGLang" in rows else None, rows.get("layout"), f"{state.lines:,} lines"]
        return text.append("  " + self._safe(" · ".join(str(part) for part in parts if part)))

    def _stages(self, run: Mapping[str, Any]) -> Iterator[Text]:
        """One line a stage; when the server answers, only how long the start took."""
        stages = run.get("stages") or ()
        times = [stage["time"] for stage in stages]
        done = next((stage for stage in stages if stage["stage"] in ("ready", "serving")), None)
        if done is not None:
            took = _seconds(times[0], done["time"])
            yield self._text(f"{words.clock(done['time'])}  ready" + (f" {words.duration(took)} after the start" if took else ""), "green")
            return
        expected = max(1, len(run.get("ranks") or ()), run.get("ranks_per_host") or 0)
        for place, stage in enumerate(stages):
            ranks = f"  {stage['ranks']} of {expected} ranks" if expected > 1 and stage["stage"] not in words.ONE_RANK_STAGES else ""
            took = _seconds(times[place - 1], stage["time"]) if place else None
            yield self._text(
                f"{words.clock(stage['time'])}  {stage_name(stage['stage'])}{ranks}" + (f"  +{words.duration(took)}" if took else "")
            )

    def _loads(self, state: State) -> Iterator[Text]:
        if any(stage["stage"] == "load_end" for stage in (state.form.get("run") or {}).get("stages", ())):
            return
        full, empty = ("#", "-") if self._ascii_only else ("━", "─")
        for load in list(state.loads.values())[-8:]:
            filled = _BAR * load["shards_done"] // max(1, load["shards_total"])
            text = Text(full * filled, "green").append(empty * (_BAR - filled), "dim")
            yield text.append(self._safe(f"  {load['percent']:3} %  {words.progress_words(load)}"))

    def _memory(self, run: Mapping[str, Any]) -> Iterator[RenderableType]:
        """The ledger as it fills: ranks with the same figures share a row."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for ledger in (run.get("memory") or {}).get("gpu", ()):
            cells = tuple("" if ledger[key] is None else f"{ledger[key]:.2f}" for key, _ in _LEDGER)
            if any(cells):
                groups.setdefault(cells, []).append(ledger["rank"])
        if not groups:
            return
        table = Table.grid(padding=(0, 2))
        table.add_column()
        for _ in _LEDGER:
            table.add_column(justify="right")
        table.add_row(Text("GiB", "dim"), *(Text(name, "dim") for _, name in _LEDGER))
        for cells, ranks in list(groups.items())[:8]:
            names = ranks[0] if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
            table.add_row(self._text(names), *(Text(cell, _tight(cell) if at == len(cells) - 1 else "") for at, cell in enumerate(cells)))
        yield table

    def _facts(self, run: Mapping[str, Any]) -> Iterator[tuple[str, list[RenderableType]]]:
        """Host memory and limits; of many schedulers, what they differ in."""
        host = {"memory": {"host": (run.get("memory") or {}).get("host")}}
        yield "Host", [self._text(text) for _, text in run_rows(host)]
        yield "Limits", [self._text(text) for _, text in run_rows({"limits": run.get("limits")})[:2]]

    def _serving(self, pulse: Pulse | None) -> Iterator[Text]:
        if pulse is None:
            return
        for name, form, top in _COURSES:
            course = sparkline(pulse.course[name], top=top, ascii_only=self._ascii_only)
            yield Text(course.ljust(POINTS + 2), "cyan").append(form.format(**pulse.as_json()))
        if pulse.accept_len:
            yield self._text(f"accepted {pulse.accept_len:.2f} tokens a step")

    def _findings(self, form: Mapping[str, Any]) -> Iterator[Text]:
        for finding in form.get("findings", ()):
            if finding["severity"] != "info":
                text = Text(finding["severity"].upper(), _SEVERITY[finding["severity"]])
                yield text.append(self._safe(f"  {finding['title']}  ({finding['code']})"))

    # ------------------------------------------------------------------------------------------------ text

    def _safe(self, text: str, *, keep: str = "") -> str:
        shown = visible(text, keep=keep)
        return ascii_form(shown) if self._ascii_only else shown

    def _text(self, text: str, style: str = "") -> Text:
        return Text(self._safe(text), style)


def _seconds(first: str | None, last: str | None) -> float | None:
    if not first or not last:
        return None
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()


def _tight(cell: str) -> str:
    """The colour of what is left: SGLang's own tuning page asks for 5 to 8 GiB."""
    return "" if not cell else "red" if float(cell) < 1 else "yellow" if float(cell) < 5 else "green"
