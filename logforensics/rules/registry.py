"""Rules: small functions from the facts of a case to a finding.

A rule is a function decorated with :func:`rule`; its docstring is its page (see :mod:`logforensics.rules.pages`). Nothing else has to be
edited to add one: every module of this folder that can hold one is imported when the rules are first asked for.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from logforensics.findings import Action, Arithmetic, Confidence, Evidence, Finding, Recommendation, Severity
from logforensics.records import record
from logforensics.rules.case import Case
from logforensics.sglang.flags import accepted
from logforensics.sglang.flags import releases as all_releases
from logforensics.sglang.releases import span


@record(frozen=True)
class Verdict:
    """What a rule returns: a finding that does not yet know its rule."""

    severity: Severity
    confidence: Confidence
    stage: str
    title: str
    explanation: str
    evidence: Sequence[Evidence] = ()
    arithmetic: Sequence[Arithmetic] = ()
    fix: Sequence[Recommendation] = ()
    missing: Sequence[str] = ()
    caused_by: str | None = None


RuleFunction = Callable[[Case], Verdict | None]


@record(frozen=True)
class Rule:
    """A registered rule: its stable code, the root cause it names, and the function that decides."""

    code: str
    root_cause: str
    title: str
    function: RuleFunction

    def apply(self, case: Case) -> Finding | None:
        """The finding of this rule for a case, or None."""
        verdict = self.function(case)
        if verdict is None:
            return None
        return Finding(
            code=self.code,
            root_cause=self.root_cause,
            severity=verdict.severity,
            confidence=verdict.confidence,
            stage=verdict.stage,
            title=verdict.title,
            explanation=verdict.explanation,
            evidence=tuple(dict.fromkeys(verdict.evidence)),
            arithmetic=tuple(verdict.arithmetic),
            recommendations=tuple(item for item in verdict.fix if _offered(item, case)),
            caused_by=verdict.caused_by,
            missing=tuple(verdict.missing),
        )


def _offered(item: Recommendation, case: Case) -> bool:
    """Whether a release of the log's range accepts the flag; what is no known flag is kept, and so is the advice to leave one out."""
    if item.action is Action.REMOVE or not item.flag.startswith("--"):
        return True
    releases = span(case.release.low, case.release.high)
    known = any(accepted(item.flag, release) for release in all_releases())
    return not known or any(accepted(item.flag, release) for release in releases)


_RULES: dict[str, Rule] = {}
_TOOLS = frozenset({"own", "pages"})  # modules of this folder that hold no rule, and that a diagnosis does without
_own: list[Rule] | None = None  # where rules go while a module of somebody else is loaded


def rule(code: str, root_cause: str, title: str) -> Callable[[RuleFunction], RuleFunction]:
    """Register a function as the rule ``code`` (``LF101``) for ``root_cause`` (a slug of the vocabulary)."""

    def register(function: RuleFunction) -> RuleFunction:
        if _own is not None:
            _own.append(Rule(code, root_cause, title, function))
            return function
        if code in _RULES:
            message = f"two rules have the code {code}"
            raise ValueError(message)
        _RULES[code] = Rule(code, root_cause, title, function)
        return function

    return register


@contextmanager
def gathering() -> Iterator[list[Rule]]:
    """Rules that are registered inside the block go into the list it gives, not among the built-in ones."""
    global _own  # noqa: PLW0603 - the decorator has no other way to know for whom it works
    all_rules()  # a module of one's own may import a built-in one, which must have registered before
    before, _own = _own, []
    try:
        yield _own
    finally:
        _own = before


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by code."""
    package = importlib.import_module("logforensics.rules")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in _TOOLS:
            importlib.import_module(f"{package.__name__}.{module.name}")
    return tuple(_RULES[code] for code in sorted(_RULES))


# ------------------------------------------------------------------------------------------------ words that rules use


def set_to(flag: str, value: float | str | bool, unit: str, why: str) -> Recommendation:  # noqa: FBT001
    """Set a flag to a value."""
    return Recommendation(flag, Action.SET, value, unit, why)


def increase(flag: str, value: float | None, unit: str, why: str) -> Recommendation:
    """Raise a flag, to ``value`` where one can be given."""
    return Recommendation(flag, Action.INCREASE, value, unit, why)


def decrease(flag: str, value: float | None, unit: str, why: str) -> Recommendation:
    """Lower a flag, to ``value`` where one can be given."""
    return Recommendation(flag, Action.DECREASE, value, unit, why)


def remove(flag: str, why: str) -> Recommendation:
    """Leave a flag out."""
    return Recommendation(flag, Action.REMOVE, None, "", why)


def environment(name: str, value: float | str, why: str) -> Recommendation:
    """Set an environment variable."""
    return Recommendation(name, Action.ENV, value, "", why)


def upgrade(what: str, value: str | None, why: str) -> Recommendation:
    """Upgrade a package."""
    return Recommendation(what, Action.UPGRADE, value, "", why)


def other(what: str, why: str) -> Recommendation:
    """Something that is no flag."""
    return Recommendation(what, Action.OTHER, None, "", why)


def step(label: str, expression: str, value: float | str, unit: str = "") -> Arithmetic:
    """One line of the calculation; floats are rounded to four decimals."""
    return Arithmetic(label, expression, round(value, 4) if isinstance(value, float) else value, unit)


def cite(items: Iterable[Evidence | None], limit: int = 24) -> list[Evidence]:
    """The given evidence without gaps, at most ``limit`` pieces."""
    return [item for item in items if item is not None][:limit]
