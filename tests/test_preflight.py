"""Preflight: the verdict before the launch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logforensics import preflight
from logforensics.cli import main
from logforensics.diagnosis import Diagnosis
from logforensics.errors import CommandError, InputError, LogforensicsError
from logforensics.findings import Finding, Severity
from logforensics.hardware import Hardware, this_host
from logforensics.planning import all_forecasts
from logforensics.planning.weights import bytes_per_parameter, parameters_of_name
from logforensics.render import render
from logforensics.render.json import diagnosis_to_dict
from logforensics.rules import all_rules
from logforensics.sglang import flags
from logforensics.units import GB, GIB

ROOT = Path(__file__).resolve().parents[1]
FOUNDING = """nohup python3 -m sglang.launch_server \\
  --model-path moonshotai/Kimi-K2.5 --trust-remote-code --tp-size 8 \\
  --mem-fraction-static 0.93 --enable-hierarchical-cache --hicache-size 300 \\
  > server.log 2>&1 &"""
FOUNDING_HOST = Hardware(gpu="RTX PRO 6000", gpus=8, host_ram_bytes=449 * GB)
H200 = Hardware(gpu="H200", gpus=8)


def launch(*words: str, model: str = "Qwen/Qwen3-32B") -> str:
    return " ".join(["python -m sglang.launch_server --model-path", model, *words])


def found(diagnosis: Diagnosis, root_cause: str) -> Finding:
    return next(finding for finding in diagnosis.findings if finding.root_cause == root_cause)


def causes(diagnosis: Diagnosis) -> set[str]:
    return {finding.root_cause for finding in diagnosis.findings if finding.severity is not Severity.INFO}


# --- the founding case


def test_the_founding_command_is_refused_with_the_figures_of_the_incident() -> None:
    diagnosis = preflight(FOUNDING, hardware=FOUNDING_HOST, version="0.5.9")
    finding = found(diagnosis, "host_overallocation_per_rank")
    assert (finding.code, finding.severity) == ("LF101", Severity.CRITICAL)
    assert "8 ranks × 300 GB" in finding.title
    assert finding.recommendations[0].value == 48
    assert diagnosis.verdict == "failed"
    assert diagnosis.recommended_command is not None
    assert "--hicache-size 48" in diagnosis.recommended_command.text
    assert finding.evidence[0].line == 3
    assert finding.evidence[0].text in FOUNDING.split("\n")[2]


def test_the_founding_pool_is_predicted_within_a_tenth() -> None:
    tokens = preflight(FOUNDING, hardware=FOUNDING_HOST, version="0.5.9").run["plan"]["kv_tokens"]
    assert tokens["low"] < 230_000 < tokens["high"]  # 230 thousand by the slope of its two measured runs
    assert abs(tokens["mid"] / 230_000 - 1) < 0.1


def test_the_size_that_worked_is_left_alone() -> None:
    diagnosis = preflight(FOUNDING.replace("300", "48").replace("0.93", "0.88"), hardware=FOUNDING_HOST, version="0.5.9")
    assert not causes(diagnosis)
    assert diagnosis.verdict == "healthy"


def test_without_the_ram_size_it_is_a_warning_that_says_what_is_missing() -> None:
    diagnosis = preflight(FOUNDING, hardware=Hardware(gpu="RTX PRO 6000"), version="0.5.9")
    assert found(diagnosis, "host_overallocation_per_rank").severity is Severity.WARNING
    assert any("host" in item for item in diagnosis.missing)


# --- stage by stage


@pytest.mark.parametrize(
    ("text", "hardware", "version", "cause"),
    [
        (launch(model="meta-llama/Llama-3.1-70B-Instruct"), Hardware(gpu="L4"), "0.5.9", "gpu_weights_oom"),
        (launch("--tp 8 --dp 8 --enable-dp-attention --chunked-prefill-size 32768", model="zai-org/GLM-5.2-FP8"), H200, "0.5.14", "kv_pool_no_room"),
        (launch("--mem-fraction-static 0.3", model="Qwen/Qwen3-32B"), Hardware(gpu="H200"), "0.5.9", "kv_pool_no_room"),
        (launch("--mem-fraction-static 0.99", model="Qwen/Qwen3-8B"), Hardware(gpu="RTX 4090"), "0.5.9", "static_fraction_too_high"),
        (launch("--tp 3", model="Qwen/Qwen3-32B"), Hardware(gpus=8), "0.5.9", "tp_divisibility"),
        (launch("--tp 32", model="deepseek-ai/DeepSeek-R1"), None, "0.5.9", "tp_divisibility"),
        (launch("--tp 4"), Hardware(gpus=2), "0.5.9", "gpu_count_mismatch"),
        ("CUDA_VISIBLE_DEVICES=0,1 " + launch("--tp 4"), None, "0.5.9", "gpu_count_mismatch"),
        (launch("--tp 2 --dp 4"), Hardware(gpus=4), "0.5.9", "gpu_count_mismatch"),
        (launch("--tp 2 --base-gpu-id 7"), Hardware(gpus=8), "0.5.9", "gpu_count_mismatch"),
        (launch("--enforce-eager"), None, "0.5.9", "invalid_flag"),
        (launch("--reasoning_parser x"), None, "0.5.9", "invalid_flag"),
        (launch("--cuda-graph-max-bs 8"), None, "0.5.20", "invalid_flag"),
        (launch("--hicache-size 37.5"), None, "0.5.9", "invalid_flag"),
        (launch("--port"), None, "0.5.9", "invalid_flag"),
        (launch("stray"), None, "0.5.9", "invalid_flag"),
        (launch("--enable-hierarchical-cache --disable-radix-cache"), None, "0.5.9", "invalid_config_combination"),
        (launch("--enable-hierarchical-cache --hicache-size 30", model="deepseek-ai/DeepSeek-V4-Pro"), None, "0.5.14", "invalid_config_combination"),
        (launch("--chunked-prefill-size 4100 --page-size 64"), None, "0.5.9", "invalid_config_combination"),
        (launch("--tp 8 --dp 3 --enable-dp-attention"), None, "0.5.9", "invalid_config_combination"),
        (launch("--speculative-num-steps 3"), None, "0.5.9", "invalid_config_combination"),
        (launch("--tp 8", model="moonshotai/Kimi-K2.5"), None, "0.5.9", "trust_remote_code_required"),
        (launch("--tp 8 --context-length 163840 --mem-fraction-static 0.9", model="deepseek-ai/DeepSeek-R1"), Hardware(gpu="H20"), "0.4.3", "context_length_exceeded"),
        (launch("--tp 4 --enable-hierarchical-cache --hicache-size 40"), Hardware(gpu="H100", host_ram_bytes=256 * GB), "0.5.3", "host_overallocation_per_rank"),
        (launch("--tp 8 --enable-hierarchical-cache --hicache-size 300"), Hardware(host_ram_bytes=449 * GB), "0.5.20", "hicache_host_guard"),
        (launch("--enable-hierarchical-cache --hicache-size 2"), Hardware(gpu="H200", host_ram_bytes=2000 * GB), "0.5.9", "hicache_pool_smaller_than_device"),
        (launch("--mem-fraction-static 0.98 --speculative-algorithm EAGLE", model="/m"), Hardware(gpu="RTX 4090"), "0.5.16", "draft_model_memory"),
    ],
)  # fmt: skip
def test_what_is_found(text: str, hardware: Hardware | None, version: str, cause: str) -> None:
    assert cause in causes(preflight(text, hardware=hardware, version=version))


@pytest.mark.parametrize(
    ("text", "hardware", "version"),
    [
        (launch("--tp 2"), H200, "0.5.9"),
        (launch("--tp $TP --mem-fraction-static $F"), Hardware(gpus=1), "0.5.9"),
        (launch("--tp 16 --nnodes 2 --node-rank $RANK", model="deepseek-ai/DeepSeek-R1"), Hardware(gpu="H100", gpus=8), "0.5.9"),
        (launch("--device cpu --tp 6", model="deepseek-ai/DeepSeek-R1"), None, "0.5.9"),
        (launch("--tp 16 --ep-size 16", model="Qwen/Qwen3-235B-A22B-FP8"), None, "0.5.9"),
        (launch("--tp 8", model="/models/something"), Hardware(gpu="unknown"), None),
    ],
)
def test_what_is_not_found(text: str, hardware: Hardware | None, version: str | None) -> None:
    assert not any(
        item.severity in (Severity.CRITICAL, Severity.ERROR) for item in preflight(text, hardware=hardware, version=version).findings
    )


def test_a_neighbouring_release_makes_an_unknown_flag_a_warning() -> None:
    text = launch("--enable-ep-moe")
    assert found(preflight(text, version="0.5.3"), "invalid_flag").severity is Severity.ERROR
    assert found(preflight(text, version="0.5.3rc1"), "invalid_flag").severity is Severity.WARNING


def test_the_image_names_the_release() -> None:
    text = "docker run --gpus all lmsysorg/sglang:v0.5.20-cu126 " + launch("--cuda-graph-max-bs 8")
    diagnosis = preflight(text)
    assert (diagnosis.run["version_low"], diagnosis.run["version_high"]) == ("0.5.20", "0.5.20")
    assert "invalid_flag" in causes(diagnosis)


def test_the_limit_of_a_container_counts_instead_of_the_node() -> None:
    text = "docker run --memory 200g --gpus all lmsysorg/sglang:v0.5.9 " + launch("--tp 4 --enable-hierarchical-cache --hicache-size 60")
    assert "host_overallocation_per_rank" in causes(preflight(text, hardware=Hardware(host_ram_bytes=2000 * GB)))


def test_unknown_sizes_are_said_and_not_guessed() -> None:
    diagnosis = preflight(launch("--tp $TP"), hardware=H200)
    assert any("variables" in note for note in diagnosis.notes)
    assert "weights_gib" not in diagnosis.run["plan"]


def test_flags_without_a_program_are_read_all_the_same() -> None:
    diagnosis = preflight(
        "--tp 8 --hicache-size 300 --enable-hierarchical-cache (other flags not listed)", hardware=FOUNDING_HOST, version="0.5.9"
    )
    assert causes(diagnosis) == {"host_overallocation_per_rank"}
    assert any("no SGLang program" in note for note in diagnosis.notes)


def test_a_local_config_beats_the_bundled_facts(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "hidden_size": 384,
    }
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert "tp_divisibility" in causes(preflight(launch("--tp 4", model=str(tmp_path))))
    assert "tp_divisibility" in causes(preflight(launch("--tp 4", model="m"), model_config=tmp_path))


# --- the answer


def test_codes_and_words_are_those_of_the_rules() -> None:
    codes = {rule.code for rule in all_rules()}
    assert {item.code for item in all_forecasts()} <= codes


@pytest.mark.parametrize("release", flags.releases())
def test_no_recommended_command_has_a_flag_that_the_release_lacks(release: str) -> None:
    text = launch(
        "--tp 8 --hicache-size 300 --enable-hierarchical-cache --mem-fraction-static 0.99 --chunked-prefill-size 4100 --page-size 64 --foo"
    )
    command = preflight(text, hardware=FOUNDING_HOST, version=release).recommended_command
    assert command is not None
    used = [word.partition("=")[0] for word in command.text.replace("\\\n", " ").split() if word.startswith("--")]
    assert [word for word in used if not flags.accepted(word, release)] == []


@pytest.mark.parametrize("form", ["text", "md", "html", "json"])
def test_every_format_shows_it(form: str) -> None:
    diagnosis = preflight(FOUNDING, hardware=FOUNDING_HOST, version="0.5.9")
    assert "hicache-size" in render(diagnosis, form)


def test_json_follows_the_published_schema_and_holds_the_command() -> None:
    schema = json.loads((ROOT / "docs" / "diagnosis.schema.json").read_text(encoding="utf-8"))
    form = diagnosis_to_dict(preflight("NCCL_DEBUG=INFO " + FOUNDING, hardware=FOUNDING_HOST, version="0.5.9"))
    jsonschema.validate(form, schema)
    assert form["command"]["flags"]["--tp-size"] == 8
    assert form["command"]["flags"]["--trust-remote-code"] is True


def test_secrets_are_masked_and_placeholders_are_not() -> None:
    text = "export HF_TOKEN=hf_abcDEF123456789\n" + launch("--api-key sk-live-abcdef123456 --admin-api-key '<secret>' --port $PORT")
    shown = json.dumps(diagnosis_to_dict(preflight(text, version="0.5.9")))
    assert "abcdef123456" not in shown
    assert "hf_abcDEF" not in shown
    assert "<secret>" in shown


def test_errors_are_ours_and_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="no SGLang launch"):
        preflight("ls -l")
    with pytest.raises(InputError, match="not a release"):
        preflight(FOUNDING.replace("\n", " "), version="latest")
    with pytest.raises(InputError, match="cannot read"):
        preflight(tmp_path / "missing.sh")
    big = tmp_path / "big.log"
    big.write_bytes(b"x" * 4_100_000)
    with pytest.raises(InputError, match="diagnose"):
        preflight(big)


FLAG_WORDS = (
    "--tp --tp-size --mem-fraction-static --hicache-size --enable-hierarchical-cache --dp --page-size --chunked-prefill-size --nnodes --pp-size "
    "--speculative-algorithm --enable-dp-attention --context-length --max-running-requests --hicache-ratio --base-gpu-id --cuda-graph-bs"
)
WORDS = st.sampled_from([*FLAG_WORDS.split(), "8", "0.9", "-1", "$X", "nan", "1e999", "0", "EAGLE", "99999999999999999999", "inf", "["])
MODELS = st.sampled_from(["deepseek-ai/DeepSeek-R1", "Qwen/Qwen3.5-397B-A17B", "zai-org/GLM-5.2", "deepseek-ai/DeepSeek-V4-Pro", "m-7b", "/x", "openai/gpt-oss-120b"])  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    MODELS, st.lists(WORDS, max_size=14), st.sampled_from([None, *flags.releases()]), st.sampled_from([None, "H100", "MI300X", "GB10", "x"])
)
def test_no_flags_break_it(model: str, words: list[str], version: str | None, gpu: str | None) -> None:
    hardware = Hardware(gpu=gpu, gpus=8, host_ram_bytes=500 * GB)
    try:
        diagnosis = preflight(
            launch(*(f"'{word}'" if word in "[$X" else word for word in words), model=model), hardware=hardware, version=version
        )
    except LogforensicsError:
        return
    json.dumps(diagnosis_to_dict(diagnosis), allow_nan=False)


# --- the machine, the weights


def test_this_host_reads_memory_and_the_smallest_limit(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       1048576 kB\nMemFree: 1 kB\n", encoding="utf-8")
    assert this_host(tmp_path, tmp_path).host_ram_bytes == GIB
    (tmp_path / "memory.max").write_text("max\n", encoding="utf-8")
    assert this_host(tmp_path, tmp_path).host_ram_bytes == GIB
    (tmp_path / "memory.max").write_text(f"{GIB // 2}\n", encoding="utf-8")
    assert this_host(tmp_path, tmp_path).host_ram_bytes == GIB // 2
    assert this_host(tmp_path / "none", tmp_path / "none").host_ram_bytes is None


def test_this_host_asks_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf 'NVIDIA H200, 143771\\nNVIDIA H200, 143000\\n'\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    here = this_host(tmp_path, tmp_path)
    assert (here.gpu, here.gpus, here.gpu_memory_bytes) == ("NVIDIA H200", 2, 143000 << 20)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("org/Llama-3-70B-Instruct", 70), ("/m/Qwen2.5-1.5B", 1.5), ("Mixtral-8x7B-v0.1", 46.48), ("Qwen3-30B-A3B", 30), ("DeepSeek-R1", None), ("v0.1b2", None)],
)  # fmt: skip
def test_parameters_of_a_name(name: str, billions: float | None) -> None:
    assert parameters_of_name(name) == (pytest.approx(billions) if billions else None)


@pytest.mark.parametrize(
    ("name", "args", "form"),
    [("m-FP8", {}, "fp8"), ("m-NVFP4", {}, "fp4"), ("m-AWQ-4bit", {}, "int4"), ("m-w8a8", {}, "int8"), ("m", {}, "bf16"), ("m", {"quantization": "fp8"}, "fp8"),
     ("m", {"quantization": "modelopt_fp4"}, "fp4"), ("m-bf16", {"quantization": "fp8"}, "bf16"), ("m", {"dtype": "float32"}, "fp32")],
)  # fmt: skip
def test_the_number_format(name: str, args: dict[str, Any], form: str) -> None:
    assert bytes_per_parameter(name, None, args)[0] == form


# --- the command line


def test_the_command_line_takes_words_files_and_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = ["--gpu", "RTX PRO 6000", "--gpus", "8", "--host-ram", "449GB", "--sglang-version", "0.5.9"]
    words = FOUNDING.replace("\\\n", " ").replace("nohup ", "").partition(" >")[0].split()
    assert main(["preflight", *machine, "--", *words]) == 1
    by_words = capsys.readouterr().out
    assert "8 ranks × 300 GB" in by_words
    script = tmp_path / "launch.sh"
    script.write_text(FOUNDING, encoding="utf-8")
    assert main(["preflight", str(script), *machine]) == 1
    assert "launch.sh:3" in capsys.readouterr().out
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FOUNDING.encode()), encoding="utf-8"))
    assert main(["preflight", "-", "--format", "json", "--fail-on", "never", *machine]) == 0
    assert json.loads(capsys.readouterr().out)["command"]["flags"]["--hicache-size"] == 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["preflight", "missing.sh"], "missing.sh"),
        (["preflight", "--", "ls", "-l"], "no SGLang launch"),
        (["preflight", "--sglang-version", "x", "--", "sglang", "serve", "--model", "m"], "not a release"),
        (["preflight", "--model-config", "missing.json", "--", "sglang", "serve", "--model", "m"], "missing.json"),
        (["flags", "no-such-flag-at-all"], "no SGLang release"),
        (["flags", "--sglang-version", "x"], "not a release"),
        (["models", "no-such-model-anywhere"], "--model-config"),
        (["gpus", "no-such-card"], "--gpu-memory"),
    ],
)
def test_mistakes_are_one_line_and_status_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["flags", "tp"], "--tp-size"),
        (["flags", "hicache_size", "--sglang-version", "0.4.4"], "not accepted"),
        (["flags", "--sglang-version", "0.5.9"], "--hicache-size"),
        (["models", "Kimi-K2.5"], "70,272"),
        (["models"], "confidence"),
        (["gpus", "H200-141"], "143771"),
        (["gpus", "H100"], "h100-sxm-80"),
    ],
)
def test_the_data_is_listed(arguments: list[str], shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["flags"], ["flags", "tp"], ["models"], ["models", "Qwen3-32B"], ["gpus"], ["gpus", "H100"]])
def test_the_data_is_listed_as_json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)
