"""What the Markdown and the HTML form of a report say in the same words."""

from __future__ import annotations

from pathlib import PurePath

from logforensics.findings import Finding, Severity
from logforensics.render.runs import run_rows
from logforensics.render.words import stage_name
from logforensics.reporting.model import Place, Report
from logforensics.watching.words import clock, duration


def names_of(report: Report) -> dict[str, str]:
    """A short name for every source: the file's name where that is unambiguous."""
    sources = list(report.diagnosis.sources)
    names = [PurePath(source).name or source for source in sources]
    return {source: name if names.count(name) == 1 else source for source, name in zip(sources, names, strict=True)}


def facts(report: Report) -> list[tuple[str, str]]:
    """The run in a few lines; its stages are told by the timeline."""
    return run_rows({key: value for key, value in report.diagnosis.run.items() if key != "stages"})


def loud(report: Report) -> list[Finding]:
    """Findings that something must be done about; the root cause is the first."""
    return [finding for finding in report.diagnosis.findings if finding.severity is not Severity.INFO]


def quiet(report: Report) -> list[Finding]:
    """Remarks."""
    return [finding for finding in report.diagnosis.findings if finding.severity is Severity.INFO]


def timeline(report: Report) -> list[tuple[str, Place, str, str]]:
    """Time, place, text and kind of every moment."""
    return [(clock(moment.time).strip(), moment.place, moment.text, moment.kind) for moment in report.timeline]


def settings(report: Report) -> tuple[tuple[str, ...], list[tuple[tuple[str, ...], Place | None]]]:
    """Header and rows; the column of what was typed only where a command is known."""
    typed = any(setting.typed for setting in report.settings)
    header = ("flag", *(("typed",) if typed else ()), "server_args", "default", "took effect", "line")
    rows: list[tuple[tuple[str, ...], Place | None]] = [
        ((item.flag, *((item.typed,) if typed else ()), item.logged, item.default, item.effect), item.place) for item in report.settings
    ]
    return header, rows


def foresight(report: Report) -> list[tuple[str, Place]]:
    """A sentence for each finding, and the line from which it follows."""
    told = [
        (_foreseen(item.code, item.time, item.stage, item.seconds_before, flags=item.by_flags_alone), item.place)
        for item in report.foresight
    ]
    early = {item.code for item in report.foresight}
    return told + [
        (
            f"{finding.code}: no rule would have said it from what stood in the log before",
            Place(finding.evidence[0].source, finding.evidence[0].line),
        )
        for finding in loud(report)
        if finding.code not in early and finding.evidence
    ]


def _foreseen(code: str, time: str | None, stage: str, before: float | None, *, flags: bool) -> str:
    when = f" at {clock(time).strip()}" if time else ""
    early = f", {duration(before)} before the first sign of trouble" if before else ""
    if flags:
        return f"{code} was decided by the flags alone, when the server printed its server_args{when}{early}; preflight says so before the start"
    return f"{code} could be told{when}, at the stage “{stage_name(stage)}”{early}"
