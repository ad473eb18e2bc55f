"""Regular expressions that are compiled when they are first used.

Compiling takes 0.1 to 1 ms each. The package names hundreds of them at module level, and a log needs a few.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

_METHODS = ("search", "match", "fullmatch", "finditer", "findall", "split", "sub", "subn")


def compile(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:  # noqa: A001 - it stands for re.compile
    """As :func:`re.compile`, with the work put off until the expression is asked for anything.

    An expression that cannot be compiled is found out then: a test compiles them all.
    """
    return cast("re.Pattern[AnyStr]", LazyPattern(pattern, flags))


class LazyPattern:
    """Stands for a pattern, and has its methods from the first use on."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self._arguments = (pattern, flags)

    def __getattr__(self, name: str) -> Any:
        """Called for what is not there yet, which is everything before the first use."""
        compiled: Any = re.compile(*self._arguments)
        for method in _METHODS:
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)

    def __repr__(self) -> str:
        return f"lazy_re.compile{self._arguments!r}"
