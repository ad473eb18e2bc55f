"""Damage of every kind to a log: the rows that remain are rows of the whole log, and damage is counted."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from logforensics import ParsedLog, parse

STAMP = "[2026-02-18 14:{:02d}:{:02d} DP{} TP{}] "
TABLES = ("prefill", "decode", "memory", "kv_pool", "capacity", "retractions", "host_pool", "ready")


def _server(count: int = 60) -> list[str]:
    """Lines of two ranks that serve, in the form of 0.5.16; every one of its own."""
    lines = [STAMP.format(0, rank, rank, rank) + f"Load weight begin. avail mem={93 + rank}.43 GB" for rank in range(2)]
    lines += [
        STAMP.format(0, rank, rank, rank) + f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {230_378 + rank}, KV size: 15.08 GB"
        for rank in range(2)
    ]
    for n in range(count):
        stamp = STAMP.format(1 + n // 60, n % 60, n % 2, n % 2)
        lines.append(
            stamp + f"Decode batch, #running-req: {n + 11}, #token: {10_000 + n}, token usage: 0.{n % 90 + 10}, cuda graph: True, "
            f"gen throughput (token/s): {500 + n}.25, #queue-req: {n + 21}"
        )
        lines.append(
            stamp + f"Prefill batch, #new-seq: {n + 1}, #new-token: {4_000 + n}, #cached-token: {300 + n}, token usage: 0.{n % 90 + 10}, "
            f"#running-req: {n + 5}, #queue-req: {n + 7}, #pending-token: {900 + n}, cuda graph: False, input throughput (token/s): {7_000 + n}.50"
        )
        if n % 7 == 0:
            lines.append(
                stamp
                + f"KV cache pool is full. Retract requests. #retracted_reqs: {n + 1}, #new_tokens_gained: {n + 2000}, #new_token_ratio: 0.5000 -> 0.{n + 6000}"
            )
            lines.append(f'INFO:     127.0.0.1:{40_000 + n} - "POST /v1/chat/completions HTTP/1.1" 200 OK')
    return lines


LINES = _server()


def _parse(data: bytes) -> ParsedLog:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "server.log"
        path.write_bytes(data)
        return parse(path)


def _rows(parsed: ParsedLog) -> Counter[tuple[object, ...]]:
    return Counter((name, *row) for name in TABLES for row in parsed.frames[name].drop("source", "line").iter_rows())


WHOLE = _rows(_parse(("\n".join(LINES) + "\n").encode()))
PLACES = st.integers(min_value=1, max_value=len(LINES) - 2)
quick = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def test_the_whole_log_gives_all_rows() -> None:
    assert sum(WHOLE.values()) == sum(not line.startswith("INFO") for line in LINES)


@quick
@given(PLACES, st.data())
def test_a_torn_record_gives_no_row(place: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(min_value=1, max_value=len(LINES[place]) - 1))
    torn = [*LINES[:place], LINES[place][:at] + LINES[place + 1], LINES[place][at:], *LINES[place + 2 :]]

    found = _parse(("\n".join(torn) + "\n").encode())

    assert not _rows(found) - WHOLE
    assert sum((WHOLE - _rows(found)).values()) <= 2
    assert found.coverage.damaged >= 1


@quick
@given(PLACES, st.data())
def test_two_records_torn_by_each_other_give_no_row_but_their_own(place: int, data: st.DataObject) -> None:
    one, other = LINES[place : place + 2]
    at = data.draw(st.integers(min_value=1, max_value=len(one) - 1))
    there = data.draw(st.integers(min_value=0, max_value=len(other)))
    bracket = len(STAMP.format(0, 0, 0, 0))
    assume(max(at, there) > bracket or there == 0)  # brackets that are both cut fit each other's rest
    torn = [*LINES[:place], one[:at] + other[:there] + one[at:], other[there:], *LINES[place + 2 :]]

    found = _parse(("\n".join(torn) + "\n").encode())

    assert not _rows(found) - WHOLE
    assert sum((WHOLE - _rows(found)).values()) <= 2
    assert found.coverage.damaged >= 1 or there == 0


@quick
@given(st.sets(PLACES, min_size=1, max_size=5))
def test_glued_records_lose_nothing_they_prove(places: set[int]) -> None:
    data = "".join(line + ("" if n in places else "\n") for n, line in enumerate(LINES))

    found = _parse(data.encode())

    assert not _rows(found) - WHOLE
    assert sum((WHOLE - _rows(found)).values()) <= len(places)
    assert found.coverage.damaged >= 1


@quick
@given(st.integers(min_value=1, max_value=len("\n".join(LINES))))
def test_a_log_cut_anywhere_gives_only_whole_rows(size: int) -> None:
    text = "\n".join(LINES)[:size]
    if not text.strip():
        return

    found = _parse(text.encode())

    assert not _rows(found) - WHOLE
    whole_lines = text.count("\n")
    assert sum(_rows(found).values()) >= sum(not line.startswith("INFO") for line in LINES[:whole_lines])
    assert found.coverage.unfinished == (not text.endswith("\n"))
    assert found.coverage.lines == whole_lines + (not text.endswith("\n"))


@quick
@given(st.permutations(LINES))
def test_order_does_not_matter_to_single_records(lines: list[str]) -> None:
    assert _rows(_parse(("\n".join(lines) + "\n").encode())) == WHOLE


@quick
@given(
    st.lists(
        st.tuples(st.integers(min_value=0, max_value=10_000), st.sampled_from([b"\x00", b"\xff", b"\x01", b"\r", b"\x1b", "é".encode()])),
        max_size=6,
    )
)
def test_stray_bytes_invent_nothing(strays: list[tuple[int, bytes]]) -> None:
    data = bytearray(("\n".join(LINES) + "\n").encode())
    for at, stray in strays:
        data[at % len(data) : at % len(data)] = stray

    found = _parse(bytes(data))

    assert not _rows(found) - WHOLE
    coverage = found.coverage
    assert coverage.parsed + coverage.noise + coverage.unknown + coverage.damaged == coverage.lines == data.count(b"\n")
    assert sum(last - first + 1 for _, first, last in coverage.damaged_lines) == coverage.damaged


# what fuzzing found: each of these lines once gave a row that no process had written, or ended the program
BAR = "Loading safetensors checkpoint shards:  50% Completed | 32/64 [00:12<00:12,  2.56it/s]"
DECODE = "[2026-02-18 14:01:00 TP0] Decode batch, #running-req: 5, #token: 3680, token usage: 0.10, cuda graph: True, gen throughput (token/s): 50.00, #queue-req: 0"
BEGUN = "[2026-02-18 14:00:50 TP0] "
REMAINS = {
    "a bar without its beginning": BAR[12:],
    "a digit behind an escape byte": DECODE.replace("3680", "36\x1b80"),
    "two numbers in one": BAR.replace("2.56", "2.5.6"),
    "a label that lost its beginning": DECODE.replace("token usage", "ken"),
    "labels grown together": DECODE.replace("cuda graph", "gecuda graph"),
    "a label with half of its brackets": DECODE.replace(", cuda graph", ", gen throughput (tokcuda graph"),
    "a label of the other kind": DECODE.replace("cuda graph: True", "input throughput (token/s): 900.00"),
    "a bracket without its beginning": "6-02-18 14:01:00] The server is fired up and ready to roll!",
    "a bracket of which the last digits are left": "00] The server is fired up and ready to roll!",
    "a bracket with a hole": "[2026-02-18 14:\x00\x00 TP0] The server is fired up and ready to roll!",
    "a percentage that is not that of its shards": BAR.replace("50%", "5%"),
    "a bar behind another record's beginning": BEGUN + "Load weight end. type=LlamaForCausalLM, avail-thread" + BAR[7:],
    "a label that stands twice": DECODE + "12, token usage: 0.11, cuda graph: True, gen throughput (token/s): 51.00, #queue-req: 0",
    "a bracket that lost its beginning in the message": BEGUN
    + "INFO:     Started server process [4121]00:26 TP0] max_total_num_tokens=131150, chunked_prefill_size=8192, context_len=40960",
    "a hole in the message": BEGUN + "Load weight begin. avail\x00 mem=93.43 GB",
}


@pytest.mark.parametrize("damage", REMAINS)
def test_remains_of_a_record_are_counted_and_give_no_row(damage: str) -> None:
    found = _parse(("\n".join([*LINES, REMAINS[damage]]) + "\n").encode())

    assert _rows(found) == WHOLE
    assert found.frames["load_progress"].is_empty()
    assert [line for _, line, _ in found.coverage.damaged_examples] == [len(LINES) + 1]


def test_every_damaged_line_is_named_however_many_there_are() -> None:
    remains = REMAINS["two numbers in one"]
    lines = [line for whole in LINES for line in (whole, remains, remains)]

    coverage = _parse(("\n".join(lines) + "\n").encode()).coverage

    assert coverage.damaged == 2 * len(LINES) > len(coverage.damaged_examples)
    assert [(first, last) for _, first, last in coverage.damaged_lines] == [(3 * n + 2, 3 * n + 3) for n in range(len(LINES))]


def test_a_bar_behind_a_torn_bracket_has_neither_its_time_nor_its_rank() -> None:
    bars = _parse(("\n".join([*LINES, BEGUN + BAR]) + "\n").encode()).frames["load_progress"]

    assert bars.select("time", "tp", "percent").rows() == [(None, None, 50)]


def test_a_bar_glued_to_a_torn_one_is_read_alone() -> None:
    found = _parse(("\n".join([*LINES, BAR[:11] + BAR]) + "\n").encode())

    assert found.frames["load_progress"]["kind"].to_list() == ["Loading safetensors checkpoint shards"]
    assert found.coverage.damaged == 1


TRACEBACK = [
    "[2026-02-18 14:05:00 TP0] Scheduler hit an exception: Traceback (most recent call last):",
    '  File "/sglang/srt/managers/scheduler.py", line 3130, in run_scheduler_process',
    "    scheduler = Scheduler(",
]
SIGQUIT = "[2026-02-18 14:05:00] Received sigquit from a child process. It usually means the child failed."


@pytest.mark.parametrize("at", [2, 10, 17, 30])
def test_the_exception_of_a_traceback_is_put_together_where_another_record_cut_it(at: int) -> None:
    exception = "RuntimeError: expected 4 shards, found 3"
    lines = [*TRACEBACK, exception[:at] + SIGQUIT, exception[at:], ""]

    found = _parse("\n".join(lines).encode())

    assert found.frames["errors"].select("kind", "message", "tp").rows() == [("RuntimeError", "expected 4 shards, found 3", 0)]
    assert found.coverage.damaged_lines[0][1:] == (4, 5)


def test_a_cut_exception_without_its_rest_keeps_what_is_there() -> None:
    found = _parse("\n".join([*TRACEBACK, "RuntimeError: expec" + SIGQUIT, SIGQUIT, ""]).encode())

    assert found.frames["errors"].select("kind", "message").rows() == [("RuntimeError", "expec")]


def test_a_shells_killed_is_no_exception_of_a_torn_traceback() -> None:
    found = _parse("\n".join([*TRACEBACK, "Killed", ""]).encode())

    assert found.frames["errors"]["kind"].to_list() == ["unfinished traceback"]
    assert found.frames["shutdown"].select("time").rows() == [(None,)]


def test_a_ready_line_inside_another_one_has_its_own_time() -> None:
    line = "[2026-02-18 14:00:43] INFO:     Uvicorn running on http://0.0.0.0:30000 ([2026-02-18 14:00:54] The server is fired up and ready to roll!"

    ready = _parse(("\n".join([*LINES, line, "Press CTRL+C to quit)"]) + "\n").encode()).frames["ready"]

    assert [str(time) for time in ready["time"]] == ["2026-02-18 14:00:54"]


def test_a_bar_that_begins_with_a_piece_of_another_is_of_no_kind() -> None:
    torn = "\rLoad\rLoading safetensors c" + BAR[4:]

    found = _parse(("\n".join([*LINES, BAR, torn, BAR]) + "\n").encode())

    assert found.frames["load_progress"]["kind"].to_list() == [BAR.partition(":")[0]] * 2
    assert found.coverage.damaged == 1


def test_the_beginning_of_a_record_that_occurs_once_gives_no_row() -> None:
    torn = BEGUN + 'Init torch distributed ends. elapsed=4.00 sINFO:     10.0.0.1:1026 - "GET /health HTTP/1.1" 200 OK'

    assert _rows(_parse(("\n".join([*LINES, torn, ", mem usage=0.84 GB"]) + "\n").encode())) == WHOLE


def test_a_stray_byte_makes_server_args_incomplete_without_its_field() -> None:
    args = "[2026-02-18 14:00:00] server_args=ServerArgs(model_path='/m', load_fo\x00rmat='auto', dtype='a\x1auto', tp_size=2)"
    launches = _parse(("\n".join([args, *LINES]) + "\n").encode()).frames["launches"]

    assert launches.select("server_args", "complete").rows() == [('{"model_path": "/m", "tp_size": 2}', False)]


def test_a_record_of_a_million_fields_takes_time_in_proportion() -> None:
    """Each piece between commas once asked whether a bracket closes somewhere behind it, which took hours here."""
    line = BEGUN + "Decode batch, " + "#running-req: 5, " * 1_000_000

    assert _rows(_parse(("\n".join([*LINES, line]) + "\n").encode())) == WHOLE


def test_a_small_log_with_a_block_of_nul_bytes_is_not_taken_for_utf_16() -> None:
    data = (LINES[0] + "\n" + LINES[1][:40]).encode() + b"\x00" * 61 + LINES[1].encode() + b"\n"

    assert _parse(data).coverage.lines == 2


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_line_ends(end: str) -> None:
    assert _rows(_parse((end.join(LINES) + end).encode())) == WHOLE


_QUOTED = (
    "[2026-01-01 00:00:00 TP0] Decode batch, #running-req: 5, #token: 9, token usage: 0.10, gen throughput (token/s): 1.00, #queue-req: 0"
)


@pytest.mark.parametrize(
    ("request_text", "whole"),
    [
        (f"Receive: obj=GenerateReqInput(rid='a1', text='it said {_QUOTED}, twice', ids=[20, 2], stream=True)", True),
        (f"Receive: obj=GenerateReqInput(rid='a1', text=\"it's {_QUOTED}\", stream=True)", True),
        (rf"Receive: obj=GenerateReqInput(rid='a1', text='it\'s {_QUOTED}', ids=[[3]], stream=True)", True),
        (f"Receive: obj=GenerateReqInput(rid='a1', text='torn here {_QUOTED}, cuda graph: (off)", False),
    ],
)
def test_a_request_that_quotes_records_is_one_record(tmp_path: Path, request_text: str, whole: bool) -> None:  # noqa: FBT001
    log = tmp_path / "server.log"
    log.write_text(f"[2026-01-01 00:00:01] {request_text}\n", encoding="utf-8")

    parsed = parse(log)

    assert parsed.frames["decode"].is_empty()
    assert parsed.frames["requests"]["rid"].to_list() == ["a1"]
    assert parsed.coverage.damaged == (not whole)


def test_a_record_glued_to_a_request_is_not_hidden_by_its_quotes(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    request = f"[2026-01-01 00:00:01] Receive: obj=GenerateReqInput(rid='a1', text='{_QUOTED}', stream=True)"
    log.write_text(f"{request}{_QUOTED.replace('5,', '77,')}, seen: (all)\n", encoding="utf-8")

    assert parse(log).coverage.damaged == 1
