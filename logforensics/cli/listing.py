"""What ``flags``, ``models`` and ``gpus`` have in common: facts as aligned columns, or as JSON."""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WIDEST = 60


class ListFormat(str, Enum):
    """``--format`` of a listing."""

    TEXT = "text"
    JSON = "json"


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as aligned text, one line each, the columns' names above."""
    cells = [[str(name) for name in columns], *([_cell(row.get(name)) for name in columns] for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(columns))]
    return "".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() + "\n" for line in cells)


def as_json(rows: Any) -> str:
    """Facts as JSON text."""
    return json.dumps(rows, indent=2, default=str) + "\n"


def sheet(facts: Mapping[str, Any]) -> str:
    """One entry, a fact a line; empty ones are left out."""
    shown = {name: value for name, value in facts.items() if value not in (None, "", (), [], {})}
    width = max((len(name) for name in shown), default=0)
    lines = []
    for name, value in shown.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        lines += [f"{name if place == 0 else '':<{width}}  {item}" for place, item in enumerate(values)]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    text = "" if value is None else ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"
