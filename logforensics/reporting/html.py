"""The report as one HTML file that needs nothing else: no network, no fonts, no second file."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Iterator
from importlib.resources import files

from logforensics.findings import Evidence, Finding
from logforensics.render import words
from logforensics.render.html import bullets, escaped, table
from logforensics.render.untrusted import visible
from logforensics.reporting import wording
from logforensics.reporting.drawing import inline_json, javascript
from logforensics.reporting.model import Chart, Excerpt, Place, Report

_BUTTONS = (
    ("in", "+", "Zoom in"),
    ("out", "−", "Zoom out"),
    ("left", "←", "Earlier"),
    ("right", "→", "Later"),
    ("all", "Whole run", "Show the whole run"),
)


def report_to_html(report: Report) -> str:
    """The whole page."""
    page = _Page(report)
    code = [javascript(), _asset("page.js")] if report.charts else []
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in code) or "'none'"
    # a page that may load nothing and run nothing else: log text that slipped through could still do no harm
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes} 'unsafe-eval'; base-uri 'none'; form-action 'none'"
    specs = inline_json([{"key": chart.key, "zooms": chart.zooms, "spec": chart.spec} for chart in report.charts])
    scripts = f'<script type="application/json" id="chart-data">{specs}</script>\n' + "".join(
        f"<script>{script}</script>\n" for script in code
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" content="no-referrer">\n'
        f'<link rel="icon" href="data:,">\n<title>{escaped(report.title)}</title>\n<style>\n{_asset("page.css")}</style>\n</head>\n'
        f"<body>\n{page.body()}\n{scripts if report.charts else ''}</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return (files("logforensics.reporting") / "assets" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


class _Page:
    """The body of the page, a method per section."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.names = wording.names_of(report)
        self.numbers = {source: place for place, source in enumerate(report.diagnosis.sources)}
        self.shown = {(excerpt.source, line) for excerpt in report.excerpts for line, _ in excerpt.lines}

    def body(self) -> str:
        sections = [
            ("summary", "Summary", self.summary()),
            ("impact", "Impact", [bullets(map(escaped, self.report.impact))] if self.report.impact else []),
            ("timeline", "Timeline", self.timeline()),
            ("cause", "Root cause", self.causes()),
            ("charts", "Charts", self.charts()),
            ("settings", "Configured against took effect", self.settings()),
            ("command", "Corrected command", self.command()),
            ("earlier", "How it could have been seen earlier", self.foresight()),
            ("appendix", "Appendix", self.appendix()),
        ]
        told = [(key, title, list(parts)) for key, title, parts in sections]
        told = [(key, title, parts) for key, title, parts in told if parts]
        contents = "".join(f'<li><a href="#{key}">{title}</a></li>' for key, title, _ in told)
        header = f'<header><h1>{escaped(self.report.title)}</h1><nav aria-label="Contents"><ul>{contents}</ul></nav></header>'
        main = "\n".join(_section(key, title, parts) for key, title, parts in told)
        return f'<a class="skip" href="#summary">Skip to the report</a>\n{header}\n<main>\n{main}\n</main>'

    def summary(self) -> Iterator[str]:
        diagnosis = self.report.diagnosis
        yield f'<p class="verdict"><span class="badge {escaped(diagnosis.verdict)}">{escaped(diagnosis.verdict.upper())}</span> {escaped(diagnosis.summary)}</p>'
        rows = wording.facts(self.report)
        if rows:
            yield table((), rows)

    def timeline(self) -> Iterator[str]:
        rows = [
            (escaped(time), self.link(place), f'<span class="{kind}">{escaped(text)}</span>')
            for time, place, text, kind in wording.timeline(self.report)
        ]
        yield _linked_table(("time", "line", "what happened"), rows)

    def causes(self) -> Iterator[str]:
        for place, finding in enumerate(wording.loud(self.report)):
            yield from self.finding(finding, first=place == 0)
        remarks = wording.quiet(self.report)
        if remarks:
            yield "<h3>Remarks</h3>"
            yield bullets(escaped(f"{finding.title} ({finding.code})") for finding in remarks)

    def finding(self, finding: Finding, *, first: bool) -> Iterator[str]:
        severity = finding.severity.value
        also = "" if first else "Also found: "
        yield f'<h3><span class="badge {severity}">{severity.upper()}</span> {also}{escaped(finding.title)}</h3>'
        yield f'<p class="soft">{escaped(words.identity(finding))}</p>'
        yield from (f"<p>{escaped(line)}</p>" for line in finding.explanation.strip().split("\n") if line.strip())
        if finding.evidence:
            yield f'<ol class="evidence">{"".join(f"<li>{self.evidence(item)}</li>" for item in finding.evidence)}</ol>'
        if finding.arithmetic:
            yield table(("step", "expression", "result"), [(s.label, s.expression, words.result(s)) for s in finding.arithmetic])
        if finding.recommendations:
            yield bullets(
                f"<strong>{escaped(words.recommendation(item))}</strong> {escaped(item.rationale)}" for item in finding.recommendations
            )

    def evidence(self, item: Evidence) -> str:
        text = escaped(words.cut(item.text, words.EXCERPT, item.needle))
        needle = escaped(item.needle) if item.needle else ""
        if needle and needle in text:
            text = text.replace(needle, f"<mark>{needle}</mark>", 1)
        return f"{self.link(Place(item.source, item.line))} <code>{text}</code>"

    def charts(self) -> Iterator[str]:
        yield from (_figure(chart) for chart in self.report.charts if not chart.zooms)
        over_time = [chart for chart in self.report.charts if chart.zooms]
        if over_time:
            buttons = "".join(
                f'<button type="button" data-zoom="{key}" aria-label="{label}">{text}</button>' for key, text, label in _BUTTONS
            )
            hint = '<span class="soft">or scroll and drag in a chart</span>'
            yield f'<div class="zoom" role="group" aria-label="Zoom the charts over time">{buttons}{hint}</div>'
        yield from map(_figure, over_time)

    def settings(self) -> Iterator[str]:
        if self.report.settings:
            header, rows = wording.settings(self.report)
            yield _linked_table(header, [(*map(escaped, cells), self.link(place) if place else "") for cells, place in rows])

    def command(self) -> Iterator[str]:
        command = self.report.diagnosis.recommended_command
        if command is None:
            return
        yield f'<pre tabindex="0">{html.escape(visible(command.text, keep=chr(10)))}</pre>'
        if command.changes:
            yield table(("flag", "change", "why"), [(c.flag, words.change(c), c.why) for c in command.changes])
        if command.notes:
            yield bullets(map(escaped, command.notes))

    def foresight(self) -> Iterator[str]:
        told = wording.foresight(self.report)
        if told:
            yield bullets(f"{escaped(text)} ({self.link(place)})" for text, place in told)
            yield bullets(map(escaped, self.report.advice)) if self.report.advice else ""

    def appendix(self) -> Iterator[str]:
        diagnosis = self.report.diagnosis
        yield f"<p>{escaped(words.coverage_sentence(diagnosis.coverage))}</p>"
        yield table((), [*self.report.versions, *((f"log {at}", name) for at, name in enumerate(diagnosis.sources, 1))])
        if diagnosis.missing:
            yield "<h3>What would make this more certain</h3>" + bullets(map(escaped, diagnosis.missing))
        if diagnosis.notes:
            yield "<h3>Notes</h3>" + bullets(map(escaped, diagnosis.notes))
        if self.report.excerpts:
            yield "<h3>Cited lines</h3>"
            yield from map(self.excerpt, self.report.excerpts)

    def excerpt(self, excerpt: Excerpt) -> str:
        name = self.names.get(excerpt.source, excerpt.source)
        lines = "".join(
            f'<span id="{self.anchor(excerpt.source, line)}" class="{"cited" if line in excerpt.cited else "near"}">'
            f"<b>{escaped(f'{name}:{line}')}</b>  {escaped(text)}\n</span>"
            for line, text in excerpt.lines
        )
        return f'<pre class="lines" tabindex="0">{lines}</pre>'

    def link(self, place: Place) -> str:
        text = escaped(f"{self.names.get(place.source, place.source)}:{place.line}")
        if (place.source, place.line) not in self.shown:
            return f'<span class="where">{text}</span>'
        return f'<a class="where" href="#{self.anchor(place.source, place.line)}">{text}</a>'

    def anchor(self, source: str, line: int) -> str:
        """``L133``, or ``F1-L133`` in the second log."""
        number = self.numbers.get(source, 0)
        return f"L{line}" if number == 0 else f"F{number}-L{line}"


def _figure(chart: Chart) -> str:
    header, *rows = chart.figures
    return (
        f'<figure><figcaption><h3 id="{chart.key}-title">{escaped(chart.title)}</h3><p class="soft">{escaped(chart.caption)}</p></figcaption>'
        f'<div class="chart" id="chart-{chart.key}" role="img" aria-labelledby="{chart.key}-title"></div>'
        f"<details><summary>Figures</summary>{table(header, rows)}</details></figure>"
    )


def _section(key: str, title: str, parts: Iterable[str]) -> str:
    return f'<section id="{key}" aria-labelledby="{key}-heading"><h2 id="{key}-heading">{title}</h2>\n{chr(10).join(parts)}\n</section>'


def _linked_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table whose cells are HTML already."""
    head = "".join(f'<th scope="col">{escaped(cell)}</th>' for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
