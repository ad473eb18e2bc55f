"""Synthetic logs of twelve releases: every value their JSON names is in a frame, on its line, at its time, with its ranks."""

from __future__ import annotations

import json
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from logforensics import parse

from .shared_tools import SHARED, needs_shared

pytestmark = needs_shared

GIB = {"avail_mem_gib": "avail_gib", "mem_usage_gib": "usage_gib", "available_gpu_mem_gib": "avail_gib"}
USAGES = {"full_token": "full_num_tokens", "token": "num_tokens", "batch": "iteration"}
# event -> (frame, fixed columns, {name in the JSON: column})
PLACES: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "dist_begin": ("memory", {"stage": "init_dist_begin"}, {}),
    "dist_end": ("memory", {"stage": "init_dist_end"}, GIB),
    "load_begin": ("memory", {"stage": "load_begin"}, GIB),
    "load_end": ("memory", {"stage": "load_end"}, GIB | {"type": "detail"}),
    "memory_pool_end": ("memory", {"stage": "pool_end"}, GIB),
    "memory_baseline": ("memory", {"stage": "memory_baseline"}, GIB),
    "graph_begin": ("memory", {"stage": "graph_begin"}, GIB),
    "graph_end": ("memory", {"stage": "graph_end"}, GIB),
    "graph_progress": ("memory", {"stage": "graph_progress"}, {}),
    "graph_bs": ("memory", {"stage": "graph_batch_sizes"}, {}),
    "kv_alloc": (
        "kv_pool",
        {},
        {"tokens": "num_tokens", "k_size_gib": "k_gib", "v_size_gib": "v_gib", "kv_size_gib": "kv_gib", "dtype": "dtype"},
    ),
    "mamba_alloc": ("kv_pool", {"kind": "mamba"}, {"max_mamba_cache_size": "slots", "conv_state_gib": "k_gib", "ssm_state_gib": "v_gib"}),
    "capacity": ("capacity", {}, GIB),
    "prefill": (
        "prefill",
        {},
        USAGES | {"unbootstrapped_req": "bootstrap_req", "transferring_req": "inflight_req", "mixed_running_req": "running_req"},
    ),
    "decode": ("decode", {}, USAGES | {"pre_allocated_usage": "preallocated_usage"}),
    "retract": (
        "retractions",
        {},
        {"retracted_reqs": "retracted_req", "ratio_before": "new_token_ratio_old", "ratio_after": "new_token_ratio_new"},
    ),
    "hicache_alloc": ("host_pool", {}, {"host_gb": "gb", "tokens": "num_tokens", "label": "label"}),
    "hicache_autosize": ("overrides", {"flag": "hicache_ratio"}, {}),
    "hicache_headroom": ("notices", {}, {}),
    "override": ("overrides", {}, {"flag": "flag", "value": "new"}),
    "ready": ("ready", {"event": "fired_up"}, {}),
    "watchdog": ("watchdog", {}, {"timeout_s": "timeout_s", "name": "name"}),
    "child_died": ("shutdown", {"event": "child_failed"}, {}),
    "subprocess_died": ("shutdown", {"event": "child_crashed"}, {"exitcode": "exit_code"}),
    "killed": ("shutdown", {"event": "killed"}, {}),
    "exception": ("errors", {}, {"exc_type": "kind"}),
    "flush": ("notices", {}, {}),
    "kv_dtype": ("notices", {}, {}),
}
COUNTED = {"http", "blank", "continuation"}  # not rows of their own
DERIVED = {"unit", "reserve_bytes", "draft"}  # what the reference knows of a value, not a value of the line


def _same(want: Any, got: Any) -> bool:
    if isinstance(want, (int, float)) and isinstance(got, (int, float)):
        return math.isclose(want, got, rel_tol=1e-9, abs_tol=1e-9)
    return str(want) == str(got)


def _shown(value: Any) -> list[str]:
    """How a line may print a value."""
    return [str(value), f"{value:.1f}", f"{value:.2f}", f"{value:.3f}"] if isinstance(value, float) else [str(value)]


@pytest.mark.parametrize("log", sorted((SHARED / "samples").glob("*.log")), ids=lambda path: path.stem)
def test_every_named_value_is_recovered(log: Path) -> None:
    truth = json.loads(log.with_suffix(".json").read_text())
    parsed = parse(log)
    text = log.read_bytes().decode("utf-8", "replace").split("\n")
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for name, frame in parsed.frames.items():
        for row in frame.iter_rows(named=True):
            rows.setdefault((name, row["line"]), []).append(row)
    wrong: list[str] = []
    for event in truth["events"]:
        kind = event["event"]
        if kind in COUNTED:
            continue
        wrong += [f"line {event['line']} {kind}: {what}" for what in _differences(event, rows, text[event["line"] - 1])]
    assert wrong == []
    assert parsed.coverage.damaged == 0
    assert parsed.coverage.unknown <= 0.1 * truth["lines"]


def _differences(event: dict[str, Any], rows: dict[tuple[str, int], list[dict[str, Any]]], line: str) -> list[str]:
    kind, fields = event["event"], event.get("fields", {})
    if kind == "server_args":
        (row,) = rows["launches", event["line"]]
        flags = json.loads(row["server_args"])
        found = {"form": row["form"], "n_fields": len(flags)} | flags
        return [f"{name} wants {want!r} got {found.get(name)!r}" for name, want in fields.items() if not _same(want, found.get(name))]
    if kind == "load_progress":
        names = {"description": "kind", "percent": "percent", "done": "shards_done", "total": "shards_total"}
        candidates = rows.get(("load_progress", event["line"]), [])
        return [] if any(all(row[names[name]] == want for name, want in fields.items()) for row in candidates) else ["no such bar"]
    frame, fixed, names = PLACES[kind]
    candidates = [row for row in rows.get((frame, event["line"]), []) if all(row[name] == want for name, want in fixed.items())]
    if not candidates:
        return [f"no row in {frame}"]
    said = line + str(candidates[0].get("message", ""))  # an exception's text stands on lines of its own
    return _wrong_values(event, candidates[0], names, said)


def _wrong_values(event: dict[str, Any], row: dict[str, Any], names: dict[str, str], line: str) -> list[str]:
    wrong: list[str] = []
    for name, want in event.get("fields", {}).items():
        column = names.get(name, name)
        if column in row:
            if not _same(want, row[column]):
                wrong.append(f"{name} wants {want!r} got {row[column]!r}")
        elif name not in DERIVED and not any(shown in line for shown in _shown(want)) and str(want).lower() not in line.lower():
            wrong.append(f"{name} = {want!r} is nowhere")
    if (stamp := event.get("time")) is not None:
        want = datetime.fromisoformat(stamp if len(stamp) > 10 else f"1970-01-01 {stamp}")
        if row["time"] != want:
            wrong.append(f"time wants {want} got {row['time']}")
    for rank, number in event.get("ranks", {}).items():
        if row.get(rank.lower(), number) != number:
            wrong.append(f"{rank} wants {number} got {row[rank.lower()]}")
    return wrong
