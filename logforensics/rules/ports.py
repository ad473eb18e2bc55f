"""Ports that somebody else holds."""

from __future__ import annotations

from logforensics.findings import Action, Confidence, Recommendation
from logforensics.rules import signatures
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite, other, rule, set_to, step
from logforensics.rules.signatures import Hit

DEFAULT_PORT = 30000
_PORT_STEP = 1000  # internal ports are taken from the few hundred above --port


@rule("LF310", "port_in_use", "The HTTP port is taken")
def port_in_use(case: Case) -> Verdict | None:
    """The HTTP port is taken by another process, often an earlier server that still shuts down.

    Why: uvicorn cannot bind `--host`:`--port`.
    Confirm: `[Errno 98] error while attempting to bind on address ('…', 30000)` with the port of the launch line.
    Fix: another `--port`, or end the process that holds it (`ss -ltnp`).
    False friends: a ZMQ or NCCL port that is taken is an internal port (`port_conflict`); the rendezvous port is `dist_init_address`.
    """
    hit = next((hit for hit in signatures.hits(case, "port_taken") if _which(case, hit) == "http"), None)
    if hit is None:
        return None
    port = hit.number("port") or _http_port(case)
    fix = [
        set_to("--port", _free(port), "", "keep instances on one host at least 1000 apart: internal ports are derived from it"),
        other("process on the port", f"ss -ltnp | grep {port} names it; an old server may still be shutting down"),
    ]
    return _port_verdict(case, hit, f"the HTTP port {port} is taken by another process", fix)


@rule("LF311", "port_conflict", "An internal port is taken")
def port_conflict(case: Case) -> Verdict | None:
    """An internal port (ZMQ, NCCL, bootstrap) is taken: mostly a second instance on the same host.

    Why: internal ports are derived from `--port` (and `--nccl-port`, `--disaggregation-bootstrap-port`), so instances with near ports overlap.
    Confirm: `ZMQError: Address already in use`, `EADDRINUSE` in TCPStore, `… at N is not available in 30 seconds`.
    Fix: ports at least 1000 apart, a `--nccl-port` per instance, starts one after the other.
    False friends: exit code -9 right after it is SGLang ending its own tree, not the OOM killer; `Waiting for N seconds` alone may end well.
    """
    hit = next((hit for hit in signatures.hits(case, "port_taken") if _which(case, hit) == "internal"), None)
    if hit is None:
        return None
    port = hit.number("port")
    fix = [
        set_to(
            "--port",
            _free(_http_port(case)),
            "",
            "ports of instances on one host at least 1000 apart: internal ports are derived from --port",
        ),
        Recommendation("--nccl-port", Action.SET, None, "", "a port of its own for each instance"),
        other("start order", "start instances on one host one after the other; wait until an old one has ended"),
    ]
    if port is not None and port == case.config.number("disaggregation_bootstrap_port"):
        fix.insert(0, set_to("--disaggregation-bootstrap-port", port + 1, "", "one per prefill instance; the router must know it"))
    return _port_verdict(
        case,
        hit,
        f"the internal port {port} is taken: another instance on this host?"
        if port
        else "an internal port is taken: another instance on this host?",
        fix,
    )


def _port_verdict(case: Case, hit: Hit, title: str, fix: list[Recommendation]) -> Verdict:
    return Verdict(
        signatures.severity(case, hit.trouble),
        Confidence.CERTAIN,
        "launch",
        title,
        "Another process listens on this address already. What follows in the log (SIGQUIT, Killed, exit code -9) is the server ending its own processes.",
        cite([hit.evidence(), case.config.evidence("port")]),
        [step("port", "from the error text", port)] if (port := hit.number("port")) is not None else [],
        fix,
    )


def _which(case: Case, hit: Hit) -> str:
    """``http``, ``internal``, or ``rendezvous`` (a rule of the distributed family) for a port that is taken."""
    port, text = hit.number("port"), hit.trouble.text
    address = str(case.config.get("dist_init_addr", "") or "")
    if port is not None and address.endswith(f":{port}"):
        return "rendezvous"
    if "zmq" in text.lower() or "EADDRINUSE" in text or hit.trouble.has_frame("detokenizer", "zmq", "network", "bootstrap"):
        return "internal"
    known = case.config.number("port")
    if port is not None and known is not None:
        return "http" if port == known else "internal"
    return "http" if "bind on address" in text or port == DEFAULT_PORT or hit.trouble.has_frame("uvicorn", "http_server") else "internal"


def _http_port(case: Case) -> int:
    return int(case.config.number("port") or DEFAULT_PORT)


def _free(port: int) -> int:
    return port + _PORT_STEP if port + 2 * _PORT_STEP < 65536 else port - _PORT_STEP
