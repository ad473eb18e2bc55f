"""First cause, not last line: which finding is the consequence of which, and what happened on each rank.

The end of a log is nearly always a consequence: lost peers, aborted collectives, watchdogs, signals, ``Killed``. Findings of that kind point
at the earliest finding of a deeper kind; a fallback yields to whatever explains the same exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from logforensics.findings import Finding, Severity
from logforensics.rules.case import Case
from logforensics.rules.distributed import LOST, expected_ranks
from logforensics.rules.signs import active
from logforensics.run.model import STAGES, Mark, Rank
from logforensics.run.telling import short_name
from logforensics.run.troubles import Trouble

# How far a root cause is from the beginning of a chain: 0 may begin one; a larger number follows from any smaller one.
_DEPTH = {
    "scheduler_exception": 1,
    "spec_decode_crash": 1,
    "frontend_exception": 1,
    "detokenizer_failure": 1,
    "pd_bootstrap_failure": 1,
    "pd_transfer_failure": 1,
    "nccl_failure": 2,
    "nccl_timeout": 2,
    "dist_init_timeout": 2,
    "dist_init_address": 2,
    "cuda_graph_failure": 3,
    "load_timeout": 3,
    "watchdog_timeout": 3,
    "peer_shutdown": 4,
    "health_check_failure": 4,
    "frontend_request_timeout": 4,
    "drain_hang": 4,
    "child_killed_sigkill": 5,
    "log_ends_abruptly": 5,
}
_FALLBACKS = ("scheduler_exception", "frontend_exception")
_GRAVE = (Severity.CRITICAL, Severity.ERROR)
_MOST_RANKS = 256
_SAME_SECONDS = 1.0


def link(findings: Sequence[Finding], case: Case) -> list[Finding]:
    """Set ``caused_by`` where one finding follows from another, and leave out fallbacks that another finding explains."""
    kept = [finding for finding in findings if not (finding.root_cause in _FALLBACKS and _explained(finding, findings, case))]
    onsets = {finding.code: _onset(finding, case) for finding in kept}
    slack = _slack(case)
    return [replace(finding, caused_by=finding.caused_by or _cause(finding, kept, onsets, slack)) for finding in kept]


def _slack(case: Case) -> float:
    """Seconds within which the order of two events means nothing: one, or what the clocks of several nodes leave open."""
    return max(_SAME_SECONDS, case.run.doubt_s or 0.0)


def _explained(fallback: Finding, findings: Sequence[Finding], case: Case) -> bool:
    """Whether another loud finding cites one of the exceptions that the fallback is about (or the same one of another rank)."""
    own = [item for item in case.run.troubles if _cites(fallback, item)]
    names = {item.identity for item in own}
    same = [item for item in case.run.troubles if item.identity in names]
    others = [finding for finding in findings if finding.root_cause not in _FALLBACKS and finding.severity is not Severity.INFO]
    return any(_cites(finding, item) or (finding.severity in _GRAVE and _touches(finding, item)) for finding in others for item in same)


def _touches(finding: Finding, trouble: Trouble) -> bool:
    """Whether a finding cites any line of a traceback: the cause inside a chain stands above the text that was raised last."""
    return any(item.source == trouble.mark.source and trouble.mark.line <= item.line <= trouble.end for item in finding.evidence)


def _cites(finding: Finding, trouble: Trouble) -> bool:
    """Whether a finding cites the line that says a trouble."""
    return any(item.source == trouble.mark.source and trouble.line <= item.line <= trouble.end for item in finding.evidence)


def _onset(finding: Finding, case: Case) -> Trouble | None:
    """The earliest trouble that a finding cites; None where it rests on no trouble (a configuration, a budget)."""
    return next((item for item in case.run.troubles if _cites(finding, item)), None)


def _cause(finding: Finding, findings: Sequence[Finding], onsets: dict[str, Trouble | None], slack: float) -> str | None:
    """Code of the finding that this one follows from: the deepest, then the earliest."""
    depth = _DEPTH.get(finding.root_cause, 0)
    causes = [
        other
        for other in findings
        if other.severity in _GRAVE
        and _DEPTH.get(other.root_cause, 0) < depth
        and _not_after(onsets[other.code], onsets[finding.code], slack)
    ]
    best = min(causes, key=lambda other: (_DEPTH.get(other.root_cause, 0), _place(onsets[other.code])), default=None)
    return best.code if best else None


def _place(onset: Trouble | None) -> int:
    return -1 if onset is None else onset.order


def _not_after(cause: Trouble | None, effect: Trouble | None, slack: float) -> bool:
    """Whether a cause began before its effect; within ``slack`` seconds the order of lines means nothing."""
    if cause is None or effect is None or cause.order <= effect.order:
        return True
    return cause.when is not None and effect.when is not None and abs((cause.when - effect.when).total_seconds()) <= slack


# ---------------------------------------------------------------------------------------------------------------- by rank


def timeline(case: Case) -> list[dict[str, Any]]:
    """What each rank reached and what went wrong on it first; empty where nothing went wrong.

    ``role`` is ``first``, ``same error`` (within a second of the first), ``consequence``, ``no error`` or ``silent`` (expected, but not in the log).
    """
    troubles = [item for item in active(case) if item.origin in ("exception", "watchdog")]
    if not troubles:
        return []
    first = next((item for item in troubles if not LOST.matches(item)), troubles[0])
    seen = list(case.run.ranks)[:_MOST_RANKS] or [Rank()]
    known = {rank.tp for rank in seen if rank.tp is not None}
    absent = [Rank(tp=number) for number in expected_ranks(case) if known and number not in known][:_MOST_RANKS]
    slack = _slack(case)
    rows = [_row(case, rank, _first_on(troubles, rank), first, slack) for rank in seen]
    return rows + [_row(case, rank, None, first, slack) | {"role": "silent"} for rank in absent]


def _first_on(troubles: Sequence[Trouble], rank: Rank) -> Trouble | None:
    """The first trouble of a rank; a line that only names the TP rank counts for all tags of that rank."""
    return next((item for item in troubles if item.rank == rank or (rank.tp is not None and item.rank == Rank(tp=rank.tp))), None)


def doubts(case: Case) -> list[str]:
    """A sentence where troubles of two files are closer to each other than their clocks are known."""
    troubles = [item for item in active(case) if item.origin in ("exception", "watchdog", "shutdown")] if case.run.merged else []
    if not troubles:
        return []
    first = troubles[0]
    other = next((item for item in troubles if item.mark.source != first.mark.source), None)
    if other is None or first.when is None or other.when is None:
        return []
    gap, doubt = (other.when - first.when).total_seconds(), case.run.doubt_s
    if doubt is not None and gap > _slack(case):
        return []
    known = "are not known against each other" if doubt is None else f"are known to ± {_slack(case):.0f} s only"
    places = " and ".join(f"{short_name(item.mark.source)}:{item.line}" for item in (first, other))
    return [f"which file has the first failure is not certain: {places} are {abs(gap):.0f} s apart, and the clocks {known}"]


def _row(case: Case, rank: Rank, trouble: Trouble | None, first: Trouble, slack: float) -> dict[str, Any]:
    stage, mark = _reached(case, rank)
    row: dict[str, Any] = {"rank": rank.label, "stage": stage, "line": mark.line if mark else None, "time": mark.time if mark else None}
    row["source"] = mark.source if mark else trouble.mark.source if trouble else None
    if trouble is None:
        return row | {"role": "no error", "error": None, "error_line": None, "error_time": None}
    said = {"error": trouble.head, "error_line": trouble.line, "error_time": _time(trouble), "source": trouble.mark.source}
    return row | {"role": _role(trouble, first, slack)} | said


def _role(trouble: Trouble, first: Trouble, slack: float) -> str:
    if trouble is first:
        return "first"
    near = trouble.when is None or first.when is None or abs((trouble.when - first.when).total_seconds()) <= slack
    return "same error" if trouble.identity == first.identity and near else "consequence"


def _time(trouble: Trouble) -> datetime | None:
    return trouble.mark.time or trouble.when


def _reached(case: Case, rank: Rank) -> tuple[str | None, Mark | None]:
    """The last stage a rank reached, with its line."""
    for name in reversed(STAGES):
        stage = case.run.stages.get(name)
        if stage is not None and rank in stage.marks:
            return name, stage.marks[rank]
    return None, None
