"""Stops: an operator's, which is no failure, and a drain that does not end."""

from __future__ import annotations

from logforensics.findings import Confidence, Severity
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite, other, rule, set_to, step
from logforensics.run.model import ShutdownEvent

_HANG_SECONDS = 60.0
_HANG_LINES = 12


def _stop(case: Case) -> ShutdownEvent | None:
    return next((event for event in case.run.shutdowns if event.event == "sigterm"), None)


@rule("LF419", "operator_shutdown", "The server was stopped from outside")
def operator_shutdown(case: Case) -> Verdict | None:
    """An operator, a supervisor or a script stopped the server with SIGTERM (or Ctrl-C).

    Why: someone asked for it. Everything a server prints after that belongs to the stop.
    Confirm: `SIGTERM received` before any error.
    Fix: nothing.
    False friends: `Subprocess detokenizer … crashed with exit code -15` and `SIGQUIT received` after it are part of the stop; SIGQUIT without SIGTERM is a
    child that failed.
    """
    stop = _stop(case)
    if stop is None:
        return None
    started = case.served(stop.mark)
    return Verdict(
        Severity.INFO,
        Confidence.CERTAIN,
        "shutdown",
        "the server was stopped from outside (SIGTERM)" + ("" if started else " before it was ready"),
        "A stop was asked for. Exit codes -15 and SIGQUIT lines after it are part of it.",
        [stop.mark.evidence("SIGTERM")],
    )


@rule("LF423", "drain_hang", "The drain after SIGTERM does not end")
def drain_hang(case: Case) -> Verdict | None:
    """After SIGTERM the server waits for requests that never finish.

    Why: the drain loop waits until no request is left and has no limit of its own. A request that was lost in the front end, or whose client is gone, is
    never taken off the list.
    Threshold: the number of remaining requests stays the same, above zero, for a minute or twelve lines (one is printed every 5 s).
    Confirm: `Gracefully exiting... Remaining number of requests N`, N constant, without batch lines between.
    Fix: a grace period with a hard kill after it (`terminationGracePeriodSeconds`).
    False friends: N that falls, or batch lines that go on: the drain works.
    """
    stop = _stop(case)
    lines = [event for event in case.run.shutdowns if event.event == "drain" and event.remaining_req is not None]
    if stop is None or not lines:
        return None
    last = lines[-1]
    constant = [event for event in lines if event.remaining_req == last.remaining_req]
    first = constant[0]
    seconds = (last.mark.time - first.mark.time).total_seconds() if last.mark.time and first.mark.time else None
    stuck = (last.remaining_req or 0) > 0 and (seconds >= _HANG_SECONDS if seconds is not None else len(constant) >= _HANG_LINES)
    if not stuck or any(
        window.last.order > first.mark.order and window.last.order > last.mark.order - 20 for window in case.run.serving.windows
    ):
        return None
    span = f"{seconds:.0f} s" if seconds is not None else f"{len(constant)} lines"
    steps = [
        step("drain lines with the same count", "lines", len(constant)),
        step("remaining requests", "printed, constant", last.remaining_req or 0, "requests"),
    ]
    if seconds is not None:
        steps.append(step("drain without progress", f"{last.mark.time:%H:%M:%S} - {first.mark.time:%H:%M:%S}", seconds, "s"))
    return Verdict(
        Severity.WARNING,
        Confidence.CERTAIN,
        "shutdown",
        f"the drain after SIGTERM does not end: {last.remaining_req} request{'s' if last.remaining_req != 1 else ''} for {span}",
        "The count of remaining requests does not change, so they are lost, not slow. The loop has no limit of its own: only a hard kill ends it.",
        cite([stop.mark.evidence("SIGTERM"), first.mark.evidence("Remaining"), last.mark.evidence("Remaining")]),
        steps,
        [
            set_to(
                "terminationGracePeriodSeconds",
                120,
                "s",
                "a healthy drain takes as long as the longest request; after that the process must be killed",
            ),
            other("drain", "SIGKILL after the grace period; the requests are lost either way"),
        ],
        missing=["what became of the remaining requests (their ids are printed)"],
    )
