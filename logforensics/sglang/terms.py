"""A step of a calculation: a named figure with its unit, how it came about, and where the rule stands."""

from __future__ import annotations

from logforensics.findings import Arithmetic
from logforensics.records import record


@record(frozen=True)
class Term:
    """``name = expression = value unit``; ``source`` is the log, a flag, the model's facts, or a file and function of SGLang."""

    name: str
    expression: str
    value: float | int
    unit: str
    source: str

    @property
    def arithmetic(self) -> Arithmetic:
        """The same step in the form findings carry."""
        return Arithmetic(self.name, self.expression, self.value, self.unit)


def arithmetic(terms: tuple[Term, ...]) -> tuple[Arithmetic, ...]:
    """All steps in the form findings carry."""
    return tuple(term.arithmetic for term in terms)
