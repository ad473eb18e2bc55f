"""Known lines as a next release may print them: what stays recognisable keeps its value, a new name never gets an old column's figure."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logforensics.parsing.lines import LineReader

STAMP = "[2026-06-01 05:00:03 TP0] "
# line, the labels of its figures with the column of each, what stands between two figures
LINES: dict[str, tuple[str, dict[str, str], str]] = {
    "prefill": (
        "Prefill batch, {}",
        {
            "#new-seq: 3": "new_seq", "#new-token: 512": "new_token", "#cached-token: 64": "cached_token", "token usage: 0.25": "token_usage",
            "#running-req: 7": "running_req", "#queue-req: 11": "queue_req", "input throughput (token/s): 1234.56": "input_throughput",
        },
        ", ",
    ),
    "decode": (
        "Decode batch, {}",
        {
            "#running-req: 7": "running_req", "#token: 4096": "num_tokens", "token usage: 0.25": "token_usage", "accept len: 2.50": "accept_len",
            "gen throughput (token/s): 987.65": "gen_throughput", "#queue-req: 11": "queue_req",
        },
        ", ",
    ),
    "memory": (
        "Load weight end. {}",
        {"elapsed=63.42 s": "elapsed_s", "avail mem=65.62 GB": "avail_gib", "mem usage=72.31 GB": "usage_gib"},
        ", ",
    ),
    "graph": (
        "Capture target decode CUDA graph end. {}",
        {"elapsed=4.10 s": "elapsed_s", "mem usage=0.70 GB": "usage_gib", "avail mem=19.20 GB": "avail_gib"},
        ", ",
    ),
    "kv_pool": (
        "KV Cache is allocated. {}",
        {"#tokens: 230378": "num_tokens", "K size: 7.54 GB": "k_gib", "V size: 7.55 GB": "v_gib"},
        ", ",
    ),
    "capacity": (
        "{}",
        {
            "max_total_num_tokens=230378": "max_total_num_tokens", "chunked_prefill_size=8192": "chunked_prefill_size",
            "max_prefill_tokens=16384": "max_prefill_tokens", "max_running_requests=2048": "max_running_requests",
            "context_len=262144": "context_len", "available_gpu_mem=0.82 GB": "avail_gib",
        },
        ", ",
    ),
    "host_pool": (
        "Allocating kv hierarchical KV host pool: {}",
        {"683061 tokens": "num_tokens", "48.00 GB host memory": "gb"},
        ", ",
    ),
    "retractions": (
        "KV cache pool is full. Retract requests. {}",
        {
            "#retracted_reqs: 3": "retracted_req", "#new_tokens_gained: 4321": "new_tokens_gained",
            "#new_token_ratio: 0.6789 -> 0.8312": "new_token_ratio_old",
        },
        ", ",
    ),
}  # fmt: skip
FRAME = {"graph": "memory"}
LOOSE = sorted(LINES.keys() - {"host_pool", "capacity"})  # of these the order is a matter of labels alone


def read(line: str, kind: str) -> list[dict[str, Any]]:
    reader = LineReader()
    reader.feed(1, line, known=True)
    reader.close()
    return [row for _, _, _, row in reader.take().get(FRAME.get(kind, kind), [])]


def value_of(figure: str) -> float:
    found = re.search(r"-?\d+(?:\.\d+)?", figure)
    assert found is not None
    return float(found[0])


def printed(kind: str, figures: list[str], stamp: str = STAMP) -> str:
    text, _, between = LINES[kind]
    return stamp + text.format(between.join(figures))


NAMES = st.from_regex(r"[a-z]{3,8}[ _-][a-z]{3,8}", fullmatch=True).filter(
    lambda name: not re.search(r"token|mem|size|req|len|usage|elapsed", name)
)
ADDED = st.lists(st.tuples(NAMES, st.integers(min_value=1, max_value=10**6)), max_size=3, unique_by=lambda field: field[0])


@pytest.mark.parametrize("kind", LINES)
def test_the_lines_are_read_as_they_are(kind: str) -> None:
    (row,) = read(printed(kind, list(LINES[kind][1])), kind)

    assert {column: row.get(column) for column in LINES[kind][1].values()} == {
        column: value_of(figure) for figure, column in LINES[kind][1].items()
    }


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(LOOSE), st.randoms(use_true_random=False), ADDED, st.sampled_from([STAMP, STAMP.replace(":03 ", ":03.125 ")]))
def test_fields_added_and_reordered_keep_every_value(kind: str, random: Any, added: list[tuple[str, int]], stamp: str) -> None:
    sign = ": " if kind in ("prefill", "decode", "retractions") else "="
    known = list(LINES[kind][1])
    head, rest = ([known[0]], known[1:]) if kind in ("prefill", "decode") else ([], known)
    figures = [*rest, *(f"{name}{sign}{number}" for name, number in added)]
    random.shuffle(figures)

    (row,) = read(printed(kind, [*head, *figures], stamp), kind)

    assert {column: row.get(column) for column in LINES[kind][1].values()} == {
        column: value_of(figure) for figure, column in LINES[kind][1].items()
    }
    if kind in ("prefill", "decode"):
        assert json.loads(row.get("extra") or "{}") == {name: str(number) for name, number in added}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(LINES)), st.data(), NAMES)
def test_a_renamed_figure_gets_no_column(kind: str, data: st.DataObject, name: str) -> None:
    """Its old column is empty or the row is not there at all; no column holds the figure under another meaning."""
    figures = dict(LINES[kind][1])
    renamed = data.draw(st.sampled_from([figure for figure in figures if kind != "host_pool"] or list(figures)))
    number = re.search(r"-?\d.*", renamed)
    assert number is not None
    sign = ": " if ": " in renamed else "="
    text = f"{name}{sign}{number[0]}" if kind != "host_pool" else f"{number[0].split(' ')[0]} {name}"

    for row in read(printed(kind, [text if figure == renamed else figure for figure in figures]), kind):
        assert row.get(figures[renamed]) is None
        known = {column: value_of(figure) for figure, column in figures.items() if figure != renamed}
        assert {column: row[column] for column in known if row.get(column) is not None}.items() <= known.items()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["memory", "graph", "kv_pool", "capacity", "prefill", "decode"]),
    st.data(),
    st.from_regex(r"[a-z]{3,8}", fullmatch=True),
)
def test_a_longer_name_is_another_name(kind: str, data: st.DataObject, word: str) -> None:
    figures = dict(LINES[kind][1])
    renamed = data.draw(st.sampled_from(sorted(figures)))

    for row in read(printed(kind, [f"{word} {figure}" if figure == renamed else figure for figure in figures]), kind):
        assert row.get(figures[renamed]) is None


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_batch_lines_with_an_iteration_and_milliseconds(kind: str) -> None:
    line = printed(kind, list(LINES[kind][1]), "[2026-06-01 05:00:03.125 DP1 PP0 ATTN_CP2 TP3] ").replace(" batch, ", " batch [4711], ")

    (row,) = read(line, kind)

    assert row["iteration"] == 4711
    assert {column: row.get(column) for column in LINES[kind][1].values()} == {
        column: value_of(figure) for figure, column in LINES[kind][1].items()
    }


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["memory", "graph", "kv_pool", "retractions", "capacity"]), st.sampled_from([" ", "; ", ",  "]))
def test_other_separators(kind: str, between: str) -> None:
    """Commas gone or other ones: each value is right or missing, never another's."""
    text, figures, _ = LINES[kind]

    for row in read(STAMP + text.format(between.join(figures)), kind):
        wanted = {column: value_of(figure) for figure, column in figures.items()}
        assert {column: row[column] for column in wanted if row.get(column) is not None}.items() <= wanted.items()
