"""Exports: forms that other tools open."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import logforensics
from logforensics.errors import InputError
from logforensics.exporting import lnav_format, openmetrics, trace_events

ROOT = Path(__file__).resolve().parents[1]
LOG = ROOT / "fixtures" / "founding_baseline_085" / "server.log"
SAMPLE = re.compile(
    r'(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)\{(?P<labels>(?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (?P<value>\S+) (?P<time>\d+)\n'
)


@pytest.fixture(scope="module")
def trace() -> dict[str, Any]:
    return json.loads("".join(trace_events(logforensics.parse(LOG))))  # type: ignore[no-any-return]


# -------------------------------------------------------------------------------------------------------- trace


def test_trace_has_stages_batches_and_counters(trace: dict[str, Any]) -> None:
    events = trace["traceEvents"]
    by_name: dict[str, list[Any]] = {}
    for event in events:
        by_name.setdefault(event["name"], []).append(event)
    assert len(by_name["load weights"]) == 8
    decode = logforensics.parse(LOG).frames["decode"].height
    assert len(by_name["decode"]) == decode
    assert len(by_name["running requests TP0"]) == decode
    assert [event["ph"] for event in by_name["ready"]] == ["i"]
    assert {event["args"]["name"] for event in by_name["thread_name"]} >= {"server", "TP0", "TP7"}


def test_trace_is_well_formed(trace: dict[str, Any]) -> None:
    for event in trace["traceEvents"]:
        assert event["ph"] in {"X", "M", "C", "i", "b", "e"}
        assert event["pid"] == 1
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] != "M":
            assert isinstance(event["ts"], int)
    assert min(event.get("ts", 0) for event in trace["traceEvents"]) == 0


def test_undated_lines_at_the_edges_do_not_matter(tmp_path: Path) -> None:
    log = tmp_path / "edges.log"
    log.write_text(
        "WARNING: something before the logger\n" + LOG.read_text(encoding="utf-8") + "ValueError: at the end\n", encoding="utf-8"
    )
    events = json.loads("".join(trace_events(logforensics.parse(log))))["traceEvents"]
    assert min(event.get("ts", 0) for event in events) == 0


def test_requests_are_matched_by_their_ids(tmp_path: Path) -> None:
    log = tmp_path / "requests.log"
    log.write_text(
        "[2026-06-01 05:00:01] Receive: obj=GenerateReqInput(rid='abc123', text='hi')\n"
        "[2026-06-01 05:00:03] Finish: obj=GenerateReqInput(rid='abc123', text='hi'), out={}\n"
        "[2026-06-01 05:00:04 TP0] Decode batch, #running-req: 1, #token: 9, token usage: 0.00, gen throughput (token/s): 1.00, #queue-req: 0\n",
        encoding="utf-8",
    )
    parsed = logforensics.parse(log)
    events = json.loads("".join(trace_events(parsed)))["traceEvents"]
    found = [(event["ph"], event["id"], event["ts"]) for event in events if event.get("cat") == "request"]
    wanted = parsed.frames["requests"].filter(parsed.frames["requests"]["rid"].is_not_null()).height
    assert len(found) == wanted
    assert {phase for phase, _, _ in found} <= {"b", "e"}


# -------------------------------------------------------------------------------------------------- openmetrics


def test_openmetrics_text() -> None:
    lines = list(openmetrics(logforensics.parse(LOG)))
    assert lines[-1] == "# EOF\n"
    seen: list[str] = []
    last: dict[tuple[str, str], int] = {}
    for line in lines[:-1]:
        if line.startswith("# TYPE "):
            seen.append(line.split()[2])
            continue
        if line.startswith("# "):
            continue
        found = SAMPLE.fullmatch(line)
        assert found is not None, line
        assert found["name"].removesuffix("_total") == seen[-1]  # the samples of a family stand together
        key = (found["name"], found["labels"])
        assert int(found["time"]) > last.get(key, 0)  # times of a series grow
        last[key] = int(found["time"])
    assert len(seen) == len(set(seen))
    assert {"sglang:gen_throughput", "sglang:num_running_reqs", "sglang:token_usage", "sglang:prompt_tokens"} <= set(seen)


def test_logs_without_times_or_batches(tmp_path: Path) -> None:
    log = tmp_path / "bare.log"
    log.write_text(
        "max_total_num_tokens=1000, chunked_prefill_size=2, max_prefill_tokens=3, max_running_requests=4, context_len=5\n", encoding="utf-8"
    )
    parsed = logforensics.parse(log)
    with pytest.raises(InputError, match="no line has a time"):
        list(trace_events(parsed))
    with pytest.raises(InputError, match="no dated batch line"):
        list(openmetrics(parsed))


# --------------------------------------------------------------------------------------------------------- lnav


def test_lnav_format_is_made_from_the_patterns() -> None:
    form = json.loads(lnav_format())["sglang_log"]
    assert {"decode", "prefill", "message"} <= set(form["regex"])
    assert {"gen_throughput", "avail_gib", "max_total_num_tokens", "num_tokens"} <= set(form["value"])
    for expression in form["regex"].values():
        re.compile(expression["pattern"].replace("(?<", "(?P<").replace("(?P<!", "(?<!").replace("(?P<=", "(?<="))
    assert len(form["sample"]) > 5


@pytest.mark.skipif(shutil.which("lnav") is None, reason="lnav is not installed")
def test_lnav_reads_the_format(tmp_path: Path) -> None:
    form = tmp_path / "sglang.json"
    form.write_text(lnav_format(), encoding="utf-8")
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "TERM": "dumb"}
    subprocess.run(["lnav", "-i", str(form)], check=True, env=home, capture_output=True, timeout=60)
    query = (
        ";select count(*) as n, max(gen_throughput) as best from sglang_log where running_req is not null and gen_throughput is not null"
    )
    done = subprocess.run(
        ["lnav", "-n", "-c", query, "-c", ":write-json-to -", str(LOG)], env=home, capture_output=True, text=True, check=False, timeout=60
    )
    decode = logforensics.parse(LOG).frames["decode"]
    assert json.loads(done.stdout) == [{"n": decode.height, "best": decode["gen_throughput"].max()}]


# ------------------------------------------------------------------------------------------------- command line


def test_command_line(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "logforensics", "export", *arguments], capture_output=True, text=True, check=False, timeout=120
        )

    file = tmp_path / "trace.json"
    assert run("trace", str(LOG), "-o", str(file)).returncode == 0
    assert json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    assert run("openmetrics", str(LOG)).stdout.endswith("# EOF\n")
    assert json.loads(run("lnav").stdout)["sglang_log"]["title"] == "SGLang server log"
    refused = run("trace")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
