"""Several files and several starts: what is one run, whose clock is off, what came before, and that the order of naming means nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from logforensics import Diagnosis, Hardware, compare, diagnose
from logforensics.cli import main
from logforensics.render.json import diagnosis_to_dict
from logforensics.reporting import build_report
from logforensics.runs import find_runs

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"
SCHEMA = json.loads((ROOT / "docs/diagnosis.schema.json").read_text(encoding="utf-8"))
STORIES = sorted(path for path in FIXTURES.glob("several_*"))
MODEL = "/data/hub/Qwen3-32B"
pytestmark = pytest.mark.usefixtures("defects_are_raised")


def logs(story: str) -> list[Path]:
    return sorted((FIXTURES / story).glob("*.log"))


def as_json(found: Diagnosis) -> dict[str, Any]:
    form = diagnosis_to_dict(found)
    Draft202012Validator(SCHEMA).validate(form)
    return form


def args(**fields: object) -> str:
    known = {
        "model_path": MODEL,
        "tp_size": 2,
        "pp_size": 1,
        "dp_size": 1,
        "nnodes": 1,
        "node_rank": 0,
        "mem_fraction_static": 0.85,
        **fields,
    }
    return f"server_args=ServerArgs({', '.join(f'{name}={value!r}' for name, value in known.items())})"


def start(tags: str, minute: str = "10:00", **fields: object) -> list[str]:
    """A start up to the KV pool; the barriers are at :20 and :40."""
    head = [f"[2026-03-01 {minute}:05] {args(**fields)}"] if fields is not None else []
    body = [
        ("19", "Init torch distributed begin."),
        ("20", "Init torch distributed ends. mem usage=0.84 GB"),
        ("21", "Load weight begin. avail mem=78.41 GB"),
        ("36", "Load weight end. type=Qwen3ForCausalLM, dtype=torch.bfloat16, avail mem=62.75 GB, mem usage=15.66 GB."),
        ("40", "KV Cache is allocated. #tokens: 400000, K size: 24.41 GB, V size: 24.41 GB"),
        ("40", "Memory pool end. avail mem=13.20 GB"),
    ]
    return head + [f"[2026-03-01 {minute}:{second}{tags}] {text}" for second, text in body]


def raised(stamp: str, tags: str, error: str) -> list[str]:
    frame = '  File "/sgl/python/sglang/srt/managers/scheduler.py", line 2912, in run_scheduler_process\n    scheduler.event_loop_overlap()'
    return [f"[2026-03-01 {stamp}{tags}] Scheduler hit an exception: Traceback (most recent call last):", *frame.split("\n"), error, ""]


def written(folder: Path, files: Mapping[str, Sequence[str]]) -> list[Path]:
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [folder / name for name in files]


# ---------------------------------------------------------------------------------------------------------------- the stories


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.name)
def test_the_order_of_naming_changes_nothing(story: Path) -> None:
    given = sorted(story.glob("*.log"))
    one, other = (as_json(diagnose(order, hardware=Hardware(host_ram_bytes=512 * 10**9))) for order in (given, given[::-1]))
    for form in (one, other):
        form["sources"].sort()
        form["coverage"]["unknown_examples"].sort(key=lambda item: (item["file"], item["line"]))
    assert one == other


@pytest.mark.parametrize(("story", "offset", "zone"), [("several_nodes_37s_0510", 37, 0), ("several_nodes_8h_0510", 8 * 3600, 8 * 3600)])
def test_clock_skew_is_found_and_shown(story: str, offset: int, zone: int, capsys: pytest.CaptureFixture[str]) -> None:
    main(["diagnose", *map(str, logs(story)), "--format", "json"])
    members = json.loads(capsys.readouterr().out)["run"]["members"]
    assert [member["node"] for member in members] == [0, 1]
    clock = members[1]["clock"]
    assert (clock["offset_s"], clock["time_zone_s"], clock["basis"]) == (offset, zone, "barrier")
    assert clock["uncertainty_s"] <= 2
    assert {Path(item["file"]).name for item in clock["evidence"]} == {"node0.log", "node1.log"}

    main(["diagnose", *map(str, logs(story)), "--no-color"])
    shown = " ".join(capsys.readouterr().out.split())
    said = "8 h (a time zone) ahead" if zone else "37 s ahead"
    assert f"the clock of node1.log is {said} of that of node0.log" in shown


def test_the_first_failure_is_told_by_corrected_time() -> None:
    found = diagnose(logs("several_nodes_37s_0510"))
    rows = {row["rank"]: row for row in found.run["timeline"]}
    assert rows["TP6"]["role"] == "first"
    assert Path(rows["TP6"]["source"]).name == "node1.log"
    assert rows["TP0"]["role"] == "consequence"
    assert 0 < (rows["TP0"]["error_time"] - rows["TP6"]["error_time"]).total_seconds() < 10


def test_stages_and_memory_cover_all_nodes() -> None:
    run = diagnose(logs("several_nodes_37s_0510")).run
    pools = next(stage for stage in run["stages"] if stage["stage"] == "kv_pool")
    assert pools["ranks"] == 8
    assert {Path(pools["source"]).name, Path(pools["last_source"]).name} == {"node0.log", "node1.log"}
    assert [ledger["node"] for ledger in run["memory"]["gpu"]] == [0] * 4 + [1] * 4
    assert run["ranks_per_host"] == 4


def test_host_memory_is_summed_by_host() -> None:
    run = diagnose(logs("several_nodes_8h_0510")).run
    hosts = run["memory"]["host"]["hosts"]
    assert [host["node"] for host in hosts] == [0, 1]
    assert all(host["total_gb"] == pytest.approx(600, abs=1) for host in hosts)


def test_files_named_after_ranks_are_ranks() -> None:
    found = diagnose(logs("several_ranks_058"))
    assert found.run["ranks"] == ["TP0", "TP1", "TP2", "TP3"]
    assert {row["rank"]: row["role"] for row in found.run["timeline"]} == {f"TP{n}": "first" if n == 2 else "consequence" for n in range(4)}


def test_a_restart_loop_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    found = diagnose(logs("several_starts_loop_0510"))
    earlier = found.run["earlier_starts"]
    assert [(item["start"], item["line"], item["last_line"]) for item in earlier] == [(1, 1, 20), (2, 21, 40), (3, 41, 60)]
    assert {(item["root_cause"], item["stage"], item["ended"]) for item in earlier} == {("kv_pool_no_room", "load_end", "failed")}
    assert "the last 4 starts failed alike" in found.run["restart_loop"]

    main(["diagnose", str(logs("several_starts_loop_0510")[0]), "--no-color"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "the last 4 starts failed alike (LF201 kv_pool_no_room)" in shown
    assert "start 3 of 4 (lines 41–60): failed, it came to: weights loaded" in shown


def test_a_pd_pair_is_told_side_by_side() -> None:
    found = diagnose(logs("several_pd_pair_0510"))
    form = as_json(found)
    assert [(part["name"], part["verdict"]) for part in form["parts"][:2]] == [("decode server", "failed"), ("prefill server", "healthy")]
    assert form["parts"][1]["relation"] == "the prefill side of the same deployment"
    assert form["parts"][2]["role"] == "router"
    assert found.verdict == "failed"
    assert {finding.part for finding in found.findings if finding.root_cause == "kv_pool_no_room"} == {"decode server"}
    assert form["parts"][0]["recommended_command"] == form["recommended_command"]


def test_another_run_is_said_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["diagnose", *map(str, logs("several_runs_0510")), "--no-color"])
    shown = " ".join(capsys.readouterr().out.split())
    assert status == 1
    assert "server (b.log): failed" in shown
    assert "server (a.log): healthy" in shown
    assert "another run: model Qwen3-32B, not Qwen3-235B-A22B-FP8" in shown


# ---------------------------------------------------------------------------------------------------------------- what is one run


def test_nodes_whose_flags_differ_are_one_run_and_it_is_said(tmp_path: Path) -> None:
    files = {
        "a.log": start(" TP0", nnodes=2, node_rank=0),
        "b.log": start(" TP1", nnodes=2, node_rank=1, mem_fraction_static=0.9, random_seed=7, host="10.0.0.2"),
    }
    run = diagnose(written(tmp_path, files)).run
    assert [member["other_flags"] for member in run["members"]] == [[], [{"flag": "mem_fraction_static", "value": 0.9, "first": 0.85}]]


@pytest.mark.parametrize(
    "other",
    [{"node_rank": 0}, {"node_rank": 1, "tp_size": 4}, {"node_rank": 1, "model_path": "/data/hub/Llama"}],
    ids=["same node", "layout", "model"],
)
def test_what_cannot_be_a_node_is_another_run(tmp_path: Path, other: dict[str, object]) -> None:
    files = {"a.log": start(" TP0", nnodes=2, node_rank=0), "b.log": start(" TP1", nnodes=2, **other)}
    assert len(diagnose(written(tmp_path, files)).parts) == 2


def test_nodes_of_two_days_are_two_runs(tmp_path: Path) -> None:
    later = [line.replace("2026-03-01", "2026-03-05") for line in start(" TP1", nnodes=2, node_rank=1)]
    assert len(diagnose(written(tmp_path, {"a.log": start(" TP0", nnodes=2), "b.log": later})).parts) == 2


def test_a_rotated_log_goes_on_in_the_next_file(tmp_path: Path) -> None:
    decode = (
        "Decode batch, #running-req: 3, #token: 900, token usage: 0.00, cuda graph: True, gen throughput (token/s): 210.00, #queue-req: 0, "
    )
    first = [*start(" TP0"), *(f"[2026-03-01 10:01:{second:02} TP0] {decode}" for second in range(0, 30, 3))]
    then = [f"[2026-03-01 10:01:{second:02} TP0] {decode}" for second in range(30, 60, 3)]
    run = diagnose(written(tmp_path, {"server.log.1": first, "server.log": then})).run
    assert len(run["members"]) == 2
    assert [(window["lines"], window["seconds"]) for window in run["serving"]["windows"]] == [(20, 57.0)]


def test_the_same_server_in_another_file_is_an_earlier_start(tmp_path: Path) -> None:
    first = [*start(" TP0"), *raised("10:01:00", " TP0", "KeyError: 'scale'")]
    then = [*start(" TP0", "10:05"), *raised("10:06:00", " TP0", "KeyError: 'scale'")]
    found = diagnose(written(tmp_path, {"new.log": then, "old.log": first}))
    assert not found.parts
    assert [Path(item["source"]).name for item in found.run["earlier_starts"]] == ["old.log"]
    assert "the last 2 starts failed alike" in str(found.run["restart_loop"])


def test_different_ends_are_no_loop(tmp_path: Path) -> None:
    lines = [*start(" TP0"), *raised("10:01:00", " TP0", "KeyError: 'scale'"), *start(" TP0", "10:05")]
    run = diagnose(written(tmp_path, {"server.log": lines})).run
    assert run["restart_loop"] is None
    assert [item["ended"] for item in run["earlier_starts"]] == ["failed"]


def test_many_starts_are_bounded(tmp_path: Path) -> None:
    lines = [line for turn in range(40) for line in start(" TP0", f"10:{turn:02}")]
    run = diagnose(written(tmp_path, {"server.log": lines})).run
    looked = [item["ended"] is not None for item in run["earlier_starts"]]
    assert looked == [False] * 19 + [True] * 20


@pytest.mark.parametrize("story", ["prefill_oom_tp4_058", "graph_oom_058", "illegal_access_tp2_058", "peer_lost_after_own_error_058"])
def test_a_log_cut_into_its_ranks_is_the_same_run(tmp_path: Path, story: str) -> None:
    """What rank 0 and the main process wrote in one file, each other rank in its own: the same findings, on the same lines of text."""
    whole = FIXTURES / story / "server.log"
    files: dict[str, list[str]] = {}
    rank = "0"
    for line in whole.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            found = re.match(r"\[[^\]]* TP(\d+)", line)
            rank = found[1] if found else "0"
        files.setdefault(f"part{rank}.log", []).append(line)
    one, cut = diagnose(whole), diagnose(written(tmp_path, files))
    assert len(files) > 1
    assert not cut.parts
    assert cut.verdict == one.verdict
    loud = [[item for item in found.findings if item.severity.value != "info"] for found in (one, cut)]
    assert [item.code for item in loud[1]] == [item.code for item in loud[0]]
    assert {item.text for item in loud[1][0].evidence} == {item.text for item in loud[0][0].evidence}
    assert {row["rank"]: row["role"] for row in cut.run["timeline"]} == {row["rank"]: row["role"] for row in one.run["timeline"]}


# ---------------------------------------------------------------------------------------------------------------- clocks


@pytest.mark.parametrize("ahead", [-3, 2, 61, 754, -5 * 3600 - 1800, 9 * 3600 + 21])
def test_any_offset_is_recovered(tmp_path: Path, ahead: int) -> None:
    worker = _shifted([*start(" TP1", nnodes=2, node_rank=1), *raised("10:01:00", " TP1", "KeyError: 'scale'")], ahead)
    head = [*start(" TP0", nnodes=2), *raised("10:01:05", " TP0", "ValueError: too late")]
    run = diagnose(written(tmp_path, {"node0.log": head, "node1.log": worker})).run
    clock = run["members"][1]["clock"]
    assert clock["offset_s"] == ahead
    assert clock["time_zone_s"] == (ahead if ahead == -19800 else 9 * 3600 if ahead > 9 * 3600 else 0)
    assert {row["rank"]: row["role"] for row in run["timeline"]} == {"TP1": "first", "TP0": "consequence"}


def test_failures_closer_than_the_clocks_are_not_ordered(tmp_path: Path) -> None:
    worker = _shifted([*start(" TP1", nnodes=2, node_rank=1), *raised("10:01:00", " TP1", "KeyError: 'scale'")], 37)
    head = [*start(" TP0", nnodes=2), *raised("10:01:01", " TP0", "ValueError: at once")]
    notes = diagnose(written(tmp_path, {"node0.log": head, "node1.log": worker})).notes
    assert any("which file has the first failure is not certain" in note for note in notes)


def test_without_a_common_event_only_a_time_zone_is_told(tmp_path: Path) -> None:
    worker = start(" TP1", nnodes=2, node_rank=1)[:2]
    head = [*start(" TP0", nnodes=2)[:2], *raised("10:10:00", " TP0", "ValueError: no one came")]
    near = diagnose(written(tmp_path, {"node0.log": head, "node1.log": _shifted(worker, 37)}))
    assert near.run["members"][1]["clock"]["basis"] == "unknown"
    assert any("cannot be compared" in note for note in near.notes)
    far = diagnose(written(tmp_path, {"node0.log": head, "node1.log": _shifted(worker, 5 * 3600 + 4)}))
    assert far.run["members"][1]["clock"]["corrected_by_s"] == 5 * 3600


def test_one_collective_that_timed_out_on_both_nodes_aligns_them(tmp_path: Path) -> None:
    """PyTorch's watchdog has a stamp of its own: month, day and time."""
    text = (
        "[rank{0}]:[E301 {1}.645831412 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, "
        "OpType=ALLREDUCE, NumelIn=7168, NumelOut=7168, Timeout(ms)=600000) ran for {2} milliseconds before timing out."
    )
    files = {
        "node0.log": [f"[2026-03-01 10:00:05] {args(nnodes=2)}", text.format(0, "10:30:00", 600012)],
        "node1.log": [f"[2026-03-01 10:02:05] {args(nnodes=2, node_rank=1)}", text.format(1, "10:32:01", 601010)],
    }
    clock = diagnose(written(tmp_path, files)).run["members"][1]["clock"]
    assert (clock["basis"], round(clock["offset_s"])) == ("collective", 120)


def _shifted(lines: Sequence[str], seconds: int) -> list[str]:
    from datetime import datetime, timedelta

    later = timedelta(seconds=seconds)
    return [
        f"[{datetime.fromisoformat(line[1:20]) + later:%Y-%m-%d %H:%M:%S}{line[20:]}" if line.startswith("[2026") else line
        for line in lines
    ]


# ---------------------------------------------------------------------------------------------------------------- the other commands


def test_reports_tell_nodes_in_the_order_of_time() -> None:
    told = build_report(logs("several_nodes_37s_0510"))
    troubles = [Path(moment.place.source).name for moment in told.timeline if moment.kind == "trouble"]
    assert troubles[0] == "node1.log"
    assert set(troubles[1:]) >= {"node0.log"}
    assert build_report(logs("several_pd_pair_0510")).diagnosis.parts


def test_compare_and_runs_take_every_start_by_itself() -> None:
    assert len(compare(*logs("several_runs_0510")).sides) == 2
    runs = find_runs(FIXTURES / "several_starts_loop_0510", use_cache=False)
    assert runs.frame["root_cause"].to_list() == ["kv_pool_no_room"] * 4
