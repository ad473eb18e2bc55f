"""How a server ended: killed from outside, or a log that simply stops."""

from __future__ import annotations

from logforensics.findings import Confidence, Severity
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite, increase, other, rule, step
from logforensics.run.model import ShutdownEvent

SIGKILL = -9
_KERNEL_OOM = ("oom-kill:", "Out of memory: Killed process", "Memory cgroup out of memory", "oom_reaper", "OOMKilled", "invoked oom-killer")


def sigkills(case: Case) -> list[ShutdownEvent]:
    """Lines that say a child died of SIGKILL, before any stop that SGLang itself or an operator began."""
    stop = min((event.mark.line for event in case.run.shutdowns if event.event in ("sigterm", "uvicorn_shutdown")), default=1 << 62)
    return [event for event in case.run.shutdowns if event.exit_code == SIGKILL and event.mark.line < stop]


def kernel_lines(case: Case) -> list[ShutdownEvent]:
    """Lines of the kernel's OOM killer."""
    return [event for event in case.run.shutdowns if event.event == "kernel_oom"]


def explained_by_exception(case: Case) -> bool:
    """Whether an exception before the kill explains it: after one, SGLang kills its own tree, and -9 proves nothing.

    An exception behind the kill, such as the parent's EOFError, is a consequence.
    """
    first = min((event.mark.line for event in sigkills(case)), default=1 << 62)
    return any(
        failure.kind not in ("SystemExit", "KeyboardInterrupt") and failure.mark.line < first and not _is_announcement(failure.text)
        for failure in case.failures
    )


def _is_announcement(text: str) -> bool:
    """An exception that only reports the death of a child."""
    return "died during initialization" in text or "scheduler is dead" in text or "exited during startup" in text


@rule("LF106", "cgroup_or_oom_kill", "The kernel's OOM killer or a cgroup limit killed a process")
def cgroup_or_oom_kill(case: Case) -> Verdict | None:
    """A process was killed by the kernel's OOM killer or a cgroup limit.

    Why: host memory ran out. The killed process leaves no line of its own.
    Confirm: a kernel line (`oom-kill:`, `Memory cgroup out of memory`), or exit code -9 without any exception, signal or stop before it,
    where the release itself names the OOM killer.
    Fix: less host memory (HiCache, offloading, loading threads), more RAM, or a larger container limit. `dmesg -T | grep -i oom` decides.
    False friends: -9 after `Received sigquit from a child process`: the server's own clean-up; -9 in a harness that kills workers.
    """
    kernel, kills = kernel_lines(case), sigkills(case)
    hinted = next((failure for failure in case.failures if "OOM killer" in failure.text), None)
    hint = case.run.notice_with("OS OOM killer") or case.run.notice_with("OOM killer")
    if not kernel and not ((hinted or hint) and kills and not explained_by_exception(case)):
        return None
    evidence = [*(event.mark.evidence() for event in kernel), *(event.mark.evidence("-9") for event in kills)]
    evidence += [hinted.evidence("OOM killer") if hinted else None, hint.mark.evidence("OOM killer") if hint else None]
    evidence.append(case.run.stages[case.run.stage].last.evidence() if case.run.stages else None)
    return Verdict(
        Severity.CRITICAL,
        Confidence.CERTAIN if kernel else Confidence.PROBABLE,
        case.run.stage,
        "a process was killed because host memory ran out",
        "A process got SIGKILL without any exception or stop request before it. The killed process cannot write a line, so the last stage it reached is the clue: "
        f"{case.run.stage.replace('_', ' ')}.",
        cite(evidence),
        [],
        _less_host_memory(case),
        missing=[] if kernel else ["the kernel log of that minute (`dmesg -T | grep -i -E 'oom|killed process'`): it names the victim and the limit", "the host's RAM and the container's memory limit"],
    )


@rule("LF107", "child_killed_sigkill", "A child got SIGKILL, and the log does not say from whom")
def child_killed_sigkill(case: Case) -> Verdict | None:
    """A child process got SIGKILL and the log does not prove who sent it.

    Why: the OOM killer is the usual sender, but a container runtime, a supervisor or a person may be it too.
    Confirm: exit code -9 and no exception, signal or stop before it.
    Fix: look into the kernel log first; then the container's limit.
    False friends: an exception above it (then -9 is SGLang killing its own tree), -15 after SIGTERM (a normal stop), -3 (SIGQUIT: a child raised).
    """
    kills = sigkills(case)
    if not kills or explained_by_exception(case) or kernel_lines(case):
        return None
    if any("OOM killer" in failure.text for failure in case.failures) or case.run.notice_with("OOM killer"):
        return None
    reached = case.run.stages.get(case.run.stage)
    return Verdict(
        Severity.CRITICAL,
        Confidence.PROBABLE,
        case.run.stage,
        "a child process got SIGKILL; the log does not say who sent it",
        "Exit code -9 without any exception before it. The kernel's OOM killer is the usual sender, but the log cannot prove it. "
        f"The last stage reached was {case.run.stage.replace('_', ' ')}.",
        cite([*(event.mark.evidence() for event in _announcements(case, kills)), reached.last.evidence() if reached else None]),
        [step("exit code", "printed", SIGKILL)],
        [other("kernel log", "dmesg -T | grep -i -E 'oom|killed process' names the victim and the limit"), *_less_host_memory(case)],
        missing=["the kernel log of that minute (`dmesg -T`)", "the container's memory limit, if there is one"],
    )


def _announcements(case: Case, kills: list[ShutdownEvent]) -> list[ShutdownEvent]:
    """The kills and the line directly before that says which process died."""
    lines = {event.mark.line for event in kills}
    return sorted(
        (event for event in case.run.shutdowns if event.mark.line in lines or (event.event == "scheduler_dead" and event.mark.line + 1 in lines)),
        key=lambda event: event.mark.line,
    )


def _less_host_memory(case: Case) -> list:  # type: ignore[type-arg]
    fix = [increase("container memory limit", None, "", "if the process ran in a container: its limit, not the machine's RAM, counts")]
    if case.config.get("enable_hierarchical_cache"):
        fix.append(other("--hicache-size", "smaller host pools per rank"))
    return fix


@rule("LF901", "log_ends_abruptly", "The log simply stops")
def log_ends_abruptly(case: Case) -> Verdict | None:
    """The log stops in the middle of the start without an error, a signal or a shutdown line.

    Why: the process may still be running, may have been killed from outside, or the log was cut. The log cannot tell.
    Confirm: nothing after the last line; look at the process, the kernel log and the launcher.
    Fix: nothing to change yet. Give the end of the log, the exit code, and the kernel log.
    False friends: a start that is simply not finished.
    """
    run = case.run
    if run.launch is None or case.served() or case.failures or run.shutdowns or run.refusals or run.watchdogs:
        return None
    return Verdict(
        Severity.INFO if run.stage in ("launch", "init_dist_begin", "init_dist_end", "load_begin") else Severity.WARNING,
        Confidence.POSSIBLE,
        run.stage,
        f"the log ends during start-up, after {run.stage.replace('_', ' ')}",
        "No error, no signal and no shutdown line follow. The server may still be starting, may have been killed from outside, or the log was cut.",
        cite([run.last_mark.evidence()]),
        [],
        [other("log", "the rest of the log, the exit code and the kernel log of that minute would decide it")],
        missing=["what happened after the last line: the process state, its exit code, `dmesg -T`"],
    )
