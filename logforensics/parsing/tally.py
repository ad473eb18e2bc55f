"""What became of every physical line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

Outcome = Literal["noise", "unknown", "parsed", "damaged"]
NOTICE_CHARS = 400
EXAMPLES = 20
_MOST_PLACES = 10_000
_SEVERITY: dict[Outcome, int] = {"noise": 0, "unknown": 1, "parsed": 2, "damaged": 3}


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome of a line with several records: damage shows, then what was read."""
    return max(outcomes, key=_SEVERITY.__getitem__, default="noise")


@dataclass(slots=True)
class Tally:
    """Physical lines by outcome, with at most ``limit`` examples ``(line, text)`` of the unhappy ones."""

    limit: int = EXAMPLES
    parsed: int = 0
    noise: int = 0
    unknown: int = 0
    damaged: int = 0
    unfinished: int = 0
    unknown_examples: list[tuple[int, str]] = field(default_factory=list)
    damaged_examples: list[tuple[int, str]] = field(default_factory=list)
    damaged_lines: list[tuple[int, int]] = field(default_factory=list)  # the first and the last of each run of them
    sglang: bool = False  # something only SGLang prints was seen

    def count(self, outcome: Outcome, line: int, text: str) -> None:
        """Count one physical line."""
        if outcome == "parsed":
            self.parsed += 1
        elif outcome == "noise":
            self.noise += 1
        else:
            setattr(self, outcome, getattr(self, outcome) + 1)
            examples = self.unknown_examples if outcome == "unknown" else self.damaged_examples
            if len(examples) < self.limit:
                examples.append((line, text[:NOTICE_CHARS]))
            if outcome == "damaged":
                self._place(line)

    def _place(self, line: int) -> None:
        first, last = self.damaged_lines[-1] if self.damaged_lines else (0, -1)
        if first - 1 <= line <= last + 1:
            self.damaged_lines[-1] = (min(first, line), max(last, line))
        elif len(self.damaged_lines) < _MOST_PLACES:
            self.damaged_lines.append((line, line))

    def add_unknown(self, count: int, examples: Iterable[tuple[int, str]]) -> None:
        """Count lines that a worker has read as notices."""
        self.unknown += count
        self.unknown_examples = sorted([*self.unknown_examples, *examples])[: self.limit]
