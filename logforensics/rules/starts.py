"""What became of the server starts before the one that is diagnosed, and whether they all ended the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from logforensics.findings import Finding, Severity
from logforensics.records import record
from logforensics.run import Mark, Part
from logforensics.run.parts import Start

_EXAMINED = 20  # starts whose end is looked into, the latest ones
_REPEATED = 2  # starts that end alike and are worth a sentence


@record(frozen=True)
class Outcome:
    """How far a start came and how it ended."""

    stage: str
    served: bool
    verdict: str
    finding: Finding | None  # the first that is more than a remark
    stopped: Mark | None
    last: Mark

    @property
    def failure(self) -> Finding | None:
        """The finding that says why it failed, or None."""
        grave = self.finding is not None and self.finding.severity in (Severity.CRITICAL, Severity.ERROR)
        return self.finding if grave and self.verdict == "failed" else None

    @property
    def ended(self) -> str:
        """failed; stopped by an operator; or without a word."""
        return "failed" if self.failure else "stopped" if self.stopped else "without a word"


def before(part: Part, outcome_of: Callable[[Part], Outcome], now: Outcome) -> tuple[list[dict[str, Any]], str | None]:
    """Each earlier start as plain data, oldest first, and one sentence where the latest ones failed alike.

    Only the last 20 are looked into: of those before them the lines are told.
    """
    looked = part.earlier[-_EXAMINED:]
    outcomes = [outcome_of(start.part()) for start in looked]
    rest = [_as_json(start, None) for start in part.earlier[: len(part.earlier) - len(looked)]]
    return rest + [_as_json(start, outcome) for start, outcome in zip(looked, outcomes, strict=True)], _loop(outcomes, now)


def _as_json(start: Start, outcome: Outcome | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "source": start.launch.mark.source,
        "start": start.launch.number + 1,
        "of": start.of,
        "line": start.launch.mark.line,
        "last_line": start.last_line,
        "time": start.launch.mark.time,
    }
    if outcome is None:
        return row | dict.fromkeys(("last_time", "stage", "served", "verdict", "ended", "code", "root_cause", "title"))
    found = outcome.finding
    return row | {
        "last_line": start.last_line if start.last_line is not None else outcome.last.line,
        "last_time": outcome.last.time,
        "stage": outcome.stage,
        "served": outcome.served,
        "verdict": outcome.verdict,
        "ended": outcome.ended,
        "code": found.code if found else None,
        "root_cause": found.root_cause if found else None,
        "title": found.title if found else None,
    }


def _loop(outcomes: Sequence[Outcome], now: Outcome) -> str | None:
    """A sentence where the latest starts all failed by the same cause."""
    ended = [*outcomes, now] if now.failure else list(outcomes)
    last = ended[-1].failure if ended else None
    if last is None:
        return None
    alike = 0
    for outcome in reversed(ended):
        if outcome.failure is None or outcome.failure.root_cause != last.root_cause:
            break
        alike += 1
    if alike < _REPEATED:
        return None
    which = f"{last.code} {last.root_cause}"
    if now.failure:
        return f"the last {alike} starts failed alike ({which}): another start without a change will fail as well"
    return f"the {alike} starts before this one failed alike ({which}); this one has come to the stage {now.stage.replace('_', ' ')}"
