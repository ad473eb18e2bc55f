"""The generated pages are those that the code would write now."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from logforensics.rules import all_rules, pages

DOCS = Path(__file__).resolve().parents[1] / "docs"


def _generator() -> object:
    spec = importlib.util.spec_from_file_location("make_docs", DOCS / "make_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_frames_page_is_current() -> None:
    assert (DOCS / "frames.md").read_text(encoding="utf-8") == _generator().frames_page()  # type: ignore[attr-defined]


def test_finding_pages_are_current() -> None:
    wanted = _generator().finding_pages()  # type: ignore[attr-defined]
    found = {f"findings/{path.name}": path.read_text(encoding="utf-8") for path in (DOCS / "findings").glob("*.md")}
    assert found == wanted


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_every_rule_has_a_whole_page(rule: object) -> None:
    text = pages.page(rule.code)  # type: ignore[attr-defined]
    for heading in ("## Why it happens", "## How to confirm", "## How to fix", "## False friends"):
        assert heading in text
