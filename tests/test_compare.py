"""Compare: what differs, speed at equal load, and a verdict that does not claim more than the logs hold."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import logforensics
from logforensics.comparison import Comparison, Outcome, compare
from logforensics.comparison.settings import field_of
from logforensics.errors import InputError
from logforensics.render.comparison import comparison_to_dict, render_comparison
from logforensics.render.screen import Detail, Screen

ROOT = Path(__file__).resolve().parents[1]
BASELINE = ROOT / "fixtures" / "founding_baseline_085" / "server.log"
HICACHE = ROOT / "fixtures" / "founding_hicache48" / "server.log"

Make = Callable[..., Path]


def server_args(**fields: object) -> str:
    whole = {"model_path": "m/Model-7B", "tp_size": 1, "mem_fraction_static": 0.8, "port": 30000, "random_seed": 1, **fields}
    return f"[2026-06-01 05:00:00] server_args=ServerArgs({', '.join(f'{name}={value!r}' for name, value in whole.items())})"


def decode(second: int, running: int, speed: float, *, tokens: int = 4000, queue: int = 0, accept: float | None = None) -> str:
    clock = f"{5 + second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    length = f"accept len: {accept:.2f}, " if accept else ""
    return (
        f"[2026-06-01 {clock} TP0] Decode batch, #running-req: {running}, #token: {tokens}, token usage: 0.30, {length}"
        f"cuda graph: True, gen throughput (token/s): {speed:.2f}, #queue-req: {queue}"
    )


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def write(
        name: str,
        *,
        factor: float = 1.0,
        lines: int = 80,
        seed: int = 1,
        limit: int = 256,
        running: int = 8,
        queue: int = 0,
        **fields: object,
    ) -> Path:
        chance = random.Random(seed)
        body = [decode(60 + 2 * place, running, factor * 100 * running * chance.gauss(1, 0.02), queue=queue) for place in range(lines)]
        capacity = (
            f"[2026-06-01 05:00:30 TP0] max_total_num_tokens=100000, chunked_prefill_size=8192, max_prefill_tokens=16384, "
            f"max_running_requests={limit}, context_len=32768, available_gpu_mem=8.00 GB"
        )
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join([server_args(**fields), capacity, *body]) + "\n", encoding="utf-8")
        return path

    return write


def only(found: Comparison) -> tuple[Outcome, str | None]:
    assert len(found.pairs) == 1
    return found.verdict.outcome, found.verdict.better


# ------------------------------------------------------------------------------------------------ founding case


def test_founding_case() -> None:
    found = logforensics.compare(BASELINE, HICACHE)
    assert only(found) == (Outcome.BETTER, "B")
    tokens = found.figure("kv_tokens")
    assert tokens is not None
    assert tokens.values == (116_171, 158_999)
    assert tokens.changes[1] == pytest.approx(0.3687, abs=0.0001)
    assert found.pairs[0].bytes_per_token == 70_272
    assert [item.field for item in found.differences if item.matters] == [
        "disable_custom_all_reduce",
        "enable_hierarchical_cache",
        "hicache_size",
        "mem_fraction_static",
        "num_continuous_decode_steps",
    ]
    load = found.pairs[0].equal_load
    assert load is not None
    assert load.matched == "saturation"  # 46 to 53 running against 62 to 69
    assert load.interval is not None
    assert load.interval.low < load.ratio < load.interval.high


def test_the_same_logs_give_the_same_comparison() -> None:
    assert comparison_to_dict(compare(BASELINE, HICACHE)) == comparison_to_dict(compare(BASELINE, HICACHE))


# ------------------------------------------------------------------------------------------------------ verdict


def test_the_same_configuration_twice_is_no_difference(make: Make) -> None:
    found = compare(make("a.log", seed=1), make("b.log", seed=2))
    assert only(found) == (Outcome.NO_DIFFERENCE, None)
    assert found.verdict.summary.startswith("no significant difference")


def test_a_tenth_slower_through_step_time(make: Make) -> None:
    found = compare(make("a.log"), make("b.log", factor=0.9, seed=2, attention_backend="triton"))
    assert only(found) == (Outcome.WORSE, "A")
    load = found.pairs[0].equal_load
    assert load is not None
    assert load.matched == "running and tokens"
    assert load.ratio == pytest.approx(0.9, abs=0.01)
    assert load.interval is not None
    assert 0.87 < load.interval.low < load.ratio < load.interval.high < 0.93
    assert found.verdict.reasons[0].startswith("through step time (100.")


def test_too_uneven_to_tell(make: Make, tmp_path: Path) -> None:
    wild = tmp_path / "wild.log"
    chance = random.Random(3)
    wild.write_text("\n".join(decode(2 * place, 8, chance.uniform(300, 1500)) for place in range(12)), encoding="utf-8")
    found = compare(make("a.log"), wild)
    assert only(found) == (Outcome.NO_DIFFERENCE, None)
    assert "too short or too uneven" in found.verdict.reasons[0]


def test_warm_up_and_tail_do_not_count(make: Make, tmp_path: Path) -> None:
    tail = [decode(300 + 2 * place, 1, 40) for place in range(60)]  # one request left, slow, much longer than the load
    drained = tmp_path / "drained.log"
    drained.write_text(make("a.log").read_text(encoding="utf-8") + "\n".join(tail), encoding="utf-8")
    other = tmp_path / "other.log"
    fast = [decode(300 + 2 * place, 1, 80) for place in range(60)]
    other.write_text(make("b.log", seed=2).read_text(encoding="utf-8") + "\n".join(fast), encoding="utf-8")
    found = compare(drained, other)
    assert only(found) == (Outcome.NO_DIFFERENCE, None)
    assert {point.running_low: round(point.ratio, 1) for point in found.pairs[0].points} == {1: 2.0, 8: 1.0}


def test_pauses_are_no_speed(make: Make, tmp_path: Path) -> None:
    idle = tmp_path / "idle.log"
    head = make("a.log").read_text(encoding="utf-8").splitlines()[:2]
    lines = []
    for place in range(40):  # every decode line averages over the prefill and the pause before it
        decoded = decode(60 + 40 * place, 8, 3)
        lines += [decoded.partition("Decode")[0] + "Prefill batch, #new-seq: 8, #new-token: 80, #cached-token: 0, #queue-req: 0", decoded]
    idle.write_text("\n".join([*head, *lines]), encoding="utf-8")
    found = compare(make("b.log"), idle)
    assert only(found) == (Outcome.NO_DIFFERENCE, None)
    assert "no significant difference in capacity; too few decode lines" in found.verdict.summary


def test_other_models_are_named(make: Make) -> None:
    found = compare(make("a.log"), make("b.log", factor=2, model_path="/data/Other-1B"))
    assert found.verdict.reasons[0] == "the models differ (Model-7B and Other-1B): a token is not the same work in both"


def test_limits_that_bind_make_runs_not_comparable(make: Make) -> None:
    found = compare(make("a.log", limit=8, running=8, queue=4), make("b.log", limit=6, running=6, queue=6, seed=2))
    assert only(found) == (Outcome.NOT_COMPARABLE, None)
    assert found.verdict.summary.startswith("not comparable, because at concurrency 8 B runs 6 wide")


def test_limits_that_nobody_reaches_do_not_matter(make: Make) -> None:
    found = compare(make("a.log", limit=2048), make("b.log", limit=4096, seed=2))
    assert found.verdict.outcome is Outcome.NO_DIFFERENCE


def test_loads_that_do_not_meet(make: Make) -> None:
    found = compare(make("a.log", running=4), make("b.log", running=16))
    assert found.verdict.outcome is Outcome.NOT_COMPARABLE
    assert "the loads do not meet: 4–4 running in A, 16–16 in B" in found.verdict.summary


def test_a_run_that_never_served(make: Make, tmp_path: Path) -> None:
    dead = tmp_path / "dead.log"
    trace = (
        'Traceback (most recent call last):\n  File "/x/sglang/srt/a.py", line 1, in f\n    g()\nRuntimeError: no kernel image is available'
    )
    dead.write_text(f"{server_args()}\n[2026-06-01 05:00:20 TP0] Scheduler hit an exception: {trace}\n", encoding="utf-8")
    found = compare(dead, make("b.log"))
    assert found.verdict.outcome is Outcome.NOT_COMPARABLE
    assert found.verdict.summary == "not comparable, because A never served"


# ----------------------------------------------------------------------------------------------------- settings


def test_only_what_matters_is_named_as_a_cause(make: Make) -> None:
    found = compare(make("a.log"), make("b.log", factor=1.2, seed=2, port=31000, random_seed=9, chunked_prefill_size=4096))
    by_field = {item.field: item.matters for item in found.differences}
    assert by_field == {"chunked_prefill_size": True, "port": False, "random_seed": False}
    assert found.verdict.reasons[1] == "the only logged difference is --chunked-prefill-size: not set → 4096"


def test_overrides_count(make: Make) -> None:
    first, second = make("a.log", max_running_requests=64), make("b.log", max_running_requests=64)
    line = "[2026-06-01 05:00:03 TP0] max_running_requests is capped to 12 by the mamba state cache (max_mamba_cache_size=60)."
    second.write_text(second.read_text(encoding="utf-8").replace("\n", f"\n{line}\n", 1), encoding="utf-8")
    difference = compare(first, second).difference("--max-running-requests")
    assert difference is not None
    assert difference.values == (64, 12)
    assert difference.origins[1] == "changed by SGLang, line 2"


@pytest.mark.parametrize("name", ["--tp", "--tp-size", "--tensor-parallel-size", "tp_size", "tp-size"])
def test_flags_by_any_spelling(name: str) -> None:
    assert field_of(name) == "tp_size"


def test_renamed_flags_are_one_setting() -> None:
    assert field_of("--cuda-graph-max-bs") == field_of("--cuda-graph-max-bs-decode")


# ------------------------------------------------------------------------------------------------------- inputs


def test_groups_by_a_flag(make: Make) -> None:
    for place in range(3):
        make(f"sweep/small{place}.log", seed=place, chunked_prefill_size=2048)
        make(f"sweep/large{place}.log", seed=10 + place, factor=1.2, chunked_prefill_size=8192)
    found = compare(make("sweep/small0.log", seed=0, chunked_prefill_size=2048).parent, by="--chunked-prefill-size", baseline="2048")
    assert [(side.label, side.members) for side in found.sides] == [("chunked_prefill_size = 2048", 3), ("chunked_prefill_size = 8192", 3)]
    assert only(found) == (Outcome.BETTER, "B")
    assert found.verdict.reasons[1] == "the only logged difference is --chunked-prefill-size: 2048 → 8192"


def test_a_pattern_and_a_baseline(make: Make) -> None:
    paths = [make(f"p{place}.log", seed=place) for place in range(3)]
    found = compare(str(paths[0].parent / "p*.log"), baseline="p1.log")
    assert [side.label for side in found.sides] == ["p1.log", "p0.log", "p2.log"]
    assert [(pair.baseline, pair.candidate) for pair in found.pairs] == [("A", "B"), ("A", "C")]


def test_two_starts_in_one_log(make: Make, tmp_path: Path) -> None:
    both = tmp_path / "both.log"
    later = make("b.log", factor=1.3, seed=2).read_text(encoding="utf-8").replace("2026-06-01", "2026-06-02")
    both.write_text(make("a.log").read_text(encoding="utf-8") + later, encoding="utf-8")
    found = compare(both)
    assert [side.label for side in found.sides] == ["both.log start 1", "both.log start 2"]
    assert only(found) == (Outcome.BETTER, "B")


def test_parsed_logs(make: Make) -> None:
    assert compare(logforensics.parse(make("a.log")), [make("b.log", seed=2)]).verdict.outcome is Outcome.NO_DIFFERENCE


@pytest.mark.parametrize(
    ("options", "message"),
    [({}, "only one run was given"), ({"baseline": "x.log"}, "only one run was given"), ({"by": "--no-such-flag"}, "no run logs the flag")],
)
def test_what_cannot_be_compared_is_said(make: Make, options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compare(make("a.log"), **options)  # type: ignore[arg-type]


def test_an_unknown_baseline(make: Make) -> None:
    with pytest.raises(InputError, match=r"--baseline 'x.log' is none of the runs: a.log, b.log"):
        compare(make("a.log"), make("b.log"), baseline="x.log")


# ------------------------------------------------------------------------------------------------------- output


@pytest.mark.parametrize("fmt", ["text", "json", "md", "html"])
def test_log_text_is_shown_and_secrets_are_not(make: Make, fmt: str) -> None:
    first = make("a.log", api_key="sk-abcdefgh12345678", quantization="<b>[red]|`x`\x1b[31m")
    second = make("b.log", api_key="sk-zyxwvuts87654321", quantization="fp8", seed=2)
    shown = render_comparison(compare(first, second), fmt, Screen(detail=Detail.VERBOSE))  # type: ignore[arg-type]
    assert "sk-" not in shown
    assert "\x1b" not in shown
    assert shown.endswith("\n")
    if fmt == "html":
        assert "<b>" not in shown
        assert "&lt;b&gt;[red]" in shown
        assert "http" not in shown.replace("http-equiv", "")
    if fmt == "text":
        assert "<b>[red]|`x`" in shown


@pytest.mark.parametrize("width", [60, 80, 120])
def test_screens_keep_to_their_width(width: int) -> None:
    shown = render_comparison(compare(BASELINE, HICACHE), "text", Screen(width=width, detail=Detail.VERBOSE))
    assert max(map(len, shown.splitlines())) <= width


def test_many_runs_are_split_over_tables(make: Make) -> None:
    found = compare(*(make(f"r{place}.log", seed=place) for place in range(9)))
    shown = render_comparison(found, "text", Screen(width=80))
    assert max(map(len, shown.splitlines())) <= 80
    assert "I against A" in shown


def test_json_is_whole(make: Make) -> None:
    found = json.loads(render_comparison(compare(make("a.log"), make("b.log", factor=0.5)), "json"))
    assert found["schema"] == "logforensics.comparison/1"
    assert found["verdict"]["outcome"] == "worse"
    assert found["sides"][0]["label"] == "a.log"
    row = next(item for item in found["figures"] if item["key"] == "kv_tokens")
    assert (row["values"], row["lines"]) == ([100_000, 100_000], [2, 2])
    assert found["pairs"][0]["by_running"][0]["lines"] == [79, 79]


def test_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "logforensics", "compare", str(BASELINE), str(HICACHE)]
    page = tmp_path / "page.html"
    done = subprocess.run([*command, "--format", "html", "-o", str(page)], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    done = subprocess.run(command[:-1], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("logforensics: only one run was given")


# --- figures that changed their meaning ------------------------------------------------------------------------------------


def of_release(tmp_path: Path, name: str, low: str | None, high: str | None) -> logforensics.ParsedLog:
    """A log of prefill batches a second apart, each a fifth larger than the one before, as a release prints their speed."""
    sizes = [int(2000 * 1.2**place) for place in range(13)]
    shown = sizes[:-1] if high == "0.5.10" else sizes[1:]
    rows = [
        f"[2026-06-01 05:01:{second:02d} TP0] Prefill batch, #new-seq: 1, #new-token: {sizes[second]}, #cached-token: 0, token usage: 0.01, "
        f"#running-req: 0, #queue-req: 0, input throughput (token/s): {shown[second - 1]:.2f}, cuda graph: False"
        for second in range(1, 13)
    ]
    first = rows[0].replace("05:01:01", "05:01:00").replace(f"#new-token: {sizes[1]}", f"#new-token: {sizes[0]}")
    first = first.replace(f"(token/s): {shown[0]:.2f}", "(token/s): 0.00")  # nothing came before it
    path = tmp_path / f"{name}.log"
    path.write_text("\n".join([server_args(), first, *rows, decode(90, 8, 800.0)]) + "\n", encoding="utf-8")
    parsed = logforensics.parse(path)
    launches = parsed.frames["launches"].with_columns(version_low=pl.lit(low), version_high=pl.lit(high))
    return replace(parsed, frames={**parsed.frames, "launches": launches})


@pytest.mark.parametrize("old_first", [True, False])
def test_input_throughput_is_compared_in_one_meaning(tmp_path: Path, *, old_first: bool) -> None:
    logs = [of_release(tmp_path, "old", "0.5.9", "0.5.10"), of_release(tmp_path, "new", "0.5.12", "0.5.12")]
    comparison = compare(*(logs if old_first else reversed(logs)))
    prefill = comparison.pairs[0].prefill
    assert prefill is not None
    assert prefill.ratio == pytest.approx(1.0, abs=0.01)
    converted = [note for note in comparison.notes if "converted to what SGLang prints from 0.5.11 on" in note]
    assert [note[0] for note in converted] == ["A" if old_first else "B"]
    assert converted[0] in " ".join(render_comparison(comparison, "md", Screen()).split())


def test_a_log_on_neither_side_keeps_its_figures_and_is_named(tmp_path: Path) -> None:
    unsure = of_release(tmp_path, "unsure", "0.5.9", "0.5.12")
    comparison = compare(unsure, of_release(tmp_path, "new", "0.5.12", "0.5.12"))
    assert comparison.notes == (
        "A: input throughput changed its meaning in SGLang 0.5.11, and this log may be older or newer: its figure stays as printed",
    )


def test_logs_of_one_meaning_are_compared_as_printed(tmp_path: Path) -> None:
    comparison = compare(of_release(tmp_path, "a", "0.5.9", "0.5.10"), of_release(tmp_path, "b", "0.5.9", "0.5.10"))
    assert comparison.notes == ()
    figure = comparison.figure("input_throughput")
    assert figure is not None
    assert figure.values[0] == pytest.approx(2000 * 1.2**5.5, rel=0.02)  # the median of what is printed: the batch before
