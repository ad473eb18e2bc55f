"""Which release a command without one was probably written for: its own spellings, and the model it serves, tell."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from logforensics.sglang.flags import find_flag, releases

if TYPE_CHECKING:
    from collections.abc import Sequence

# The release that first served a family of models, where its name stands in a path or served name (MODELS.md, release notes).
_FIRST_SERVED = (
    ("deepseek-v4", "0.5.12"),
    ("deepseekv4", "0.5.12"),
    ("glm-5.2", "0.5.13"),
    ("glm-5", "0.5.9"),
    ("qwen3.5", "0.5.9"),
    ("kimi-k2.5", "0.5.8"),
    ("deepseek-v3.2", "0.5.4"),
    ("gpt-oss", "0.5.1"),
)
_FEW = 3  # old spellings are no evidence where fewer than one in three releases that fit still prefers them


def assumed_release(groups: Sequence[tuple[str, Sequence[str]]]) -> str | None:
    """The release whose names a command without a stated release is read with; None where every release that fits reads it alike.

    A flag that was renamed is accepted under its old name for a while. An old name suggests an old release, unless few of the releases
    that accept the whole command (and serve its model) still prefer it: then it is the newest of them.
    """
    spellings = {spelling for spelling, _ in groups if spelling and find_flag(spelling)}
    fitting = [r for r in _serving(groups) if all(find_flag(s, r) for s in spellings)]
    moved = [s for s in spellings if len({id(find_flag(s, r)) for r in fitting}) > 1]
    if not fitting or not moved:
        return None
    preferring = [r for r in fitting if any(_prefers(s, r) for s in moved)]
    return preferring[-1] if len(preferring) * _FEW >= len(fitting) else fitting[-1]


@cache
def _prefers(spelling: str, release: str) -> bool:
    """Whether a release has this spelling as a flag's proper name, not as an old alias."""
    flag = find_flag(spelling, release)
    return flag is not None and flag.name == spelling


def first_release_serving(model: str) -> str:
    """The first release that serves a model by its name or path; the oldest where nothing is known."""
    lowered = model.lower()
    return next((since for name, since in _FIRST_SERVED if name in lowered), releases()[0])


def _serving(groups: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """The releases that can serve the model the command names."""
    named = " ".join(value for spelling, values in groups if "model" in spelling for value in values[:1])
    known = list(releases())
    return known[known.index(first_release_serving(named)) :]
