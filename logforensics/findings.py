"""What a rule says: a finding, the lines that prove it, the arithmetic, and what to change.

The JSON form of these classes is the contract of ``diagnose --format json`` (docs/diagnosis.schema.json).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from enum import Enum

from logforensics.records import record


class Severity(str, Enum):
    """How bad a finding is. ``critical`` and ``error`` make ``diagnose`` exit with status 1 by default."""

    CRITICAL = "critical"
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for the worst; larger is milder."""
        return _SEVERITY_ORDER[self]


_SEVERITY_ORDER = {s: i for i, s in enumerate(Severity)}


class Confidence(str, Enum):
    """How sure a finding is: the log proves it, makes it likely, or merely allows it."""

    CERTAIN = "certain"
    PROBABLE = "probable"
    POSSIBLE = "possible"


class Action(str, Enum):
    """What a recommendation does to its flag."""

    SET = "set"
    INCREASE = "increase"
    DECREASE = "decrease"
    REMOVE = "remove"
    ENV = "env"
    UPGRADE = "upgrade"
    OTHER = "other"


@record(frozen=True)
class Evidence:
    """A cited line: ``text`` is a substring of line ``line`` (1-based) of ``source``.

    A rule gives the source and the line; the text is filled in from the log afterwards. ``needle`` names a piece of the
    line that must stay visible when the line is long or holds several records.
    """

    source: str
    line: int
    text: str = ""
    needle: str = field(default="", compare=False)


@record(frozen=True)
class Arithmetic:
    """One step of the calculation: ``label: expression = value unit``."""

    label: str
    expression: str
    value: float | int | str
    unit: str = ""


@record(frozen=True)
class Recommendation:
    """One change to make. ``flag`` is a server flag (``--hicache-size``), an environment variable, or a plain noun."""

    flag: str
    action: Action
    value: float | int | str | bool | None = None
    unit: str = ""
    rationale: str = ""


@record(frozen=True)
class Finding:
    """One diagnosis: a root cause of reference vocabulary with its proof and its remedy."""

    code: str
    root_cause: str
    severity: Severity
    confidence: Confidence
    stage: str
    title: str
    explanation: str
    evidence: tuple[Evidence, ...] = ()
    arithmetic: tuple[Arithmetic, ...] = ()
    recommendations: tuple[Recommendation, ...] = ()
    caused_by: str | None = None
    missing: tuple[str, ...] = ()
    part: str | None = None  # which of several servers it is about, where logs of several were given

    @property
    def first_line(self) -> int:
        """The smallest cited line number, or a very large number where nothing is cited."""
        return min((e.line for e in self.evidence), default=1 << 62)


def passage(text: str, at: int, limit: int = 300) -> str:
    """At most ``limit`` characters of ``text`` around the place ``at``, from the beginning of a word; a substring of ``text``."""
    if len(text) <= limit or at < limit * 2 // 3:
        return text[:limit].strip()
    start = at - limit // 6
    word = text.find(" ", start, at) + 1
    return text[word or start :][:limit].strip()


def in_causal_order(findings: Iterable[Finding]) -> list[Finding]:
    """Order findings: a cause before its consequences, then by severity, then by first cited line."""
    ordered = sorted(findings, key=lambda f: (f.severity.rank, f.first_line, f.code))
    placed: list[Finding] = []
    codes = {f.code for f in ordered}
    waiting = [f if f.caused_by in codes else replace(f, caused_by=None) for f in ordered]
    while waiting:
        pending = {f.code for f in waiting}
        ready = next((f for f in waiting if f.caused_by is None or f.caused_by not in pending), waiting[0])
        waiting.remove(ready)
        placed.append(ready)
    return placed
