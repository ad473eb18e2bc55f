"""The flag table: spellings by release, renames, defaults, version texts, fingerprints."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from logforensics.errors import InputError
from logforensics.sglang import flags, maintain_flags

SHARED = Path(__file__).resolve().parents[2] / "shared"
NEWEST = flags.releases()[-1]

needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the reference files are not here")


def name_of(spelling: str, release: str | None = None) -> str | None:
    flag = flags.find_flag(spelling, release)
    return flag.name if flag else None


def test_releases_are_in_order() -> None:
    known = flags.releases()
    assert (known[0], known[-1], len(known)) == ("0.1.26", "0.5.23", 40)
    assert all(flags.release_at_least(b, a) and not flags.release_at_least(a, b) for a, b in itertools.pairwise(known))


def test_a_flag_knows_its_scope_unit_and_type() -> None:
    size = flags.flag_by_field("hicache_size")
    assert size is not None
    assert (size.name, size.kind, size.unit, size.scope, size.is_switch) == ("--hicache-size", "int", "GB", "per-rank", False)
    assert flags.flag_by_field("no_such_field") is None


@pytest.mark.parametrize(
    ("spelling", "release", "name"),
    [
        ("--tp-size", "0.1.26", "--tp-size"),
        ("--tp", "0.5.9", "--tp-size"),
        ("--tensor-parallel-size", "0.2.0", None),
        ("--tensor-parallel-size", "0.2.15", "--tp-size"),
        ("--mem-fraction", "0.4.2", "--mem-fraction-static"),
        ("--speculative-draft", "0.4.2", "--speculative-draft-model-path"),
        ("--speculative-draft", "0.5.9", None),
        ("--page", "0.4.8", "--page-size"),
        ("--pp", "0.4.8", "--pp-size"),
        ("--pp", "0.5.4", None),
        ("--cuda-graph-max-bs", "0.5.13", "--cuda-graph-max-bs"),
        ("--cuda-graph-max-bs", "0.5.14", "--cuda-graph-max-bs-decode"),
        ("--cuda-graph-max-bs", "0.5.20", None),
        ("--nccl-init-addr", "0.2.15", "--dist-init-addr"),
        ("--reasoning_parser", "0.5.5", None),
        ("--", "0.5.5", None),
        ("tp", "0.5.5", None),
    ],
)
def test_words_are_resolved_as_argparse_does(spelling: str, release: str, name: str | None) -> None:
    assert name_of(spelling, release) == name
    assert flags.accepted(spelling, release) is (name is not None)


def test_without_a_release_the_newest_that_understands_decides() -> None:
    assert name_of("--tp") == "--tp-size"
    assert name_of("--enable-ep-moe") == "--enable-ep-moe"
    assert name_of("--cuda-graph-max-bs") == "--cuda-graph-max-bs-decode"
    assert name_of("--enforce-eager") is None


@pytest.mark.parametrize(
    ("spelling", "first", "last"),
    [
        ("--disable-cuda-graph", "0.1.26", "0.5.23"),
        ("--enable-dp-attention", "0.3.6", "0.5.23"),
        ("--enable-ep-moe", "0.4.1", "0.5.2"),
        ("--config", "0.5.3", "0.5.23"),
        ("--fp4-gemm-backend", "0.5.8", "0.5.23"),
        ("--no-dllm-fdfo", "0.5.16", "0.5.23"),
    ],
)
def test_the_argparse_of_the_wheels_is_right_where_the_reference_differs(spelling: str, first: str, last: str) -> None:
    accepting = [r for r in flags.releases() if flags.accepted(spelling, r)]
    assert (accepting[0], accepting[-1]) == (first, last)


@pytest.mark.parametrize(
    ("field", "release", "spelling"),
    [
        ("tp_size", "0.5.23", "--tp-size"),
        ("cuda_graph_max_bs", "0.5.20", "--cuda-graph-max-bs-decode"),
        ("cuda_graph_max_bs_decode", "0.5.9", "--cuda-graph-max-bs"),
        ("nccl_init_addr", "0.5.9", "--dist-init-addr"),
        ("dist_init_addr", "0.2.0", "--nccl-init-addr"),
        ("hicache_size", "0.4.5", None),
        ("disable_piecewise_cuda_graph", "0.5.20", None),
        ("hybrid_kvcache_ratio", "0.5.20", None),
        ("no_such_field", "0.5.20", None),
    ],
)
def test_the_spelling_follows_renames(field: str, release: str, spelling: str | None) -> None:
    assert flags.spelling_for(field, release) == spelling


def test_every_spelling_given_for_a_release_is_accepted_there() -> None:
    fields = json.loads((Path(flags.__file__).parent / "data" / "flags.json").read_text(encoding="utf-8"))["flags"]
    for field in (entry["field"] for entry in fields):
        for release in flags.releases():
            spelling = flags.spelling_for(field, release)
            assert spelling is None or flags.accepted(spelling, release), (field, release)


def test_defaults_follow_the_release() -> None:
    assert flags.default("schedule_policy", "0.4.3") == "lpm"
    assert flags.default("schedule_policy", "0.5.8.post1") == "fcfs"
    assert flags.default("hicache_ratio", "0.5.17") == 2.0
    assert flags.default("hicache_ratio", "0.5.18") is None
    assert flags.default("speculative_ngram_capacity", "0.5.23") == 10_000_000
    assert flags.default("hicache_size", "0.1.26") is None
    assert flags.default("no_such_field", NEWEST) is None


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("0.5.8", "0.5.8"),
        ("v0.5.8", "0.5.8"),
        ("0.5.8.post1", "0.5.8"),
        ("0.5.3rc0", "0.5.3"),
        ("v0.4.8.post1-rocm630-srt", "0.4.8"),
        ("0.5.10", "0.5.10"),
        ("0.2.9", "0.2.0"),
        ("0.5.99", "0.5.23"),
        ("1.0.0", "0.5.23"),
        ("0.1.3", "0.1.26"),
        ("latest", None),
        ("nightly-dev-cu13-20260605-7dc73766", None),
        ("", None),
    ],
)
def test_version_texts_are_read_as_a_known_release(text: str, release: str | None) -> None:
    assert flags.nearest_release(text) == release


def test_versions_are_compared_by_number() -> None:
    assert flags.release_at_least("0.5.10", "0.5.9")
    assert flags.release_at_least("0.5.4.post3", "0.5.4")
    assert not flags.release_at_least("0.5.4", "0.5.4.post3")
    assert not flags.release_at_least("0.5.3rc0", "0.5.3")


def test_an_unreadable_release_is_said_so() -> None:
    for ask in (lambda: flags.accepted("--tp", "main"), lambda: flags.release_at_least("main", "0.5.9")):
        with pytest.raises(InputError, match="cannot read the SGLang release 'main'"):
            ask()


def fields_of(release: str) -> list[str]:
    entries = json.loads((Path(flags.__file__).parent / "data" / "flags.json").read_text(encoding="utf-8"))["flags"]
    known = [flags.flag_by_field(entry["field"]) for entry in entries]
    return [f.field for f in known if f and release in f.releases]


@pytest.mark.parametrize("release", flags.releases())
def test_a_whole_server_args_line_gives_its_release_away(release: str) -> None:
    low, high, evidence = flags.fingerprint([*fields_of(release), "field_of_a_fork"])
    twins = {"0.1.26", "0.2.0"} if release in {"0.1.26", "0.2.0"} else {"0.2.15", "0.3.0"} if release in {"0.2.15", "0.3.0"} else {release}
    assert {low, high} <= twins
    assert "known server_args fields, mismatches: 0" in evidence


def test_the_evidence_names_the_fields_that_decide() -> None:
    assert flags.fingerprint(fields_of("0.5.9"))[2].endswith(
        "has attn_cp_size, which 0.5.8 lacks; has disable_hicache_numa_detect, which 0.5.10 lacks"
    )


def test_a_cut_line_counts_only_what_it_has() -> None:
    low, high, _ = flags.fingerprint(["model_path", "tp_size", "hicache_size"], complete=False)
    assert (low, high) == ("0.4.6", NEWEST)
    assert flags.fingerprint(["model_path", "tp_size", "hicache_size"])[:2] == (low, high)  # three fields are no whole line
    assert flags.fingerprint(fields_of("0.5.8")[:-40], complete=False)[1] != "0.5.7"


def test_a_fork_that_lacks_some_fields_still_fits() -> None:
    assert flags.fingerprint([f for f in fields_of("0.5.10") if not f.startswith("lora")])[:2] == ("0.5.10", "0.5.10")


def test_nothing_known_gives_no_release() -> None:
    assert flags.fingerprint(["a", "b"]) == (None, None, "no field of a known release")


def test_the_table_loads_without_heavy_imports() -> None:
    code = "import sys, logforensics.sglang.flags as f; f.find_flag('--tp'); print({'polars', 'rich', 'regex'} & set(sys.modules))"
    root = Path(__file__).resolve().parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True).stdout == "set()\n"


@needs_shared
def test_the_table_is_what_the_reference_files_give(tmp_path: Path) -> None:
    reference = json.loads((SHARED / "reference" / "flags.json").read_text(encoding="utf-8"))
    contradictions = json.loads((SHARED / "commands" / "flag_contradictions.json").read_text(encoding="utf-8"))
    maintain_flags.write(maintain_flags.build(reference, contradictions), tmp_path / "flags.json")
    assert (tmp_path / "flags.json").read_text(encoding="utf-8") == maintain_flags.TARGET.read_text(encoding="utf-8")


@needs_shared
def test_the_flags_of_real_commands_resolve_as_the_real_argparse_did() -> None:
    lines = (SHARED / "commands" / "commands.jsonl").read_text(encoding="utf-8").splitlines()
    for entry in map(json.loads, lines):
        if entry["argparse"] != "ok" or entry["id"] == "fail-pp4-one-node-no-gpus-stated":  # --pp-size came with a post release
            continue
        for name in entry["flags"]:
            for spelling in entry.get("typed", {}).get(name, [name]):
                assert name_of(spelling, entry["parsed_with"]) == name, entry["id"]
