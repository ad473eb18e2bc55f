"""The terminal form: what happened, why, the proof, the remedy, and a command to paste, in that order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logforensics.findings import Severity
from logforensics.render import words
from logforensics.render.page import Page
from logforensics.render.runs import run_rows
from logforensics.render.screen import Detail
from logforensics.render.untrusted import masked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logforensics.diagnosis import CorrectedCommand, Coverage, Diagnosis
    from logforensics.findings import Arithmetic, Evidence, Finding, Recommendation
    from logforensics.render.screen import Screen
    from logforensics.render.styled import Styled

_VERDICT_STYLE = {"failed": "bold red", "degraded": "bold yellow", "healthy": "bold green", "incomplete": "bold cyan"}
_BADGE_STYLE = {
    Severity.CRITICAL: "bold white on red",
    Severity.ERROR: "bold red",
    Severity.WARNING: "bold yellow",
    Severity.INFO: "cyan",
}
_EVIDENCE_SHOWN = 4
_EXAMPLES_SHOWN = 3
_PARTS_SHOWN = 10
_LINES_PER_EXCERPT = 2
_INDENT = 2


def diagnosis_to_text(diagnosis: Diagnosis, screen: Screen) -> str:
    """The diagnosis as text for ``screen``, ending in a newline."""
    return _Report(masked(diagnosis), screen).write()


class _Report:
    """One diagnosis on one page; a method per section."""

    def __init__(self, diagnosis: Diagnosis, screen: Screen) -> None:
        self.diagnosis = diagnosis
        self.page = Page(screen)
        self.names = words.short_names(diagnosis)
        self.detail = screen.detail

    def write(self) -> str:
        self.verdict()
        if self.detail is Detail.QUIET:
            return self.page.finish()
        verbose = self.detail is Detail.VERBOSE
        self.parts()
        told = [f for f in self.diagnosis.findings if verbose or f.severity is not Severity.INFO]
        for finding in told:
            self.finding(finding)
        self.remarks([f for f in self.diagnosis.findings if f not in told])
        if self.diagnosis.recommended_command:
            self.command(self.diagnosis.recommended_command)
        for part in self.diagnosis.parts[1:]:
            if part.recommended_command:
                self.command(part.recommended_command, part.name)
        self.bullets("What would make this certain", self.diagnosis.missing)
        self.run()
        self.bullets("Notes", self.diagnosis.notes)
        self.coverage(self.diagnosis.coverage)
        return self.page.finish()

    def verdict(self) -> None:
        """The line to read if only one line is read."""
        verdict = self.diagnosis.verdict
        badge = self.page.text((verdict.upper(), _VERDICT_STYLE.get(verdict, "bold")), "  ")
        self.page.paragraph(self.page.text((self.diagnosis.summary, "bold")), first=badge)

    def parts(self) -> None:
        """The servers whose logs were given together, a line each."""
        lines = words.parts(self.diagnosis)
        shown = lines if self.detail is Detail.VERBOSE or len(lines) <= _PARTS_SHOWN else lines[: _PARTS_SHOWN - 1]
        if len(shown) < len(lines):
            shown = [*shown, f"… and {len(lines) - len(shown)} more (--verbose; `logforensics runs` has a table of them)"]
        for line in shown:
            self.page.paragraph(self.page.text(line), first=self.page.text("· "), indent=_INDENT)

    def finding(self, finding: Finding) -> None:
        """Everything about one finding."""
        page = self.page
        page.blank()
        badge = page.text((finding.severity.value.upper(), _BADGE_STYLE[finding.severity]), "  ")
        page.paragraph(page.text((finding.title, "bold")), first=badge, hang=_INDENT)
        page.paragraph(page.text((words.identity(finding), "dim")), indent=_INDENT)
        if finding.explanation:
            page.blank()
            page.prose(finding.explanation, indent=_INDENT)
        if finding.evidence:
            page.blank()
            self.evidence(finding.evidence)
        if finding.arithmetic:
            page.blank()
            self.arithmetic(finding.arithmetic)
        if finding.recommendations:
            page.blank()
            for advice in finding.recommendations:
                self.recommendation(advice)

    def evidence(self, evidence: Sequence[Evidence]) -> None:
        """The lines that prove it; of the rest, that would fill the screen, the numbers."""
        everything = self.detail is Detail.VERBOSE or len(evidence) == _EVIDENCE_SHOWN + 1
        shown = evidence if everything else evidence[:_EVIDENCE_SHOWN]
        most = None if self.detail is Detail.VERBOSE else _LINES_PER_EXCERPT
        for item in shown:
            self.page.excerpt(item.text, first=self.place(item.source, item.line), indent=_INDENT, needle=item.needle, most_lines=most)
        rest = evidence[len(shown) :]
        for source in dict.fromkeys(item.source for item in rest):
            lines = [item.line for item in rest if item.source == source]
            of_file = f" of {self.names[source]}" if len(self.names) > 1 else ""
            noun = "line" if len(lines) == 1 else "lines"
            more = f"… and {len(lines)} more {noun}{of_file}: {words.line_numbers(lines)}"
            self.page.paragraph(self.page.text((more, "dim")), indent=_INDENT)

    def arithmetic(self, steps: Sequence[Arithmetic]) -> None:
        """The calculation, one step a line, aligned in three columns where the screen is wide enough, else in two."""
        text = self.page.text
        rows = [(text((s.label, "dim")), text(s.expression), text((f"= {words.result(s)}", "bold"))) for s in steps]
        if not self.page.columns(rows, indent=_INDENT):
            self.page.pairs([(label, expression + text(" ") + result) for label, expression, result in rows], indent=_INDENT)

    def recommendation(self, advice: Recommendation) -> None:
        """What to do, and why."""
        todo = (words.recommendation(advice), "bold green")
        body = self.page.text(todo, "  ", advice.rationale) if advice.rationale else self.page.text(todo)
        self.page.paragraph(body, first=self.page.text(("→ ", "bold green")), indent=_INDENT)

    def remarks(self, findings: Sequence[Finding]) -> None:
        """Findings that need no action, one line each."""
        if findings:
            self.page.blank()
        for finding in findings:
            at = f" {self.names[finding.evidence[0].source]}:{finding.evidence[0].line}" if finding.evidence else ""
            badge = self.page.text(("INFO", _BADGE_STYLE[Severity.INFO]), "  ")
            self.page.paragraph(self.page.text(finding.title, (f"  ({finding.code}{at})", "dim")), first=badge)

    def command(self, command: CorrectedCommand, name: str = "") -> None:
        """The corrected command from the first column, unwrapped: a mouse selects it, a shell takes it."""
        text = self.page.text
        self.heading(f"Corrected launch command{f' of the {name}' if name else ''}")
        self.page.blank()
        self.page.verbatim(command.text)
        self.page.blank()
        rows = [(text((c.flag, "bold")), text(words.change(c), ("  " + c.why if c.why else "", "dim"))) for c in command.changes]
        self.page.pairs(rows, indent=_INDENT)
        for note in command.notes:
            self.page.paragraph(text(note), indent=_INDENT)

    def run(self) -> None:
        """The facts of the run, a line each."""
        rows = run_rows(self.diagnosis.run, verbose=self.detail is Detail.VERBOSE)
        if rows:
            self.heading("The run")
            self.page.pairs([(self.page.text((label, "dim")), self.page.text(value)) for label, value in rows], indent=_INDENT)

    def bullets(self, heading: str, items: Sequence[str]) -> None:
        """A heading and a list, where there is something to list."""
        if items:
            self.heading(heading)
        for item in items:
            self.page.paragraph(self.page.text(item), first=self.page.text("· "), indent=_INDENT)

    def coverage(self, coverage: Coverage) -> None:
        """What was read, and what was not understood: never silent about a line."""
        self.page.blank()
        if coverage.lines:
            self.page.paragraph(self.page.text((words.coverage_sentence(coverage), "dim")))
        most = None if self.detail is Detail.VERBOSE else _EXAMPLES_SHOWN
        for source, line, text in (*coverage.unknown_examples[:most], *coverage.damaged_examples[:most]):
            self.page.excerpt(text, first=self.place(source, line), indent=_INDENT, most_lines=1)

    def place(self, source: str, line: int) -> Styled:
        """Where a line is, as editors and terminals understand it: ``server.log:123``."""
        return self.page.text((f"{self.names.get(source, source)}:{line}", "cyan"), "  ")

    def heading(self, title: str) -> None:
        """A section's title after an empty line."""
        self.page.blank()
        self.page.paragraph(self.page.text((title, "bold underline")))
