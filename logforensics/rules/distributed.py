"""Several processes: rendezvous, collectives, and peers that left. The culprit is usually the one that does not speak."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import timedelta

from logforensics import lazy_re
from logforensics.findings import Arithmetic, Confidence, Recommendation, Severity
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite, environment, other, rule, set_to, step
from logforensics.rules.signs import Sign, active, cited, matching, ranks_of, said, where
from logforensics.run.model import Rank
from logforensics.run.troubles import Trouble

_ROOT = r"out of memory|ECC|illegal memory|device-side assert|misaligned|/dev/shm|shared memory segment|No space left"
_ROOTS = lazy_re.compile(_ROOT, re.IGNORECASE)
_COLLECTIVE = Sign(
    lazy_re.compile(
        r"NCCL error|nccl(?:UnhandledCudaError|SystemError|InternalError|InvalidUsage|RemoteError|InvalidArgument)|unhandled (?:cuda|system) error"
        r"|HIP failure|NCCL communicator was aborted|DistBackendError|remote process exited|HCCL.{0,40}(?:error|fail)|hccl.{0,40}fail|\bEI000[136-9]\b"
        r"|Duplicate GPU detected",
    ),
    unless=lazy_re.compile(_ROOT + r"|collective operation timeout|timed? ?out", re.IGNORECASE),
)
_NCCL_SAYS = Sign(lazy_re.compile(r"NCCL WARN|FATAL ERROR|HIP failure|Cuda failure|retrying \(\d+/\d+\)"), origins=("notice",))
LOST = Sign(
    lazy_re.compile(
        r"Connection closed by peer|Connection reset by peer|Read error \[|Write error \[|recvValue failed|recvBytes failed|sendBytes failed"
        r"|failed to recv, got 0 bytes|Socket closed|Broken pipe|Connection was likely closed|remote process exited",
    ),
    origins=("exception",),
)
_WAITED = Sign(
    lazy_re.compile(
        r"collective operation timeout|ran for \d+ milliseconds before timing out|Timed out waiting \d+ ?ms for (?:recv|send)|wait timeout after \d+ ?ms"
        r"|[Nn]otify wait.{0,40}time ?out|\bEI0002\b|Watchdog caught collective",
    )
)
INIT_FRAMES = (
    "init_torch_distributed",
    "init_distributed_environment",
    "init_process_group",
    "_create_c10d_store",
    "rendezvous",
    "TCPStore",
    "dist_init",
)
_IDLE_FRAMES = ("recv_requests", "broadcast_pyobj", "recv_reqs", "event_loop", "prepare_mlp_sync_batch", "prepare_dp_attn_batch")
LOOPBACK = ("127.", "localhost", "0.0.0.0", "[::1]")  # noqa: S104 - compared with, not bound to
_WORK = lazy_re.compile(r"SeqNum=(\d+), OpType=(\w+), NumelIn=(\d+)")
_RAN = lazy_re.compile(r"ran for (\d+) milliseconds")
_LIMIT = lazy_re.compile(r"Timeout\(ms\)=(\d+)|waiting (\d+) ?ms|timeout after (\d+) ?ms")


# ---------------------------------------------------------------------------------------------------------------- who is missing


def expected_ranks(case: Case) -> list[int]:
    """TP ranks that these logs should show: those of their nodes where the nodes are known, else all of the group."""
    world, nodes = case.config.size("tp_size"), case.config.size("nnodes")
    number = case.config.number("node_rank")
    here = case.run.nodes or ((int(number),) if number is not None else ())
    if nodes > 1 and here:
        each = max(1, world // nodes)
        return [rank for node in here for rank in range(node * each, (node + 1) * each)]
    return list(range(world))


def _silent(case: Case, stage: str) -> list[int]:
    """Expected TP ranks without a line of ``stage``; nothing where the stage was not reached by any."""
    reached = case.run.stages.get(stage)
    if reached is None:
        return []
    seen = {rank.tp for rank in reached.marks if rank.tp is not None}
    return [number for number in expected_ranks(case) if seen and number not in seen]


def remote_peers(troubles: Sequence[Trouble]) -> list[str]:
    """Addresses that the troubles name, without this machine's loopback, the most frequent first."""
    counts: dict[str, int] = {}
    for trouble in troubles:
        for ip, _ in trouble.peers:
            if not ip.startswith(LOOPBACK):
                counts[ip] = counts.get(ip, 0) + 1
    return sorted(counts, key=lambda ip: -counts[ip])


def starting(case: Case, trouble: Trouble | None = None) -> bool:
    """Whether the ranks were still joining: initialisation began and ended on none of them before this."""
    line = trouble.mark.order if trouble else 1 << 62
    ended = [name for name in ("init_dist_end", "load_begin", "load_end", "capacity", "serving") if name in case.run.stages]
    return not any(case.run.stages[name].first.order < line for name in ended) and not case.served(trouble.mark if trouble else None)


# ---------------------------------------------------------------------------------------------------------------- rules


@rule("LF402", "nccl_failure", "A collective failed")
def nccl_failure(case: Case) -> Verdict | None:
    """NCCL, RCCL, HCCL or gloo failed: a communicator could not be made, or a peer was gone.

    Why: a peer's process ended or never came, two instances raced for the same devices, or the transport (P2P, IB, shared memory) refused.
    Confirm: the native line before the Python error (`NCCL WARN`, `HIP failure`, `connect to … returned Connection refused`). The refused address is the
    culprit's, not the reporter's; `NCCL_DEBUG=INFO` shows the native line where it is missing.
    Fix: read the log of the node that is named; start all nodes together and co-located instances one after the other.
    False friends: an out-of-memory error, a bad memory access, a full /dev/shm or a time limit inside an NCCL text is that cause, not this one.
    The order in which local ranks report means nothing.
    """
    struck = [item for item in matching(case, _COLLECTIVE) if item.origin == "exception" or "HIP failure" in item.text]
    lost = [item for item in matching(case, LOST) if not _idle(case, item)]
    if not struck and not (lost and not _others(case, lost)):
        return None
    if matching(case, _WAITED) or any(_ROOTS.search(item.text) for item in active(case)):
        return None
    main = struck or lost
    native = [item for item in matching(case, _NCCL_SAYS) if item.mark.source == main[0].mark.source]
    refused = [item for item in (*native, *active(case)) if "refused" in item.text and item.peers]
    peers = remote_peers(refused) or remote_peers([*lost, *struck])
    text = "\n".join(item.text for item in (*struck, *native))
    device = re.search(r"HIP failure|unhandled cuda error|UnhandledCudaError|Cuda failure|invalid argument", text) is not None
    stage = where(case, main[0])
    return Verdict(
        Severity.CRITICAL,
        Confidence.PROBABLE,
        "init_dist" if starting(case, main[0]) or _in_init(main[0]) else stage,
        _collective_title(peers, device=device, stage=stage),
        _collective_story(peers, device=device),
        cite([*cited(refused, "refused", 3), *cited([item for item in native if item not in refused], limit=3), *cited(main)]),
        _retries(refused),
        _collective_fix(peers, device=device, cuda_known=bool(native)),
        missing=_collective_missing(peers, native=bool(native)),
    )


def _in_init(trouble: Trouble) -> bool:
    return trouble.has_frame("ncclCommInitRank", *INIT_FRAMES)


def _idle(case: Case, trouble: Trouble) -> bool:
    """Whether a rank lost its peer while it waited for requests; where the frames are missing, whether it was serving."""
    return trouble.has_frame(*_IDLE_FRAMES) or (not trouble.frames and case.served(trouble.mark))


def _others(case: Case, known: Sequence[Trouble]) -> list[Trouble]:
    """Active exceptions and watchdogs that are none of the known ones, and are not their consequence."""
    return [item for item in active(case) if item.origin in ("exception", "watchdog") and item not in known and not LOST.matches(item)]


def _collective_title(peers: Sequence[str], *, device: bool, stage: str) -> str:
    if peers:
        return f"the peer {peers[0]} was gone when this node wanted to talk to it"
    if device:
        return "the collective library failed on the device side"
    return f"a collective failed ({stage.replace('_', ' ')})"


def _collective_story(peers: Sequence[str], *, device: bool) -> str:
    if peers:
        return (
            f"Every rank here reports the same lost or refused connection to {peers[0]}. The rank that reports is the one that waited: the process at that "
            "address had ended before. Why it ended stands in its own log, not in this one. The order of the local ranks means nothing."
        )
    if device:
        return (
            "The text 'unhandled cuda error' hides a native error of the transport. It strikes when two instances set up peer-to-peer access on the same devices at "
            "once, or when P2P/IPC is not possible between these devices."
        )
    return "The collective library gave up. Which rank was missing cannot be decided from this log."


def _retries(refused: Sequence[Trouble]) -> list[Arithmetic]:
    found = next((found for item in refused if (found := re.search(r"after (\d+) attempts|\((\d+)/(\d+)\)", item.text))), None)
    if found is None:
        return []
    return [step("attempts before it gave up", "printed", int(found[1] or found[3]), "attempts")]


def _collective_fix(peers: Sequence[str], *, device: bool, cuda_known: bool) -> list[Recommendation]:
    fix = []
    if peers:
        fix.append(other("logs", f"read the log of the node at {peers[0]} first: it holds the cause"))
        fix.append(other("launch", "restart all nodes together: a half-restarted group meets ports that no one serves"))
    if device:
        fix.append(other("launch", "start co-located instances one after the other: the next when the first is ready"))
    if not cuda_known or device:
        fix.append(environment("NCCL_DEBUG", "INFO", "prints the native error that the Python text hides"))
    fix.append(
        environment("NCCL_SOCKET_IFNAME", "the interface that carries --dist-init-addr", "Alternative: if the interface was chosen wrongly")
    )
    fix.append(environment("GLOO_SOCKET_IFNAME", "the same interface", "Alternative: the same choice for gloo"))
    return fix


def _collective_missing(peers: Sequence[str], *, native: bool) -> list[str]:
    missing = [f"the log of the node at {peers[0]}"] if peers else ["the logs of the other nodes"]
    return missing if native else [*missing, "the output with NCCL_DEBUG=INFO"]


@rule("LF403", "nccl_timeout", "A collective waited too long")
def nccl_timeout(case: Case) -> Verdict | None:
    """A collective waited longer than its limit for a rank that did not come.

    Why: one rank or node was slower than the limit (loading, compiling) or had stopped. The rank that reports is the one that waited.
    Confirm: `ran for N milliseconds`: the wait began that long before. `OpType=ALLREDUCE, NumelIn=1` after loading is the exchange of free memory: the slow
    party was still loading. List the ranks without `Load weight end`.
    Fix: a `--dist-timeout` above the difference between the slowest and the fastest rank; faster or equal storage on all nodes. When serving: find what the
    silent rank did (py-spy, its log).
    False friends: `Connection closed by peer` on the others and the hints under `Capture cuda graph failed` follow from it.
    """
    waited = [item for item in matching(case, _WAITED) if not starting(case, item) or _WORK.search(item.text)]
    if not waited or _roots_before(case, waited[0]):
        return None
    text = "\n".join(item.text for item in waited)
    ran, limit, work = _RAN.search(text), _LIMIT.search(text), _WORK.search(text)
    seconds = int(ran[1]) / 1000 if ran else None
    loading = _slow_load(case, int(work[3]) if work else None)
    absent = _silent(case, "load_end") if loading else [n for n in expected_ranks(case) if n not in {rank.tp for rank in ranks_of(waited)}]
    reporters = ranks_of(waited)
    steps = _wait_steps(case, waited[0], seconds, limit)
    bar = max((bar for bar in case.run.bars if bar.elapsed_s), key=lambda bar: bar.elapsed_s or 0.0, default=None)
    fix = [set_to("--dist-timeout", _longer(bar.elapsed_s if bar and loading else None, seconds, steps), "s", _TIMEOUT_WHY[loading])]
    if loading:
        fix.append(
            other("checkpoint location", "a local disk, or a copy on each node, so that all ranks finish loading at about the same time")
        )
    else:
        fix.append(other("logs", "read what the silent rank did in that time (its log, py-spy): it is the cause"))
        fix.append(environment("NCCL_DEBUG", "INFO", "names the communicator and the peers"))
    lost = matching(case, LOST)
    return Verdict(
        Severity.CRITICAL,
        Confidence.PROBABLE,
        "load" if loading else where(case, waited[0]),
        f"{said(reporters)} waited {f'{seconds:.0f} s' if seconds else 'too long'} for {_named(absent)} that did not come",
        _wait_story(reporters, absent, loading=loading, lost=bool(lost)),
        cite([*cited(waited, "ran for"), bar.mark.evidence("Completed") if bar and loading else None, *cited(lost, limit=2)]),
        steps,
        fix,
        missing=["the log of the rank that did not come", "the clock of each node"],
    )


_TIMEOUT_WHY = {
    True: "must exceed the difference between the slowest and the fastest rank; the default is 600 s for NCCL",
    False: "Alternative: only if a step of this length is legitimate (a first compilation)",
}


def _named(absent: Sequence[int]) -> str:
    """``TP3, a rank`` where few ranks are missing, else ``a rank``."""
    return f"{said([Rank(tp=number) for number in absent])}, the rank{'s' if len(absent) > 1 else ''}" if 0 < len(absent) < 5 else "a rank"


def _roots_before(case: Case, waited: Trouble) -> bool:
    """Whether an error of another kind came before the wait ended: then the wait is its echo."""
    return any(
        item.origin == "exception" and item.order < waited.order and not LOST.matches(item) and not _COLLECTIVE.matches(item)
        for item in active(case)
        if not _WAITED.matches(item)
    )


def _slow_load(case: Case, elements: int | None) -> bool:
    """Whether the collective is the exchange after loading."""
    if case.served():
        return False
    return elements == 1 or ("load_begin" in case.run.stages and bool(_silent(case, "load_end")))


def _wait_steps(case: Case, first: Trouble, seconds: float | None, limit: re.Match[str] | None) -> list[Arithmetic]:
    steps = []
    if limit:
        steps.append(step("limit", "printed", int(next(group for group in limit.groups() if group)) / 1000, "s"))
    if seconds:
        steps.append(step("waited", "printed", seconds, "s"))
        if first.mark.time is not None:
            began = first.mark.time - timedelta(seconds=seconds)
            steps.append(step("the wait began", f"{first.mark.time:%H:%M:%S} - {seconds:.0f} s", f"{began:%Y-%m-%d %H:%M:%S}"))
    absent = _silent(case, "load_end")
    if absent:
        steps.append(step("ranks without `Load weight end`", "expected - seen", len(absent)))
    return steps


def _longer(load: float | None, waited: float | None, steps: list[Arithmetic]) -> int:
    """A limit that holds: a quarter above the longest known duration, in steps of ten minutes, at least an hour."""
    longest = max(load or 0.0, 2 * (waited or 0.0))
    value = max(3600, math.ceil(longest * 1.25 / 600) * 600)
    if load:
        steps.append(step("limit that holds", f"{load:.0f} s of loading × 1.25, rounded up", value, "s"))
    return value


def _wait_story(reporters: Sequence[Rank], absent: Sequence[int], *, loading: bool, lost: bool) -> str:
    story = f"The rank that reports is the one that waited ({said(reporters)}); the culprit is the one that did not come. "
    if loading:
        story += "The collective is the exchange of free memory after loading: the other party was still loading its weights. "
    if absent and len(absent) < 64:
        story += f"Not heard of in this log: TP {', '.join(map(str, absent[:16]))}{' …' if len(absent) > 16 else ''}. "
    if lost:
        story += "Connections closed by a peer, and hints about CUDA graphs or memory, follow from it."
    return story.strip()


@rule("LF418", "peer_shutdown", "Another node left first")
def peer_shutdown(case: Case) -> Verdict | None:
    """Another node ended first; this one only lost its connections.

    Why: ranks of the same group share sockets. When node 0 ends (a test that is over, a stop, a crash), the idle ranks of the others fail in the call in
    which they wait for requests.
    Confirm: all exceptions stand in `recv_requests` / `broadcast_pyobj`, within a second, and every address is the same foreign one.
    Fix: none here: read the log of that node; stop the other nodes before or together with node 0.
    False friends: the same words after an error of this node are the echo of that error.
    """
    lost = matching(case, LOST)
    idle = [item for item in lost if _idle(case, item)]
    if not idle or _others(case, lost) or len(idle) < len(lost) or any(_ROOTS.search(item.text) for item in active(case)):
        return None
    peers = remote_peers(idle)
    ranks = ranks_of(idle)
    link = [
        item
        for item in active(case)
        if item.origin == "notice" and re.search(r"link is broken|Attempting to reconnect|store.{0,40}broken", item.text)
    ]
    node = case.run.node_of.get(idle[0].mark.source) if case.run.merged else case.config.number("node_rank")
    return Verdict(
        Severity.WARNING,
        Confidence.CERTAIN if peers and len(idle) > 1 else Confidence.PROBABLE,
        "serving",
        f"the node at {peers[0]} left first; {len(ranks) or len(idle)} ranks here lost their connection"
        if peers
        else "another process of the group left first",
        "Nobody crashed here: the ranks were waiting for requests when the connection went. Why the other side ended stands in its log.",
        cite([*cited(idle, limit=4), *cited(link, limit=2)]),
        [step("ranks that lost the peer", "distinct tags", len(ranks))]
        + ([step("node of this log", "node_rank", int(node))] if node is not None else []),
        [
            other("orchestration", "stop the other nodes before or together with node 0; restart the whole group, not one node"),
            other(
                "log collection",
                f"keep the log of the node at {peers[0]}: it holds the explanation" if peers else "keep the log of the other nodes",
            ),
        ],
        missing=[f"the log of the node at {peers[0]}" if peers else "the logs of the other nodes"],
    )
