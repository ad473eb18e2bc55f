"""Traps, equations and flags that ``explain`` knows, and what the tool does about each trap."""

from __future__ import annotations

import pytest

from logforensics import preflight, topics
from logforensics.cli import main
from logforensics.hardware import Hardware
from logforensics.planning.notes import NOTES
from logforensics.rules import all_rules
from logforensics.rules.pages import page
from logforensics.sglang import flags
from logforensics.units import GB

# Every trap and what answers it: a finding's code, a note of preflight, or its page alone.
ANSWERS = {
    "mem-fraction-direction": "LF201", "mem-fraction-denominator": "page", "hicache-size-per-rank": "LF101", "hicache-guard-uncoordinated": "LF101",
    "gb-gib-mix": "page", "hicache-not-concurrency": "note", "max-running-48": "note", "dp-divides-running": "note", "dp-divides-chunk": "note",
    "dp-conservativeness": "note", "mla-replicated": "note", "gqa-replicated": "note", "pow2-pinning": "note", "hybrid-double-pool": "LF101",
    "dsa-index-outside": "LF101", "guard-double-charge": "LF102", "container-limit": "note", "request-table": "note", "log-repr-change": "page",
    "alias-removal": "LF301", "dp-size-meaning": "note", "tokens-per-worker": "note", "default-fraction": "note", "chunk-raises-reserve": "note",
    "spec-shrinks-pool": "note", "mamba-caps-running": "note", "swa-token-count": "note", "page-size-forced": "page",
    "host-smaller-than-device": "LF103", "integer-size": "LF301", "ratio-grows-with-f": "LF101", "ratio-default": "note", "auto-size-off": "note",
    "replicas-uncounted": "note", "unpinned-silently": "page", "used-memory-hidden": "page", "dsa-fp8-overrun": "LF213", "va-upper-bound": "page",
    "max-total-ignored": "note", "unbalanced-gpus": "LF209", "radix-exclusive": "LF302", "v4-no-size": "LF302",
}  # fmt: skip

LAUNCH = "python -m sglang.launch_server --model-path "
# A launch for each note: model and flags, and the release.
NOTED = {
    "hicache-size-per-rank": ("Qwen/Qwen3-32B --tp 4 --enable-hierarchical-cache --hicache-size 30", "0.5.9"),
    "pow2-pinning": ("Qwen/Qwen3-32B --tp 4 --enable-hierarchical-cache --hicache-size 40", "0.5.3"),
    "hicache-not-concurrency": ("Qwen/Qwen3-32B --enable-hierarchical-cache --hicache-size 30", "0.5.9"),
    "max-running-48": ("deepseek-ai/DeepSeek-R1 --tp 8 --speculative-algorithm EAGLE", "0.5.9"),
    "dp-divides-running": ("deepseek-ai/DeepSeek-R1 --tp 8 --dp 8 --enable-dp-attention --max-running-requests 256", "0.5.9"),
    "dp-divides-chunk": ("deepseek-ai/DeepSeek-R1 --tp 8 --dp 8 --enable-dp-attention --chunked-prefill-size 8192", "0.5.9"),
    "dp-conservativeness": ("deepseek-ai/DeepSeek-R1 --tp 8 --dp 8 --enable-dp-attention", "0.5.9"),
    "mla-replicated": ("deepseek-ai/DeepSeek-R1 --tp 8", "0.5.9"),
    "gqa-replicated": ("Qwen/Qwen3-235B-A22B --tp 8", "0.5.9"),
    "container-limit": ("Qwen/Qwen3-32B --enable-hierarchical-cache --hicache-size 30", "0.5.9"),
    "request-table": ("Qwen/Qwen3-32B --context-length 262144", "0.5.9"),
    "dp-size-meaning": ("Qwen/Qwen3-32B --dp 4", "0.5.9"),
    "tokens-per-worker": ("Qwen/Qwen3-32B --dp 4", "0.5.9"),
    "default-fraction": ("Qwen/Qwen3-32B", "0.5.9"),
    "chunk-raises-reserve": ("Qwen/Qwen3-32B --chunked-prefill-size 32768", "0.5.9"),
    "spec-shrinks-pool": ("deepseek-ai/DeepSeek-R1 --tp 8 --speculative-algorithm EAGLE", "0.5.14"),
    "mamba-caps-running": ("Qwen/Qwen3.5-397B-A17B --tp 8", "0.5.14"),
    "swa-token-count": ("openai/gpt-oss-120b", "0.5.9"),
    "ratio-default": ("Qwen/Qwen3-32B --enable-hierarchical-cache", "0.5.9"),
    "auto-size-off": ("Qwen/Qwen3-32B --enable-hierarchical-cache --hicache-size 30 --hicache-host-memory-fraction 0.5", "0.5.21"),
    "replicas-uncounted": ("Qwen/Qwen3-32B --dp 2 --enable-hierarchical-cache --hicache-size 3", "0.5.19"),
    "max-total-ignored": ("Qwen/Qwen3-32B --max-total-tokens 99000000", "0.5.9"),
}  # fmt: skip


def test_there_are_42_traps_and_each_is_answered() -> None:
    assert [trap.id for trap in topics.traps()] == list(ANSWERS)
    assert len(ANSWERS) == 42
    assert {name for name, answer in ANSWERS.items() if answer == "note"} <= set(NOTES)
    assert {answer for answer in ANSWERS.values() if answer.startswith("LF")} <= {rule.code for rule in all_rules()}


@pytest.mark.parametrize("trap", topics.traps(), ids=lambda trap: trap.id)
def test_every_trap_has_a_page_and_names_real_flags(trap: topics.Trap) -> None:
    text = page(trap.id)
    for part in (trap.belief, trap.truth, trap.tool):
        assert part in text
    assert all(flags.flag_by_field(name) is not None for name in trap.flags)


@pytest.mark.parametrize("name", NOTES)
def test_every_note_is_said_where_its_flags_are_used(name: str) -> None:
    words, release = NOTED[name]
    prefix = "docker run --memory 500g lmsysorg/sglang " if name == "container-limit" else ""
    machine = Hardware(gpu="H200", gpus=8, host_ram_bytes=2000 * GB)
    notes = preflight(f"{prefix}{LAUNCH}{words}", hardware=machine, version=release).notes
    assert [note for note in notes if note.endswith(f"[{name}]")]


def test_a_plain_launch_says_little() -> None:
    assert len(preflight(f"{LAUNCH}Qwen/Qwen3-8B --mem-fraction-static 0.85", hardware=Hardware(gpu="H200"), version="0.5.9").notes) <= 1


@pytest.mark.parametrize("topic", topics.names())
def test_topics_are_explained(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", topic]) == 0
    assert capsys.readouterr().out.startswith("# ")


@pytest.mark.parametrize("flag", ["hicache-size", "hicache_size", "mem_fraction_static", "tp", "cuda-graph-max-bs"])
def test_flags_are_explained_in_any_spelling(flag: str) -> None:
    assert page(flag).startswith("# --")


@pytest.mark.parametrize("name", flags.all_fields())
def test_every_flag_has_a_page(name: str) -> None:
    flag = flags.flag_by_field(name)
    assert flag is not None
    assert topics.flag_page(flag).startswith("# ")
