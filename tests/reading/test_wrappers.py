"""Whatever another program puts in front of every line, the log tells the same story."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from logforensics import ParsedLog, parse

FOUNDING = Path(__file__).resolve().parents[2] / "fixtures" / "founding_hicache300" / "server.log"
LINES = FOUNDING.read_text(encoding="utf-8").split("\n")[:-1]
STAMP = "2026-02-18T14:03:27.123456789Z"


def _cri(line: str) -> str:
    """Kubernetes splits long lines: all parts but the last are marked P."""
    parts = [line[at : at + 2000] for at in range(0, len(line), 2000)] or [""]
    return "\n".join(f"{STAMP} stderr {'F' if part is parts[-1] else 'P'} {part}" for part in parts)


WRAPPINGS: dict[str, Callable[[str], str]] = {
    "compose": lambda line: f"sglang-kimi-1  | {line}",
    "kubernetes cri": _cri,
    "time stamps": lambda line: f"{STAMP} {line}",
    "kubectl": lambda line: f"[pod/kimi-0/sglang] {STAMP} {line}",
    "journald": lambda line: f"Feb 18 14:03:27 node-1 sglang[4242]: {line}",
    "journald iso": lambda line: f"2026-02-18T14:03:27+0000 node-1 python3[4242]: {line}",
    "journald json": lambda line: json.dumps({"__REALTIME_TIMESTAMP": "1771423407123456", "MESSAGE": line, "_PID": "4242"}),
    "docker json": lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": STAMP}, separators=(",", ":")),
    "cloud json": lambda line: json.dumps({"timestamp": STAMP, "severity": "INFO", "message": line}),
    "ray": lambda line: f"(SGLangEngine pid=4242, ip=10.0.0.1) {line}",
    "coloured ray": lambda line: f"\x1b[36m(SGLangEngine pid=4242)\x1b[0m {line}",
    "torchrun": lambda line: f"[rank0]: {line}",
    "srun": lambda line: f"0: {line}",
    "compose around ray": lambda line: f"head-1  | (Engine pid=7) {line}",
}


def _story(parsed: ParsedLog) -> dict[str, list[dict[str, object]]]:
    placed = {"line", "source", "message_line", "line_end"}
    chains = {"frames", "chain"}  # JSON that holds line numbers
    return {name: frame.drop([c for c in frame.columns if c in placed | chains]).to_dicts() for name, frame in parsed.frames.items()}


@pytest.mark.parametrize("wrapping", WRAPPINGS.values(), ids=WRAPPINGS.keys())
def test_a_wrapped_log_is_the_log(wrapping: Callable[[str], str], tmp_path: Path) -> None:
    log = tmp_path / "wrapped.log"
    log.write_text("".join(wrapping(line) + "\n" for line in LINES), encoding="utf-8")

    wrapped, bare = parse(log), parse(FOUNDING)

    assert _story(wrapped) == _story(bare)
    assert wrapped.coverage.damaged == bare.coverage.damaged == 0


@pytest.mark.parametrize("chunk", [3000, 40_000])
def test_a_line_split_by_kubernetes_survives_chunks(chunk: int, tmp_path: Path) -> None:
    log = tmp_path / "cri.log"
    log.write_text("".join(_cri(line) + "\n" for line in LINES), encoding="utf-8")

    assert _story(parse(log, chunk_bytes=chunk)) == _story(parse(log))
    assert parse(log, chunk_bytes=chunk).frames["launches"]["complete"].to_list() == [True]


def test_rays_repetition_note_is_no_part_of_the_line(tmp_path: Path) -> None:
    decode = "[2026-02-18 14:10:00 TP0] Decode batch, #running-req: 5, #token: 100, token usage: 0.10, gen throughput (token/s): 50.00, #queue-req: 0"
    log = tmp_path / "ray.log"
    log.write_text("".join(f"(Engine pid=1) {decode} [repeated {n}x across cluster]\n" for n in (2, 3)), encoding="utf-8")

    assert parse(log).frames["decode"]["queue_req"].to_list() == [0, 0]


def test_a_prompt_that_looks_wrapped_is_no_record(tmp_path: Path) -> None:
    decode = "[2026-02-18 14:10:00 TP0] Decode batch, #running-req: 5, #token: 100, token usage: 0.10, gen throughput (token/s): 50.00, #queue-req: 0"
    log = tmp_path / "mixed.log"
    log.write_text("\n".join([*LINES, f"sglang-1 | {decode}", f"he said: {decode}", f'{{"log": "{decode}"}}']) + "\n", encoding="utf-8")

    assert parse(log).frames["decode"].height == parse(FOUNDING).frames["decode"].height
