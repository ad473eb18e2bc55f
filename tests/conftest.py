"""What several test files share."""

from __future__ import annotations

import pytest


@pytest.fixture
def defects_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that fails is a note for users, but an error where a test asks for this."""
    monkeypatch.setenv("LOGFORENSICS_DEBUG", "1")
