"""Whatever happens to the bytes of a log, it is diagnosed and shown, or refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logforensics import diagnose
from logforensics.errors import LogforensicsError
from logforensics.render import render

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
STORIES = sorted(path.name for path in FIXTURES.iterdir() if (path / "server.log").is_file())
FORMATS = ("text", "json", "md", "html")
pytestmark = pytest.mark.usefixtures("defects_are_raised")
SPLINTERS = (
    b"nan",
    b"-1",
    b"inf",
    b"9" * 23,
    b"\x1b[31m",
    b"[red]",
    b"'",
    b"}",
    b"\x00",
    b"\xff\xfe",
    b"\r",
    b"#new-token: 3, ",
    b", bs=[9 9]",
)


@st.composite
def damaged_logs(draw: st.DrawFn) -> bytes:
    """A story's log after a few cuts, insertions, repetitions and changed digits."""
    data = (FIXTURES / draw(st.sampled_from(STORIES)) / "server.log").read_bytes()[:40_000]
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        kind = draw(st.sampled_from(("cut", "splinter", "bytes", "again", "digits", "lines")))
        if kind == "cut":
            data = data[:at] + data[at + draw(st.integers(1, 400)) :]
        elif kind == "splinter":
            data = data[:at] + draw(st.sampled_from(SPLINTERS)) + data[at:]
        elif kind == "bytes":
            data = data[:at] + draw(st.binary(min_size=1, max_size=30)) + data[at:]
        elif kind == "again":
            data = data[:at] + data[at : at + draw(st.integers(1, 2_000))] + data[at:]
        elif kind == "digits":
            data = data.replace(*(str(draw(st.integers(0, 9))).encode() for _ in range(2)))
        else:
            data = b"\n".join(reversed(data.split(b"\n")))
    return data


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=damaged_logs())
def test_any_damage_is_survived(tmp_path: Path, data: bytes) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(data)
    try:
        found = diagnose(log)
    except LogforensicsError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 (most damage leaves a log that can be read)
        return
    lines = data.decode("utf-8", "replace").split("\n")
    for finding in found.findings:
        for item in finding.evidence:
            assert 1 <= item.line <= len(lines)
    for form in FORMATS:
        assert render(found, form)  # type: ignore[arg-type]
