"""The rendezvous: ranks that do not all join, and an address that is wrong, unreachable or taken."""

from __future__ import annotations

import re

from logforensics import lazy_re
from logforensics.findings import Arithmetic, Confidence, Evidence, Recommendation, Severity
from logforensics.rules.case import Case
from logforensics.rules.distributed import INIT_FRAMES, LOOPBACK, starting
from logforensics.rules.registry import Verdict, cite, environment, other, rule, set_to, step, upgrade
from logforensics.rules.signs import Sign, active, cited, matching
from logforensics.run.model import Mark
from logforensics.run.troubles import Trouble

_MESH = lazy_re.compile(r"Rank (\d+) is NOT connected to: ?\[([\d, ]+)\]")
_NOT_JOINED = Sign(
    lazy_re.compile(
        r"connectFullMesh failed|is NOT connected to: ?\[\d|clients joined|DistStoreError|waiting for clients|[Cc]lient socket has timed out"
        r"|init_process_group.{0,80}time|wait timeout after \d+ ?ms, keys: /default_pg|[Rr]endezvous.{0,60}time ?d? ?out|ncclUniqueId from .{0,200}time(?:d )?out",
    )
)
_ADDRESS = Sign(
    lazy_re.compile(
        r"DistNetworkError|failed to connect to|server socket has failed to (?:listen|bind)|getaddrinfo|Name or service not known"
        r"|[Nn]ame resolution|network addresses of .{0,80} cannot be retrieved|No route to host|Network is unreachable|gaierror"
        r"|(?:too many|not enough) values to unpack",
    ),
)
_REFUSED = lazy_re.compile(r"errno: (?:111|113|101)|[Cc]onnection refused|No route to host|Network is unreachable")


def _address(case: Case) -> str | None:
    value = case.config.get("dist_init_addr")
    return str(value) if value else None


def _suspicious(address: str | None, nodes: int) -> str | None:
    """What is wrong with a rendezvous address, or None."""
    if address is None:
        return None
    host = address.rsplit(":", 1)[0]
    if host.startswith("[") or host.count(":") > 1:
        return "ipv6"
    if nodes > 1 and host.startswith(LOOPBACK):
        return "loopback"
    return None


@rule("LF404", "dist_init_timeout", "The ranks did not all join in time")
def dist_init_timeout(case: Case) -> Verdict | None:
    """Not all ranks reached distributed initialisation in time, or could not reach each other.

    Why: gloo or NCCL chose an interface that the other node cannot reach, a node was not started, or one connection was lost.
    Confirm: `Init torch distributed begin.` without an end; `Rank r is NOT connected to: [k]` names the missing rank.
    Fix: `GLOO_SOCKET_IFNAME` and `NCCL_SOCKET_IFNAME` on every node; start the missing node; a shorter `--dist-timeout` fails early with the culprit named.
    False friends: `[Gloo] Rank 0 is connected to 0 peer ranks` is printed by every healthy start; a refused rendezvous address is `dist_init_address`.
    """
    struck = [item for item in matching(case, _NOT_JOINED) if item.origin != "notice" or not _later_progress(case, item)]
    struck = [
        item
        for item in struck
        if starting(case, item)
        or item.has_frame(*INIT_FRAMES)
        or "/default_pg" in item.text
        or "ncclUniqueId" in item.text
        or "[Gloo]" in item.text
    ]
    if any(_REFUSED.search(item.text) for item in active(case)):
        struck = [item for item in struck if "socket has timed out" not in item.text]  # no one listens there: dist_init_address
    if not struck:
        return _silent_start(case)
    mesh = next((found for item in struck if (found := _MESH.search(item.text))), None)
    missing_rank = mesh[2].strip() if mesh else None
    begin = case.run.stages.get("init_dist_begin")
    steps = [step("rank that is missing", f"rank {mesh[1]} names it", missing_rank or "")] if mesh else []
    steps += _silence(case)
    return Verdict(
        Severity.CRITICAL,
        Confidence.CERTAIN if mesh or len(struck) > 1 else Confidence.PROBABLE,
        "init_dist",
        f"the ranks did not all join: {f'rank {missing_rank} is missing' if missing_rank else 'no full mesh was formed'}",
        "Every rank began distributed initialisation, but not all connections came about. "
        + (
            f"Rank {missing_rank} is the one to look at, not the rank that says so."
            if missing_rank
            else "The address a node chose for itself is not reachable from the other."
        ),
        cite([*cited(struck), begin.first.evidence("Init torch distributed begin") if begin else None]),
        steps,
        [
            environment(
                "GLOO_SOCKET_IFNAME",
                "the interface that carries --dist-init-addr",
                "one interface that all nodes reach, the same on every node",
            ),
            environment("NCCL_SOCKET_IFNAME", "the same interface", "the same choice for NCCL"),
            set_to("--dist-timeout", 600, "s", "fails in minutes with the culprit named, instead of hanging"),
            other("restart", "start all nodes again together: a single lost connection is not a wrong address"),
        ],
        missing=["the log of the missing rank's node", "`ip addr` of every node"],
    )


def _later_progress(case: Case, item: Trouble) -> bool:
    """Whether the ranks went on after this line: then it was a retry that succeeded."""
    return any(
        stage.last.order > item.mark.order
        for name, stage in case.run.stages.items()
        if name in ("load_begin", "load_end", "capacity", "serving")
    )


def _silence(case: Case) -> list[Arithmetic]:
    begin = case.run.stages.get("init_dist_begin")
    start, end = (begin.last.time if begin else None), case.run.last_mark.time
    if start is None or end is None or (end - start).total_seconds() < 60:
        return []
    return [step("silence after initialisation began", f"{end:%H:%M:%S} - {start:%H:%M:%S}", (end - start).total_seconds(), "s")]


def _silent_start(case: Case) -> Verdict | None:
    """Several nodes, initialisation began, and nothing more is said: the head node or a worker was not reached."""
    begin = case.run.stages.get("init_dist_begin")
    nodes = case.config.size("nnodes")
    if begin is None or nodes < 2 or not starting(case) or active(case) or _suspicious(_address(case), nodes) or case.run.shutdowns:
        return None
    return Verdict(
        Severity.WARNING,
        Confidence.POSSIBLE,
        "init_dist",
        "the log ends while the ranks were joining",
        "Initialisation began and did not end. Whether a node was missing, unreachable or merely slow cannot be decided from this log.",
        cite([begin.first.evidence("Init torch distributed begin"), case.config.evidence("dist_init_addr")]),
        _silence(case),
        [
            environment("GLOO_SOCKET_IFNAME", "the interface that carries --dist-init-addr", "if the wrong interface was chosen"),
            environment("NCCL_SOCKET_IFNAME", "the same interface", "the same choice for NCCL"),
            set_to("--dist-timeout", 600, "s", "fails in minutes with the culprit named"),
        ],
        missing=["the logs of the other nodes", "the rest of this log"],
    )


@rule("LF405", "dist_init_address", "The rendezvous address is wrong, unreachable or taken")
def dist_init_address(case: Case) -> Verdict | None:
    """The rendezvous address is wrong, unreachable or taken.

    Why: `--dist-init-addr` must be an address of node 0 that every node reaches, with a free port. Releases before 0.4.4 split it at every colon, so IPv6
    could not be parsed; 127.0.0.1 means another machine on each node.
    Confirm: `Init torch distributed begin.` and no end; `The client socket has failed to connect to …`, `server socket has failed to listen`, a name that
    cannot be resolved.
    Fix: an IPv4 `host:port` of node 0, the same on all nodes.
    False friends: worker nodes that start first print refused connections until the head listens: harmless where initialisation ends.
    """
    nodes = case.config.size("nnodes")
    address = _address(case)
    struck = [
        item
        for item in matching(case, _ADDRESS)
        if item.has_frame(*INIT_FRAMES) or (_about_store(item) and not _later_progress(case, item))
    ]
    if nodes == 1 and address is None:
        struck = [item for item in struck if "EADDRINUSE" not in item.text and "in use" not in item.text]  # an internal port: port_conflict
    begin = case.run.stages.get("init_dist_begin")
    suspicion = _suspicious(address, nodes)
    silent = begin is not None and suspicion is not None and starting(case) and not active(case)
    if not struck and not silent:
        return None
    taken = any("EADDRINUSE" in item.text or "in use" in item.text for item in struck)
    fix: list[Recommendation] = [set_to("--dist-init-addr", _better(address, taken=taken), "host:port", _ADDRESS_WHY[suspicion])]
    if suspicion == "ipv6":
        fix.append(upgrade("sglang", "0.4.4", "later releases parse IPv6 addresses"))
    if not suspicion and not taken:
        fix.append(
            environment(
                "GLOO_SOCKET_IFNAME",
                "the interface that carries --dist-init-addr",
                "Alternative: if the address is right but the interface is not",
            )
        )
    return Verdict(
        Severity.CRITICAL if struck else Severity.ERROR,
        Confidence.CERTAIN if struck and taken else Confidence.PROBABLE,
        "init_dist",
        _address_title(address, suspicion, taken=taken),
        "No rank got past distributed initialisation. All ranks must reach the rendezvous at the address of node 0. "
        + ("A begin line on every rank without an end line is the mark of a head node that cannot be reached." if silent else ""),
        cite([*cited(struck), begin.first.evidence("Init torch distributed begin") if begin else None, *_other_begins(case)]),
        [step("ranks waiting", "begin lines without an end", len(begin.marks))] if begin and silent else [],
        fix,
        missing=[] if struck else ["the log of node 0", "whether `nc -z <host> <port>` succeeds from this node"],
    )


_ADDRESS_WHY = {
    "ipv6": "releases before 0.4.4 split the address at every colon",
    "loopback": "loopback is another machine on each node; name node 0",
    None: "an IPv4 address of node 0 that all nodes reach, with a free port",
}


def _about_store(item: Trouble) -> bool:
    return re.search(r"socket|c10d|TCPStore|dist_init|rendezvous|Dist\w+Error", item.text) is not None


def _address_title(address: str | None, suspicion: str | None, *, taken: bool) -> str:
    if taken:
        return f"the rendezvous port is taken{f' ({address})' if address else ''}"
    if suspicion == "ipv6":
        return f"the ranks wait for a rendezvous at an IPv6 address ({address})"
    if suspicion == "loopback":
        return f"the ranks wait for a rendezvous at {address}, which is each node itself"
    return f"the rendezvous{f' at {address}' if address else ''} cannot be reached"


def _better(address: str | None, *, taken: bool) -> str:
    port = re.search(r":(\d+)$", address or "")
    number = int(port[1]) if port else 5000
    return f"<IPv4 address of node 0>:{number + 1 if taken else number}"


def _other_begins(case: Case) -> list[Evidence]:
    begin = case.run.stages.get("init_dist_begin")
    marks: list[Mark] = sorted(begin.marks.values(), key=lambda mark: mark.order)[1:4] if begin else []
    return [mark.evidence("Init torch distributed begin") for mark in marks]
