"""A log exported as one JSON array of objects is the same log, its lines numbered by entry."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import logforensics
from logforensics import ParsedLog
from logforensics.reading.arrays import Entries, entries_of

LOG = Path(__file__).resolve().parents[2] / "fixtures" / "founding_hicache300" / "server.log"
LINES = LOG.read_bytes().decode().rstrip("\n").split("\n")
OBJECTS = [{"timestamp": f"2026-01-01T00:00:{n % 60:02}Z", "message": line + "\n", "labels": {"n": n}} for n, line in enumerate(LINES)]


def _rows(parsed: ParsedLog) -> dict[str, list[dict[str, object]]]:
    return {name: frame.drop("source").to_dicts() for name, frame in parsed.frames.items()}


EXPECTED = _rows(logforensics.parse(LOG))
FORMS: dict[str, Callable[[], bytes]] = {
    "in one line": lambda: json.dumps(OBJECTS).encode(),
    "without blanks": lambda: json.dumps([{"textPayload": line} for line in LINES], separators=(",", ":"), ensure_ascii=False).encode(),
    "over many lines": lambda: json.dumps(OBJECTS, indent=2).encode() + b"\n",
    "with CRLF": lambda: json.dumps(OBJECTS, indent=2).replace("\n", "\r\n").encode(),
    "objects one after the other": lambda: "\n".join(json.dumps(item, indent=4) for item in OBJECTS).encode(),
    "two arrays": (json.dumps(OBJECTS[:50]) + "\n" + json.dumps(OBJECTS[50:])).encode,
    "compressed": lambda: gzip.compress(json.dumps(OBJECTS).encode()),
    "UTF-16": lambda: b"\xff\xfe" + json.dumps(OBJECTS, indent=1).encode("utf-16-le"),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_array_is_the_same_log(form: str, tmp_path: Path) -> None:
    log = tmp_path / "export.json"
    log.write_bytes(FORMS[form]())
    parsed = logforensics.parse(log)
    assert _rows(parsed) == EXPECTED
    assert parsed.coverage.lines == len(LINES)
    quoted = parsed.quote({str(log): [len(LINES)]})[str(log), len(LINES)]
    assert json.loads(quoted).popitem()[1] == {"n": len(LINES) - 1} if "labels" in quoted else LINES[-1] in json.loads(quoted).values()


def test_the_array_of_an_answer(tmp_path: Path) -> None:
    log = tmp_path / "events.json"
    log.write_text(json.dumps({"events": OBJECTS, "nextForwardToken": "f/1"}, indent=4))
    parsed = logforensics.parse(log)
    assert parsed.frames["memory"].drop("source").to_dicts() == EXPECTED["memory"]
    assert parsed.coverage.lines > len(LINES)  # what stands behind the array is not lost


@pytest.mark.parametrize("end", ["cut", "broken"])
def test_an_array_that_breaks_off_is_read_so_far_and_the_rest_counted(end: str, tmp_path: Path) -> None:
    text = json.dumps(OBJECTS)
    at = text.index(json.dumps(OBJECTS[100]["message"])) + 5
    log = tmp_path / "export.json"
    log.write_text(text[:at] + ("" if end == "cut" else '"}}}' + text[at:]))
    parsed = logforensics.parse(log)
    assert parsed.coverage.lines == (101 if end == "cut" else 102)
    assert parsed.frames["launches"].height == len(EXPECTED["launches"])
    assert parsed.coverage.unfinished or parsed.coverage.damaged or parsed.coverage.unknown


@pytest.mark.parametrize(
    "text",
    [
        "[\n" + ",\n".join(map(json.dumps, OBJECTS)) + "\n]\n",  # one object a line is read as it stands
        "\n".join(map(json.dumps, OBJECTS)),
        json.dumps(OBJECTS[:1]),
        "[2026-01-01 10:00:00] x\n",
        "[1, 2, 3]",
        "[",
        "{",
        "",
    ],
)
def test_what_is_no_such_array(text: str) -> None:
    assert entries_of(text.encode()) == []


def test_containers_that_are_described_are_no_log(tmp_path: Path) -> None:
    state = {"Status": "exited", "OOMKilled": True, "ExitCode": 137}
    one = {"State": state, "HostConfig": {"Memory": 123_456_789_012}, "Config": {"Labels": {"message": "a note"}}}
    beside = tmp_path / "inspect.json"
    beside.write_text(json.dumps([one, one], indent=4))
    found = logforensics.diagnose([LOG, beside])
    assert any("is read as docker inspect" in note for note in found.notes)


class _Steps:
    """A stream that gives what it has in steps of one size."""

    def __init__(self, data: bytes, step: int) -> None:
        self._parts = [data[at : at + step] for at in range(0, len(data), step)]

    def read(self, _size: int = -1, /) -> bytes:
        return self._parts.pop(0) if self._parts else b""


def _read(stream: Entries) -> str:
    parts: list[bytes] = []
    while block := stream.read(1000):
        parts.append(block)
    return b"".join(parts).decode()


VALUES = st.recursive(st.text() | st.integers() | st.none(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner))


@settings(max_examples=60, deadline=None)
@given(
    entries=st.lists(st.dictionaries(st.text(), VALUES, max_size=4), min_size=1, max_size=6),
    indent=st.sampled_from([None, 1]),
    step=st.integers(1, 50),
)
def test_however_the_bytes_come_each_entry_is_one_line(entries: list[Any], indent: int | None, step: int) -> None:
    data = json.dumps(entries, indent=indent, ensure_ascii=False).encode("utf-8", "replace")
    lines = _read(Entries(_Steps(data, step))).split("\n")
    assert [json.loads(line) for line in lines if line] == json.loads(data)
    assert len(lines) == len(entries) + 1


def test_an_entry_without_an_end_is_given_as_it_stands() -> None:
    data = b'[{"message": "a"}, {"message": "' + b"x" * (9 << 20) + b"\n" + b"y" * 100
    assert _read(Entries(_Steps(data, 1 << 18))) == '{"message": "a"}\n' + data[19:].decode()
