"""Runs: a folder of logs as one table, read once."""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from logforensics.errors import InputError
from logforensics.render.screen import Screen
from logforensics.render.tables import render_runs
from logforensics.runs import Runs, find_runs
from logforensics.runs.workers import examine_all

ROOT = Path(__file__).resolve().parents[1]
SERVING = (
    "[2026-06-01 05:00:30 TP0] max_total_num_tokens={tokens}, chunked_prefill_size=8192, max_prefill_tokens=16384, "
    "max_running_requests=256, context_len=32768, available_gpu_mem=8.00 GB\n"
    "[2026-06-01 05:00:40] The server is fired up and ready to roll!\n"
    "[2026-06-01 05:01:00 TP0] Decode batch, #running-req: 4, #token: 4000, token usage: 0.30, cuda graph: True, "
    "gen throughput (token/s): {speed}, #queue-req: 0\n"
    "[2026-06-01 05:01:02 TP0] Decode batch, #running-req: 4, #token: 4100, token usage: 0.30, cuda graph: True, "
    "gen throughput (token/s): {speed}, #queue-req: 0\n"
)


def launch(**fields: object) -> str:
    whole = {"model_path": "m/Model-7B", "tp_size": 1, "mem_fraction_static": 0.8, "api_key": "sk-abcdefgh12345678", **fields}
    return f"[2026-06-01 05:00:00] server_args=ServerArgs({', '.join(f'{name}={value!r}' for name, value in whole.items())})\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    logs = tmp_path / "logs"
    (logs / "deep").mkdir(parents=True)
    (logs / "one.log").write_text(launch() + SERVING.format(tokens=100_000, speed=500.0), encoding="utf-8")
    (logs / "deep" / "two.log").write_text(
        launch(tp_size=8, mem_fraction_static=0.9) + SERVING.format(tokens=900_000, speed=900.0), encoding="utf-8"
    )
    trace = 'Traceback (most recent call last):\n  File "/x/sglang/srt/a.py", line 1, in f\n    g()\n'
    error = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.\n"
    dead = f"[2026-06-01 05:00:20 TP0] Scheduler hit an exception: {trace}{error}"
    (logs / "deep" / "dead.log.1").write_text(launch(tp_size=8) + dead, encoding="utf-8")
    (logs / "notes.txt").write_text("nothing of a server\n" * 5, encoding="utf-8")
    (logs / ".hidden.log").write_text(launch(), encoding="utf-8")
    (logs / "weights.safetensors").write_bytes(b"\0" * 100)
    return logs


def find(folder: Path, **options: Any) -> Runs:
    return find_runs(folder, cache_file=folder.parent / "cache" / "runs.sqlite", **options)


def names(runs: Runs) -> list[str]:
    return [Path(source).name for source in runs.frame["source"]]


# ------------------------------------------------------------------------------------------------------- content


def test_every_run_is_a_row(folder: Path) -> None:
    runs = find(folder)
    assert sorted(names(runs)) == ["dead.log.1", "one.log", "two.log"]
    row = runs.frame.filter(pl.col("source").str.ends_with("two.log")).row(0, named=True)
    assert (row["model"], row["kv_tokens"], row["steady_tok_s"], row["peak_tok_s"]) == ("Model-7B", 900_000, 900.0, 900.0)
    assert (row["stage"], row["tp_size"], row["max_running_requests"]) == ("serving", 8, 256)
    dead = runs.frame.filter(pl.col("source").str.ends_with("dead.log.1")).row(0, named=True)
    assert dead["verdict"] == "failed"
    assert dead["code"].startswith("LF")
    assert dead["steady_tok_s"] is None
    assert [Path(path).name for path, _ in runs.skipped] == ["notes.txt"]
    assert set(runs.varying) == {"tp_size", "mem_fraction_static"}


def test_a_log_with_two_starts_is_two_rows(tmp_path: Path) -> None:
    both = tmp_path / "both.log"
    both.write_text(
        launch() + SERVING.format(tokens=1000, speed=10.0) + launch(tp_size=2) + SERVING.format(tokens=2000, speed=20.0), encoding="utf-8"
    )
    runs = find_runs(both, use_cache=False)
    assert runs.frame.select("start", "starts", "kv_tokens", "tp_size").rows() == [(1, 2, 1000, 1), (2, 2, 2000, 2)]


def test_secrets_are_masked_before_they_are_remembered(folder: Path) -> None:
    runs = find(folder)
    assert set(runs.frame["api_key"]) == {"***"}
    with sqlite3.connect(folder.parent / "cache" / "runs.sqlite") as store:
        assert all("sk-abc" not in content for (content,) in store.execute("SELECT content FROM logs"))


# ----------------------------------------------------------------------------------------------- where and sort


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("tp_size == 8 and verdict == 'failed'", ["dead.log.1"]),
        ("tp_size = 8 and not verdict = 'failed'", ["two.log"]),
        ('model == "Model-7B" and kv_tokens > 100000', ["two.log"]),
        ("steady_tok_s is null", ["dead.log.1"]),
        ("source like '%one.log'", ["one.log"]),
    ],
)
def test_where(folder: Path, condition: str, expected: list[str]) -> None:
    assert names(find(folder, where=condition)) == expected


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("tp_sise == 8", r"no column 'tp_sise'; did you mean tp_size"),
        ("tp_size ==", "is no condition"),
        ("__import__('os').system('true')", "is no condition"),
        ("1; drop table runs", "is no condition"),
        ("tp_size", "is no condition"),
    ],
)
def test_where_that_cannot_be_used(folder: Path, condition: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        find(folder, where=condition)
    assert "\n" not in str(caught.value)


def test_sort_puts_the_unknown_last(folder: Path) -> None:
    assert names(find(folder, sort="-steady_tok_s")) == ["two.log", "one.log", "dead.log.1"]
    assert names(find(folder, sort="steady_tok_s")) == ["one.log", "two.log", "dead.log.1"]
    with pytest.raises(InputError, match="no column 'speed'"):
        find(folder, sort="speed")


@pytest.mark.parametrize("given", ["missing", "empty"])
def test_folders_without_logs(tmp_path: Path, given: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=given):
        find_runs(tmp_path / given, use_cache=False)


# --------------------------------------------------------------------------------------------------------- index


def test_only_what_changed_is_read_again(folder: Path) -> None:
    assert find(folder).read == 4
    assert find(folder).read == 0
    changed = folder / "one.log"
    changed.write_text(changed.read_text(encoding="utf-8").replace("500.0", "750.0"), encoding="utf-8")
    os.utime(changed, ns=(1, 1))  # same size, another time
    again = find(folder)
    assert again.read == 1
    assert 750.0 in again.frame["steady_tok_s"].to_list()
    (folder / "deep" / "two.log").unlink()
    assert sorted(names(find(folder))) == ["dead.log.1", "one.log"]


def test_what_is_known_equals_what_was_read(folder: Path) -> None:
    first, second = find(folder), find(folder)
    assert first.frame.equals(second.frame)
    assert first.skipped == second.skipped


def test_without_cache_nothing_is_remembered(folder: Path) -> None:
    place = folder.parent / "cache" / "runs.sqlite"
    assert find_runs(folder, use_cache=False, cache_file=place).read == 4
    assert not place.exists()


def test_a_broken_cache_is_passed_over(folder: Path) -> None:
    place = folder.parent / "cache" / "runs.sqlite"
    place.parent.mkdir()
    place.write_bytes(b"no database at all" * 100)
    assert find(folder).frame.height == 3


def test_workers_give_what_one_process_gives(folder: Path) -> None:
    copies = []
    for place in range(8):
        copy = folder / f"copy{place}.log"
        copy.write_bytes((folder / "one.log").read_bytes())
        copies.append(str(copy))
    together = examine_all(dict.fromkeys(copies, 8 << 20))  # sizes that are worth every core
    alone = {path: examine_all({path: 1})[path] for path in copies[:1]}
    assert set(together) == set(copies)
    assert together[copies[0]] == alone[copies[0]]


# ------------------------------------------------------------------------------------------------------- output


@pytest.mark.parametrize("width", [60, 80, 120])
def test_screens_keep_to_their_width(folder: Path, width: int) -> None:
    shown = render_runs(find(folder), "text", Screen(width=width))
    assert max(map(len, shown.splitlines())) <= width
    assert "one.log" in shown
    assert "degraded" in shown or "healthy" in shown


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "logforensics", "runs", str(folder), *arguments]
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder.parent / "xdg")}
    return subprocess.run(command, capture_output=True, check=False, timeout=120, env=environment)


def test_data_formats(folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run(folder, "--format", "csv", "--sort", "source").stdout.decode())))
    assert [row["tp_size"] for row in rows] == ["8", "8", "1"]
    lines = [json.loads(line) for line in run(folder, "--format", "json").stdout.splitlines()]
    assert {line["verdict"] for line in lines} >= {"failed"}
    assert pl.read_parquet(io.BytesIO(run(folder, "--format", "parquet").stdout)).height == 3
    html = run(folder, "--format", "html").stdout.decode()
    assert html.startswith("<!doctype html>")
    assert "<script" not in html
    assert run(folder, "--format", "md").stdout.startswith(b"# 3 runs")
    assert (folder.parent / "xdg" / "logforensics" / "runs.sqlite").is_file()


def test_columns(folder: Path) -> None:
    done = run(folder, "--columns", "source,tp_size", "--format", "csv")
    assert done.stdout.splitlines()[0] == b"source,tp_size"
    refused = run(folder, "--columns", "sauce")
    assert (refused.returncode, refused.stderr.count(b"\n")) == (2, 1)


def test_verbose_names_what_holds_no_run(folder: Path) -> None:
    done = run(folder, "--verbose")
    assert done.returncode == 0
    assert b"notes.txt" in done.stderr
    assert b"1 file holds no run" in done.stdout.replace(b"\n", b" ")
