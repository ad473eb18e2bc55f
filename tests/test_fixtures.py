"""Every story in fixtures/: the verdict, the first loud finding, the lines it cites, its fix and its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logforensics import Hardware, diagnose, toml
from logforensics.findings import Finding
from logforensics.units import parse_size

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
STORIES = sorted(path.parent for path in FIXTURES.glob("*/expect.toml"))
_SIZES = {"host_ram_bytes": "--host-ram", "gpu_memory_bytes": "--gpu-memory"}
pytestmark = pytest.mark.usefixtures("defects_are_raised")
LOUD = {"critical", "error", "warning"}


ALARMING = {"critical", "error"}


def _arguments(args: list[str]) -> dict[str, Any]:
    given = dict(zip(args[::2], args[1::2], strict=True))
    sizes = {name: parse_size(given[option]) for name, option in _SIZES.items() if option in given}
    unknown = given.keys() - {*_SIZES.values(), "--launch-command", "--sglang-version"}
    assert not unknown, f"expect.toml uses options this test does not know: {unknown}"
    return {"hardware": Hardware(**sizes), "launch_command": given.get("--launch-command"), "version": given.get("--sglang-version")}


def _fits(finding: Finding, fix: dict[str, Any]) -> bool:
    for item in finding.recommendations:
        if item.flag != fix["flag"] or (item.action.value != fix["action"] and {item.action.value, fix["action"]} != {"set", "decrease"}):
            continue
        if "low" not in fix or (isinstance(item.value, (int, float)) and fix["low"] <= item.value <= fix["high"]):
            return True
    return False


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.name)
def test_story(story: Path) -> None:
    expect = toml.loads((story / "expect.toml").read_text(encoding="utf-8"))
    logs = sorted(story.glob("*.log"))
    lines = {str(log): log.read_bytes().decode("utf-8", "replace").split("\n") for log in logs}
    found = diagnose(logs, **_arguments(expect["args"]))
    loud = [finding for finding in found.findings if finding.severity.value in LOUD]
    causes = {finding.root_cause for finding in loud}

    assert found.verdict == expect["verdict"]
    assert not causes & set(expect.get("absent", []))
    for finding in loud:
        assert finding.evidence, f"{finding.code} cites nothing"
    if logs[0].read_bytes()[:2] not in (b"\xff\xfe", b"\xfe\xff"):
        for item in (item for finding in found.findings for item in finding.evidence):
            assert item.text in lines[item.source][item.line - 1]
    if expect["root_cause"] == "healthy":
        assert not [finding for finding in loud if finding.severity.value in ALARMING]
        return
    assert loud, "nothing was found"
    first = loud[0]
    assert (first.root_cause, first.severity.value) == (expect["root_cause"], expect["severity"])
    assert set(expect["cites"]) <= {item.line for item in first.evidence}
    for fix in expect.get("fix", []):
        assert _fits(first, fix), (fix, [(item.flag, item.action.value, item.value) for item in first.recommendations])
    values = [item.value for item in first.arithmetic if isinstance(item.value, (int, float))]
    for figure, tolerance in expect.get("facts", {}).items():
        assert any(abs(value - float(figure)) <= tolerance for value in values), (figure, values)
