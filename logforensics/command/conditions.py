"""The truth of shell tests, ``[ … ]`` and ``[[ … ]]``, as far as the text decides it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

_MAX_TEST_WORDS = 100


def truth(words: Sequence[str]) -> bool | None:
    """The truth of a test; None where it asks for files or undefined variables. A variable without a value counts as empty."""
    if len(words) > _MAX_TEST_WORDS:
        return None
    for joint, decides in (("||", True), ("&&", False)):
        for joined in (joint, {"||": "-o", "&&": "-a"}[joint]):
            if joined in words:
                at = list(words).index(joined)
                left, right = truth(words[:at]), truth(words[at + 1 :])
                return decides if decides in (left, right) else None if None in (left, right) else not decides
    if words and words[0] == "!":
        inner = truth(words[1:])
        return None if inner is None else not inner
    values = ["" if re.fullmatch(r"\$[A-Za-z_]\w*", word) else word for word in words]
    return _simple([value for value in values if value not in ("(", ")")])


def _simple(values: Sequence[str]) -> bool | None:
    if any(value.startswith(("$(", "${")) for value in values):
        return None
    if len(values) == 1:
        return None if values[0].startswith("$") else bool(values[0])
    if len(values) == 2 and values[0] in ("-n", "-z"):
        return bool(values[1]) == (values[0] == "-n")
    return _compared(*values) if len(values) == 3 else None


def _compared(left: str, comparison: str, right: str) -> bool | None:
    if comparison in _NUMERIC:
        try:
            return _NUMERIC[comparison](int(left or 0), int(right or 0))
        except ValueError:
            return None
    return _TEXTUAL[comparison](left, right) if comparison in _TEXTUAL else None


def _matches(text: str, pattern: str) -> bool | None:
    """``=~`` is answered for plain words only: a pattern of strangers is not run."""
    return pattern in text if re.fullmatch(r"[\w./-]+", pattern) else None


_NUMERIC: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-lt": operator.lt,
    "-le": operator.le,
    "-gt": operator.gt,
    "-ge": operator.ge,
}
_TEXTUAL: Mapping[str, Callable[[str, str], bool | None]] = {
    "=": fnmatchcase,
    "==": fnmatchcase,
    "!=": lambda text, pattern: not fnmatchcase(text, pattern),
    "<": operator.lt,
    ">": operator.gt,
    "=~": _matches,
}
