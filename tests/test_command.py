"""Launch commands: reading what people paste, rebuilding from server_args, rewriting with recommendations."""

from __future__ import annotations

import gzip
import json
import re
import string
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logforensics.command import LaunchCommand, from_server_args, read_command, rewrite
from logforensics.errors import CommandError
from logforensics.findings import Action, Recommendation
from logforensics.parsing.server_args import read_server_args
from logforensics.sglang import flags as known
from logforensics.sglang.maintain_flags import TARGET

SHARED = Path(__file__).resolve().parents[2] / "shared"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the shared logs and commands are not here")

TABLE = json.loads(TARGET.read_text(encoding="utf-8"))["flags"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)

PLAIN = "python -m sglang.launch_server --model-path m --tp 8"
FOUNDING = """nohup python3 -m sglang.launch_server \\
  --model-path moonshotai/Kimi-K2.5 --trust-remote-code --tp-size 8 \\
  --mem-fraction-static 0.93 --enable-hierarchical-cache --hicache-size 300 \\
  > server.log 2>&1 &"""


def recommend(flag: str, value: Any, action: Action = Action.SET, why: str = "because") -> Recommendation:
    return Recommendation(flag, action, value, rationale=why)


# --- reading


def test_a_command_is_read_with_canonical_names_and_typed_values() -> None:
    command = read_command(FOUNDING, "0.5.8")
    assert command.program == ("nohup", "python3", "-m", "sglang.launch_server")
    assert command.flags == {
        "--model-path": "moonshotai/Kimi-K2.5",
        "--trust-remote-code": True,
        "--tp-size": 8,
        "--mem-fraction-static": 0.93,
        "--enable-hierarchical-cache": True,
        "--hicache-size": 300,
    }
    assert (command.env, command.unknown) == ({}, ())


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        "sglang serve --model-path m --tp-size=8",
        "/opt/venv/bin/sglang serve --model-path 'm' --tp \"8\"",
        "$ " + PLAIN,
        "(venv) user@host:~/models$ " + PLAIN,
        "root@0a1b:/sgl-workspace# " + PLAIN,
        "Singularity> " + PLAIN,
        "!" + PLAIN,
        "# " + PLAIN,
        f"```bash\n{PLAIN}\n```",
        f"**`{PLAIN}`**",
        PLAIN + " 2>&1 | tee server.log",
        PLAIN + " &> server.log &",
        PLAIN + " >> server.log 2>&1 < /dev/null & disown",
        PLAIN + "  # eight cards",
        PLAIN.replace(" --", " \\\n    --") + " \\\n",
        PLAIN.replace(" --", " \\\r\n  --"),
        PLAIN.replace(" ", "\u00a0"),
        PLAIN.replace("--", "\u2013"),
        PLAIN.replace("m --tp 8", "\u201cm\u201d --tp 8"),
        "sudo numactl --cpunodebind=0 --membind=0 " + PLAIN,
        "uv run -m sglang.launch_server --model-path m --tp 8",
        "pm2 start /usr/lib/sglang/launch_server.py --name sgl -- --model-path m --tp 8",
        f"bash -c '{PLAIN}'",
        f"echo starting; cd /x && {PLAIN}",
        f"# {PLAIN} --tp 4\n{PLAIN}",
        "MODEL=m\nTP=8\npython -m sglang.launch_server --model-path $MODEL --tp ${TP:-1} ${NOTHING:-}",
        "ARGS='--tp 8'\npython -m sglang.launch_server --model-path m $ARGS",
    ],
)
def test_what_people_paste_is_read_alike(text: str) -> None:
    command = read_command(text, "0.5.9")
    assert (command.flags, command.unknown) == ({"--model-path": "m", "--tp-size": 8}, ())


def test_variables_set_for_the_server_are_kept_and_others_are_not() -> None:
    launch = "SGLANG_X=1 nohup env CUDA_VISIBLE_DEVICES=0,1 python -m sglang.launch_server --model-path $MODEL"
    text = f"export MODEL=m NCCL_DEBUG=INFO\nPORT=1\n{launch}"
    command = read_command(text)
    assert command.env == {"NCCL_DEBUG": "INFO", "SGLANG_X": "1", "CUDA_VISIBLE_DEVICES": "0,1"}
    assert command.flags == {"--model-path": "m"}


def test_docker_stays_in_the_program_and_its_tag_names_the_release() -> None:
    text = "docker run --gpus all -e HF_TOKEN -e SGLANG_X=1 --env NCCL_DEBUG=INFO lmsysorg/sglang:v0.4.8.post1-cu126 \\\n" + PLAIN
    command = read_command(text)
    assert command.program[:2] == ("docker", "run")
    assert command.env == {"SGLANG_X": "1", "NCCL_DEBUG": "INFO"}
    assert command.image_release == "0.4.8"
    assert read_command(PLAIN).image_release is None


def test_lists_negative_numbers_json_and_repeated_flags() -> None:
    text = (
        PLAIN + " --cuda-graph-bs 1 2 4 --chunked-prefill-size -1 --tp 4"
        ' --json-model-override-args \'{"a": {"b": 1}}\' --no-dllm-fdfo --api-key "a b"'
    )
    flags = read_command(text, "0.5.16").flags
    assert flags["--cuda-graph-bs-decode"] == [1, 2, 4]
    assert (flags["--chunked-prefill-size"], flags["--tp-size"], flags["--api-key"]) == (-1, 4, "a b")
    assert (flags["--json-model-override-args"], flags["--dllm-fdfo"]) == ('{"a": {"b": 1}}', False)


def test_the_release_decides_what_a_word_means() -> None:
    text = PLAIN + " --cuda-graph-max-bs 8 --disable-piecewise-cuda-graph"
    assert list(read_command(text, "0.5.13").flags.values())[2:] == [8, True]
    later = read_command(text, "0.5.14")
    assert (later.flags["--cuda-graph-max-bs-decode"], later.flags["--cuda-graph-backend-prefill"]) == (8, "disabled")
    assert later.typed["--cuda-graph-max-bs-decode"] == "--cuda-graph-max-bs"


def test_what_argparse_would_refuse_is_told() -> None:
    command = read_command(PLAIN + " - --reasoning_parser kimi --enforce-eager --hicache-size 37.5 --port $PORT --context-length", "0.5.9")
    assert command.unknown == ("-", "--reasoning_parser", "--enforce-eager")
    assert (command.flags["--reasoning_parser"], command.flags["--enforce-eager"]) == ("kimi", True)
    assert (command.flags["--hicache-size"], command.flags["--port"], command.flags["--context-length"]) == ("37.5", "$PORT", None)
    assert read_command(PLAIN + " --prefill-round-robin-balance", "0.5.20").unknown == ("--prefill-round-robin-balance",)


def test_an_escaped_blank_before_a_comment_ends_the_command_as_in_bash() -> None:
    command = read_command(PLAIN + " --page-size 64 \\  # why not\n  --port 1\n")
    assert ("--port" in command.flags, command.unknown) == (False, (" ",))


@pytest.mark.parametrize(
    "text", ["", "ls -l", "vllm serve m --tp 8", "python -m sglang.bench_serving --port 1", "'unclosed", "\\", "$(", "((("]
)
def test_text_without_a_launch_is_an_error_of_one_line(text: str) -> None:
    with pytest.raises(CommandError, match=r"^no SGLang launch in .*expected `python -m sglang\.launch_server") as caught:
        read_command(text)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="ab'\"\\ \n$(){}#&|;<>=-", max_size=60), st.booleans())
def test_no_text_breaks_the_reader(text: str, quoted: bool) -> None:  # noqa: FBT001 - hypothesis fills it in
    shown = json.dumps(text) if quoted else text
    assert read_command(f"{PLAIN} --served-model-name x {shown}").flags["--model-path"] == "m"


@pytest.mark.parametrize("piece", [" ", "${", "$((", "$(", "'", '"', "\\", "(x) ", "sglang", "x=", "#", "> ", "\n"])
def test_hostile_text_takes_no_time(piece: str) -> None:
    start = time.process_time()
    read_command(f"x {piece * 50_000}\n{PLAIN} y {piece * 50_000}'\"\n{PLAIN}")
    assert time.process_time() - start < 5


@needs_shared
def test_the_commands_of_the_corpus_are_read_as_bash_and_argparse_read_them() -> None:
    lines = (SHARED / "commands" / "commands.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [e for e in map(json.loads, lines) if e["form"] in {"module", "sglang-serve", "docker-run"}]
    plain = [e for e in entries if not {"array", "arith", "tilde"} & set(e["syntax"]) or e["form"] == "docker-run"]
    assert len(plain) >= 60
    for entry in plain:
        command = read_command(entry["text"], entry["parsed_with"])
        assert (command.flags, command.env) == (entry["flags"], entry["env"]), entry["id"]


# --- rebuilding from server_args


def logged(path: Path) -> dict[str, Any] | None:
    """The first server_args of a log."""
    with gzip.open(path, "rt", errors="replace") if path.suffix == ".gz" else path.open(errors="replace") as lines:
        found = next((read_server_args(line) for line in lines if "server_args=" in line), None)
    return found[0] if found else None


def shared_logs() -> list[Path]:
    folders = ("real", "golden", "cpu_servers")
    return [p for f in folders for p in sorted((SHARED / f).glob("*")) if p.suffix in {".log", ".gz"}] if SHARED.exists() else []


def test_only_what_a_person_would_type_is_rebuilt() -> None:
    fields = {
        "model_path": "m", "tokenizer_path": "m", "served_model_name": "m", "tp_size": 8, "dp_size": 1, "port": 30000, "random_seed": 77,
        "mem_fraction_static": 0.8387624218749999, "attention_backend": "fa3", "decode_attention_backend": "fa3", "device": "cuda",
        "grammar_backend": "xgrammar", "cuda_graph_bs": [1, 2, 4], "trust_remote_code": True, "enable_lora": False, "hicache_size": 48,
        "hicache_ratio": 3.0, "enable_hierarchical_cache": True, "kv_cache_dtype": "fp8_e4m3", "field_of_a_fork": 7, "context_length": None,
    }  # fmt: skip
    assert from_server_args(fields, "0.5.8").flags == {
        "--model-path": "m",
        "--trust-remote-code": True,
        "--tp-size": 8,
        "--hicache-size": 48,
        "--enable-hierarchical-cache": True,
        "--kv-cache-dtype": "fp8_e4m3",
    }


def test_a_fraction_with_few_digits_and_a_chosen_backend_were_typed() -> None:
    fields = {"model_path": "m", "mem_fraction_static": 0.85, "attention_backend": "triton", "decode_attention_backend": "flashinfer"}
    assert list(from_server_args(fields, "0.5.8").flags.values()) == ["m", 0.85, "triton", "flashinfer"]


def test_what_dp_attention_divided_is_put_together_again() -> None:
    fields = {
        "model_path": "m",
        "dp_size": 4,
        "tp_size": 8,
        "enable_dp_attention": True,
        "chunked_prefill_size": 2048,
        "schedule_conservativeness": 0.3,
    }
    flags = from_server_args(fields, "0.5.8").flags
    assert (flags["--chunked-prefill-size"], "--schedule-conservativeness" in flags) == (8192, False)
    assert from_server_args({**fields, "chunked_prefill_size": -1}, "0.5.8").flags["--chunked-prefill-size"] == -1


def test_a_switch_that_is_off_against_its_default_is_typed_as_no() -> None:
    command = from_server_args({"model_path": "m", "dllm_fdfo": False}, "0.5.18")
    assert rewrite(command, [], "0.5.18").text.endswith("--no-dllm-fdfo")


def test_a_field_is_rebuilt_with_the_spelling_of_the_release() -> None:
    fields = {"model_path": "m", "cuda_graph_max_bs": 16}
    assert list(from_server_args(fields, "0.5.9").flags) == ["--model-path", "--cuda-graph-max-bs"]
    assert from_server_args(fields, None).typed["--cuda-graph-max-bs"] == "--cuda-graph-max-bs-decode"


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from([e["field"] for e in TABLE]), ANYTHING, max_size=30), st.sampled_from(known.releases()))
def test_no_server_args_break_the_rebuilding(fields: dict[str, Any], release: str) -> None:
    text = rewrite(from_server_args(fields, release), [], release).text
    assert text.startswith("python -m sglang.launch_server")


@needs_shared
@pytest.mark.parametrize("path", shared_logs(), ids=lambda p: p.name)
def test_a_rebuilt_line_is_read_back_as_it_was(path: Path) -> None:
    fields = logged(path)
    if fields is None:
        pytest.skip("no server_args in this log")
    release = known.fingerprint(list(fields))[1]
    command = from_server_args(fields, release)
    written = rewrite(command, [], release)
    again = read_command(written.text, release)
    assert again.flags == command.flags
    assert (again.unknown, written.changes, written.notes) == ((), (), ())


@needs_shared
@pytest.mark.parametrize("path", sorted((SHARED / "cpu_servers").glob("*.cmd.json")), ids=lambda p: p.name)
def test_every_flag_of_a_known_command_is_rebuilt(path: Path) -> None:
    fields = logged(path.with_name(path.name.replace(".cmd.json", ".log")))
    if fields is None:
        pytest.skip("no server_args in this log")
    told = json.loads(path.read_text(encoding="utf-8"))
    rebuilt = from_server_args(fields, told["version"]).flags
    typed = read_command(told["command"], told["version"]).flags
    by_default = {"--hicache-mem-layout": "layer_first"}  # typed, but what the release does anyway
    assert {**by_default, **rebuilt}.items() >= typed.items()
    # what is written although nobody typed it is what ran: harmless when it is typed
    assert set(rebuilt) - set(typed) <= {"--chunked-prefill-size", "--hicache-mem-layout", "--disable-radix-cache"}


# --- rewriting


def test_the_founding_case() -> None:
    advice = [
        recommend("--hicache-size", 48, why="48 GB per rank"),
        recommend("--hicache-ratio", 2.5, why="Alternative: the ratio form"),
        recommend("--mem-fraction-static", 0.88, Action.DECREASE),
        recommend("--hicache-size", 40, why="a later finding"),
        recommend("host RAM", 900, Action.OTHER),
        recommend("sglang", "0.5.19", Action.UPGRADE),
    ]
    written = rewrite(read_command(FOUNDING, "0.5.8"), advice, "0.5.8")
    assert written.text == (
        "nohup python3 -m sglang.launch_server \\\n"
        "  --model-path moonshotai/Kimi-K2.5 \\\n"
        "  --trust-remote-code \\\n"
        "  --tp-size 8 \\\n"
        "  --mem-fraction-static 0.88 \\\n"
        "  --enable-hierarchical-cache \\\n"
        "  --hicache-size 48"
    )
    assert [(c.flag, c.old, c.new, c.why) for c in written.changes] == [
        ("--hicache-size", 300, 48, "48 GB per rank"),
        ("--mem-fraction-static", 0.93, 0.88, "because"),
    ]
    assert written.notes == ()


def test_size_and_ratio_never_stand_together() -> None:
    command = read_command(PLAIN + " --hicache-ratio 2")
    sized = rewrite(command, [recommend("--hicache-size", 48.0), recommend("--hicache-ratio", 3.0)], "0.5.8")
    assert "--hicache-size 48" in sized.text
    assert "--hicache-ratio" not in sized.text
    assert [(c.flag, c.new) for c in sized.changes] == [("--hicache-size", 48), ("--hicache-ratio", None)]
    ratio = rewrite(read_command(PLAIN + " --hicache-size 300"), [recommend("--hicache-ratio", 0.5)], "0.5.8")
    assert "--hicache-size" not in ratio.text


def test_the_spelling_of_the_user_stays() -> None:
    written = rewrite(read_command(PLAIN + " --mem-fraction 0.9"), [recommend("--mem-fraction-static", 0.8)], "0.5.8")
    assert written.text.splitlines()[2:] == ["  --tp 8 \\", "  --mem-fraction 0.8"]


def test_switches_are_set_and_removed() -> None:
    command = read_command(PLAIN + " --disable-radix-cache --enable-metrics")
    advice = [
        recommend("--disable-radix-cache", None, Action.REMOVE),
        recommend("--enable-metrics", value=False),
        recommend("--trust-remote-code", value=True),
        recommend("--enable-mixed-chunk", None),
    ]
    written = rewrite(command, advice, "0.5.8")
    assert written.text.split(" \\\n  ")[3:] == ["--trust-remote-code"]
    assert [(c.flag, c.old, c.new) for c in written.changes] == [
        ("--disable-radix-cache", True, None),
        ("--enable-metrics", True, None),
        ("--trust-remote-code", None, True),
    ]


def test_no_change_is_told_where_the_value_was_right_already() -> None:
    assert rewrite(read_command(PLAIN), [recommend("--tp-size", 8)], "0.5.8").changes == ()


def test_flags_the_release_refuses_are_renamed_or_dropped() -> None:
    text = PLAIN + " - --cuda-graph-max-bs 8 --disable-piecewise-cuda-graph --prefill-round-robin-balance --enforce-eager"
    written = rewrite(read_command(text, "0.5.20"), [recommend("--cuda-graph-max-bs", 4), recommend("--no-such-flag", 1)], "0.5.20")
    assert written.text.split(" \\\n  ")[3:] == ["--cuda-graph-max-bs-decode 4", "--cuda-graph-backend-prefill disabled"]
    assert written.notes == (
        "the recommended --no-such-flag is left out: SGLang 0.5.20 does not accept it",
        "--cuda-graph-max-bs is written --cuda-graph-max-bs-decode 4: SGLang 0.5.20 does not accept the old form",
        "--disable-piecewise-cuda-graph is written --cuda-graph-backend-prefill disabled: SGLang 0.5.20 does not accept the old form",
        "--prefill-round-robin-balance is left out: SGLang 0.5.20 does not accept it",
        "--enforce-eager is left out: SGLang 0.5.20 does not accept it",
        "left out, because no flag takes them: -",
    )


def test_a_deprecated_switch_that_is_still_accepted_stays() -> None:
    assert rewrite(read_command(PLAIN + " --disable-piecewise-cuda-graph", "0.5.15"), [], "0.5.15").text.endswith(
        "  --disable-piecewise-cuda-graph"
    )


def test_variables_go_where_the_server_sees_them() -> None:
    advice = [recommend("SGLANG_X", 2, Action.ENV), recommend("SGLANG_X", 3, Action.ENV), recommend("NCCL_DEBUG", "INFO", Action.ENV)]
    assert rewrite(read_command("SGLANG_X=1 " + PLAIN), advice, None).text.splitlines()[:3] == [
        "SGLANG_X=2 \\",
        "  NCCL_DEBUG=INFO \\",
        "  python -m sglang.launch_server \\",
    ]
    docker = read_command("docker run -e SGLANG_X=1 lmsysorg/sglang:v0.5.8 " + PLAIN)
    first = rewrite(docker, advice, None).text.splitlines()[0]
    assert first == "docker run -e NCCL_DEBUG=INFO -e SGLANG_X=2 lmsysorg/sglang:v0.5.8 python -m sglang.launch_server \\"


def test_secrets_are_masked_and_the_reader_is_told() -> None:
    text = "HF_TOKEN=hf_abc123DEF456 python -m sglang.launch_server --model-path m --api-key s3cret --admin-api-key=other"
    written = rewrite(read_command(text), [recommend("--api-key", "newsecret")], "0.5.8")
    assert not re.search("hf_abc|s3cret|other|newsecret", repr(written))
    assert "--api-key '***'" in written.text
    assert "put it in again" in written.notes[0]


def test_a_value_is_never_run_when_the_line_is_pasted() -> None:
    command = from_server_args(
        {"model_path": "$(touch x)", "served_model_name": "`touch y`; touch z", "chat_template": "-x; touch w"}, "0.5.8"
    )
    text = rewrite(command, [], "0.5.8").text
    assert "--model-path '$(touch x)'" in text
    assert "--served-model-name '`touch y`; touch z'" in text
    assert "'--chat-template=-x; touch w'" in text


@given(st.text(alphabet=string.printable[:95], min_size=1, max_size=20).filter(str.strip))
def test_any_value_survives_writing_and_reading(value: str) -> None:
    command = from_server_args({"model_path": "m", "chat_template": value, "tp_size": 2}, "0.5.8")
    assert read_command(rewrite(command, [], "0.5.8").text, "0.5.8").flags == command.flags


def test_references_to_variables_and_the_home_folder_stay_what_they_are() -> None:
    text = rewrite(read_command('docker run -v ~/.cache:/c -v "$HOME/m:/m" sglang:v0.5.8 ' + PLAIN + ' --port "$PORT"'), [], None).text
    assert text.startswith('docker run -v ~/.cache:/c -v "$HOME/m:/m" sglang:v0.5.8')
    assert text.endswith('--port "$PORT"')


SPELLINGS = sorted({s for entry in TABLE for s in entry.get("spellings", {})} | {"--enforce-eager", "--tp", "--mem-fraction"})
WORDS = st.lists(st.tuples(st.sampled_from(SPELLINGS), st.sampled_from(["", "1", "0.5", "x", "-1", "a b", "$X", "[1]"])), max_size=8)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-5, 500), st.floats(0, 9), st.sampled_from(["x", "--x", "a b"]))
ADVICE = st.lists(st.builds(Recommendation, st.sampled_from(SPELLINGS), st.sampled_from(list(Action)), VALUES), max_size=5)


@settings(max_examples=400, deadline=None)
@given(WORDS, ADVICE, st.sampled_from(known.releases()), st.one_of(st.none(), st.sampled_from(known.releases())))
def test_a_rewritten_command_never_contains_a_flag_the_release_lacks(
    words: list[tuple[str, str]], advice: list[Recommendation], release: str, read_for: str | None
) -> None:
    given_text = PLAIN + "".join(f" {flag} '{value}'" if value else f" {flag}" for flag, value in words)
    text = rewrite(read_command(given_text, read_for), advice, release).text
    written = [line.split()[0].partition("=")[0] for line in text.split(" \\\n  ")[1:]]
    assert [flag for flag in written if not known.accepted(flag, release)] == []
    assert read_command(text, release).unknown == ()


def test_commands_compare_by_content() -> None:
    assert read_command(PLAIN) == LaunchCommand(
        ("python", "-m", "sglang.launch_server"),
        {"--model-path": "m", "--tp-size": 8},
        {"--model-path": "--model-path", "--tp-size": "--tp"},
    )
