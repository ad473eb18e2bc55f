"""Where things stand in a TOML file that a person wrote: the parser's result has lost the lines, and a message must name one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logforensics import lazy_re

_AT_LINE = lazy_re.compile(r"\(at line (\d+), column (\d+)\)")


def read_tables(path: Path, name: str, refuse: Callable[[str], Exception]) -> list[tuple[int, dict[str, Any]]]:
    """The tables ``[[name]]`` of a file, each with the line it begins on.

    Args:
        path: the file.
        name: the array of tables; the file may hold nothing else.
        refuse: makes the error to raise from a message that begins with ``file:line``.
    """
    from logforensics import toml

    try:
        text = path.read_text(encoding="utf-8")
        content = toml.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise refuse(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except toml.TOMLDecodeError as error:
        found = _AT_LINE.search(str(error))
        line = found[1] if found else len(text.splitlines())
        raise refuse(f"{path}:{line}: is not valid TOML: {error}") from error
    tables = content.pop(name, [])
    if content:
        raise refuse(f"{path}:{line_of(text, 1, min(content))}: {min(content)!r} is not known here: the file holds [[{name}]] tables only")
    if not tables or not isinstance(tables, list):
        raise refuse(f"{path}:1: holds no [[{name}]] table")
    begins = [number for number, line in enumerate(text.splitlines(), 1) if re.match(rf"\s*\[\[\s*{name}\s*\]\]", line)]
    return [(begins[place] if place < len(begins) else 1, table) for place, table in enumerate(tables)]


def line_of(text: str, begin: int, word: str) -> int:
    """The first line from ``begin`` on that sets or opens ``word``; ``begin`` where there is none."""
    for number, line in enumerate(text.splitlines()[begin - 1 :], begin):
        if re.match(rf"""\s*\[*\s*["']?{re.escape(word)}\b""", line):
            return number
    return begin


def place_in(path: Path, begin: int, message: str) -> str:
    """``file:line`` of the key that a message about the table at line ``begin`` names in quotes, else of the table."""
    text = path.read_text(encoding="utf-8")
    named = [line_of(text, begin, word) for word in re.findall(r"'([\w-]{1,60})'", message)]
    return f"{path}:{next((line for line in named if line != begin), begin)}"
