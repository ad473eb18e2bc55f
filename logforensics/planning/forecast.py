"""Forecasts: what a rule of the catalogue would find after the crash, said before it.

A forecast carries the code of the rule it anticipates; title, page and vocabulary are the rule's.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache

from logforensics.findings import Arithmetic, Confidence, Finding, Recommendation, Severity
from logforensics.planning.plan import Plan
from logforensics.records import record
from logforensics.rules import Rule, all_rules

_MODULES = ("arguments", "conflicts", "layout", "gpu", "host", "model")


@record(frozen=True)
class Outlook:
    """What a forecast returns. ``flags`` are the server_args fields it is about: their places in the command are cited."""

    severity: Severity
    confidence: Confidence
    stage: str
    title: str
    explanation: str
    flags: Sequence[str] = ()
    arithmetic: Sequence[Arithmetic] = ()
    fix: Sequence[Recommendation] = ()
    missing: Sequence[str] = ()


ForecastFunction = Callable[[Plan], Outlook | None]


@record(frozen=True)
class Forecast:
    """A registered forecast: the code of its rule, and the function that decides."""

    code: str
    function: ForecastFunction

    def apply(self, plan: Plan) -> tuple[Finding, tuple[str, ...]] | None:
        """The finding for a plan with the fields to cite, or None."""
        outlook = self.function(plan)
        if outlook is None:
            return None
        rule = _rules()[self.code]
        finding = Finding(
            code=rule.code,
            root_cause=rule.root_cause,
            severity=outlook.severity,
            confidence=outlook.confidence,
            stage=outlook.stage,
            title=outlook.title,
            explanation=outlook.explanation,
            arithmetic=tuple(outlook.arithmetic),
            recommendations=tuple(outlook.fix),
            missing=tuple(outlook.missing),
        )
        return finding, tuple(outlook.flags)


_FORECASTS: list[Forecast] = []


def forecast(code: str) -> Callable[[ForecastFunction], ForecastFunction]:
    """Register a function as what anticipates the rule ``code``."""

    def register(function: ForecastFunction) -> ForecastFunction:
        _FORECASTS.append(Forecast(code, function))
        return function

    return register


@cache
def all_forecasts() -> tuple[Forecast, ...]:
    """Every forecast, by code."""
    for name in _MODULES:
        importlib.import_module(f"logforensics.planning.{name}")
    return tuple(sorted(_FORECASTS, key=lambda item: item.code))


@cache
def _rules() -> dict[str, Rule]:
    return {rule.code: rule for rule in all_rules()}
