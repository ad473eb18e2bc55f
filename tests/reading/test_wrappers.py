"""Whatever another program puts in front of every line, the log tells the same story."""

from __future__ import annotations

import html
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from logforensics import ParsedLog, parse

FOUNDING = Path(__file__).resolve().parents[2] / "fixtures" / "founding_hicache300" / "server.log"
LINES = FOUNDING.read_text(encoding="utf-8").split("\n")[:-1]
STAMP = "2026-02-18T14:03:27.123456789Z"


def _cri(line: str, most: int = 2000) -> str:
    """Kubernetes splits long lines: all parts but the last are marked P."""
    parts = [line[at : at + most] for at in range(0, len(line), most)] or [""]
    return "\n".join(f"{STAMP} stderr {'F' if part is parts[-1] else 'P'} {part}" for part in parts)


def _docker(line: str) -> str:
    """Docker splits at 16 KiB: only the last part ends with the newline."""
    parts = [(line + "\n")[at : at + 4000] for at in range(0, len(line) + 1, 4000)]
    return "\n".join(json.dumps({"log": part, "stream": "stderr", "time": STAMP}, separators=(",", ":")) for part in parts)


def _journal(line: str | list[int]) -> str:
    return json.dumps({"__REALTIME_TIMESTAMP": "1771423407123456", "MESSAGE": line, "_PID": "4242"})


WRAPPINGS: dict[str, Callable[[str], str]] = {
    "compose": lambda line: f"sglang-kimi-1  | {line}",
    "coloured compose": lambda line: f"\x1b[36msglang-kimi-1  |\x1b[0m {line}",
    "kubernetes cri": _cri,
    "kubernetes cri in small parts": lambda line: _cri(line, 60),
    "time stamps": lambda line: f"{STAMP} {line}",
    "seconds": lambda line: f"1771423407.123456 {line}",
    "syslog time": lambda line: f"Feb 18 14:03:27 {line}",
    "time with a comma": lambda line: f"2026-02-18 14:03:27,123 {line}",
    "time and dash": lambda line: f"2026-02-18T14:03:27.123Z - {line}",
    "time in a bracket": lambda line: f"[2026-02-18T14:03:27Z] {line}",
    "kubectl": lambda line: f"[pod/kimi-0/sglang] {STAMP} {line}",
    "stern": lambda line: f"kimi-0 sglang {line}",
    "coloured stern": lambda line: f"\x1b[36mkimi-0\x1b[0m \x1b[35msglang\x1b[0m {line}",
    "stern json": lambda line: json.dumps({"message": line, "podName": "kimi-0", "containerName": "sglang"}),
    "journald": lambda line: f"Feb 18 14:03:27 node-1 sglang[4242]: {line}",
    "journald iso": lambda line: f"2026-02-18T14:03:27+0000 node-1 python3[4242]: {line}",
    "journald precise": lambda line: f"Feb 18 14:03:27.123456 node-1 sglang[4242]: {line}",
    "journald with unit": lambda line: f"Wed 2026-02-18 14:03:27 UTC node-1 sglang.service[4242]: {line}",
    "journald monotonic": lambda line: f"[ 1234.567890] node-1 sglang[4242]: {line}",
    "syslog": lambda line: f"<30>1 2026-02-18T14:03:27.123Z node-1 sglang 4242 - - {line}",
    "journald json": _journal,
    "journald json of bytes": lambda line: _journal(list(line.encode())),
    "docker json": _docker,
    "fluentd": lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "kubernetes": {"pod": "x"}}),
    "cloud json": lambda line: json.dumps({"timestamp": STAMP, "severity": "INFO", "message": line}),
    "msg": lambda line: json.dumps({"level": "info", "msg": line}),
    "google text": lambda line: json.dumps({"insertId": "a", "textPayload": line}),
    "google json": lambda line: json.dumps({"insertId": "a", "jsonPayload": {"message": line, "pid": 1}}),
    "cloudwatch": lambda line: json.dumps({"@timestamp": STAMP, "@message": line, "@logStream": "x"}),
    "cloudwatch events": lambda line: f"    {json.dumps({'timestamp': 1771423407123, 'message': line})},",
    "cloudwatch tail": lambda line: f"{STAMP} sglang/kimi/0a1b {line}",
    "elastic": lambda line: json.dumps({"_index": "a", "_source": {"message": line, "@timestamp": STAMP}}),
    "loki": lambda line: f'{STAMP} {{app="sglang", pod="kimi-0"}} {line}',
    "loki raw": lambda line: f"1771423407123456789\t2026-02-18T14:03:27.123Z\t{line}",
    "loki json": lambda line: json.dumps({"line": line, "timestamp": "1771423407123456789", "fields": {}}),
    "pretty json": lambda line: '  {\n    "severity": "INFO",\n    "textPayload": ' + json.dumps(line + "\n") + ",\n  },",
    "csv": lambda line: f'{STAMP},"' + line.replace('"', '""') + '"',
    "ray": lambda line: f"(SGLangEngine pid=4242, ip=10.0.0.1) {line}",
    "coloured ray": lambda line: f"\x1b[36m(SGLangEngine pid=4242)\x1b[0m {line}",
    "ray serve": lambda line: f"(ServeReplica:default:LLM pid=4242) {line}",
    "torchrun": lambda line: f"[rank0]: {line}",
    "torchrun with role": lambda line: f"[default0]:{line}",
    "srun": lambda line: f"0: {line}",
    "padded srun": lambda line: f" 3: {line}",
    "mpirun": lambda line: f"[1,0]<stderr>: {line}",
    "pdsh": lambda line: f"node-1: {line}",
    "buildkite": lambda line: f"\x1b_bk;t=1771423407123\x07{line}",
    "quoted": lambda line: f"> {line}",
    "indented": lambda line: f"    {line}",
    "html": html.escape,
}
NESTED = [
    ("kubernetes cri", "cloud json"),
    ("cloud json", "kubernetes cri"),
    ("docker json", "ray"),
    ("journald json of bytes", "ray"),
    ("compose", "time stamps"),
    ("stern", "ray"),
    ("journald", "docker json"),
    ("quoted", "compose"),
    ("indented", "kubernetes cri in small parts"),
    ("csv", "docker json"),
    ("google json", "time stamps"),
    ("time in a bracket", "coloured ray"),
    ("quoted", "html"),
]


def _story(parsed: ParsedLog) -> dict[str, list[dict[str, object]]]:
    placed = {"line", "source", "message_line", "line_end", "version_basis"}
    chains = {"frames", "chain"}  # JSON that holds line numbers
    return {name: frame.drop([c for c in frame.columns if c in placed | chains]).to_dicts() for name, frame in parsed.frames.items()}


BARE = parse(FOUNDING)
STORY = _story(BARE)
FEW = ("launches", "load_progress", "memory", "kv_pool", "capacity", "host_pool", "errors")


def _wrapped(lines: Iterable[str], *names: str) -> list[str]:
    """Lines with the wrappers around them, the last name outermost."""
    for name in names:
        lines = [part for line in lines for part in WRAPPINGS[name](line).split("\n")]
    return list(lines)


def _write(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", WRAPPINGS)
def test_a_wrapped_log_is_the_log(name: str, tmp_path: Path) -> None:
    wrapped = parse(_write(tmp_path / "wrapped.log", _wrapped(LINES, name)))

    frames = FEW if name == "pretty json" else STORY  # its other lines are notices
    assert {frame: _story(wrapped)[frame] for frame in frames} == {frame: STORY[frame] for frame in frames}
    assert wrapped.coverage.damaged == BARE.coverage.damaged == 0


@pytest.mark.parametrize(("outer", "inner"), NESTED)
def test_two_wrappers_around_each_other(outer: str, inner: str, tmp_path: Path) -> None:
    wrapped = parse(_write(tmp_path / "wrapped.log", _wrapped(LINES, inner, outer)))

    assert _story(wrapped) == STORY
    assert wrapped.coverage.damaged == 0


@pytest.mark.parametrize(
    "name", ["compose", "kubernetes cri", "cloud json", "google json", "docker json", "journald", "stern", "quoted", "ray"]
)
def test_lines_without_the_wrapper_stay_what_they_are(name: str, tmp_path: Path) -> None:
    chance = random.Random(7)
    lines = [part for line in LINES for part in ([line] if chance.random() < 0.3 else _wrapped([line], name))]

    assert _story(parse(_write(tmp_path / "mixed.log", lines))) == STORY


def test_rows_cite_the_lines_of_the_wrapped_log(tmp_path: Path) -> None:
    wrapped = _wrapped(LINES, "kubernetes cri in small parts")
    parsed = parse(log := _write(tmp_path / "wrapped.log", wrapped))

    place = parsed.frames["memory"]["line"].to_list()
    quoted = parsed.quote({str(log): place})
    firsts = [quoted[str(log), number].split(" ", 3)[3] for number in place]
    bare = parse(_write(tmp_path / "bare.log", LINES))
    whole = [LINES[number - 1] for number in bare.frames["memory"]["line"].to_list()]
    assert all(line.startswith(first) and first for line, first in zip(whole, firsts, strict=True))


def test_two_streams_of_a_container_split_their_lines_apart(tmp_path: Path) -> None:
    """A part of standard error may be followed by lines of standard output."""
    lines: list[str] = []
    for number, part in enumerate(_wrapped(LINES, "kubernetes cri in small parts")):
        lines += [part, f'{STAMP} stdout F INFO:     127.0.0.1:{number + 1024} - "GET /health HTTP/1.1" 200 OK']

    parsed = parse(_write(tmp_path / "cri.log", lines))

    assert {name: _story(parsed)[name] for name in FEW} == {name: STORY[name] for name in FEW}


@pytest.mark.parametrize("ends", [1, 2, 3])
def test_a_record_whose_last_part_is_missing_gives_no_row(ends: int, tmp_path: Path) -> None:
    record = "[2026-02-18 14:10:00 TP0] Decode batch, #running-req: 5, #token: 100, token usage: 0.10, gen throughput (token/s): 50.00, #queue-req: 12"
    whole = [part for number in range(20, 30) for part in _cri(record[:-2] + str(number), len(record) - 1).split("\n")]

    parsed = parse(_write(tmp_path / "cri.log", whole[:-ends]))

    assert set(parsed.frames["decode"]["queue_req"].to_list()) <= set(range(20, 30))
    assert parsed.frames["decode"].height == 10 - (ends + 1) // 2
    assert parsed.coverage.damaged == ends % 2


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
