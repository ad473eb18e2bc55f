"""The facts of a run. Every fact knows its line, so that a rule can cite it without reading the log again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from logforensics.evidence import Side
from logforensics.findings import Evidence
from logforensics.records import record

if TYPE_CHECKING:
    from logforensics.run.troubles import Trouble

_SKEW_SECONDS = 1.5  # stamps of whole seconds, on two machines, differ by less
_ZONE_SECONDS = 1800
_ZONE_REST_SECONDS = 300  # a clock that is off by more beside a time zone is not known to be in one

STAGES = (
    "launch",
    "init_dist_begin",
    "init_dist_end",
    "load_begin",
    "load_end",
    "kv_pool",
    "pool_end",
    "graph_begin",
    "graph_end",
    "capacity",
    "hicache",
    "ready",
    "serving",
)


class Mark(NamedTuple):
    """Where a fact stands: its source, 1-based line and time.

    ``place`` is set where several files were merged: a number that grows with corrected time over all of them, and by one from line to line.
    """

    source: str
    line: int
    time: datetime | None = None
    place: int | None = None

    @property
    def order(self) -> int:
        """What tells earlier from later within a run: the line in one file, the place in several."""
        return self.line if self.place is None else self.place

    def is_before(self, other: Mark) -> bool:
        """Whether this line is known to come first: within one file, or over files that were merged."""
        ordered = self.source == other.source or (self.place is not None and other.place is not None)
        return ordered and self.order < other.order

    def evidence(self, needle: str = "") -> Evidence:
        """Cite this line; ``needle`` is the part that must stay visible when the line is long."""
        return Evidence(self.source, self.line, needle=needle)


class Rank(NamedTuple):
    """A scheduler process, as far as its tags tell."""

    tp: int | None = None
    dp: int | None = None
    pp: int | None = None
    ep: int | None = None

    @property
    def label(self) -> str:
        """``TP3``, ``DP1 TP3``, or ``the only rank`` where nothing is printed."""
        parts = [f"{name}{number}" for name, number in (("DP", self.dp), ("PP", self.pp), ("TP", self.tp)) if number is not None]
        return " ".join(parts) or "the only rank"


@record(frozen=True)
class Launch:
    """One server start: its logged server_args, the releases that it and the lines after it fit, and what told them."""

    mark: Mark
    args: Mapping[str, Any]
    version_low: str | None
    version_high: str | None
    complete: bool
    number: int
    form: str | None = None
    version_basis: str | None = None


@record(frozen=True)
class Clock:
    """How far a file's stamps are ahead of those of the run's reference file (seconds), and how that is known.

    ``basis``: reference; barrier (events that all ranks leave together); collective (one collective that timed out everywhere); start (only the
    moment of the launch, good for time zones); same (the same rank in another file); unknown (``offset_s`` is None and counts as 0).
    """

    offset_s: float | None
    uncertainty_s: float | None
    basis: str
    samples: int = 0
    here: Mark | None = None  # with the time as it is printed
    there: Mark | None = None  # the same event in the reference file

    @property
    def matters(self) -> bool:
        """Whether the offset is more than the stamps' resolution and its own uncertainty."""
        return self.offset_s is not None and abs(self.offset_s) > max(_SKEW_SECONDS, self.uncertainty_s or 0.0)

    @property
    def correction_s(self) -> float:
        """What is taken off the stamps of the file."""
        return self.offset_s if self.matters and self.offset_s is not None else 0.0

    @property
    def zone_s(self) -> int:
        """The part of the offset that is a time zone: whole half hours."""
        if self.offset_s is None:
            return 0
        zone = round(self.offset_s / _ZONE_SECONDS) * _ZONE_SECONDS
        return zone if abs(self.offset_s - zone) <= _ZONE_REST_SECONDS else 0


@record(frozen=True)
class Member:
    """One file of a run: the node or rank that wrote it, and its clock. ``differs`` are flags with other values than on the first node."""

    source: str
    role: str  # prefill, decode, server or router
    launch: Launch | None
    node: int | None
    ranks: tuple[Rank, ...]
    clock: Clock
    differs: tuple[tuple[str, Any, Any], ...] = ()  # flag, its value here, its value on the first node


@record(frozen=True)
class StageReached:
    """The first line of a stage on each rank that reached it."""

    name: str
    marks: Mapping[Rank, Mark]

    @property
    def first(self) -> Mark:
        """The earliest line."""
        return min(self.marks.values(), key=lambda mark: mark.order)

    @property
    def last(self) -> Mark:
        """The latest rank's line."""
        return max(self.marks.values(), key=lambda mark: mark.order)


@record(frozen=True)
class MemoryStep:
    """A line of the ``memory`` frame: free GPU memory (GiB) at a stage, and what the step took (GiB)."""

    stage: str
    rank: Rank
    mark: Mark
    avail_gib: float | None
    usage_gib: float | None
    elapsed_s: float | None
    detail: str | None


@record(frozen=True)
class GpuLedger:
    """One rank's GPU memory through the start, in GiB; None where the log has no such line."""

    rank: Rank
    steps: tuple[MemoryStep, ...]

    def first(self, stage: str) -> MemoryStep | None:
        """The first line of a stage on this rank."""
        return next((step for step in self.steps if step.stage == stage), None)

    def last(self, stage: str) -> MemoryStep | None:
        """The last line of a stage on this rank."""
        return next((step for step in reversed(self.steps) if step.stage == stage), None)

    def all(self, stage: str) -> list[MemoryStep]:
        """All lines of a stage on this rank."""
        return [step for step in self.steps if step.stage == stage]


@record(frozen=True)
class KvPool:
    """One pool of one rank; sizes in GiB."""

    rank: Rank
    mark: Mark
    num_tokens: int | None
    k_gib: float | None
    v_gib: float | None
    kv_gib: float | None
    dtype: str | None
    kind: str
    slots: int | None

    @property
    def gib(self) -> float | None:
        """Size of the pool in GiB, or None where it was not printed."""
        parts = [part for part in (self.k_gib, self.v_gib, self.kv_gib) if part is not None]
        return sum(parts) if parts else None


@record(frozen=True)
class Capacity:
    """The effective limits a scheduler printed when it was ready."""

    rank: Rank
    mark: Mark
    max_total_num_tokens: int
    chunked_prefill_size: int | None
    max_prefill_tokens: int | None
    max_running_requests: int | None
    context_len: int | None
    avail_gib: float | None


@record(frozen=True)
class HostPool:
    """A host memory pool one rank announced, in GB (1e9 bytes)."""

    rank: Rank
    mark: Mark
    label: str
    gb: float
    num_tokens: int | None


@record(frozen=True)
class GuardRefusal:
    """SGLang's own host-memory check refusing a pool, in GB (1e9 bytes)."""

    rank: Rank
    mark: Mark
    requested_gb: float
    free_gb: float


@record(frozen=True)
class LoadBar:
    """The last state of one progress bar of checkpoint loading."""

    kind: str
    mark: Mark
    first: Mark
    percent: int
    done: int
    total: int
    elapsed_s: float | None
    rate_per_s: float | None

    @property
    def finished(self) -> bool:
        """Whether all shards are loaded."""
        return self.done >= self.total


@record(frozen=True)
class Link:
    """An exception of a chain: class, text and the line its text begins on."""

    kind: str
    message: str
    line: int


@record(frozen=True)
class Failure:
    """An error: an exception with its traceback, or a fatal line."""

    kind: str
    message: str
    mark: Mark
    message_line: int
    line_end: int
    rank: Rank
    process: str | None
    frames: tuple[tuple[str, int, str], ...]
    chain: tuple[Link, ...]

    @property
    def said_at(self) -> int:
        """Place of the line on which the exception's text begins, to be compared with the order of marks."""
        return self.mark.order + self.message_line - self.mark.line

    @property
    def texts(self) -> tuple[str, ...]:
        """``Kind: message`` of the root cause first, the raised exception last."""
        return (*(f"{link.kind}: {link.message}" for link in self.chain), f"{self.kind}: {self.message}")

    @property
    def text(self) -> str:
        """All texts of the chain in one string."""
        return "\n".join(self.texts)

    def has_frame(self, *needles: str) -> bool:
        """Whether any frame's file or function contains one of the needles."""
        return any(needle in name or needle in function for name, _, function in self.frames for needle in needles)

    def evidence(self, needle: str = "") -> Evidence:
        """Cite the line on which the exception's text begins."""
        return Evidence(self.mark.source, self.message_line, needle=needle)

    def proof(self, needle: str = "") -> list[Evidence]:
        """Cite the exception's text, and the line that opens its traceback, which has the time and the rank."""
        text = self.evidence(needle)
        return [text] if self.mark.line == self.message_line else [text, self.mark.evidence("Traceback")]


@record(frozen=True)
class Override:
    """A flag that SGLang changed by itself."""

    rank: Rank
    mark: Mark
    flag: str
    old: str | None
    new: str | None
    text: str


@record(frozen=True)
class Notice:
    """A line of another kind that a rule may want: its level and text."""

    rank: Rank
    mark: Mark
    level: str
    text: str


@record(frozen=True)
class ShutdownEvent:
    """A line about a process ending."""

    event: str
    rank: Rank
    mark: Mark
    exit_code: int | None
    remaining_req: int | None
    text: str


@record(frozen=True)
class WatchdogEvent:
    """A watchdog or health check that fired."""

    name: str
    rank: Rank
    mark: Mark
    timeout_s: float | None
    text: str


@record(frozen=True)
class Occupancy:
    """How long (seconds) one scheduler ran this many requests with its queue and pool in one state."""

    running: int
    kind: str  # "steady": decode lines after a decode line without a gap, "decode": other decode lines, "prefill"
    waiting: bool
    band: str  # "full": a KV pool at >= 0.95, "states": recurrent-state slots at >= 0.95, "high": KV >= 0.9, else "room"
    seconds: float
    lines: int
    usage: float  # mean KV usage
    queue_max: int
    mark: Mark  # the line with the longest queue
    first: Mark
    last: Mark


@record(frozen=True)
class GraphUse:
    """Which decode batches ran in a captured graph and which did not."""

    on_lines: int
    off_lines: int
    on_running_max: int | None
    off_running_min: int | None
    off_running_max: int | None
    off_share: float  # of the decode lines' time
    off_mark: Mark | None  # the largest batch without a graph
    on_mark: Mark | None  # the largest batch with one


@record(frozen=True)
class Slope:
    """The longest stretch of steady decode lines with one batch size: speed against context."""

    running: int
    lines: int
    tokens_first: int
    tokens_last: int
    speed_first: float  # token/s
    speed_last: float
    elasticity: float  # d ln(speed) / d ln(tokens), least squares
    correlation: float
    first: Mark
    last: Mark


@record(frozen=True)
class Drift:
    """Steps/s per request at one batch size and like contexts, in the first and in the last third of the steady lines."""

    running: int
    lines: int
    before: float
    after: float
    first: Mark
    last: Mark


@record(frozen=True)
class BatchWindow:
    """Figures of one scheduler. Shares of time come from its decode and prefill lines together, speeds from decode lines (seconds)."""

    rank: Rank
    lines: int
    seconds: float
    idle_seconds: float  # without any batch line
    first: Mark
    last: Mark
    throughput_mean: float  # token/s, weighted by interval
    throughput_peak: float
    running_max: int
    running_median: float
    queue_max: int
    queue_median: float
    usage_max: float
    usage_median: float
    full_usage_median: float | None  # tokens of full attention
    swa_usage_median: float | None
    mamba_usage_median: float | None
    accept_len_mean: float | None  # weighted by running requests
    accept_weight: int  # running requests summed over the lines with an accepted length
    accept_mark: Mark | None  # the line with the shortest accepted length
    graph_off_share: float | None
    graph: GraphUse | None
    steps_median: float | None  # steps/s per request over steady lines: throughput / (running x accepted length)
    steady_lines: int
    slope: Slope | None
    drift: Drift | None
    full_share: float  # share of time with usage >= 0.95 and requests waiting
    full_mark: Mark | None
    waiting_share: float  # share of time with requests waiting
    waiting_roomy_share: float  # share of time with requests waiting and usage < 0.9
    roomy_mark: Mark | None
    roomy_running: tuple[int, ...]  # running requests of those decode lines, distinct, descending
    num_tokens_max: int | None
    occupancy: tuple[Occupancy, ...]


@record(frozen=True)
class HitWindow:
    """Prefix reuse over a tenth of the prompt tokens of one scheduler."""

    cached_share: float
    tokens: int
    swa_usage: float | None
    mamba_usage: float | None
    token_usage: float | None
    first: Mark
    last: Mark


@record(frozen=True)
class HeldLine:
    """The prefill line with the longest queue."""

    mark: Mark
    running: int
    queue: int
    usage: float


@record(frozen=True)
class PrefillWindow:
    """Prefill of one scheduler; seconds are the time its batches took as far as the lines tell."""

    rank: Rank
    lines: int
    seconds: float
    total_seconds: float  # of the scheduler, decode included, idle time not
    first: Mark
    last: Mark
    new_seq: int
    new_token: int
    cached_token: int
    largest_new_token: int
    largest: Mark
    full_lines: int  # as many new tokens as the largest batch, within 5 %
    input_throughput: float | None  # token/s: median of what full batches print
    queue_max: int
    waiting_seconds: float  # of the prefill seconds, with requests waiting
    held: HeldLine | None
    pending_max: int | None
    pending_mark: Mark | None
    starved_seconds: float  # in runs of prefill batches while requests were running
    starved_longest_seconds: float
    starved_longest_lines: int
    starved_first: Mark | None
    starved_last: Mark | None
    starved_running: int
    hits: tuple[HitWindow, ...]


@record(frozen=True)
class PrefillSummary:
    """Figures of all prefill lines."""

    lines: int
    new_token: int
    cached_token: int
    first: Mark
    last: Mark
    largest: Mark
    largest_new_token: int
    queue_max: int


@record(frozen=True)
class Balance:
    """Load over data-parallel ranks, compared within the same ten seconds."""

    ranks: int
    buckets: int  # in which at least one rank ran something
    uneven: int  # ... usage or running requests differ by more than a factor of two
    uneven_waiting: int  # ... while requests waited on the fuller rank
    high_rank: Rank
    low_rank: Rank
    high_running: float
    low_running: float
    high_usage: float
    low_usage: float
    high: Mark
    low: Mark | None


@record(frozen=True)
class Retraction:
    """One retraction; the lines of all ranks that print it count once."""

    mark: Mark
    requests: int
    ratio_old: float | None
    ratio_new: float | None


@record(frozen=True)
class Serving:
    """What the server did after it was ready."""

    windows: tuple[BatchWindow, ...]
    prefill: PrefillSummary | None
    retraction_events: int
    retraction_first: Mark | None
    retraction_last: Mark | None
    prefills: tuple[PrefillWindow, ...] = ()
    retractions: tuple[Retraction, ...] = ()
    retractions_per_minute: float = 0.0  # in the busiest minute
    balance: Balance | None = None

    @property
    def decode_lines(self) -> int:
        """Decode lines of all schedulers."""
        return sum(window.lines for window in self.windows)

    @property
    def throughput_mean(self) -> float:
        """Token/s of the whole server: the sum over its schedulers; pipeline stages all print the same tokens."""
        return sum(window.throughput_mean for window in self.windows if not window.rank.pp)


@record(frozen=True)
class Ending:
    """How the log ends: abrupt, error, killed, stopped or running."""

    how: str
    mark: Mark


@dataclass
class Run:
    """Everything known of one server start and what followed it."""

    sources: tuple[str, ...]
    launches: tuple[Launch, ...]
    launch: Launch | None
    ranks: tuple[Rank, ...]
    ledgers: Mapping[Rank, GpuLedger]
    stages: Mapping[str, StageReached]
    kv_pools: tuple[KvPool, ...]
    capacities: tuple[Capacity, ...]
    host_pools: tuple[HostPool, ...]
    refusals: tuple[GuardRefusal, ...]
    bars: tuple[LoadBar, ...]
    failures: tuple[Failure, ...]
    overrides: tuple[Override, ...]
    notices: tuple[Notice, ...]
    shutdowns: tuple[ShutdownEvent, ...]
    watchdogs: tuple[WatchdogEvent, ...]
    serving: Serving
    ready: Mark | None
    first_mark: Mark
    last_mark: Mark
    notes: list[str] = field(default_factory=list)
    side: Side = field(default_factory=Side)  # what files given beside the logs say
    members: tuple[Member, ...] = ()  # its files, the reference of the clocks first
    earlier: tuple[Launch, ...] = ()  # starts of the same server before this one
    releases: tuple[str, str, str] | None = None  # oldest and newest release that the lines fit, and why; None where no lines were read

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """Numbers of the nodes whose logs are here."""
        return tuple(sorted({member.node for member in self.members if member.node is not None}))

    @cached_property
    def node_of(self) -> Mapping[str, int | None]:
        """The node that wrote each file."""
        return {member.source: member.node for member in self.members}

    @property
    def merged(self) -> bool:
        """Whether several files are this run."""
        return len(self.members) > 1

    @cached_property
    def doubt_s(self) -> float | None:
        """Seconds by which events of different files may be out of order; None where a clock is not known."""
        doubts = [member.clock.uncertainty_s for member in self.members if member.clock.basis not in ("reference", "same")]
        known = [doubt for doubt in doubts if doubt is not None]
        return max(known, default=0.0) if len(known) == len(doubts) else None

    @cached_property
    def memory_steps(self) -> tuple[MemoryStep, ...]:
        """All memory lines of all ranks, in line order."""
        return tuple(sorted((step for ledger in self.ledgers.values() for step in ledger.steps), key=lambda step: step.mark.order))

    @cached_property
    def troubles(self) -> tuple[Trouble, ...]:
        """Everything that went wrong, in the order it happened."""
        from logforensics.run.troubles import troubles_of

        return troubles_of(self)

    @cached_property
    def stage(self) -> str:
        """The last stage that any rank reached."""
        return next((name for name in reversed(STAGES) if name in self.stages), "launch")

    def lowest(self, stage: str, *, last: bool = False) -> MemoryStep | None:
        """The line of a stage with the least free memory over the ranks: SGLang sizes by the minimum."""
        steps = [(ledger.last(stage) if last else ledger.first(stage)) for ledger in self.ledgers.values()]
        known = [step for step in steps if step is not None and step.avail_gib is not None]
        return min(known, key=lambda step: (step.avail_gib, step.mark.order), default=None)

    def notice_with(self, *needles: str) -> Notice | None:
        """The first notice that contains all needles."""
        return next((notice for notice in self.notices if all(needle in notice.text for needle in needles)), None)
