"""Single lines: brackets, bars, server_args, tracebacks, dumps."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logforensics.parsing.lines import LineReader
from logforensics.parsing.prefix import read_prefix
from logforensics.parsing.server_args import read_server_args


def read(*lines: str) -> dict[str, list[dict[str, Any]]]:
    reader = LineReader()
    for number, line in enumerate(lines, 1):
        reader.feed(number, line, known=True)
    reader.close()
    return {
        name: [{"line": line, "time": time, **ranks._asdict(), **row} for line, time, ranks, row in rows]
        for name, rows in reader.take().items()
    }


@pytest.mark.parametrize(
    ("line", "time", "ranks"),
    [
        ("[14:03:27 TP3] x", datetime(1970, 1, 1, 14, 3, 27), {"tp": 3}),
        ("[2026-02-18 14:03:27] x", datetime(2026, 2, 18, 14, 3, 27), {}),
        ("[2026-02-18 14:03:27 DP1 TP3 EP2 PP0] x", datetime(2026, 2, 18, 14, 3, 27), {"dp": 1, "tp": 3, "ep": 2, "pp": 0}),
        ("[2026-02-18 14:03:27 DP1 PP0 ATTN_CP7 MOE_DP2 TP3] x", datetime(2026, 2, 18, 14, 3, 27), {"dp": 1, "tp": 3, "pp": 0}),
        ("[2026-02-18 14:03:27.045 TP0] x", datetime(2026, 2, 18, 14, 3, 27, 45_000), {"tp": 0}),
        ("[2026-02-18 14:03:27 encode_dp_worker[3]] x", None, {}),
        ("[rank5]: x", None, {"tp": 5}),
        ("[gpu_id=0] x", None, {}),
        ("x", None, {}),
        ("[2026-13-45 14:03:27] x", None, {}),
    ],
)
def test_brackets(line: str, time: datetime | None, ranks: dict[str, int]) -> None:
    found = read_prefix(line)

    assert found.time == time
    assert {name: number for name, number in found.ranks._asdict().items() if number is not None} == ranks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("server_args=ServerArgs(model_path='/m', tp_size=8, x=None)", {"model_path": "/m", "tp_size": 8, "x": None}),
        ("server_args={'model_path': '/m', 'mem': 0.93, 'on': True}", {"model_path": "/m", "mem": 0.93, "on": True}),
        ("""server_args=ServerArgs(a='{"b": "c, d)"}', e="it's")""", {"a": '{"b": "c, d)"}', "e": "it's"}),
        ("server_args=ServerArgs(a=[1, [2, (3,)]], b={'c': {'d': 'e'}})", {"a": [1, [2, [3]]], "b": {"c": {"d": "e"}}}),
        (
            "server_args=ServerArgs(a=Inner(b=1, c='x'), d=<Kind.A: 'a'>, e=torch.float16)",
            {"a": {"b": 1, "c": "x"}, "d": "a", "e": "torch.float16"},
        ),
        ("server_args=ServerArgs(a=<function f at 0x7f>, b=-inf, c=1e-06)", {"a": "<function f at 0x7f>", "b": float("-inf"), "c": 1e-06}),
    ],
)
def test_server_args(text: str, expected: dict[str, Any]) -> None:
    assert read_server_args(text) == (expected, True)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,14}", fullmatch=True), VALUES, min_size=1, max_size=8)


@settings(deadline=None)
@given(FIELDS)
def test_every_repr_is_read_back(fields: dict[str, Any]) -> None:
    call = "server_args=ServerArgs(" + ", ".join(f"{name}={value!r}" for name, value in fields.items()) + ")"

    assert read_server_args(call) == (fields, True)
    assert read_server_args(f"server_args={fields!r} and more") == (fields, True)


@settings(deadline=None)
@given(FIELDS, st.integers(min_value=0))
def test_a_cut_repr_gives_only_whole_values(fields: dict[str, Any], at: int) -> None:
    text = "server_args=ServerArgs(" + ", ".join(f"{name}={value!r}" for name, value in fields.items()) + ")"
    cut = text[: 23 + at % (len(text) - 23)]
    found = read_server_args(cut)

    assert found is not None
    assert not found[1]
    assert all(fields[name] == value for name, value in found[0].items())


def test_bars_that_redraw_one_line_and_bars_that_end_it() -> None:
    bars = [f"Loading safetensors checkpoint shards: {n * 25:3d}% Completed | {n}/4 [00:0{n}<00:0{4 - n},  2.00it/s]" for n in range(5)]
    slow = "Multi-thread loading shards:  50% Completed | 2/4 [01:02:03<00:30,  2.50s/it]"

    rows = read("\r".join(bars), slow)["load_progress"]

    assert [(row["line"], row["percent"], row["shards_done"]) for row in rows] == [(1, n * 25, n) for n in range(5)] + [(2, 50, 2)]
    assert (rows[-1]["elapsed_s"], rows[-1]["remaining_s"], rows[-1]["rate_per_s"]) == (3723.0, 30.0, pytest.approx(0.4))


def test_a_chained_traceback_is_one_error_with_its_causes() -> None:
    rows = read(
        "[2026-02-18 14:03:27 TP2] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/a/first.py", line 1, in one',
        "    one()",
        "ValueError: the cause",
        "with a second line",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "/a/second.py", line 22, in two',
        "RuntimeError: the error",
        "",
        "[2026-02-18 14:03:28] Received sigquit from a child process. It usually means the child failed.",
    )

    (error,) = rows["errors"]
    assert (error["kind"], error["message"], error["line"], error["message_line"]) == ("RuntimeError", "the error", 1, 11)
    assert (error["frame_file"], error["frame_line"], error["frame_function"]) == ("/a/second.py", 22, "two")
    assert json.loads(error["chain"]) == [["ValueError", "the cause\nwith a second line", 4]]
    assert (error["process"], error["tp"]) == ("Scheduler", 2)
    assert [row["event"] for row in rows["shutdown"]] == ["child_failed"]


def test_tracebacks_of_two_ranks_interleave() -> None:
    rows = read(
        "[rank0]: Traceback (most recent call last):",
        "[rank1]: Traceback (most recent call last):",
        '[rank0]:   File "/a.py", line 1, in f',
        '[rank1]:   File "/b.py", line 2, in g',
        "[rank1]: ValueError: one",
        "[rank0]: KeyError: 'zero'",
    )

    assert {(row["tp"], row["kind"], row["frame_file"]) for row in rows["errors"]} == {(0, "KeyError", "/a.py"), (1, "ValueError", "/b.py")}


def test_an_exception_group_ends_with_the_exception_inside() -> None:
    rows = read(
        "  + Exception Group Traceback (most recent call last):",
        '  |   File "/a.py", line 1, in f',
        "  |     raise BaseExceptionGroup(",
        "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
        "    | Traceback (most recent call last):",
        '    |   File "/b.py", line 2, in g',
        "    |     return await self.app(scope)",
        "    | ValueError: inside",
        "    +------------------------------------",
    )

    (error,) = rows["errors"]
    assert (error["kind"], error["message"], error["frame_file"]) == ("ValueError", "inside", "/b.py")
    assert [link[0] for link in json.loads(error["chain"])] == ["ExceptionGroup"]
    assert "notices" not in rows


def test_a_record_ends_an_exceptions_text_but_not_its_frames() -> None:
    rows = read(
        "Traceback (most recent call last):",
        '  File "/a.py", line 1, in f',
        "[2026-02-18 14:03:27 TP1] Load weight begin. avail mem=93.43 GB",
        "RuntimeError: boom",
        "[2026-02-18 14:03:27 TP1] Load weight begin. avail mem=93.43 GB",
        "a stray line",
    )

    (error,) = rows["errors"]
    assert (error["kind"], error["message"]) == ("RuntimeError", "boom")
    assert [row["text"] for row in rows["notices"]] == ["a stray line"]
    assert len(rows["memory"]) == 2


def test_a_py_spy_dump_is_one_notice() -> None:
    rows = read(
        "[2026-02-18 14:03:27 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
        "[2026-02-18 14:03:28 TP0] Pyspy dump for PID 4242:",
        "Process 4242: sglang::scheduler_TP0",
        "Python v3.12.3 (/usr/bin/python3.12)",
        "",
        'Thread 4242 (idle): "MainThread"',
        "    all_reduce (torch/distributed/distributed_c10d.py:2810)",
        "    forward (sglang/srt/models/x.py:77)",
        "[2026-02-18 14:03:29] Received sigquit from a child process. It usually means the child failed.",
    )

    assert [row["name"] for row in rows["watchdog"]] == ["Scheduler"]
    (dump,) = rows["notices"]
    assert (dump["line"], dump["tp"], dump["logger"]) == (2, 0, "py-spy")
    assert "all_reduce (torch/distributed/distributed_c10d.py:2810)" in dump["text"]
    assert len(rows["shutdown"]) == 1


def test_the_usage_of_argparse_is_one_notice() -> None:
    rows = read(
        "usage: sglang serve [-h] --model-path MODEL_PATH",
        "                    [--config CONFIG] [--disable-cuda-graph]",
        "                    [--enable-dp-attention]",
        "sglang serve: error: unrecognized arguments: --hicache-sise 300",
    )

    (usage,) = rows["notices"]
    assert (usage["line"], usage["level"], usage["logger"]) == (1, "info", "argparse")
    assert usage["text"].endswith("[--enable-dp-attention]")
    assert [row["kind"] for row in rows["errors"]] == ["argparse"]


@settings(deadline=None)
@given(st.text(max_size=300))
def test_no_text_breaks_the_reader(text: str) -> None:
    line = text.replace("\n", " ")
    reader = LineReader(stamped=True)
    reader.feed(1, line, known=True)
    reader.feed(2, f"[2026-02-18 14:03:27 TP0] {line}", known=True, unterminated=True)
    reader.close()

    tally = reader.tally
    assert tally.parsed + tally.noise + tally.unknown + tally.damaged == 2
    assert tally.unfinished == 1


DECODE = "[2026-02-18 14:03:27 TP0] Decode batch, #running-req: 5, #token: 100, token usage: 0.10, gen throughput (token/s): 50.00, #queue-req: 0"


@pytest.mark.parametrize(
    ("line", "rows", "damaged"),
    [
        (f"[2026-02-18 14:03:27] Receive: obj=GenerateReqInput(rid='r1', text=' {DECODE}')", {"requests": 1}, False),
        (f"[2026-02-18 14:03:27] Receive: obj=GenerateReqInput(rid='r1', text='it\\'s {DECODE}')", {"requests": 1}, False),
        (f"[2026-02-18 14:03:27] Receive: obj=GenerateReqInput(rid='r1', text=' '){DECODE}", {"requests": 1, "decode": 1}, True),
        (f"[2026-02-18 14:03:27] Receive: obj=GenerateReqInput(rid='r1', text='abc {DECODE}", {}, True),
        (f"he said: {DECODE}", {"notices": 1}, True),
        (f"> {DECODE}", {"notices": 1}, True),
        (f"[2026-02-18 14:03:26 TP1] Decode batch, #running-req: {DECODE}", {"decode": 1}, True),
        (
            f"Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:01<00:03,  1.00s/it]{DECODE}",
            {"load_progress": 1, "decode": 1},
            False,
        ),
        (f"INFO:     127.0.0.1:{DECODE}", {"notices": 1, "decode": 1}, True),
    ],
)
def test_records_that_share_a_line(line: str, rows: dict[str, int], damaged: bool) -> None:  # noqa: FBT001
    reader = LineReader(stamped=True)
    reader.feed(1, line, known=True)
    reader.close()

    assert {name: len(found) for name, found in reader.take().items()} == rows
    assert reader.tally.damaged == damaged


def test_a_prompt_full_of_stamps_is_read_in_linear_time() -> None:
    text = "[2026-02-18 14:03:27 TP0] x " * 20_000
    begin = time.process_time()
    reader = LineReader(stamped=True)
    reader.feed(1, f"[2026-02-18 14:03:27] Receive: obj=GenerateReqInput(rid='r1', text='{text}')", known=True)
    reader.feed(2, text, known=True)

    assert time.process_time() - begin < 3
