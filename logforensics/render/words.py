"""The wording that text, markdown and html share: numbers, recommendations, line lists, coverage."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from logforensics.findings import Action

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logforensics.diagnosis import Coverage, Diagnosis, FlagChange, Part
    from logforensics.findings import Arithmetic, Finding, Recommendation

EXCERPT = 400
"""Characters of a log line worth showing where lines are not wrapped."""
_STAGES = {
    "launch": "server_args printed",
    "init_dist_begin": "ranks begin to connect",
    "init_dist_end": "ranks connected",
    "load_begin": "weights begin to load",
    "load_end": "weights loaded",
    "kv_pool": "KV pool allocated",
    "pool_end": "memory pools done",
    "graph_begin": "graph capture begins",
    "graph_end": "graph capture ends",
    "capacity": "capacity printed",
    "hicache": "host pools begin",
    "ready": "ready",
    "serving": "first decode line",
}


def stage_name(stage: str) -> str:
    """What has been reached with a stage of the start."""
    return _STAGES.get(stage, stage.replace("_", " "))


def number(value: Any) -> str:
    """A number for reading: ``2,400``, ``0.82``, ``70,272``; text stays as it is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) >= 0.1 or value == 0:
        text = f"{value:,.{2 if abs(value) >= 1 else 4}f}"  # a share is read to the fourth decimal
        return text.rstrip("0").rstrip(".")
    return f"{value:.2g}"


def result(step: Arithmetic) -> str:
    """The right-hand side of a step: ``2,400 GB``."""
    return f"{number(step.value)} {step.unit}".rstrip()


def flag_value(value: Any) -> str:
    """A value as it is written in a command: no thousands separators, ``48`` rather than ``48.0``."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None or value is True else str(value).lower() if value is False else str(value)


def recommendation(advice: Recommendation) -> str:
    """What to do, in the imperative: ``set --hicache-size 48 (GB per rank)``."""
    value = flag_value(advice.value)
    to_value = f" to {value}" if value else ""
    told = {
        Action.SET: f"set {advice.flag} {value}",
        Action.INCREASE: f"raise {advice.flag}{to_value}",
        Action.DECREASE: f"lower {advice.flag}{to_value}",
        Action.REMOVE: f"remove {advice.flag}",
        Action.ENV: f"export {advice.flag}={value}",
        Action.UPGRADE: f"upgrade {advice.flag}{to_value}",
        Action.OTHER: f"{advice.flag} {value}",
    }[advice.action].rstrip()
    return f"{told} ({advice.unit})" if advice.unit else told


def change(difference: FlagChange) -> str:
    """What happened to a flag: ``300 → 48``, ``added``, ``removed``."""
    old, new = flag_value(difference.old), flag_value(difference.new)
    if difference.new is None:
        return f"removed (was {old})" if old else "removed"
    if difference.old is None:
        return f"added: {new}" if new else "added"
    return f"{old or 'on'} → {new or 'on'}"


def parts(diagnosis: Diagnosis) -> list[str]:
    """A line for each of several servers whose logs were given together; the first is the one that the facts are about."""
    names = short_names(diagnosis)
    return [_part(part, [names[source] for source in part.sources], told=place == 0) for place, part in enumerate(diagnosis.parts)]


def _part(part: Part, files: list[str], *, told: bool) -> str:
    """``told``: its summary stands above already."""
    of = "" if all(file in part.name for file in files) else f" ({', '.join(files)})"
    summary = "" if told else f", {part.summary}"
    if part.role == "router" and part.verdict == "incomplete":
        return f"{part.name}{of}: nothing found{f'; {part.relation}' if part.relation else ''}"  # it never starts as a server does
    return f"{part.name}{of}: {part.verdict}{summary}{f'; {part.relation}' if part.relation else ''}"


def line_numbers(lines: Iterable[int]) -> str:
    """Line numbers in few characters: ``124, 125, 130–133``."""
    parts: list[str] = []
    ordered = sorted(set(lines))
    start = 0
    for i in range(1, len(ordered) + 1):
        if i < len(ordered) and ordered[i] == ordered[i - 1] + 1:
            continue
        run = ordered[start:i]
        parts += [f"{run[0]}–{run[-1]}"] if len(run) > 2 else [str(line) for line in run]
        start = i
    return ", ".join(parts)


def plural(count: int, noun: str) -> str:
    """``1 line``, ``4,213 lines``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def identity(finding: Finding) -> str:
    """Code, root cause, stage and how sure it is, on one line."""
    parts = [f"{finding.code} {finding.root_cause}", finding.confidence.value]
    if finding.stage:
        parts.append(f"stage {finding.stage}")
    if finding.caused_by:
        parts.append(f"caused by {finding.caused_by}")
    if finding.part:
        parts.append(finding.part)
    return " · ".join(parts)


def coverage_sentence(coverage: Coverage) -> str:
    """One line about what was read: ``4,213 lines: 4,180 understood, 30 known noise, 3 not understood (lines 17, 80, 91)``."""
    parts = [f"{coverage.parsed:,} understood", f"{coverage.noise:,} known noise"]
    parts.append(f"{coverage.unknown:,} not understood{_examples_at(coverage.unknown, coverage.unknown_examples)}")
    if coverage.damaged:
        parts.append(f"{coverage.damaged:,} damaged{_examples_at(coverage.damaged, coverage.damaged_examples)}")
    if coverage.unfinished:
        parts.append(f"{coverage.unfinished:,} still being written")
    return f"{plural(coverage.lines, 'line')}: {', '.join(parts)}"


def _examples_at(count: int, examples: Sequence[tuple[str, int, str]]) -> str:
    """Where the lines are, when one file holds them all."""
    if not examples or len({source for source, _, _ in examples}) > 1:
        return ""
    rest = ", …" if count > len(examples) else ""
    return f" (line{'s' if count > 1 else ''} {line_numbers(line for _, line, _ in examples)}{rest})"


def short_names(diagnosis: Diagnosis) -> dict[str, str]:
    """A short name for every source: the file's name where that is unambiguous, else the path as it was given."""
    sources = list(dict.fromkeys((*diagnosis.sources, *(e.source for f in diagnosis.findings for e in f.evidence))))
    names = [PurePath(source).name or source for source in sources]
    return {source: name if names.count(name) == 1 else source for source, name in zip(sources, names, strict=True)}


def cut(text: str, size: int, needle: str = "", mark: str = "…") -> str:
    """At most ``size`` characters of ``text``, around ``needle`` where it occurs, with ``mark`` where something was left out."""
    if len(text) <= size:
        return text
    size -= 2 * len(mark)
    at = max(0, text.find(needle)) if needle else 0
    start = max(0, min(at - (size - len(needle)) // 2, len(text) - size))
    end = start + size
    return f"{mark if start else ''}{text[start:end]}{mark if end < len(text) else ''}"
