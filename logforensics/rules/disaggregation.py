"""Prefill–decode disaggregation and the storage tier: registration, transfer, bootstrap, and HiCache's third level."""

from __future__ import annotations

import re
from collections.abc import Sequence

from logforensics import lazy_re
from logforensics.findings import Confidence, Evidence, Recommendation, Severity
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite, environment, other, remove, rule, set_to, step, upgrade
from logforensics.rules.signs import Sign, active, cited, matching, ranks_of, said, where
from logforensics.run.troubles import Trouble

_BOOTSTRAP = Sign(
    lazy_re.compile(
        r"[Ee]rror fetching prefill (?:parallel )?info|[Cc]ould not fetch prefill|[Ff]ailed to fetch prefill|[Ff]ailed to (?:register|get).{0,60}bootstrap"
        r"|failed to register to bootstrap|[Bb]ootstrap server.{0,60}(?:fail|refused|error|down)|(?:Prefill|Decode) bootstrap failed|[Dd]ecode handshake failed"
        r"|KVPoll\.Bootstrapping|timed out.{0,80}[Bb]ootstrap(?!_?room)|[Bb]ootstrap(?!_?room).{0,80}(?:timed? ?out|refused)|prefill server.{0,80}is healthy before"
        r"|bootstrap_addr.{0,80}(?:down|fail)|[Ff]ailed to (?:connect to|query).{0,40}bootstrap|[Ee]rror (?:connecting|registering).{0,60}bootstrap"
    )
)
_REGISTER = Sign(
    lazy_re.compile(
        r"Failed to register memory|register(?:ing)? memory.{0,60}fail|Memory registration failed|ibv_reg_mr.{0,40}(?:fail|error)|nixl.{0,60}regist.{0,40}fail",
        re.IGNORECASE,
    )
)
_UNREGISTERED = Sign(lazy_re.compile(r"not registered by any active device"))
_TRANSFER = Sign(
    lazy_re.compile(
        r"(?:Prefill|Decode) transfer failed|KVTransferError|[Ff]ailed to send kv chunk|Session \S+ failed|it might be dead|could be dead|Losing connection with (?:prefill|decode)"
        r"|KVPoll\.(?:WaitingForInput|Transferring)"
        r"|NIXL_ERR|nixl.{0,60}(?:error|fail)|[Tt]ransfer(?:ring)? (?:KV|kv).{0,60}(?:fail|timed? ?out)|send_?(?:kv|aux).{0,40}fail"
    ),
    unless=lazy_re.compile(r"KVPoll\.Bootstrapping|(?:bootstrap|handshake) failed for request|prefill (?:parallel )?info"),
)
_NETWORK = Sign(
    lazy_re.compile(
        r"transport retry counter exceeded|Cannot make connection for endpoint|mark it inactive|failed to receive handshake|Socket read failed"
        r"|Failed to (?:open segment|modify QP|create QP|setup endpoint)|work request flushed|remote access error|Process failed for slice"
        r"|[Hh]andshake.{0,60}(?:fail|refused|reset)"
        r"|No available RNIC|No matched device found|Connection refused \[111\]|Connection reset by peer \[104\]"
    ),
    origins=("notice",),
)
_ECHO = lazy_re.compile(r"unknown reason from another rank|another rank")
_GLOG = lazy_re.compile(r"^[EFW]\d{4} \d\d:\d\d:\d\d\.\d+")
_STORE = Sign(
    lazy_re.compile(
        r"[Mm]ooncake ?store|MooncakeStore|store\.(?:put|get|setup|is_exist)\(|HiCacheStorage|hicache.?storage|3fs|hf3fs|HF3FS|EIC|aibrix|storage backend.{0,80}(?:fail|error)"
        r"|(?:fail|error).{0,80}storage backend|Failed to (?:open|mount) segment|[Ff]ailed to (?:initialize|setup|create).{0,40}(?:storage|store client)"
    ),
    frames=("mem_cache/storage", "mooncake_store", "hicache_storage", "hicache_hf3fs", "hicache_nixl", "hicache_file", "storage_backend"),
    either=True,
    unless=lazy_re.compile(r"out of memory|TCPStore|c10d|DistStore", re.IGNORECASE),
)


@rule("LF420", "pd_bootstrap_failure", "Prefill–decode registration failed")
def pd_bootstrap_failure(case: Case) -> Verdict | None:
    """The decode or prefill instance could not register, or could not learn of the other one.

    Why: the bootstrap server of the prefill instance is not at the address the request carries: a wrong port, 127.0.0.1 handed on to another machine, an
    instance that is not up yet, or a time limit while it is overloaded.
    Confirm: `Error fetching prefill parallel info …`, with host and port; `KVPoll.Bootstrapping` in a time-out.
    Fix: the same `--disaggregation-bootstrap-port` on prefill and in the router's options; a host name that decode can resolve; a longer
    `SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT` where prefill is merely busy.
    False friends: `prefill instance might be dead` is a guess of the other side; the warm-up uses a fake sender, so `fired up` proves nothing.
    """
    struck = matching(case, _BOOTSTRAP)
    if not struck:
        return None
    first = struck[0]
    peer = next((peer for item in struck for peer in item.peers), None)
    named = re.search(r"host='([^']+)', port=(\d+)", first.text)
    host = named[1] if named else peer[0] if peer else None
    printed = int(named[2]) if named else peer[1] if peer else None
    port = printed or int(case.config.number("disaggregation_bootstrap_port") or 8998)
    refused = any("refused" in item.text for item in struck)
    late = any(re.search(r"timed? ?out|Timeout", item.text) for item in struck)
    fix = [
        set_to("--disaggregation-bootstrap-port", port, "", "the same value on the prefill instance and in the router's options"),
        other("router", "pass the prefill instance's host name: decode resolves it on its own machine, where 127.0.0.1 is itself"),
    ]
    if late and not refused:
        fix.insert(0, environment("SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT", 600, "the default is 300 s (120 s in early releases)"))
    fix.append(upgrade("sglang", None, "later releases fail the request instead of the scheduler"))
    fatal = any(item.origin == "exception" and item.order >= first.order and item.process == "Scheduler" for item in case.run.troubles)
    local = host is not None and host.startswith(("127.", "localhost"))
    target = f" at {host}:{port}" if host else ""
    return Verdict(
        Severity.CRITICAL if fatal else Severity.ERROR,
        Confidence.CERTAIN if refused and host else Confidence.PROBABLE,
        "serving" if not case.run.stages or case.served(first.mark) else where(case, first),
        f"the bootstrap server of the prefill instance{target} {'refused the connection' if refused else 'did not answer'}",
        "Decode learns where to fetch the KV from through the bootstrap server of the prefill instance. "
        + (
            "127.0.0.1 is the asking machine itself: the router passed a local address on."
            if local
            else "Either nothing listens there, or it was not up yet."
        ),
        cite([*cited(struck), case.config.evidence("disaggregation_bootstrap_port", "disaggregation_mode")]),
        [step("bootstrap port", "printed" if printed else "configured", port)],
        fix,
        missing=["the log of the prefill instance", "the router's options"],
    )


@rule("LF421", "pd_transfer_failure", "A KV transfer between prefill and decode failed")
def pd_transfer_failure(case: Case) -> Verdict | None:
    """KV could not be sent from prefill to decode.

    Why: the memory was not registered with the network card at start (an ignored error), the cards of the two machines cannot reach each other on every
    rail, or the other side ended.
    Confirm: in order: `Failed to register memory` at start; handshake, `mark it inactive`, `transport retry counter exceeded`; then `transfer failed`. Of the
    ranks' lines only the one whose reason is not `unknown reason from another rank` says something.
    Fix: registration: load `nvidia_peermem` on both hosts, no `expandable_segments`. Network: name the cards that are routed with
    `--disaggregation-ib-device`, and test each pair with `ib_write_bw`.
    False friends: `prefill instance might be dead` is a guess; the warm-up uses a fake sender and proves nothing.
    """
    failed = [item for item in matching(case, _TRANSFER) if "Aborted by AbortReq" not in item.text]  # a client that left
    unregistered = matching(case, _REGISTER, _UNREGISTERED)
    if not failed and not (unregistered and (_disaggregated(case) or matching(case, _UNREGISTERED))):
        return None
    network = [item for item in matching(case, _NETWORK) if _GLOG.match(item.text) or item.kind == "error"]
    telling = [item for item in failed if not _ECHO.search(item.text)]
    echoes = [item for item in failed if _ECHO.search(item.text)]
    cause = "registration" if unregistered else "network" if network else "unknown"
    source = unregistered or network
    first = (source or telling or failed)[0]
    steps = [step("regions that were not registered", "lines", len(unregistered))] if unregistered else []
    steps += [step("ranks that only repeat it", "`another rank`", len(ranks_of(echoes)) or len(echoes))] if echoes else []
    return Verdict(
        Severity.ERROR,
        Confidence.CERTAIN if source and failed else Confidence.PROBABLE,
        "serving" if failed or case.served() else where(case, first),
        _TRANSFER_TITLES[cause],
        _transfer_story(cause, telling, echoes, network),
        cite(
            [
                *cited(unregistered, limit=3),
                *_by_sentence(network),
                *cited(telling, limit=3),
                *cited(echoes, limit=1),
                case.config.evidence("disaggregation_ib_device"),
            ]
        ),
        steps,
        _transfer_fix(cause, [*unregistered, *failed]),
        missing=["the log of the other instance"]
        + ([] if cause != "unknown" else ["the transfer engine's own lines (MC_LOG_LEVEL=INFO, NIXL_LOG_LEVEL=INFO)"]),
    )


def _disaggregated(case: Case) -> bool:
    return str(case.config.get("disaggregation_mode") or "null") in ("prefill", "decode")


def _by_sentence(troubles: Sequence[Trouble]) -> list[Evidence]:
    """The first line of each different sentence."""
    first: dict[str, Trouble] = {}
    for item in troubles:
        first.setdefault(re.sub(r"^\S+ \S+ +\S+ ", "", item.identity)[:40], item)
    return [item.evidence() for item in list(first.values())[:5]]


_TRANSFER_TITLES = {
    "registration": "KV memory was never registered with the network card: transfers cannot work",
    "network": "KV transfer failed: the network cards of the two instances do not reach each other",
    "unknown": "a KV transfer between prefill and decode failed",
}


def _transfer_story(cause: str, telling: Sequence[Trouble], echoes: Sequence[Trouble], network: Sequence[Trouble]) -> str:
    story = {
        "registration": "Registration failed while the server started, was ignored, and the server went on to `fired up`: the warm-up uses a fake sender. "
        "GPU memory can be registered only with the peer-memory kernel module (or dma-buf), and not when the allocator uses expandable segments. ",
        "network": f"The first error is on the network: {network[0].head[:120] if network else ''}. ",
        "unknown": "Which side failed first cannot be decided from this log. ",
    }[cause]
    if echoes and telling:
        story += f"Of the ranks only {said(ranks_of(telling))} gives a reason; {len(echoes)} lines repeat `another rank`. "
    return story + "`instance might be dead` is a guess of the waiting side."


def _transfer_fix(cause: str, troubles: Sequence[Trouble]) -> list[Recommendation]:
    if cause == "registration" and any("Cannot allocate memory" in item.text for item in troubles):
        return [
            other(
                "ulimit -l", "unlimited locked memory for the process (docker: --ulimit memlock=-1): registration pins what it registers"
            ),
            set_to("--disaggregation-transfer-backend", "nixl", "", "Alternative: another transport, for a test"),
        ]
    if cause == "registration":
        return [
            other("nvidia_peermem", "modprobe nvidia_peermem on both hosts: registering device memory fails with EFAULT without it"),
            environment("PYTORCH_CUDA_ALLOC_CONF", "without expandable_segments", "such memory cannot be registered"),
            set_to("--disaggregation-transfer-backend", "nixl", "", "Alternative: another transport, for a test"),
        ]
    fix = [
        set_to("--disaggregation-ib-device", "the cards that are routed between the nodes", "", "pairs only cards that reach each other"),
        other("network", "ib_write_bw between each pair of cards, before serving"),
    ]
    if any(re.search(r"WaitingForInput|timed? ?out", item.text) for item in troubles):
        fix.append(environment("SGLANG_DISAGGREGATION_WAITING_TIMEOUT", 600, "the default is 300 s; only where prefill is merely busy"))
    if cause == "unknown":
        fix.append(other("logs", "read the log of the other instance"))
        fix.append(upgrade("sglang", None, "Alternative: transfer errors then end the request, not the instance"))
    return fix


@rule("LF422", "hicache_storage_failure", "The storage tier of HiCache failed")
def hicache_storage_failure(case: Case) -> Verdict | None:
    """The third tier of HiCache (Mooncake, 3FS, NIXL, files) could not be set up or used.

    Why: at start every rank brings up its own segment and writes a warm-up object, which may be placed on the segment of a rank that does not listen yet: a
    race. Otherwise the store's master, its path or its protocol is wrong.
    Confirm: some ranks print `warmup successfully`, others `connect()…: Connection refused`; frames in `mem_cache/storage`.
    Fix: start again, or upgrade to a release that retries the warm-up; else check the store's address and size per rank (it is per rank).
    False friends: `An error occurred while loading the configuration` is printed for every error of the set-up; the configuration may be fine.
    """
    struck = [item for item in matching(case, _STORE) if item.origin == "exception"]
    said_so = [item for item in matching(case, _STORE) if item.origin == "notice" and (item.kind == "error" or _GLOG.match(item.text))]
    configured = case.config.get("hicache_storage_backend") is not None or any(
        "ooncake store" in notice.text for notice in case.run.notices
    )
    if not struck and not (said_so and configured):
        return None
    refused = [
        item for item in active(case) if item.origin == "notice" and re.search(r"[Cc]onnection refused|Failed to open segment", item.text)
    ]
    fine = [notice for notice in case.run.notices if re.search(r"ooncake store (?:warmup|setup) success", notice.text)]
    race = bool(refused) and (bool(fine) or len(ranks_of(struck)) >= 1)
    shown = struck or said_so
    segment = next((found for notice in case.run.notices if (found := re.search(r"Mounting segment: (\d+) bytes", notice.text))), None)
    ranks = case.config.size("tp_size")
    steps = [step("segment per rank", f"{segment[1]} / 2^30", int(segment[1]) / 2**30, "GiB")] if segment else []
    if segment and ranks > 1:
        steps.append(step("segments of all ranks", f"{ranks} × {int(segment[1]) / 2**30:.2f}", ranks * int(segment[1]) / 2**30, "GiB"))
    fix = [
        upgrade("sglang", None, "later releases repeat the warm-up"),
        other("launch", "start again: the race usually passes on a second try"),
    ]
    if not race:
        fix = [
            other(
                "storage backend",
                "check the store's master address, protocol and path on this node, and that its client library is installed",
            ),
            *fix,
            remove("--hicache-storage-backend", "Alternative: serve with the host tier only"),
        ]
    fatal = bool(struck) and not case.served(struck[0].mark)
    return Verdict(
        Severity.CRITICAL if fatal else Severity.ERROR,
        Confidence.CERTAIN if race and struck else Confidence.PROBABLE,
        "hicache" if not case.served(shown[0].mark) else "serving",
        "HiCache's store was used before all ranks' segments were up" if race else "HiCache's storage backend failed",
        (
            f"{said(ranks_of(struck))} wrote its warm-up object to the segment of a rank that did not listen yet, and was refused. The configuration is fine."
            if race
            else f"{shown[0].head}. The ranks and the GPU are healthy; the store is not."
        ),
        cite(
            [
                *cited(refused, "refused", 3),
                *cited(shown),
                *(notice.mark.evidence() for notice in fine[:1]),
                case.config.evidence("hicache_storage_backend"),
            ]
        ),
        steps,
        fix,
        missing=[] if race else ["the log of the store's master"],
    )
