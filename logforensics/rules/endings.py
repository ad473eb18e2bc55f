"""How a server ended: killed from outside, or a log that simply stops."""

from __future__ import annotations

from logforensics import lazy_re
from logforensics.findings import Action, Arithmetic, Confidence, Evidence, Recommendation, Severity
from logforensics.rules import beside, gpu_more
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite, decrease, increase, other, remove, rule, step
from logforensics.run.model import Notice, ShutdownEvent

SIGKILL = -9
_RSS = lazy_re.compile(r"(?P<kind>anon|shmem)-rss:(?P<kb>\d+)kB")
_VICTIM = lazy_re.compile(r"(?:task=|Killed process \d+ \()([^,)\s]+)")
_STARTING = ("launch", "init_dist_begin", "init_dist_end", "load_begin")


def sigkills(case: Case) -> list[ShutdownEvent]:
    """Lines that say a child died of SIGKILL, before any stop that SGLang itself or an operator began."""
    stop = min((event.mark.order for event in case.run.shutdowns if event.event in ("sigterm", "uvicorn_shutdown")), default=1 << 62)
    return [event for event in case.run.shutdowns if event.exit_code == SIGKILL and event.mark.order < stop]


def kernel_lines(case: Case) -> list[ShutdownEvent]:
    """Lines of the kernel's OOM killer about this server, in the log or in a kernel log beside it.

    In the log a victim of another name does not count while the server serves.
    """
    found = [event for event in case.run.shutdowns if event.event == "kernel_oom"]
    victims = {name for event in found for name in _VICTIM.findall(event.text)}
    ours = not victims or not case.served() or any(name.startswith(beside.OUR_NAMES) for name in victims)
    return [*(found if ours else []), *beside.kernel_kills(case)]


def names_a_victim(case: Case) -> bool:
    """Whether the kernel's own record names the process it took: then nobody else sent the signal."""
    return any(_VICTIM.search(event.text) for event in kernel_lines(case))


def explained_by_exception(case: Case) -> bool:
    """Whether an exception before the kill explains it: after one, SGLang kills its own tree, and -9 proves nothing.

    An exception behind the kill, such as the parent's EOFError, is a consequence.
    """
    first = min((event.mark.order for event in sigkills(case)), default=1 << 62)
    return any(
        failure.kind not in ("SystemExit", "KeyboardInterrupt") and failure.mark.order < first and not _is_announcement(failure.text)
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
        return _vanished_in_full_memory(case)
    evidence: list[Evidence | None] = [*(event.mark.evidence() for event in kernel), *(event.mark.evidence("-9") for event in kills)]
    evidence += [hinted.evidence("OOM killer") if hinted else None, hint.mark.evidence("OOM killer") if hint else None]
    evidence.append(case.run.stages[case.run.stage].last.evidence() if case.run.stages else None)
    evidence += beside.forced_exits(case)
    texts = " ".join(event.text for event in kernel)
    limit = "MEMCG" in texts or "cgroup out of memory" in texts or "OOMKilled" in texts
    return Verdict(
        Severity.CRITICAL,
        Confidence.CERTAIN if kernel else Confidence.PROBABLE,
        case.run.stage,
        "the kernel killed a process: the container's memory limit was reached"
        if limit
        else "a process was killed because host memory ran out",
        "A process got SIGKILL without any exception or stop request before it. The killed process cannot write a line, so the last stage it reached is the clue: "
        f"{case.run.stage.replace('_', ' ')}.",
        cite(evidence),
        [*_held(kernel), *_limit(case)],
        _less_host_memory(case),
        missing=[] if kernel else [_KERNEL_LOG, "the host's RAM and the container's memory limit"],
    )


_KERNEL_LOG = "the kernel log of that minute (`dmesg -T | grep -i -E 'oom|killed process'`): it names the victim and the limit"


def _held(kernel: list[ShutdownEvent]) -> list[Arithmetic]:
    """What the victim held, as the kernel says; shmem is pinned and shared memory, such as HiCache pools or pinned tables."""
    found = {match["kind"]: int(match["kb"]) for event in kernel for match in _RSS.finditer(event.text)}
    names = {"anon": "the victim's own memory", "shmem": "the victim's shared and pinned memory"}
    return [step(names[kind], f"{kb:,} kB", kb / 2**20, "GiB") for kind, kb in found.items() if kb]


def _limit(case: Case) -> list[Arithmetic]:
    """What a file beside the log says the server may have of the host."""
    ram = case.hardware.host_ram_bytes
    if ram is None or "host_ram_bytes" not in case.hardware_lines:
        return []
    return [step("memory that the server may have", case.said_by("host_ram_bytes"), round(ram / 2**30, 2), "GiB")]


def _vanished(case: Case) -> Notice | None:
    """The line that a helper process prints when its parent is gone: semaphores that nobody cleaned up."""
    if case.served() or case.failures or case.run.shutdowns or case.run.refusals or case.run.watchdogs:
        return None
    return case.run.notice_with("resource_tracker: There appear to be")


def _vanished_in_full_memory(case: Case) -> Verdict | None:
    """The parent vanished without a word while memory that GPU and host share was nearly full."""
    gone, (card, source) = _vanished(case), gpu_more.card_gib(case)
    known = [item for item in case.run.memory_steps if item.avail_gib is not None]
    least = min(known, key=lambda item: item.avail_gib or 0.0, default=None)
    if gone is None or card is None or least is None or not gpu_more.is_unified(case) or (least.avail_gib or 0.0) > 0.12 * card:
        return None
    now = case.config.number("mem_fraction_static")
    fix = [other("kernel log", "dmesg -T | grep -i oom proves it or not")]
    if now is not None:
        fix.append(
            decrease("--mem-fraction-static", round(now - 0.03, 3), "share", "the host's processes need their part of the one memory")
        )
    fix.append(Recommendation("--model-path", Action.SET, None, "", "a smaller or more strongly quantised checkpoint"))
    return Verdict(
        Severity.CRITICAL,
        Confidence.PROBABLE,
        case.run.stage,
        "the server vanished without a word while the memory that GPU and host share was nearly full",
        "Only a killed process leaves semaphores behind for the resource tracker. On this machine GPU memory is the host's memory, and "
        f"{least.avail_gib:.1f} of {card:.1f} GiB were left: the kernel's OOM killer is the likely sender.",
        cite([gone.mark.evidence("resource_tracker"), least.mark.evidence("avail"), source]),
        [step("left for everything else", "printed", least.avail_gib or 0.0, "GiB")],
        fix,
        missing=[_KERNEL_LOG],
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
        cite(
            [
                *(event.mark.evidence() for event in _announcements(case, kills)),
                reached.last.evidence() if reached else None,
                *beside.forced_exits(case),
            ]
        ),
        [step("exit code", "printed", SIGKILL)],
        [other("kernel log", "dmesg -T | grep -i -E 'oom|killed process' names the victim and the limit"), *_less_host_memory(case)],
        missing=["the kernel log of that minute (`dmesg -T`)", "the container's memory limit, if there is one"],
    )


def _announcements(case: Case, kills: list[ShutdownEvent]) -> list[ShutdownEvent]:
    """The kills and the line directly before that says which process died."""
    lines = {event.mark.order for event in kills}
    return sorted(
        (
            event
            for event in case.run.shutdowns
            if event.mark.order in lines or (event.event == "scheduler_dead" and event.mark.order + 1 in lines)
        ),
        key=lambda event: event.mark.order,
    )


def _less_host_memory(case: Case) -> list[Recommendation]:
    """What takes host memory in this launch, and how to take less."""
    fix = [increase("container memory limit", None, "", "if the process ran in a container: its limit, not the machine's RAM, counts")]
    if case.config.get("enable_hierarchical_cache"):
        fix.append(other("--hicache-size", "smaller host pools per rank"))
    offloads = [name for name in (case.command.flags if case.command else {}) if "offload" in name]
    fix += [remove(name, "what it moves to the host is pinned there and cannot be swapped out") for name in offloads]
    if gpu_more.is_unified(case):
        fix.append(
            decrease("--mem-fraction-static", None, "share", "GPU and host share one memory here: what the GPU takes the host lacks")
        )
    if case.run.stage in _STARTING:
        fix.append(other("checkpoint", "a smaller or quantised checkpoint needs less host memory while it is read"))
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
    gone = _vanished(case)
    return Verdict(
        Severity.INFO if run.stage in _STARTING and gone is None else Severity.WARNING,
        Confidence.POSSIBLE,
        run.stage,
        f"the log ends during start-up, after {run.stage.replace('_', ' ')}",
        "No error, no signal and no shutdown line follow. "
        + (
            "The resource tracker found semaphores that nobody cleaned up, so the main process was killed; the log does not say by whom."
            if gone
            else "The server may still be starting, may have been killed from outside, or the log was cut."
        ),
        cite([run.last_mark.evidence(), gone.mark.evidence("resource_tracker") if gone else None]),
        [],
        [other("log", "the rest of the log, the exit code and the kernel log of that minute would decide it")],
        missing=["what happened after the last line: the process state, its exit code, `dmesg -T`"],
    )
