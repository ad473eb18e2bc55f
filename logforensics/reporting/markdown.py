"""The report as GitHub-flavoured Markdown, with its charts as images beside it."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from logforensics.findings import Evidence, Finding
from logforensics.render import words
from logforensics.render.markdown import _bullets as bullets
from logforensics.render.markdown import _command as command
from logforensics.render.markdown import _escaped as escaped
from logforensics.render.markdown import _fenced as fenced
from logforensics.render.markdown import _table as table
from logforensics.reporting import wording
from logforensics.reporting.model import Chart, Excerpt, Place, Report


def report_to_markdown(report: Report, images: dict[str, str]) -> str:
    """The text; ``images`` gives the file name of each chart by its key."""
    return "\n\n".join(_blocks(report, images)) + "\n"


def _blocks(report: Report, images: dict[str, str]) -> Iterator[str]:
    names = wording.names_of(report)
    yield f"# {escaped(report.title)}"
    yield from _summary(report)
    yield "## Impact"
    yield bullets(escaped(line) for line in report.impact)
    yield "## Timeline"
    yield _linked_table(
        ("time", "line", "what happened"), [(m[0], _link(report, names, m[1]), escaped(m[2])) for m in wording.timeline(report)]
    )
    yield from _causes(report, names)
    yield from _charts(report, images)
    yield from _settings(report, names)
    if report.diagnosis.recommended_command:
        yield from command(report.diagnosis.recommended_command)
    yield from _foresight(report, names)
    yield from _appendix(report, names)


def _summary(report: Report) -> Iterator[str]:
    diagnosis = report.diagnosis
    yield f"**{escaped(diagnosis.verdict.upper())}**: {escaped(diagnosis.summary)}"
    rows = wording.facts(report)
    if rows:
        yield table(("", ""), rows)


def _causes(report: Report, names: dict[str, str]) -> Iterator[str]:
    for place, finding in enumerate(wording.loud(report)):
        yield f"## {'Root cause' if place == 0 else 'Also found'}: {escaped(finding.title)}"
        yield escaped(words.identity(finding))
        yield "\n\n".join(escaped(line) for line in finding.explanation.strip().split("\n") if line.strip())
        yield from _proof(report, finding, names)
    quiet = wording.quiet(report)
    if quiet:
        yield "## Remarks"
        yield bullets(escaped(f"{finding.title} ({finding.code})") for finding in quiet)


def _proof(report: Report, finding: Finding, names: dict[str, str]) -> Iterator[str]:
    if finding.evidence:
        yield bullets(_evidence(report, names, item) for item in finding.evidence)
    if finding.arithmetic:
        yield table(("step", "expression", "result"), [(s.label, s.expression, words.result(s)) for s in finding.arithmetic])
    if finding.recommendations:
        yield bullets(
            f"**{escaped(words.recommendation(advice))}** {escaped(advice.rationale)}".rstrip() for advice in finding.recommendations
        )


def _evidence(report: Report, names: dict[str, str], item: Evidence) -> str:
    text = words.cut(item.text, words.EXCERPT, item.needle).replace("`", "'")
    return f"{_link(report, names, Place(item.source, item.line))}: {_code(text)}"


def _code(text: str) -> str:
    return "`" + escaped_code(text) + "`"


def escaped_code(text: str) -> str:
    """Log text for a code span: on one line, without a backtick that would end it."""
    from logforensics.render.untrusted import visible

    return visible(text.replace("`", "'").replace("\n", " ")).strip() or " "


def _link(report: Report, names: dict[str, str], place: Place) -> str:
    """A line of the log; as a link where the log may lie beside the report."""
    text = escaped(f"{names.get(place.source, place.source)}:{place.line}")
    if report.anonymized or place.source.startswith("<"):
        return text
    return f"[{text}]({quote(place.source)}#L{place.line})"


def _charts(report: Report, images: dict[str, str]) -> Iterator[str]:
    if report.charts:
        yield "## Charts"
    for chart in report.charts:
        yield from _chart(chart, images)


def _chart(chart: Chart, images: dict[str, str]) -> Iterator[str]:
    yield f"### {escaped(chart.title)}"
    if chart.key in images:
        yield f"![{escaped(chart.title)}]({quote(images[chart.key])})"
    yield escaped(chart.caption)
    header, *rows = chart.figures
    yield table(header, rows)


def _settings(report: Report, names: dict[str, str]) -> Iterator[str]:
    if report.settings:
        yield "## Configured against took effect"
        header, rows = wording.settings(report)
        yield _linked_table(
            header, [(*(escaped(cell) for cell in cells), _link(report, names, place) if place else "") for cells, place in rows]
        )


def _foresight(report: Report, names: dict[str, str]) -> Iterator[str]:
    if report.foresight:
        yield "## How it could have been seen earlier"
        yield bullets(f"{escaped(text)} ({_link(report, names, place)})" for text, place in wording.foresight(report))
        yield bullets(escaped(line) for line in report.advice)


def _appendix(report: Report, names: dict[str, str]) -> Iterator[str]:
    yield "## Appendix"
    yield escaped(words.coverage_sentence(report.diagnosis.coverage))
    yield table(("", ""), [*report.versions, *((f"log {at}", name) for at, name in enumerate(report.diagnosis.sources, 1))])
    if report.diagnosis.missing:
        yield "What would make this more certain:"
        yield bullets(escaped(item) for item in report.diagnosis.missing)
    if report.diagnosis.notes:
        yield bullets(escaped(note) for note in report.diagnosis.notes)
    if report.excerpts:
        yield "### Cited lines"
    for excerpt in report.excerpts:
        yield _excerpt(excerpt, names)


def _excerpt(excerpt: Excerpt, names: dict[str, str]) -> str:
    name = names.get(excerpt.source, excerpt.source)
    return fenced("\n".join(f"{'>' if line in excerpt.cited else ' '} {name}:{line}  {text}" for line, text in excerpt.lines), "text")


def _linked_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table whose cells are Markdown already."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
