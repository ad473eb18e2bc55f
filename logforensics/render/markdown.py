"""The markdown form, for an issue or a chat. Log text stands in code, everything else is escaped."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from logforensics import lazy_re
from logforensics.render import words
from logforensics.render.runs import run_rows
from logforensics.render.untrusted import masked, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from logforensics.diagnosis import CorrectedCommand, Coverage, Diagnosis
    from logforensics.findings import Finding

_SPECIAL = lazy_re.compile(
    r"""
      [\\`*_\[\]|~$@#]                          # code, emphasis, links, tables, formulas, mentions, issue numbers
    | :(?=//) | (?<=www)\.                       # addresses that would become links by themselves
    | ^[-+](?=\s|$) | ^[-=](?=[-=\s]*$)          # bullets, rules, underlined headings
    | (?<=^[0-9])[.)](?=\s) | (?<=^[0-9]{2})[.)](?=\s)   # numbered lists
    """,
    re.VERBOSE,
)
_BACKTICKS = lazy_re.compile(r"`+")


def diagnosis_to_markdown(diagnosis: Diagnosis) -> str:
    """The diagnosis as GitHub-flavoured markdown, ending in a newline."""
    return "\n\n".join(_blocks(masked(diagnosis))) + "\n"


def _blocks(diagnosis: Diagnosis) -> Iterator[str]:
    names = words.short_names(diagnosis)
    yield f"# {escaped(diagnosis.verdict.upper())}: {escaped(diagnosis.summary)}"
    if diagnosis.parts:
        yield bullets(map(escaped, words.parts(diagnosis)))
    for finding in diagnosis.findings:
        yield from _finding(finding, names)
    if diagnosis.recommended_command:
        yield from command(diagnosis.recommended_command)
    for part in diagnosis.parts[1:]:
        if part.recommended_command:
            yield from command(part.recommended_command, part.name)
    if diagnosis.missing:
        yield "## What would make this certain"
        yield bullets(escaped(item) for item in diagnosis.missing)
    rows = run_rows(diagnosis.run, verbose=True)
    if rows:
        yield "## The run"
        yield table(("", ""), rows)
    if diagnosis.notes:
        yield "## Notes"
        yield bullets(escaped(note) for note in diagnosis.notes)
    yield from _coverage(diagnosis.coverage, names)


def _finding(finding: Finding, names: dict[str, str]) -> Iterator[str]:
    yield f"## {finding.severity.value.upper()}: {escaped(finding.title)}"
    yield escaped(words.identity(finding))
    if finding.explanation:
        yield "\n\n".join(escaped(line) for line in finding.explanation.strip().split("\n") if line.strip())
    if finding.evidence:
        yield fenced(
            "\n".join(f"{names[e.source]}:{e.line}  {words.cut(e.text, words.EXCERPT, e.needle)}" for e in finding.evidence), "text"
        )
    if finding.arithmetic:
        yield table(("step", "expression", "result"), [(s.label, s.expression, words.result(s)) for s in finding.arithmetic])
    if finding.recommendations:
        yield bullets(
            f"**{escaped(words.recommendation(advice))}**" + (f" {escaped(advice.rationale)}" if advice.rationale else "")
            for advice in finding.recommendations
        )


def command(command: CorrectedCommand, name: str = "") -> Iterator[str]:
    """The corrected launch command, of the server ``name`` where there are several, and what was changed in it."""
    yield f"## Corrected launch command{escaped(f' of the {name}') if name else ''}"
    yield fenced(command.text, "bash")
    if command.changes:
        yield table(("flag", "change", "why"), [(c.flag, words.change(c), c.why) for c in command.changes])
    if command.notes:
        yield bullets(escaped(note) for note in command.notes)


def _coverage(coverage: Coverage, names: dict[str, str]) -> Iterator[str]:
    if coverage.lines:
        yield escaped(words.coverage_sentence(coverage))
    examples = (*coverage.unknown_examples, *coverage.damaged_examples)
    if examples:
        yield fenced(
            "\n".join(f"{names.get(source, source)}:{line}  {words.cut(text, words.EXCERPT)}" for source, line, text in examples), "text"
        )


def escaped(raw: str) -> str:
    """Prose that markdown shows as it is: one line, every character with a meaning behind a backslash."""
    line = _SPECIAL.sub(r"\\\g<0>", visible(raw.replace("\n", " ")))
    return html.escape(line, quote=False)


def fenced(content: str, language: str) -> str:
    """A code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in _BACKTICKS.findall(content)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{visible(content, keep=chr(10))}\n{fence}"


def bullets(items: Iterable[str]) -> str:
    """A list of items that are Markdown already."""
    return "\n".join(f"- {item}" for item in items)


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table of plain texts."""
    lines = [header, ("---",) * len(header), *(tuple(escaped(cell) for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
