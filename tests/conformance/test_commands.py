"""The collected launch commands: flags as they were read by argparse, calm where they work, caught where they fail."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from logforensics import preflight
from logforensics.hardware import Hardware
from logforensics.render.json import diagnosis_to_dict
from logforensics.units import GB, GIB

SHARED = Path(__file__).resolve().parents[3] / "shared"
COMMANDS = SHARED / "commands" / "commands.jsonl"
pytestmark = pytest.mark.skipif(not COMMANDS.exists(), reason="the shared commands are not here")

# Memory incidents whose outcome the flags and the machine decide, and what the log's label calls them.
DECIDED = {
    "m01_hicache_size40_tp4_pinned_pow2": "host_overallocation_per_rank",
    "m03_hicache_150gb_tp4_dsa_indexer_extra": "host_overallocation_per_rank",
    "m13_dsv4pro_fp8_h200_graph_capture_oom": "static_fraction_too_high",
    "m20_native_mtp_greedy_pool_045_oom": "static_fraction_too_high",
    "m21_dsv4pro_h200_088_below_weights": "kv_pool_no_room",
    "m32_glm52_dp_attention_auto_fraction_0484": "kv_pool_no_room",
    "m35_draft_costs_pool_tokens_compare": "draft_model_memory",
    "m40_gptoss120b_bf16_tp2_h100": "gpu_weights_oom",
}
LOUD = {"critical", "error"}


@cache
def answers() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Every collected command with what preflight says of it."""
    cases = [json.loads(line) for line in COMMANDS.read_text(encoding="utf-8").splitlines()]
    return [(case, _answer(case)) for case in cases]


def _answer(case: dict[str, Any]) -> dict[str, Any]:
    machine, version = case["hardware"] or {}, str(case["sglang_version"] or "")
    ram = machine.get("host_ram_gb")
    hardware = Hardware(gpu=machine.get("gpu"), gpus=machine.get("gpus_per_node"), host_ram_bytes=int(ram * GB) if ram else None)
    known = version if re.fullmatch(r"\d+\.\d+\.\d+[\w.]*", version) else None
    return diagnosis_to_dict(preflight(case["text"], hardware=hardware, version=known))


def _same(want: Any, got: Any) -> bool:
    if isinstance(want, bool) or isinstance(got, bool):
        return want is got
    if isinstance(want, (int, float)) and isinstance(got, (int, float)):
        return math.isclose(want, got)
    return str(want) == str(got)


def test_flags_are_those_that_argparse_read() -> None:
    wrong = []
    for case, answer in answers():
        got = answer["command"]["flags"]
        if set(got) != set(case["flags"]) or not all(_same(value, got[name]) for name, value in case["flags"].items()):
            wrong.append(case["id"])
    # one holds a stub of the harness as a value; of one nothing tells the release that names its flag
    assert set(wrong) <= {"ix-dsr1-fp4-b200-tp4-dpa", "fail-dsv4pro-fp8-2xh200-graph"}


def test_environment_is_what_the_server_would_get() -> None:
    wrong = [case["id"] for case, answer in answers() if not case["env"].items() <= answer["command"]["env"].items()]
    assert wrong == []


def test_what_works_is_left_alone() -> None:
    loud = {
        case["id"]: [f["title"] for f in answer["findings"] if f["severity"] in LOUD]
        for case, answer in answers()
        if case["outcome"] == "works"
    }
    assert {name: titles for name, titles in loud.items() if titles} == {}


def test_few_of_the_working_recipes_get_a_warning() -> None:
    working = [answer for case, answer in answers() if case["outcome"] == "works"]
    warned = [answer for answer in working if any(f["severity"] != "info" for f in answer["findings"])]
    assert len(warned) <= 0.1 * len(working)


def test_what_fails_by_its_flags_is_caught() -> None:
    failing = [(case, answer) for case, answer in answers() if case["outcome"] == "fails" and case["expected_findings"]]
    caught = [
        case
        for case, answer in failing
        if {f["root_cause"] for f in answer["findings"] if f["severity"] != "info"} & set(case["expected_findings"])
    ]
    assert len(caught) >= 0.9 * len(failing)


def _incident(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    label = json.loads((SHARED / "incidents" / f"{name}.json").read_text(encoding="utf-8"))
    machine, text = label["hardware"], label["launch_command"]
    nodes = int(found[1]) if (found := re.search(r"--nnodes[ =](\d+)", text)) else 1
    if label["model"] and "--model" not in text:
        text += " --model-path " + re.sub(r"\s*\(.*", "", label["model"]).replace(" ", "-")
    hardware = Hardware(
        gpu=machine["gpu"],
        gpus=machine["gpu_count"] // nodes if machine["gpu_count"] else None,
        gpu_memory_bytes=int(machine["gpu_mem_gib"] * GIB) if machine["gpu_mem_gib"] else None,
        host_ram_bytes=machine["host_ram_gb"] * GB if machine["host_ram_gb"] else None,
    )
    version = re.fullmatch(r"\d+\.\d+\.\d+[\w.]*", label["sglang_version"] or "")
    return label, diagnosis_to_dict(preflight(text, hardware=hardware, version=version[0] if version else None))


@pytest.mark.parametrize(("name", "cause"), DECIDED.items())
def test_incidents_are_foreseen(name: str, cause: str) -> None:
    label, answer = _incident(name)
    assert cause in {label["root_cause"], *label["also"]}
    assert cause in {f["root_cause"] for f in answer["findings"] if f["severity"] != "info"}


@pytest.mark.parametrize(
    "name",
    ["m50_healthy_mistral7b_v040", "m51_healthy_qwen3_14b_tp4", "m53_healthy_glm52_hicache96_tp8", "r49_healthy_vlm_tp4_h200"],
)
def test_healthy_servers_are_not_refused(name: str) -> None:
    assert [f["title"] for f in _incident(name)[1]["findings"] if f["severity"] in LOUD] == []
