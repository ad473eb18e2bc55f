"""What the performance rules share: how long a state held, when that is enough, and the limits in force."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from logforensics import lazy_re
from logforensics.findings import Arithmetic
from logforensics.records import record
from logforensics.rules.case import Case
from logforensics.rules.registry import step
from logforensics.run import BatchWindow, Capacity
from logforensics.run.model import Mark, Occupancy, Rank

_EXCERPT_LINES = 40
_LEAST_SECONDS, _LONG_SECONDS, _LONG_SHARE = 10.0, 60.0, 0.1
SPECULATION_DEFAULTS = (32, 48)  # requests, where speculation sets the limit itself: 0.4.4, later releases
_NUMBER = lazy_re.compile(r"\d+(?:\.\d+)?")


@record(frozen=True)
class Spell:
    """A state of one scheduler: how long it held (s), how much of its time, and the lines that show it."""

    seconds: float
    share: float
    lines: int
    running: float  # weighted by time
    running_low: int
    running_high: int
    usage: float
    queue_max: int
    mark: Mark
    first: Mark
    last: Mark

    @property
    def when(self) -> str:
        """``03:51:45 to 04:02:10``, or nothing where the lines have no time or all the same."""
        begin, end = self.first.time, self.last.time
        return f"{begin:%H:%M:%S} to {end:%H:%M:%S}" if begin and end and begin != end else ""


def spell(window: BatchWindow, wanted: Callable[[Occupancy], bool]) -> Spell | None:
    """The states of a scheduler that fit, taken together; None where none does."""
    found = [state for state in window.occupancy if wanted(state)]
    if not found:
        return None
    seconds, total = sum(state.seconds for state in found), sum(state.seconds for state in window.occupancy)
    weights = [state.seconds for state in found] if seconds else [float(state.lines) for state in found]
    lines = sum(state.lines for state in found)
    return Spell(
        seconds,
        seconds / total if total else lines / sum(state.lines for state in window.occupancy),
        lines,
        _mean([float(state.running) for state in found], weights),
        min(state.running for state in found),
        max(state.running for state in found),
        _mean([state.usage for state in found], weights),
        max(state.queue_max for state in found),
        max(found, key=lambda state: state.queue_max).mark,
        min((state.first for state in found), key=lambda mark: mark.order),
        max((state.last for state in found), key=lambda mark: mark.order),
    )


def _mean(values: list[float], weights: list[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def longest(case: Case, wanted: Callable[[BatchWindow], Callable[[Occupancy], bool]]) -> tuple[BatchWindow, Spell] | None:
    """The scheduler on which a state held for the largest share of its time; ``wanted`` gives the test for one scheduler."""
    spells = [(window, found) for window in case.run.serving.windows if (found := spell(window, wanted(window)))]
    return max(spells, key=lambda item: (item[1].share, item[1].seconds), default=None)


def is_excerpt(case: Case) -> bool:
    """Whether the log is a few lines that someone cut out, so that how long a state held cannot be seen."""
    serving = case.run.serving
    return case.run.launch is None and serving.decode_lines + sum(window.lines for window in serving.prefills) < _EXCERPT_LINES


def holds(case: Case, found: Spell, share: float) -> bool:
    """Whether a state held long enough to be a limit: ``share`` of the time and ten seconds, or a minute and a tenth of the time."""
    if is_excerpt(case):
        return found.share >= share
    return (found.share >= share and found.seconds >= _LEAST_SECONDS) or (found.seconds >= _LONG_SECONDS and found.share >= _LONG_SHARE)


def on_cpu(case: Case) -> bool:
    """Whether the server runs on CPUs, where speeds and graphs mean something else."""
    return str(case.config.get("device", "")) == "cpu"


def capacity_of(case: Case, rank: Rank | None) -> Capacity | None:
    """The capacity line of a scheduler: its own DP rank's where each prints one."""
    own = [item for item in case.run.capacities if rank is not None and item.rank.dp == rank.dp]
    found = own or list(case.run.capacities)
    return found[-1] if found else None


def is_number(text: str | None) -> bool:
    """Whether an override's value is a plain number."""
    return text is not None and _NUMBER.fullmatch(text) is not None


def running_cap(case: Case, capacity: Capacity | None) -> int | None:
    """The effective limit of running requests of one scheduler.

    Under DP attention the configured limit is divided by the DP size (server_args.py:__post_init__; managers/scheduler.py, 0.4.2+).
    """
    values = [float(item.new or 0) for item in case.run.overrides if item.flag == "max_running_requests" and is_number(item.new)]
    if capacity is not None and capacity.max_running_requests:
        return int(min([*values, float(capacity.max_running_requests)]))
    if not values and (configured := case.config.number("max_running_requests")):
        values.append(configured // case.config.size("dp_size") if case.dp_attention else configured)
    return int(min(values)) if values else None


def plateau(case: Case, window: BatchWindow) -> int | None:
    """The batch size of nearly all waiting decode lines: admission by free tokens would move it, a limit does not."""
    waiting = spell(window, lambda state: state.waiting and state.kind != "prefill")
    if waiting is None or waiting.running_high < 2:
        return None
    if waiting.running_high in SPECULATION_DEFAULTS and window.accept_len_mean is not None:
        return waiting.running_high
    at_top = spell(window, lambda state: state.waiting and state.kind != "prefill" and state.running >= waiting.running_high - 1)
    enough = waiting.lines >= (3 if is_excerpt(case) else 5)
    return waiting.running_high if enough and at_top and at_top.lines >= 0.8 * waiting.lines else None


def accept_len(windows: Iterable[BatchWindow]) -> tuple[float, int] | None:
    """Accepted length over all schedulers, and the running requests it is averaged over."""
    known = [
        (window.accept_len_mean, window.accept_weight) for window in windows if window.accept_len_mean is not None and window.accept_weight
    ]
    weight = sum(count for _, count in known)
    return (sum(mean * count for mean, count in known) / weight, weight) if weight else None


def steps_arithmetic(window: BatchWindow) -> list[Arithmetic]:
    """Throughput of a scheduler and its steps per second and request."""
    found = [step("throughput of this scheduler", "weighted by interval", round(window.throughput_mean, 1), "token/s")]
    if window.steps_median:
        found.append(
            step(
                "steps/s per request",
                "throughput / (running × accepted length), median of steady lines",
                round(window.steps_median, 2),
                "1/s",
            )
        )
    return found
