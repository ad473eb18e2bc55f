"""Tables of values by release."""

from __future__ import annotations

import pytest

from logforensics.errors import InputError
from logforensics.sglang.flags import releases
from logforensics.sglang.releases import ByRelease, span

TABLE = ByRelease((("0.4.2", "old"), ("0.5.6", "new")))


@pytest.mark.parametrize(
    ("release", "value"), [("0.4.2", "old"), ("0.5.5", "old"), ("0.5.6", "new"), ("v0.5.23", "new"), ("0.1.26", "old"), ("0.5.6rc0", "old")]
)
def test_a_value_holds_until_the_next_row(release: str, value: str) -> None:
    assert TABLE.at(release) == value


def test_a_span_gives_the_distinct_values_it_meets() -> None:
    assert TABLE.over("0.5.4", "0.5.8") == ("old", "new")
    assert TABLE.over("0.5.8", None) == ("new",)
    assert TABLE.over(None, None) == ("old", "new")


def test_an_open_span_runs_to_the_ends_and_is_never_empty() -> None:
    assert span(None, None) == releases()
    assert span("0.5.8", "0.5.9") == ("0.5.8", "0.5.9")
    assert span("0.5.9", "0.5.8") == ("0.5.8",)
    assert span("nightly", "0.1.26") == ("0.1.26",)


def test_an_unreadable_release_is_refused() -> None:
    with pytest.raises(InputError, match="latest"):
        TABLE.at("latest")
