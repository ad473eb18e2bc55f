"""Watching a log that grows: replayed line by line, rotated, cut, missing at first, or coming through a pipe."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal
from rich.console import Console

from logforensics import Hardware, parse
from logforensics.cli.watch import _hardware
from logforensics.engine import diagnose
from logforensics.errors import InputError
from logforensics.findings import Severity
from logforensics.watching import Event, Known, Until, Watch, Watcher, watch
from logforensics.watching.follow import FileFollower, StreamFollower
from logforensics.watching.growing import GrowingLog
from logforensics.watching.live import View
from logforensics.watching.pulse import sparkline
from logforensics.watching.words import Lines, duration, sentence

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
FIRST_LOOK = FIXTURES / "founding_first_look" / "server.log"
HICACHE300 = FIXTURES / "founding_hicache300" / "server.log"
HICACHE48 = FIXTURES / "founding_hicache48" / "server.log"
HOST = Hardware(host_ram_bytes=449 * 10**9)


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Growing:
    """A file that a test writes to and a watcher that looks at it."""

    def __init__(self, path: Path, known: Known | None = None) -> None:
        self.path, self.clock = path, Clock()
        self.watcher = Watcher(FileFollower(str(path)), known or Known(HOST), clock=self.clock)

    def append(self, data: bytes) -> list[Event]:
        with self.path.open("ab") as stream:
            stream.write(data)
        return self.look()

    def look(self) -> list[Event]:
        self.clock.now += 1
        return self.watcher.poll()


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Growing]:
    log = Growing(tmp_path / "server.log")
    yield log
    log.watcher.source.close()


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def lines_of(path: Path) -> list[bytes]:
    return [line + b"\n" for line in path.read_bytes().removesuffix(b"\n").split(b"\n")]


# --- the founding case ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log", [FIRST_LOOK, HICACHE300, FIXTURES / "damage_cr_bars" / "server.log"], ids=lambda path: path.parent.name)
def test_the_finding_comes_before_36_percent_of_loading(growing: Growing, log: Path) -> None:
    told: list[Event] = []
    for line in lines_of(log):
        told += growing.append(line)
    finding = next(place for place, event in enumerate(told) if event.data.get("root_cause") == "host_overallocation_per_rank")
    loaded = [place for place, event in enumerate(told) if event.kind == "progress" and event.data["percent"] >= 36]
    assert told[finding].line == 1
    assert told[finding].data["severity"] == "critical"
    assert loaded
    assert finding < loaded[0]


def test_each_finding_is_announced_once(growing: Growing) -> None:
    told = [event for line in lines_of(HICACHE300) for event in growing.append(line)]
    codes = [event.data["code"] for event in told if event.kind == "finding"]
    assert codes == ["LF101", "LF204"]


def test_a_finding_cites_its_line(growing: Growing) -> None:
    told = [event for line in lines_of(HICACHE300) for event in growing.append(line)]
    texts = HICACHE300.read_bytes().decode().split("\n")
    evidence = [item for event in told if event.kind == "finding" for item in event.data["evidence"]]
    assert evidence
    assert [item for item in evidence if not item["text"] or item["text"] not in texts[item["line"] - 1]] == []


def test_that_the_log_stops_is_said_only_when_it_is_over(growing: Growing) -> None:
    told = [event for line in lines_of(FIRST_LOOK) for event in growing.append(line)]
    assert "LF901" not in {event.data.get("code") for event in told}
    growing.watcher.over = True
    assert "LF901" in {event.data.get("code") for event in growing.watcher.finish()}


def test_the_story_in_order(growing: Growing) -> None:
    told = [event for line in lines_of(HICACHE48) for event in growing.append(line)]
    order = [event.kind for event in told if event.kind in {"launch", "limits", "ready", "serving"}]
    assert list(dict.fromkeys(order)) == ["launch", "limits", "ready", "serving"]
    stages = [event.data["stage"] for event in told if event.kind == "stage" and event.data["ranks"] == 8]
    assert stages[:3] == ["init_dist_begin", "init_dist_end", "load_begin"]
    assert next(event for event in told if event.kind == "host_memory" and event.data["total_gb"] == 384.0)
    pulse = growing.watcher.state.pulse
    assert pulse is not None
    assert pulse.usage == pytest.approx(0.98)
    assert 1 < len(pulse.course["gen_throughput"]) <= 40


# --- growing frames are the frames ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("story", ["founding_hicache48", "healthy_dp_attention_tp8_0512", "damage_compose", "damage_ansi", "graph_oom_058"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_frames_do_not_depend_on_how_the_log_arrives(story: str, size: int) -> None:
    path = FIXTURES / story / "server.log"
    whole, log = parse(path), GrowingLog(str(path))
    pieces = lines_of(path)
    for begin in range(0, len(pieces), size):
        log.feed(b"".join(pieces[begin : begin + size]))
    log.settle()
    grown = log.parsed(lambda _: {})
    for name, frame in whole.frames.items():
        assert_frame_equal(frame, grown.frames[name], check_dtypes=False)


def test_a_traceback_at_the_end_counts_once_nothing_follows(growing: Growing) -> None:
    log = FIXTURES / "weights_oom_055" / "server.log"
    told = growing.append(log.read_bytes())
    growing.clock.now += 2
    told += growing.look()
    wanted = {finding.code for finding in diagnose(log, hardware=HOST).findings}
    assert {event.data["code"] for event in told if event.kind == "finding"} >= wanted - {"LF901"}
    assert any(event.kind == "error" for event in told)


# --- files that move -----------------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there_yet(growing: Growing) -> None:
    assert kinds(growing.look()) == ["waiting"]
    assert growing.look() == []
    assert kinds(growing.append(lines_of(FIRST_LOOK)[0]))[:2] == ["opened", "launch"]


def test_half_a_line_waits_for_its_end(growing: Growing) -> None:
    line = lines_of(FIRST_LOOK)[0]
    assert kinds(growing.append(line[:500])) == ["opened"]
    assert "launch" in kinds(growing.append(line[500:]))


def test_rotation_keeps_the_story_and_the_lines(growing: Growing) -> None:
    lines = lines_of(HICACHE300)
    told = growing.append(b"".join(lines[:100]))
    growing.path.rename(growing.path.with_name("server.log.1"))
    assert growing.look() == []  # the name is free: the old file may still grow
    told += growing.append(b"".join(lines[100:]))
    told += growing.look()
    assert "rotated" in kinds(told)
    graph = next(event for event in told if event.data.get("code") == "LF204")
    assert (graph.file, graph.line) == (str(growing.path), 32)
    assert {item["file"] for item in graph.data["evidence"]} == {str(growing.path), f"{growing.path}.1"}
    assert all(item["text"] for item in graph.data["evidence"])
    assert [event.data["code"] for event in told if event.kind == "finding"] == ["LF101", "LF204"]


def test_what_is_written_before_a_rotation_is_read(growing: Growing) -> None:
    lines = lines_of(FIRST_LOOK)
    growing.append(lines[0])
    with growing.path.open("ab") as stream:
        stream.write(b"".join(lines[1:10]))
    growing.path.rename(growing.path.with_name("server.log.1"))
    growing.append(lines[10])
    assert growing.watcher.state.lines == 11


def test_truncation_begins_a_new_server(growing: Growing) -> None:
    growing.append(b"".join(lines_of(HICACHE300)))
    growing.path.write_bytes(lines_of(HICACHE48)[0])
    told = growing.look()
    assert kinds(told)[:2] == ["truncated", "launch"]
    assert told[1].line == 1
    assert told[1].data["number"] == 2
    assert growing.watcher.state.form["verdict"] == "incomplete"


def test_a_file_cut_and_grown_past_the_place_is_noticed(growing: Growing) -> None:
    growing.append(b"".join(lines_of(FIRST_LOOK)))
    growing.path.write_bytes(HICACHE48.read_bytes())
    assert "truncated" in kinds(growing.look())


def test_utf16_is_read_and_quoted(growing: Growing) -> None:
    told = growing.append(HICACHE300.read_text(encoding="utf-8").encode("utf-16"))
    evidence = next(event for event in told if event.kind == "finding").data["evidence"]
    assert "server_args" in evidence[0]["text"] or "hicache_size=300" in evidence[0]["text"]


@pytest.mark.parametrize("content", [b"\x1f\x8b\x08\x00\x00\x00", bytes(range(256)) * 64], ids=["gzip", "binary"])
def test_what_is_no_text_is_refused(growing: Growing, content: bytes) -> None:
    with pytest.raises(InputError, match=r"compressed|binary"):
        growing.append(content)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder"):
        next(watch(tmp_path))


# --- when to stop --------------------------------------------------------------------------------------------------------------


def outcome(log: Path, until: Until | None, fail_on: Severity | None = Severity.ERROR, timeout_s: float | None = 0.0) -> tuple[str, int]:
    session = Watch(log, known=Known(HOST), until=until, fail_on=fail_on, timeout_s=timeout_s, interval_s=0.01)
    events = [event for events in session.rounds() for event in events]
    assert session.outcome is not None
    assert events[-1].kind == "end"
    assert events[-1].data["status"] == session.outcome.status
    return session.outcome.reason, session.outcome.status


@pytest.mark.parametrize(
    ("log", "until", "fail_on", "wanted"),
    [
        (HICACHE48, Until.READY, Severity.ERROR, ("ready", 0)),
        (FIRST_LOOK, Until.READY, Severity.ERROR, ("finding", 1)),
        (FIRST_LOOK, Until.READY, None, ("timeout", 3)),
        (HICACHE300, Until.READY, None, ("failed", 1)),
        (HICACHE300, Until.FAILED, Severity.ERROR, ("failed", 0)),
        (HICACHE48, Until.FAILED, Severity.ERROR, ("timeout", 3)),
        (FIRST_LOOK, Until.FINDING, Severity.ERROR, ("finding", 0)),
        (HICACHE48, Until.FINDING, Severity.ERROR, ("timeout", 3)),
        (HICACHE48, Until.FINDING, Severity.WARNING, ("finding", 0)),
        (FIRST_LOOK, None, Severity.ERROR, ("timeout", 1)),
        (HICACHE48, None, Severity.ERROR, ("timeout", 0)),
    ],
)
def test_how_a_watch_ends(log: Path, until: Until | None, fail_on: Severity | None, wanted: tuple[str, int]) -> None:
    assert outcome(log, until, fail_on) == wanted


def test_the_api_yields_events_as_the_file_grows(tmp_path: Path) -> None:
    path = tmp_path / "server.log"

    def write() -> None:
        with path.open("ab", buffering=0) as stream:
            for line in lines_of(HICACHE48)[:150]:
                stream.write(line)

    events = watch(path, until="ready", timeout_s=60, interval_s=0.02, hardware=HOST)
    assert next(events).kind == "waiting"
    writer = threading.Thread(target=write)
    writer.start()
    told = list(events)
    writer.join()
    assert [told[-1].kind, told[-1].data["reason"]] == ["end", "ready"]


# --- the command ---------------------------------------------------------------------------------------------------------------


def command(*arguments: str | Path, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "logforensics", "watch", *map(str, arguments)],
        input=stdin, capture_output=True, timeout=60, check=False, env={**os.environ, "PYTHONUTF8": "1", **environment},
    )  # fmt: skip


def test_standard_input_ends_the_watch() -> None:
    done = command("-", "--host-ram", "449GB", stdin=HICACHE300.read_bytes())
    text = done.stdout.decode()
    assert done.returncode == 1, done.stderr.decode()
    assert text.startswith("14:02:41  server start: kimi-k2.5, SGLang 0.5.8, TP 8 (<stdin>:1)")
    assert "CRITICAL  8 ranks × 300 GB of HiCache = 2,400 GB" in text
    assert "→ set --hicache-size 48 (GB per rank)" in text
    assert "\x1b" not in text


def test_this_host_is_asked_where_the_options_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logforensics.hardware.this_host", lambda: Hardware(host_ram_bytes=449 * 10**9, gpus=8))
    assert _hardware(None, None, None, here=True) == Hardware(host_ram_bytes=449 * 10**9, gpus=8)
    assert _hardware("512GB", None, 4, here=True) == Hardware(host_ram_bytes=512 * 10**9, gpus=4)
    assert _hardware(None, None, None, here=False) == Hardware()


def test_json_is_one_event_a_line() -> None:
    done = command("-", "--format", "json", "--host-ram", "449GB", stdin=HICACHE48.read_bytes())
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert {event["schema"] for event in events} == {"logforensics.watch/1"}
    assert events[0]["event"] == "launch"
    assert events[-1] | {"findings": []} == {
        "schema": "logforensics.watch/1", "event": "end", "file": "<stdin>", "line": None, "time": None,
        "reason": "end", "status": 0, "verdict": "degraded", "findings": [],
    }  # fmt: skip


def test_the_command_waits_for_a_file_and_gives_up() -> None:
    done = command("/nowhere/server.log", "--until", "ready", "--timeout", "0.2s")
    assert done.returncode == 3
    assert b"waiting for it" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--timeout", "soon"], "cannot read the duration"),
        (["--until", "never"], "is not one of"),
        (["--host-ram", "lots"], "cannot read the size"),
    ],
)
def test_usage_errors(arguments: list[str], told: str) -> None:
    done = command(FIRST_LOOK, *arguments)
    assert done.returncode == 2
    assert told in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


def test_an_empty_stream_is_unusable() -> None:
    done = command("-")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"is empty" in done.stderr


def test_secrets_and_escapes_stay_inside() -> None:
    log = FIRST_LOOK.read_bytes().replace(b"'/models/Kimi-K2.5'", b"'/models/\x1b[31mred'", 1)
    log = log.replace(b"server_args=ServerArgs(", b"server_args=ServerArgs(api_key='sk-very-secret-1234567890', ", 1)
    for form in ("text", "json"):
        out = command("-", "--format", form, stdin=log).stdout
        assert b"very-secret" not in out
        assert b"\x1b" not in out


# --- the pieces ----------------------------------------------------------------------------------------------------------------


def test_bars_do_not_fill_the_screen(growing: Growing) -> None:
    lines = Lines(growing.clock)
    told = [text for line in lines_of(HICACHE300) for event in growing.append(line) for text in lines.tell(event)]
    loading = [text for text in told if "shards" in text]
    assert 8 <= len(loading) <= 12
    assert "about " in loading[2]
    assert loading[-1].endswith("64 of 64 shards, 2.56 shards/s")


def test_quiet_lines_are_findings_and_the_end(growing: Growing) -> None:
    lines = Lines(growing.clock, quiet=True)
    told = [text for line in lines_of(HICACHE300) for event in growing.append(line) for text in lines.tell(event)]
    assert [text.split()[0] for text in told if not text.startswith(" ")] == ["CRITICAL", "WARNING"]


@pytest.mark.parametrize("kind", ["waiting", "opened", "rotated", "truncated", "ready"])
def test_plain_events_have_a_sentence(kind: str) -> None:
    assert sentence(Event(kind, "server.log"))[0]


def test_sparkline() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([0.5], top=1.0) == "▅"
    assert sparkline([1.0, 2.0], ascii_only=True).isascii()


def screen(growing: Growing, width: int, *, ascii_only: bool = False) -> str:
    console = Console(width=width, record=True, file=io.StringIO(), color_system=None)
    console.print(View("server.log", ascii_only=ascii_only).draw(growing.watcher.state))
    return console.export_text()


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_view_while_loading(growing: Growing, width: int) -> None:
    assert "does not exist yet" in screen(growing, width)
    growing.append(FIRST_LOOK.read_bytes())
    text = " ".join(screen(growing, width).split())
    assert "kimi-k2.5 · SGLang 0.5.8 · TP 8 · 49 lines" in text
    assert "36 % 23 of 64 shards, 2.56 shards/s, about 16 s left" in text
    assert "weights begin to load 8 of 8 ranks +1 s" in text
    assert "CRITICAL 8 ranks × 300 GB of HiCache = 2,400 GB; the host has 449 GB (LF101)" in text
    assert max(map(len, screen(growing, width).splitlines())) <= width


def test_the_live_view_while_serving(growing: Growing) -> None:
    growing.append(HICACHE48.read_bytes())
    text = " ".join(screen(growing, 80).split())
    for piece in (
        "ready 1 min 26 s after the start",
        "93.43 71.81 10.41 3.62 5.50",
        "8 × 48 GB kv = 384 GB",
        "69 running",
        "KV usage 0.98",
    ):
        assert piece in text
    assert "Loading" not in text
    assert screen(growing, 80, ascii_only=True).isascii()


def test_log_text_cannot_act_in_the_live_view(growing: Growing) -> None:
    growing.append(FIRST_LOOK.read_bytes().replace(b"served_model_name='kimi-k2.5'", b"served_model_name='[red]\x1b[31mx[/red]'", 1))
    text = screen(growing, 120)
    assert "[red]x[/red]" in text
    assert "\x1b" not in text


def test_a_speed_that_is_no_number_breaks_nothing(growing: Growing) -> None:
    log = HICACHE48.read_bytes().replace(b"gen throughput (token/s): 1173.46", b"gen throughput (token/s): inf", 1)
    told = growing.append(log)
    assert all(json.dumps(event.as_json(), allow_nan=False) for event in told)
    assert "running" in screen(growing, 80)


@pytest.mark.parametrize(("seconds", "text"), [(44.6, "45 s"), (200, "3 min 20 s"), (3900, "1 h 5 min"), (3600, "1 h")])
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.fixture
def pipe() -> Iterator[tuple[Callable[[bytes], int], StreamFollower, Callable[[], None]]]:
    reading, writing = os.pipe()
    follower = StreamFollower(reading)
    open_end = [writing]

    def close() -> None:
        if open_end:
            os.close(open_end.pop())

    yield lambda data: os.write(writing, data), follower, close
    close()
    os.close(reading)
    follower.close()


def test_a_pipe_gives_whole_lines_and_its_last_one(pipe: tuple[Callable[[bytes], int], StreamFollower, Callable[[], None]]) -> None:
    write, follower, close = pipe
    assert follower.poll().data == b""
    write(b"one\ntw")
    assert follower.poll().data == b"one\n"
    write(b"o\nthree")
    assert follower.poll().data == b"two\n"
    assert follower.partial == "three"
    close()
    last = follower.poll()
    assert (last.data, last.over) == (b"three", True)
    assert follower.quote([1, 3]) == {1: "one", 3: "three"}
    assert follower.place(3) == ("<stdin>", 3)
