"""Log text is untrusted: control characters are made visible, secrets are masked.

Markup (rich, markdown, HTML) is the business of each renderer, because each has its own way to quote.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logforensics.diagnosis import Diagnosis

_ASCII = str.maketrans(
    {
        "…": "...", "→": "->", "←": "<-", "×": "x", "·": "-", "•": "*", "–": "-", "—": "-", "−": "-", "─": "-",
        "≈": "~", "≤": "<=", "≥": ">=", "≠": "!=", "±": "+/-", "÷": "/", "µ": "u", "°": " deg", "\u00a0": " ",
        "‘": "'", "’": "'", "“": '"', "”": '"', "✓": "ok", "└": "`", "├": "|", "│": "|",
    }
)  # fmt: skip

_FAMILIAR = {"\t": "    ", "\n": "\\n", "\r": "\\r"}


def visible(text: str, *, keep: str = "") -> str:
    r"""The text with every character that could steer a terminal or reorder a line spelled out, such as ``\x1b`` or ``\u202e``.

    Args:
        text: anything from a log.
        keep: characters to let through all the same, such as a newline in a paragraph.
    """
    if text.isprintable():
        return text
    return "".join(c if c in keep or c.isprintable() or unicodedata.category(c) == "Zs" else _spelled_out(c) for c in text)


def _spelled_out(char: str) -> str:
    code = ord(char)
    if char in _FAMILIAR:
        return _FAMILIAR[char]
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def ascii_form(text: str) -> str:
    r"""The text in ASCII: our own symbols by their usual stand-ins (``->``, ``x``), everything else as ``\u....``."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")


def masked(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with secrets masked in every string it holds."""
    from logforensics.secrets import mask

    safe: Diagnosis = _map_strings(diagnosis, mask)
    return safe


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Apply ``change`` to every plain string inside dataclasses, mappings and sequences; everything else stays as it is."""
    if type(value) is str:  # an Enum that is also a str is one of our own words
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _map_strings(getattr(value, f.name), change) for f in fields(value)})
    if isinstance(value, Mapping):
        return {key: _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_map_strings(item, change) for item in value)
    return value
