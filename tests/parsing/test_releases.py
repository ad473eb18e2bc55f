"""Which release wrote a log, told by wordings and printed versions as well as by the fields of server_args."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from logforensics import diagnose, parse
from logforensics.parsing import stream

SHARED = Path(__file__).resolve().parents[3] / "shared"
STAMP = "[2026-06-01 05:00:03 TP0] "
READY = "[2026-06-01 05:00:09] The server is fired up and ready to roll!"
ARGS = "[2026-06-01 05:00:00] server_args=ServerArgs(model_path='/m', tp_size=1)"
OLD_LOAD = STAMP + "Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=63.58 GB, mem usage=14.99 GB."
NEW_LOAD = STAMP + "Load weight end. elapsed=3.10 s, type=LlamaForCausalLM, avail mem=63.58 GB, mem usage=14.99 GB."
HOST = STAMP + "Allocating kv hierarchical KV host pool: 683061 tokens, 48.00 GB host memory."


def _log(folder: Path, *lines: str) -> Path:
    path = folder / "server.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("lines", "low", "high"),
    [
        ([READY], "0.1.26", "0.5.23"),
        ([NEW_LOAD, READY], "0.5.9", "0.5.23"),
        ([OLD_LOAD, READY], "0.3.6", "0.5.8"),
        ([NEW_LOAD, HOST, READY], "0.5.17", "0.5.23"),
        ([STAMP + "Watchdog timeout (self.watchdog_timeout=300)"], "0.1.26", "0.5.6"),
        ([STAMP + "ReqTimeStats(rid=a, input_len=1, output_len=2, type=x): queue_duration=1.0ms", READY], "0.5.12", "0.5.23"),
        ([STAMP + "KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.5 -> 0.6"], "0.1.26", "0.5.6"),
        (["SGLang Version 0.5.11+05fb6a52", READY], "0.5.11", "0.5.11"),
        (["docker run --gpus all lmsysorg/sglang:v0.5.8-cu130 python3 -m sglang.launch_server", READY], "0.5.8", "0.5.8"),
        (["Successfully installed numpy-2.1.0 sglang-0.5.8.post1 torch-2.9.1", READY], "0.5.8", "0.5.8"),
        (["sglang                    0.5.12", READY], "0.5.12", "0.5.12"),
        (["sglang==0.5.12", READY], "0.5.12", "0.5.12"),
        # what does not fit the lines is no version of this server, and other packages are not SGLang
        (["sglang==0.5.4", NEW_LOAD, READY], "0.5.9", "0.5.23"),
        (["Successfully installed sglang-router-0.3.2 sgl-kernel-0.3.21", READY], "0.1.26", "0.5.23"),
        (["sglang>=0.5.0 is needed", READY], "0.1.26", "0.5.23"),
    ],
)
def test_a_log_without_server_args_has_a_range(lines: list[str], low: str, high: str, tmp_path: Path) -> None:
    run = diagnose(parse(_log(tmp_path, *lines))).run

    assert (run["version_low"], run["version_high"]) == (low, high)
    assert bool(run["version_basis"])


def test_lines_narrow_what_the_fields_leave_open_and_frame_and_run_agree(tmp_path: Path) -> None:
    path = _log(tmp_path, ARGS, OLD_LOAD, READY, ARGS, NEW_LOAD, HOST, READY)
    parsed = parse(path)

    first, second = parsed.frames["launches"].select("version_low", "version_high", "version_basis").rows()
    assert (first[0], first[1]) == ("0.3.6", "0.5.8")
    assert (second[0], second[1]) == ("0.5.17", "0.5.18")
    assert "has no elapsed= (until 0.5.8, line 2)" in first[2]
    run = diagnose(parsed).run
    assert (run["version_low"], run["version_high"], run["version_basis"]) == second


def test_a_stream_tells_the_same(tmp_path: Path) -> None:
    path = _log(tmp_path, ARGS, OLD_LOAD, READY, ARGS, NEW_LOAD, HOST, READY)

    streamed = pl.concat([rows for name, rows in stream(path) if name == "launches"])

    assert streamed.equals(parse(path).frames["launches"])


@pytest.mark.skipif(not (SHARED / "golden").is_dir(), reason="../shared is not here")
def test_wordings_alone_never_rule_out_the_true_release(tmp_path: Path) -> None:
    from logforensics.sglang.flags import release_at_least

    logs = sorted((SHARED / "golden").glob("*.log"))
    assert logs
    for log in logs:
        lines = [line for line in log.read_text(encoding="utf-8").split("\n") if "server_args=" not in line]
        run = diagnose(parse(_log(tmp_path, *lines))).run
        assert release_at_least(log.stem, run["version_low"]), log.name
        assert release_at_least(run["version_high"], log.stem), log.name
