"""First cause, not last line: what the fixtures cannot say, because it concerns the order of several troubles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from logforensics import diagnose
from logforensics.diagnosis import Diagnosis
from logforensics.parsing import parse
from logforensics.run import build_run

UP = (
    "[2026-01-10 10:00:00] server_args=ServerArgs(model_path='/m/Qwen3-8B', tp_size=4, mem_fraction_static=0.85)",
    "[2026-01-10 10:01:00] The server is fired up and ready to roll!",
    "[2026-01-10 10:02:00 TP0] Decode batch, #running-req: 5, #token: 2400, token usage: 0.10, cuda graph: True, gen throughput (token/s): 300.00, #queue-req: 0",
)
FRAME = '  File "/usr/lib/python3/site-packages/sglang/srt/{path}", line {line}, in {function}'
LOOP = FRAME.format(path="managers/scheduler.py", line=1121, function="event_loop_overlap")
RECEIVE = FRAME.format(path="managers/scheduler.py", line=1292, function="recv_requests")
LOST = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4455"
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"


def raised(rank: int, error: str, clock: str = "10:03:00", frame: str = LOOP) -> tuple[str, ...]:
    """A scheduler's traceback."""
    return (f"[2026-01-10 {clock} TP{rank}] Scheduler hit an exception: Traceback (most recent call last):", LOOP, frame, error, "")


def diagnosed(folder: Path, *parts: Sequence[str]) -> Diagnosis:
    log = folder / "server.log"
    log.write_text("".join(f"{line}\n" for part in parts for line in part))
    return diagnose(log)


def causes(found: Diagnosis) -> list[str]:
    return [finding.root_cause for finding in found.findings if finding.severity.value != "info"]


@pytest.mark.parametrize("echo_first", [False, True])
def test_the_cause_wins_whichever_traceback_is_printed_first(tmp_path: Path, *, echo_first: bool) -> None:
    parts = [raised(2, ILLEGAL), raised(0, LOST, frame=RECEIVE)]
    found = diagnosed(tmp_path, UP, *(reversed(parts) if echo_first else parts))
    assert causes(found) == ["illegal_memory_access"]


def test_a_consequence_points_at_its_cause(tmp_path: Path) -> None:
    watchdog = ("[2026-01-10 10:09:00 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",)
    found = diagnosed(tmp_path, UP, raised(2, ILLEGAL), watchdog)
    by_cause = {finding.root_cause: finding for finding in found.findings}
    assert causes(found) == ["illegal_memory_access", "watchdog_timeout"]
    assert by_cause["watchdog_timeout"].caused_by == by_cause["illegal_memory_access"].code


def test_what_comes_later_causes_nothing_earlier(tmp_path: Path) -> None:
    watchdog = ("[2026-01-10 10:09:00 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",)
    found = diagnosed(tmp_path, UP, watchdog, raised(2, ILLEGAL, "10:09:30"))
    assert next(finding for finding in found.findings if finding.root_cause == "watchdog_timeout").caused_by is None


def test_the_fallback_yields_to_what_explains_the_exception(tmp_path: Path) -> None:
    leak = "ValueError: token_to_kv_pool_allocator memory leak detected! self.max_total_num_tokens=1000, available_size=900, evictable_size=90, protected_size=0"
    assert causes(diagnosed(tmp_path, UP, *(raised(rank, leak) for rank in range(4)))) == ["kv_leak"]


def test_the_timeline_names_the_first_rank_its_equals_and_the_silent(tmp_path: Path) -> None:
    error = "ValueError: negative dimensions are not allowed"
    found = diagnosed(tmp_path, UP, raised(1, error), raised(0, error), raised(2, LOST, "10:03:09", RECEIVE))
    roles = {row["rank"]: row["role"] for row in found.run["timeline"]}
    assert roles == {"TP1": "first", "TP0": "same error", "TP2": "consequence", "TP3": "silent"}


def test_a_healthy_run_has_no_timeline(tmp_path: Path) -> None:
    assert diagnosed(tmp_path, UP).run["timeline"] == []


def test_a_torn_traceback_is_put_together(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    lines = [*UP, LOOP, FRAME.format(path="lora/lora_manager.py", line=220, function="prepare_lora_batch"), "KeyError: None"]
    log.write_text("".join(f"{line}\n" for line in lines))
    trouble = build_run(parse(log)).troubles[-1]
    assert [function for _, _, function in trouble.frames] == ["event_loop_overlap", "prepare_lora_batch"]
    assert trouble.process == "Scheduler"


def test_two_nodes_are_ordered_by_their_clocks(tmp_path: Path) -> None:
    for name, lines in (("a.log", raised(8, LOST, "10:03:05", RECEIVE)), ("b.log", raised(1, ILLEGAL, "10:03:01"))):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in (*UP[1:], *lines)))
    run = build_run(parse([tmp_path / "a.log", tmp_path / "b.log"]))
    assert [trouble.rank.tp for trouble in run.troubles] == [1, 8]
