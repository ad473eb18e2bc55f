"""The HTML form: one self-contained file, no scripts, readable on a phone and in the dark."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from logforensics.render import words
from logforensics.render.runs import run_rows
from logforensics.render.untrusted import masked, visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from logforensics.diagnosis import CorrectedCommand, Coverage, Diagnosis
    from logforensics.findings import Evidence, Finding

CSS = """
:root { color-scheme: light dark; --text: #1c1e21; --soft: #5b6169; --page: #fff; --box: #f3f4f6; --line: #d5d9de;
        --critical: #b3141d; --error: #b3141d; --warning: #8a5a00; --info: #0b5cad; --good: #1a7f37; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e4e6e9; --soft: #9aa1ab; --page: #15171a; --box: #22252a; --line: #3a3f46;
          --critical: #ff7b7b; --error: #ff7b7b; --warning: #f0b849; --info: #6cb2ff; --good: #5fd07a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; font: 16px/1.5 system-ui, sans-serif; color: var(--text);
       background: var(--page); overflow-wrap: anywhere; }
h1 { font-size: 1.35rem; line-height: 1.3; } h2 { font-size: 1.1rem; margin: 0 0 .3rem; line-height: 1.35; }
section { border-top: 1px solid var(--line); margin-top: 1.2rem; padding-top: 1rem; }
pre { background: var(--box); padding: .7rem; border-radius: 6px; overflow-x: auto; overflow-wrap: normal;
      font: 13px/1.45 ui-monospace, monospace; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .92rem; }
td, th { padding: .25rem .8rem .25rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
.soft { color: var(--soft); font-size: .9rem; } .where { color: var(--soft); }
.badge { font-size: .8rem; font-weight: 700; letter-spacing: .04em; }
.critical, .failed { color: var(--critical); } .error { color: var(--error); } .warning, .degraded { color: var(--warning); }
.info, .incomplete { color: var(--info); } .healthy { color: var(--good); }
""".strip()


def diagnosis_to_html(diagnosis: Diagnosis) -> str:
    """The diagnosis as a complete HTML document."""
    safe = masked(diagnosis)
    title = escaped(f"{safe.verdict.upper()}: {safe.summary}")
    body = "\n".join(_sections(safe))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{CSS}\n</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _sections(diagnosis: Diagnosis) -> Iterator[str]:
    names = words.short_names(diagnosis)
    yield f'<h1><span class="{escaped(diagnosis.verdict)}">{escaped(diagnosis.verdict.upper())}</span> {escaped(diagnosis.summary)}</h1>'
    if diagnosis.parts:
        yield bullets(map(escaped, words.parts(diagnosis)))
    for finding in diagnosis.findings:
        yield _section(_finding(finding, names))
    if diagnosis.recommended_command:
        yield _section(_command(diagnosis.recommended_command))
    for part in diagnosis.parts[1:]:
        if part.recommended_command:
            yield _section(_command(part.recommended_command, part.name))
    if diagnosis.missing:
        yield _section(["<h2>What would make this certain</h2>", bullets(map(escaped, diagnosis.missing))])
    rows = run_rows(diagnosis.run, verbose=True)
    if rows:
        yield _section(["<h2>The run</h2>", table((), rows)])
    if diagnosis.notes:
        yield _section(["<h2>Notes</h2>", bullets(map(escaped, diagnosis.notes))])
    yield _section(_coverage(diagnosis.coverage, names))


def _finding(finding: Finding, names: dict[str, str]) -> Iterator[str]:
    severity = finding.severity.value
    yield f'<h2><span class="badge {severity}">{severity.upper()}</span> {escaped(finding.title)}</h2>'
    yield f'<p class="soft">{escaped(words.identity(finding))}</p>'
    for line in finding.explanation.strip().split("\n"):
        if line.strip():
            yield f"<p>{escaped(line)}</p>"
    if finding.evidence:
        yield f"<pre>{chr(10).join(_evidence(item, names) for item in finding.evidence)}</pre>"
    if finding.arithmetic:
        yield table(("step", "expression", "result"), [(s.label, s.expression, words.result(s)) for s in finding.arithmetic])
    if finding.recommendations:
        yield bullets(
            f"<strong>{escaped(words.recommendation(advice))}</strong> {escaped(advice.rationale)}" for advice in finding.recommendations
        )


def _evidence(item: Evidence, names: dict[str, str]) -> str:
    return _log_line(names[item.source], item.line, words.cut(item.text, words.EXCERPT, item.needle))


def _command(command: CorrectedCommand, name: str = "") -> Iterator[str]:
    yield f"<h2>Corrected launch command{escaped(f' of the {name}') if name else ''}</h2>"
    yield f"<pre>{html.escape(visible(command.text, keep=chr(10)))}</pre>"
    if command.changes:
        yield table(("flag", "change", "why"), [(c.flag, words.change(c), c.why) for c in command.changes])
    if command.notes:
        yield bullets(map(escaped, command.notes))


def _coverage(coverage: Coverage, names: dict[str, str]) -> Iterator[str]:
    if coverage.lines:
        yield f'<p class="soft">{escaped(words.coverage_sentence(coverage))}</p>'
    examples = (*coverage.unknown_examples, *coverage.damaged_examples)
    if examples:
        lines = [_log_line(names.get(source, source), line, words.cut(text, words.EXCERPT)) for source, line, text in examples]
        yield f"<pre>{chr(10).join(lines)}</pre>"


def _log_line(name: str, line: int, text: str) -> str:
    return f'<span class="where">{escaped(name)}:{line}</span>  {escaped(text)}'


def escaped(raw: str) -> str:
    """Text of a log or a user as HTML: nothing in it is markup, and control characters are shown."""
    return html.escape(visible(raw))


def _section(parts: Iterable[str]) -> str:
    return f"<section>\n{chr(10).join(parts)}\n</section>"


def bullets(items: Iterable[str]) -> str:
    """A list of items that are HTML already."""
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table of plain texts; an empty header leaves the head out."""
    head = f"<tr>{''.join(f'<th>{escaped(cell)}</th>' for cell in header)}</tr>" if header else ""
    body = "".join(f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table>{head}{body}</table></div>'
