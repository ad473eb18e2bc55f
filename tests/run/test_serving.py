"""Serving facts from logs as they are written: intervals, gaps, ranks, retractions."""

from __future__ import annotations

from pathlib import Path

import pytest

from logforensics import parse
from logforensics.run import Run, build_run
from logforensics.run.model import BatchWindow, PrefillWindow


def run_of(folder: Path, *lines: str) -> Run:
    log = folder / "server.log"
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return build_run(parse(log))


def decode(
    clock: str,
    running: int = 8,
    tokens: int = 1000,
    usage: float = 0.1,
    speed: float = 100.0,
    queue: int = 0,
    tag: str = "",
    more: str = "",
) -> str:
    return (
        f"[2026-05-01 {clock}{tag}] Decode batch, #running-req: {running}, #token: {tokens}, token usage: {usage:.2f}, {more}"
        f"cuda graph: True, gen throughput (token/s): {speed:.2f}, #queue-req: {queue}"
    )


def prefill(
    clock: str, new: int, cached: int = 0, running: int = 0, queue: int = 0, usage: float = 0.1, tag: str = "", more: str = ""
) -> str:
    return (
        f"[2026-05-01 {clock}{tag}] Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {cached}, token usage: {usage:.2f}, "
        f"#running-req: {running}, #queue-req: {queue}{more}, cuda graph: False, input throughput (token/s): 8000.00"
    )


def only_window(run: Run) -> BatchWindow:
    (window,) = run.serving.windows
    return window


def only_prefill(run: Run) -> PrefillWindow:
    (window,) = run.serving.prefills
    return window


# ------------------------------------------------------------------------------------------------ intervals and gaps


def test_a_figure_weighs_as_much_as_its_interval(tmp_path: Path) -> None:
    run = run_of(tmp_path, decode("10:00:00", speed=999), decode("10:00:01", speed=100), decode("10:00:10", speed=200))
    # 999 covers an unknown time before the log; 100 covers 1 s, 200 covers 9 s
    assert only_window(run).throughput_mean == pytest.approx((100 * 1 + 200 * 9) / 10)
    assert only_window(run).throughput_peak == 999


def test_the_line_after_a_gap_says_nothing_about_speed(tmp_path: Path) -> None:
    busy = [decode(f"10:00:{second:02d}", speed=400) for second in range(0, 20, 2)]
    window = only_window(run_of(tmp_path, *busy, decode("10:30:00", speed=0.5), decode("10:30:02", speed=400)))
    assert window.throughput_mean == pytest.approx(400)
    assert window.idle_seconds == pytest.approx(1782)
    assert window.seconds == pytest.approx(20)
    assert window.steady_lines == 10


def test_the_line_after_a_prefill_is_not_steady(tmp_path: Path) -> None:
    lines = [
        decode("10:00:00", running=4, speed=40),
        decode("10:00:02", running=4, speed=400),
        prefill("10:00:03", 8000),
        decode("10:00:06", running=4, speed=8),
    ]
    window = only_window(run_of(tmp_path, *lines))
    assert window.steady_lines == 1
    assert window.steps_median == pytest.approx(100)


def test_steps_are_counted_without_accepted_drafts(tmp_path: Path) -> None:
    lines = [decode(f"10:00:{second:02d}", running=8, speed=400, more="accept len: 2.50, accept rate: 0.50, ") for second in (0, 2, 4)]
    window = only_window(run_of(tmp_path, *lines))
    assert window.steps_median == pytest.approx(400 / (8 * 2.5))
    assert window.accept_len_mean == pytest.approx(2.5)
    assert window.accept_weight == 24


def test_time_before_a_prefill_belongs_to_the_decode_before_it(tmp_path: Path) -> None:
    lines = [
        decode("10:00:00", usage=1.0, queue=3),
        prefill("10:00:06", 8192, running=8, queue=3, usage=0.5),
        prefill("10:00:08", 8192, running=8, queue=2, usage=0.5),
    ]
    window = only_window(run_of(tmp_path, *lines))
    assert window.full_share == pytest.approx(6 / 8)
    assert window.full_mark is not None
    assert window.full_mark.line == 1


def test_a_prefill_leaves_the_rest_of_its_interval_to_decode(tmp_path: Path) -> None:
    # 8000 tokens/s between prefill lines, so 8,000 tokens take one of the four seconds before the decode line
    lines = [prefill("10:00:00", 8000), prefill("10:00:01", 8000), decode("10:00:05"), decode("10:00:07")]
    run = run_of(tmp_path, *lines)
    assert only_prefill(run).seconds == pytest.approx(2)
    assert only_window(run).seconds == pytest.approx(7)


def test_lines_without_time_count_equally(tmp_path: Path) -> None:
    bare = [
        line.split("] ", 1)[1]
        for line in (decode("10:00:00", usage=0.99, queue=2), decode("10:00:01", usage=0.99, queue=1), decode("10:00:02", usage=0.5))
    ]
    window = only_window(run_of(tmp_path, *bare))
    assert window.full_share == pytest.approx(2 / 3)


def test_state_slots_are_not_kv(tmp_path: Path) -> None:
    line = "full token usage: 0.05, mamba num: 80, mamba usage: 1.00, cuda graph: True, gen throughput (token/s): 900.00, #queue-req: 31"
    lines = [f"[2026-05-01 10:00:{second:02d} TP0] Decode batch, #running-req: 16, #full token: 9000, {line}" for second in (0, 3, 6)]
    window = only_window(run_of(tmp_path, *lines))
    assert window.full_share == 0
    assert {state.band for state in window.occupancy} == {"states"}


def test_a_minute_of_ten_shows_in_the_occupancy(tmp_path: Path) -> None:
    calm = [decode(f"10:{minute:02d}:{second:02d}") for minute in range(9) for second in range(0, 60, 5)]
    full = [decode(f"10:09:{second:02d}", running=40, usage=0.98, queue=12) for second in range(0, 60, 5)]
    window = only_window(run_of(tmp_path, *calm, *full))
    (state,) = [state for state in window.occupancy if state.band == "full"]
    assert state.seconds == pytest.approx(60)
    assert (state.running, state.waiting, state.queue_max, state.kind) == (40, True, 12, "steady")
    assert window.usage_median == pytest.approx(0.1)


# ------------------------------------------------------------------------------------------------ prefill


def test_starvation_counts_runs_with_requests_running(tmp_path: Path) -> None:
    alone = [prefill(f"10:00:0{second}", 8192) for second in range(4)]
    starving = [prefill(f"10:00:{second}", 8192, running=5) for second in range(20, 26)]
    window = only_prefill(run_of(tmp_path, *alone, decode("10:00:18"), *starving, decode("10:00:28")))
    assert window.starved_longest_lines == 6
    assert window.starved_running == 5
    assert (window.starved_first and window.starved_first.line, window.starved_last and window.starved_last.line) == (6, 11)


def test_backlog_and_reuse(tmp_path: Path) -> None:
    lines = [
        prefill(f"10:00:{second:02d}", 4096, cached=4096 if second < 10 else 0, queue=3, more=f", #pending-token: {90000 - second}")
        for second in range(20)
    ]
    window = only_prefill(run_of(tmp_path, *lines))
    assert window.pending_max == 90000
    assert window.pending_mark is not None
    assert window.pending_mark.line == 1
    assert window.hits[0].cached_share == pytest.approx(0.5)
    assert window.hits[-1].cached_share == 0


# ------------------------------------------------------------------------------------------------ ranks


def test_one_window_per_scheduler_and_a_sum_over_dp_not_over_pp(tmp_path: Path) -> None:
    ranks = [decode(f"10:00:0{second}", speed=100, tag=f" DP{dp} TP{dp}") for second in (0, 2) for dp in (0, 1)]
    assert run_of(tmp_path, *ranks).serving.throughput_mean == pytest.approx(200)
    stages = [decode(f"10:00:0{second}", speed=100, tag=f" PP{pp} TP0") for second in (0, 2) for pp in (0, 1)]
    assert run_of(tmp_path, *stages).serving.throughput_mean == pytest.approx(100)


def test_balance_compares_ranks_in_the_same_seconds(tmp_path: Path) -> None:
    lines = []
    for second in range(0, 60, 5):
        lines.append(decode(f"10:00:{second:02d}", running=40, usage=0.96, queue=9, tag=" DP0 TP0"))
        lines.append(decode(f"10:00:{second:02d}", running=12, usage=0.2, tag=" DP1 TP1"))
    found = run_of(tmp_path, *lines).serving.balance
    assert found is not None
    assert (found.ranks, found.buckets, found.uneven_waiting) == (2, 6, 6)
    assert (found.high_rank.dp, found.low_rank.dp) == (0, 1)


def test_a_rank_that_runs_dry_has_no_line(tmp_path: Path) -> None:
    lines = [decode(f"10:00:{second:02d}", running=20, usage=0.5, tag=f" DP{dp} TP{dp}") for second in range(0, 20, 5) for dp in (0, 1)]
    lines += [decode(f"10:00:{second:02d}", running=20, usage=0.5, tag=" DP0 TP0") for second in range(20, 40, 5)]
    found = run_of(tmp_path, *lines).serving.balance
    assert found is not None
    assert (found.uneven, found.uneven_waiting) == (2, 0)
    assert found.low is None
    assert found.low_rank.dp == 1


# ------------------------------------------------------------------------------------------------ retractions


def retraction(clock: str, old: str, new: str, tag: str = " TP0", requests: int = 1) -> str:
    return (
        f"[2026-05-01 {clock}{tag}] KV cache pool is full. Retract requests. #retracted_reqs: {requests}, #new_token_ratio: {old} -> {new}"
    )


def test_ranks_that_print_the_same_retraction_count_once(tmp_path: Path) -> None:
    first = [retraction("10:00:03", "0.1474", "0.1845", f" TP{rank}") for rank in (13, 12, 10)]
    second = [retraction("10:00:15" if rank < 4 else "10:00:16", "0.0980", "0.1919", f" TP{rank}") for rank in range(8)]
    serving = run_of(tmp_path, *first, *second).serving
    assert [event.mark.line for event in serving.retractions] == [1, 4]
    assert serving.retraction_events == 2
    assert serving.retractions_per_minute == 2


def test_the_same_ratios_much_later_are_another_event(tmp_path: Path) -> None:
    lines = [retraction("10:00:03", "0.5", "0.7"), retraction("10:02:03", "0.5", "0.7"), retraction("10:02:33", "0.5", "0.7")]
    serving = run_of(tmp_path, *lines).serving
    assert serving.retraction_events == 3
    assert serving.retractions_per_minute == 2


def test_dp_ranks_retract_on_their_own(tmp_path: Path) -> None:
    lines = [retraction("10:00:03", "0.5", "0.7", f" DP{dp} TP{dp}") for dp in (0, 1)]
    assert run_of(tmp_path, *lines).serving.retraction_events == 2


# ------------------------------------------------------------------------------------------------ trends


def test_slope_needs_one_batch_size_and_growing_contexts(tmp_path: Path) -> None:
    grow = [decode(f"10:00:{2 * place:02d}", tokens=10_000 + 500 * place, speed=200 / (1 + place / 50)) for place in range(12)]
    slope = only_window(run_of(tmp_path, *grow)).slope
    assert slope is not None
    assert slope.elasticity < 0
    assert slope.correlation < -0.95
    assert (slope.running, slope.lines) == (8, 11)
    changing = [decode(f"10:00:{2 * place:02d}", running=place + 1, tokens=10_000 + 500 * place) for place in range(12)]
    assert only_window(run_of(tmp_path, *changing)).slope is None


def test_drift_compares_like_with_like(tmp_path: Path) -> None:
    def clock(place: int) -> str:
        return f"10:{place // 30:02d}:{2 * (place % 30):02d}"

    slower = [decode(clock(place), tokens=20_000 + place, speed=800 if place < 25 else 500) for place in range(50)]
    drift = only_window(run_of(tmp_path, *slower)).drift
    assert drift is not None
    assert drift.after / drift.before == pytest.approx(500 / 800)
    assert only_window(run_of(tmp_path, *slower[:20])).drift is None
