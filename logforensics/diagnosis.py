"""The answer of ``diagnose``: a verdict, the facts of the run, ordered findings and the corrected launch command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from logforensics.findings import Finding, Severity
from logforensics.records import record

SCHEMA = "logforensics.diagnosis/1"


@record(frozen=True)
class FlagChange:
    """One difference between the given and the corrected command. ``old``/``new`` are None where absent."""

    flag: str
    old: Any
    new: Any
    why: str


@record(frozen=True)
class CorrectedCommand:
    """A launch line that can be pasted, with what was changed and why; secrets are masked."""

    text: str
    changes: tuple[FlagChange, ...] = ()
    notes: tuple[str, ...] = ()


@record(frozen=True)
class Coverage:
    """Lines by outcome. ``unknown_examples`` and ``damaged_examples`` hold ``(source, line, text)``.

    ``damaged_lines`` holds ``(source, first, last)`` for every run of damaged lines, up to 10,000 in each source.
    """

    lines: int = 0
    parsed: int = 0
    noise: int = 0
    unknown: int = 0
    damaged: int = 0
    unfinished: int = 0
    unknown_examples: tuple[tuple[str, int, str], ...] = ()
    damaged_examples: tuple[tuple[str, int, str], ...] = ()
    damaged_lines: tuple[tuple[str, int, int], ...] = ()


@record(frozen=True)
class Part:
    """One of several servers whose logs were given together. ``relation`` says what it has to do with the first; that one's is empty."""

    name: str
    role: str  # prefill, decode, server or router
    relation: str
    sources: tuple[str, ...]
    verdict: str
    summary: str
    run: Mapping[str, Any]
    recommended_command: CorrectedCommand | None = None


@record(frozen=True)
class Diagnosis:
    """Everything ``diagnose`` found out. ``run`` is JSON-ready (see docs/diagnosis.schema.json).

    Where logs of several servers were given, ``parts`` has each of them, the worst first; ``run``, ``summary`` and ``recommended_command`` are the
    first one's, ``verdict`` is the worst, ``findings`` are those of all.
    """

    verdict: str  # failed, degraded, healthy or incomplete
    summary: str  # one sentence
    run: Mapping[str, Any]
    findings: tuple[Finding, ...]
    coverage: Coverage
    sources: tuple[str, ...]
    recommended_command: CorrectedCommand | None = None
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    command: Mapping[str, Any] | None = None  # preflight: flags by canonical name with typed values, and the environment
    parts: tuple[Part, ...] = ()

    def worst(self) -> Severity | None:
        """The worst severity among the findings, or None where there are none."""
        return min((f.severity for f in self.findings), key=lambda s: s.rank, default=None)
