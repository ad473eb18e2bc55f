"""How the trouble could have been seen earlier: the first line of the log from which each finding follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from logforensics.engine import make_case
from logforensics.findings import Finding, Severity
from logforensics.reporting.model import Foresight, Place
from logforensics.rules import Case, all_rules
from logforensics.rules.own import OwnRule
from logforensics.run import Part, build_run
from logforensics.run.model import STAGES, Mark
from logforensics.run.parts import MERGED
from logforensics.run.timeline import mark_at

if TYPE_CHECKING:
    import polars as pl

_FEWEST_BATCHES = 20  # fewer say little about load
_LOUD = (Severity.CRITICAL, Severity.ERROR, Severity.WARNING)


def foresight_of(
    part: Part, case: Case, findings: Sequence[Finding], known: Mapping[str, Any], own: Sequence[OwnRule] = ()
) -> tuple[Foresight, ...]:
    """For each loud finding, the first stage after which its rule would have said it.

    Args:
        part: the run, whole.
        case: its case.
        findings: what was found in it.
        known: what the user knows, as :func:`logforensics.engine.make_case` takes it.
        own: rules of the user's own.
    """
    wanted = {finding.code: finding for finding in findings if finding.severity in _LOUD}
    asked: dict[str, Callable[[Case], Finding | None]] = {rule.code: rule.apply for rule in all_rules()}
    asked |= {item.rule.code: partial(_answer, item) for item in own}
    rules = {code: ask for code, ask in asked.items() if code in wanted}
    trouble = _first_trouble(case)
    found: dict[str, Foresight] = {}
    for stage, mark in _checkpoints(case, part.log.frames["decode"]):
        if not rules or (trouble.time and mark.time and mark.time > trouble.time):
            break
        early = _case_until(part, mark, known)
        for code in list(rules):
            told = rules[code](early)
            if told is not None and told.severity in _LOUD:
                del rules[code]
                found[code] = _foresight(wanted[code], stage, mark, trouble)
    return tuple(found[code] for code in wanted if code in found)


def _answer(own: OwnRule, case: Case) -> Finding | None:
    return own.apply(case)[0]


def _first_trouble(case: Case) -> Mark:
    """What people noticed: the first trouble of the run, or the end of its log."""
    troubles = case.run.troubles
    return troubles[0].mark if troubles else case.run.last_mark


def _checkpoints(case: Case, decode: pl.DataFrame) -> list[tuple[str, Mark]]:
    """The end of each stage (before the last rank has reached it, ranks may still differ), then decode lines ever further apart."""
    reached = [(name, case.run.stages[name].last) for name in STAGES if name in case.run.stages]
    place = _FEWEST_BATCHES
    while place < decode.height:
        reached.append(("serving", mark_at(decode, place)))
        place *= 2
    return sorted(reached, key=lambda item: item[1].order)


def _case_until(part: Part, mark: Mark, known: Mapping[str, Any]) -> Case:
    """The case as it stood when a line was written."""
    frames = {name: frame.filter(_before(mark)) for name, frame in part.log.frames.items()}
    return make_case(build_run(replace(part, log=replace(part.log, frames=frames))), **known)


def _before(mark: Mark) -> pl.Expr:
    import polars as pl

    return pl.col("line" if mark.place is None else MERGED) <= mark.order


def _foresight(finding: Finding, stage: str, mark: Mark, trouble: Mark) -> Foresight:
    before = (trouble.time - mark.time).total_seconds() if trouble.time and mark.time else None
    return Foresight(
        code=finding.code,
        title=finding.title,
        place=Place(mark.source, mark.line),
        time=mark.time.isoformat() if mark.time else None,
        stage=stage,
        seconds_before=before if before and before > 0 else None,
        by_flags_alone=stage == "launch",
    )
