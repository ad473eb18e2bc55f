"""Lines that SGLang's own code printed from known values, in 31 releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from .shared_tools import SHARED, needs_shared, tool

pytestmark = needs_shared


@pytest.mark.parametrize("log", sorted((SHARED / "golden").glob("*.log")), ids=lambda path: path.stem)
def test_every_value_is_recovered(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, total = tool("check_golden").check(log, verbose=True)

    assert total > 20
    assert good == total, capsys.readouterr().out
