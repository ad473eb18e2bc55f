"""Which SGLang release wrote a log: what the user says wins over what its lines tell."""

from __future__ import annotations

from logforensics.run.model import Run
from logforensics.sglang import flags


def release_range(run: Run, stated: str | None) -> tuple[str, str, str]:
    """Oldest and newest release that fit, and why."""
    if stated is not None and (known := flags.nearest_release(stated)) is not None:
        return known, known, f"stated: {stated}"
    names = flags.releases()
    low, high, basis = run.releases or (names[0], names[-1], "")
    return low, high, basis or "nothing in the log tells"
