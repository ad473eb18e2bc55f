"""What several test files share."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# the same examples on every run, so that a change is judged by itself; HYPOTHESIS_PROFILE=explore looks for new ones
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture
def defects_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that fails is a note for users, but an error where a test asks for this."""
    monkeypatch.setenv("LOGFORENSICS_DEBUG", "1")
