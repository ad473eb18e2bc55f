"""The report as GitHub-flavoured Markdown, with its charts as images beside it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from logforensics.findings import Evidence, Finding
from logforensics.render import words
from logforensics.render.markdown import bullets, command, escaped, fenced, table
from logforensics.render.untrusted import visible
from logforensics.reporting import wording
from logforensics.reporting.model import Chart, Excerpt, Place, Report


def report_to_markdown(report: Report, images: Mapping[str, str], folder: Path | None = None) -> str:
    """The text.

    Args:
        report: the report.
        images: the file name of each chart by its key.
        folder: where the text will lie, so that links lead from there to the logs; by default the current folder.
    """
    return "\n\n".join(block for block in _Text(report, images, folder or Path()).blocks() if block) + "\n"


class _Text:
    """The blocks of the text, a method per section."""

    def __init__(self, report: Report, images: Mapping[str, str], folder: Path) -> None:
        self.report = report
        self.images = images
        self.folder = folder
        self.names = wording.names_of(report)

    def blocks(self) -> Iterator[str]:
        yield f"# {escaped(self.report.title)}"
        yield from self.summary()
        yield "## Impact"
        yield bullets(map(escaped, self.report.impact))
        yield "## Timeline"
        moments = [(time, self.link(place), escaped(text)) for time, place, text, _ in wording.timeline(self.report)]
        yield _linked_table(("time", "line", "what happened"), moments)
        yield from self.causes()
        yield from self.charts()
        yield from self.settings()
        if self.report.diagnosis.recommended_command:
            yield from command(self.report.diagnosis.recommended_command)
        yield from self.foresight()
        yield from self.appendix()

    def summary(self) -> Iterator[str]:
        diagnosis = self.report.diagnosis
        yield f"**{escaped(diagnosis.verdict.upper())}**: {escaped(diagnosis.summary)}"
        rows = wording.facts(self.report)
        if rows:
            yield table(("", ""), rows)

    def causes(self) -> Iterator[str]:
        for place, finding in enumerate(wording.loud(self.report)):
            yield f"## {'Root cause' if place == 0 else 'Also found'}: {escaped(finding.title)}"
            yield escaped(words.identity(finding))
            yield "\n\n".join(escaped(line) for line in finding.explanation.strip().split("\n") if line.strip())
            yield from self.proof(finding)
        remarks = wording.quiet(self.report)
        if remarks:
            yield "## Remarks"
            yield bullets(escaped(f"{finding.title} ({finding.code})") for finding in remarks)

    def proof(self, finding: Finding) -> Iterator[str]:
        if finding.evidence:
            yield bullets(map(self.evidence, finding.evidence))
        if finding.arithmetic:
            yield table(("step", "expression", "result"), [(s.label, s.expression, words.result(s)) for s in finding.arithmetic])
        if finding.recommendations:
            yield bullets(
                f"**{escaped(words.recommendation(advice))}** {escaped(advice.rationale)}".rstrip() for advice in finding.recommendations
            )

    def evidence(self, item: Evidence) -> str:
        text = words.cut(item.text, words.EXCERPT, item.needle)
        return f"{self.link(Place(item.source, item.line))}: {_code(text)}"

    def charts(self) -> Iterator[str]:
        if self.report.charts:
            yield "## Charts"
        for chart in self.report.charts:
            yield from self.chart(chart)

    def chart(self, chart: Chart) -> Iterator[str]:
        yield f"### {escaped(chart.title)}"
        if chart.key in self.images:
            yield f"![{escaped(chart.title)}]({quote(self.images[chart.key])})"
        yield escaped(chart.caption)
        header, *rows = chart.figures
        yield table(header, rows)

    def settings(self) -> Iterator[str]:
        if self.report.settings:
            yield "## Configured against took effect"
            header, rows = wording.settings(self.report)
            yield _linked_table(header, [(*map(escaped, cells), self.link(place) if place else "") for cells, place in rows])

    def foresight(self) -> Iterator[str]:
        told = wording.foresight(self.report)
        if told:
            yield "## How it could have been seen earlier"
            yield bullets(f"{escaped(text)} ({self.link(place)})" for text, place in told)
            yield bullets(map(escaped, self.report.advice))

    def appendix(self) -> Iterator[str]:
        diagnosis = self.report.diagnosis
        yield "## Appendix"
        yield escaped(words.coverage_sentence(diagnosis.coverage))
        yield table(("", ""), [*self.report.versions, *((f"log {at}", name) for at, name in enumerate(diagnosis.sources, 1))])
        if diagnosis.missing:
            yield "What would make this more certain:"
            yield bullets(map(escaped, diagnosis.missing))
        yield bullets(map(escaped, diagnosis.notes))
        if self.report.excerpts:
            yield "### Cited lines"
            yield from map(self.excerpt, self.report.excerpts)

    def excerpt(self, excerpt: Excerpt) -> str:
        name = self.names.get(excerpt.source, excerpt.source)
        return fenced("\n".join(f"{'>' if line in excerpt.cited else ' '} {name}:{line}  {text}" for line, text in excerpt.lines), "text")

    def link(self, place: Place) -> str:
        """A line of the log; as a link where the log can be reached from the report."""
        text = escaped(f"{self.names.get(place.source, place.source)}:{place.line}")
        if self.report.anonymized or not Path(place.source).is_file():
            return text
        return f"[{text}]({quote(os.path.relpath(place.source, self.folder))}#L{place.line})"


def _code(text: str) -> str:
    """Log text as a code span: on one line, without a backtick that would end it."""
    return f"`{visible(text.replace('`', chr(39)).replace(chr(10), ' ')).strip() or ' '}`"


def _linked_table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table whose cells are Markdown already."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
