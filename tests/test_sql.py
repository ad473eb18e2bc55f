"""SQL: a question to the frames of a log."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import logforensics
from logforensics.errors import InputError
from logforensics.query import query_frames
from logforensics.render.screen import Screen
from logforensics.render.tables import data, frame_to_text

ROOT = Path(__file__).resolve().parents[1]
LOG = ROOT / "fixtures" / "founding_baseline_085" / "server.log"


def run(query: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "logforensics", "sql", query, str(LOG), *arguments], capture_output=True, check=False, timeout=120
    )


def test_an_aggregate() -> None:
    frames = logforensics.parse(LOG).frames
    answer = query_frames(frames, "select count(*) as lines, max(gen_throughput) as best from decode")
    assert answer.rows() == [(frames["decode"].height, frames["decode"]["gen_throughput"].max())]


def test_a_join_over_frames() -> None:
    frames = logforensics.parse(LOG).frames
    query = "select d.num_tokens / c.max_total_num_tokens as share from decode d cross join (select distinct max_total_num_tokens from capacity) c"
    assert query_frames(frames, query)["share"].max() == pytest.approx(0.99, abs=0.02)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("selec", "cannot be answered"),
        ("select * from decodes", "relation 'decodes' was not found; the tables are benchmark, capacity, decode"),
        ("select nothing from decode", "nothing"),
        ("", "cannot be answered"),
    ],
)
def test_errors_are_one_clear_line(query: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        query_frames(logforensics.parse(LOG).frames, query)
    assert "\n" not in str(caught.value)


def test_formats() -> None:
    query = "select line, running_req from decode order by line limit 2"
    table = run(query).stdout.decode()
    assert table.split()[:2] == ["line", "running_req"]
    assert table.rstrip().endswith("2 rows")
    assert run(query, "--format", "csv").stdout.splitlines()[0] == b"line,running_req"
    rows = [json.loads(line) for line in run(query, "--format", "json").stdout.splitlines()]
    assert [sorted(row) for row in rows] == [["line", "running_req"]] * 2
    assert pl.read_parquet(io.BytesIO(run(query, "--format", "parquet").stdout)).height == 2


def test_a_refusal_is_one_line_and_status_2() -> None:
    done = run("select * from nowhere")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1)
    assert done.stderr.startswith(b"logforensics: the query cannot be answered: ")


@pytest.mark.parametrize("command", ["compare", "runs", "sql", "export"])
def test_help_shows_an_example_and_imports_nothing_heavy(command: str) -> None:
    code = (
        "import sys; from logforensics.cli import main; status = main([sys.argv[1], '--help'])\n"
        "heavy = {name.partition('.')[0] for name in sys.modules} & {'polars', 'rich', 'regex', 'numpy', 'sqlite3'}\n"
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", code, command], capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert f"Examples:\n    logforensics {command}" in done.stdout.decode()


def test_secrets_and_escapes() -> None:
    frame = pl.DataFrame({"text": ["api_key='sk-abcdefgh12345678' \x1b[31mred"], "number": [1.5]})
    shown = frame_to_text(frame, Screen(width=120))
    assert "sk-" not in shown
    assert "\\x1b[31mred" in shown
    assert b"sk-" not in data(frame, "json") + data(frame, "csv")


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (pl.DataFrame({"only": [1, 2]}), ["only", "1", "2", "2 rows"]),
        (pl.DataFrame({"a": [], "b": []}), ["a  b", "0 rows"]),
        (pl.DataFrame({"n": [1234567], "t": ["x"]}), ["n  t", "1,234,567  x", "1 row"]),
    ],
)
def test_tables(frame: pl.DataFrame, expected: list[str]) -> None:
    shown = frame_to_text(frame, Screen())
    assert [line.strip() for line in shown.splitlines() if line.strip()] == expected


def test_nested_values_fit_csv() -> None:
    assert data(pl.DataFrame({"list": [[1, 2]]}), "csv") == b'list\n"[1, 2]"\n'
