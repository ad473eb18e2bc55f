"""What the programs around a server print into the same log: the router's lines and the result tables of benchmark clients."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from logforensics import parse

SERVER = "[2026-06-01 05:00:03] The server is fired up and ready to roll!"
REQUEST = 'http_request{method=POST uri=/generate version=HTTP/1.1 module="smg" request_id="gnt-9Y4V"'
ROUTER = [
    (
        "2026-06-01 05:00:03  INFO smg::server: /build/src/server.rs:985: Router ready | workers: []",
        {"level": "info", "target": "smg::server", "place": "/build/src/server.rs:985", "event": "ready"},
    ),
    (
        f"2026-06-01 05:00:03 ERROR {REQUEST} status_code=500 latency=406382}}: smg::response: src/middleware.rs:349: request failed with server error",
        {"level": "error", "event": "request_failed", "status": 500, "latency_ms": 406.382, "path": "/generate", "request_id": "gnt-9Y4V"},
    ),
    (
        (
            f"2026-06-01 05:00:03 ERROR {REQUEST}}}: smg::routers::http::router: src/routers/http/router.rs:563: Failed to send typed request "
            "worker_url=http://10.0.0.7:30000 route=/generate error=error sending request for url (http://10.0.0.7:30000/generate)"
        ),
        {
            "event": "request_failed",
            "worker_url": "http://10.0.0.7:30000",
            "method": "POST",
            "error": "error sending request for url (http://10.0.0.7:30000/generate)",
        },
    ),
    (
        (
            "2026-06-01 05:00:03  INFO http_request{method=POST uri=/generate version=HTTP/1.1}:http_request{method=POST uri=/generate "
            "version=HTTP/1.1 request_id=gnt-bOYN status=200 OK latency=73.735824ms}: sglang_router_rs::response: src/middleware.rs:169: "
            "finished processing request"
        ),
        {"event": "response", "status": 200, "latency_ms": 73.735824, "request_id": "gnt-bOYN", "target": "sglang_router_rs::response"},
    ),
    (
        (
            "2026-06-01 05:00:03  WARN smg::core::job_queue: src/core/job_queue.rs:809: Failed job: type=AddWorker, worker=http://10.0.0.7:30000, "
            "error=Workflow failed at step detect_connection_mode"
        ),
        {"level": "warning", "event": "worker_failed", "worker_url": "http://10.0.0.7:30000"},
    ),
    (
        "[Router (Rust)] 2026-06-01 05:00:03 - INFO - Removed worker: http://10.0.0.7:30000",
        {"level": "info", "target": "Rust", "event": "worker_removed", "worker_url": "http://10.0.0.7:30000"},
    ),
    (
        "[Router (Python)] 2026-06-01 05:00:03 - ERROR - Server failed to start - launch_server.py:91",
        {"level": "error", "target": "Python", "event": None},
    ),
    (
        (
            '{"timestamp":"2026-06-01T05:00:03.123456Z","level":"WARN","message":"Circuit breaker state transition: closed -> open",'
            '"target":"smg::core::circuit_breaker","filename":"src/core/circuit_breaker.rs","line_number":286,"worker_url":"http://10.0.0.7:30000"}'
        ),
        {"level": "warning", "event": "circuit_breaker", "place": "src/core/circuit_breaker.rs:286", "worker_url": "http://10.0.0.7:30000"},
    ),
]


def _rows(folder: Path, frame: str, *lines: str) -> list[dict[str, Any]]:
    log = folder / "server.log"
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return parse(log).frames[frame].to_dicts()


@pytest.mark.parametrize(("line", "wanted"), ROUTER)
def test_router_lines(line: str, wanted: dict[str, Any], tmp_path: Path) -> None:
    (row,) = _rows(tmp_path, "router", SERVER, line)

    assert {name: row[name] for name in wanted} == pytest.approx(wanted)
    assert row["line"] == 2
    assert row["time"].replace(microsecond=0) == datetime(2026, 6, 1, 5, 0, 3)


def test_a_log_of_the_router_alone_is_sglangs(tmp_path: Path) -> None:
    for lines in ([line for line, _ in ROUTER[:5]], [ROUTER[-1][0]] * 3):
        log = tmp_path / "router.log"
        log.write_text("\n".join(lines) + "\n", encoding="utf-8")
        parsed = parse(log)

        parsed.require_sglang()
        assert parsed.frames["router"].height == len(lines)
        assert (parsed.coverage.unknown, parsed.coverage.damaged) == (0, 0)


@pytest.mark.parametrize(
    "line",
    [
        "2026-06-01 05:00:03  INFO other_service::server: src/server.rs:1: Router ready",
        "2026-06-01 05:00:03 sglang_router is fine",
        '{"level":"INFO","message":"Router ready","target":"other"}',
        "he said [Router (Rust)] 2026-06-01 05:00:03 - INFO - Removed worker: http://10.0.0.7:30000",
    ],
)
def test_what_is_no_router_line(line: str, tmp_path: Path) -> None:
    assert _rows(tmp_path, "router", SERVER, line) == []


TABLE = """\
============ Serving Benchmark Result ============
Backend:                                 sglang    
Traffic request rate:                    inf       
Successful requests:                     1024      
Total generated tokens (retokenized):    2090171   
Request throughput (req/s):              2.05      
Request goodput at P99 TTFT:             1.50      

---------------Time to First Token----------------
Mean TTFT (ms):                          13603.68  
[2026-06-01 05:00:03 TP0] Decode batch, #running-req: 5, #token: 100, token usage: 0.10, gen throughput (token/s): 50.00, #queue-req: 0
P99 TTFT (ms):                           52586.43  
==================================================
Mean TTFT (ms):                          1.0
"""  # noqa: W291 - as it is printed


def test_a_result_table_is_a_row_for_each_figure(tmp_path: Path) -> None:
    rows = _rows(tmp_path, "benchmark", SERVER, *TABLE.splitlines(), *TABLE.splitlines()[:3], "Traceback (most recent call last):")

    first = [row for row in rows if row["block"] == 2]
    assert [(row["line"], row["name"], row["unit"], row["value"], row["text"]) for row in first] == [
        (3, "Backend", None, None, "sglang"),
        (4, "Traffic request rate", None, None, "inf"),
        (5, "Successful requests", None, 1024.0, "1024"),
        (6, "Total generated tokens (retokenized)", None, 2090171.0, "2090171"),
        (7, "Request throughput", "req/s", 2.05, "2.05"),
        (8, "Request goodput at P99 TTFT", None, 1.5, "1.50"),
        (11, "Mean TTFT", "ms", 13603.68, "13603.68"),
        (13, "P99 TTFT", "ms", 52586.43, "52586.43"),
    ]
    assert [row["section"] for row in first] == [None] * 6 + ["Time to First Token"] * 2
    assert {row["title"] for row in rows} == {"Serving Benchmark Result"}
    assert [row["name"] for row in rows if row["block"] == 16] == ["Backend", "Traffic request rate"]


def test_a_table_does_not_swallow_the_lines_after_it(tmp_path: Path) -> None:
    notices = _rows(tmp_path, "notices", SERVER, *TABLE.splitlines()[:3], "a line that is no figure", "Mean TTFT (ms):   1.0")

    assert [row["text"] for row in notices] == ["a line that is no figure", "Mean TTFT (ms):   1.0"]
