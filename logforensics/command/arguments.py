"""From words to flags, as argparse would group them: canonical names, typed values, what is left over."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from logforensics.command.release import assumed_release
from logforensics.sglang.flags import Flag, find_flag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from logforensics.command.model import LaunchCommand


def read_flags(bare: LaunchCommand, words: Sequence[str], release: str | None) -> LaunchCommand:
    """The command with its flags, resolved for ``release``; None resolves for the release that the flags themselves suggest."""
    groups = list(_grouped(words))
    spoken = release or assumed_release(groups)
    flags: dict[str, Any] = {}
    typed: dict[str, str] = {}
    unknown: list[str] = []
    for spelling, values in groups:
        if not spelling:
            unknown += values
            continue
        flag = (find_flag(spelling, spoken) if spoken else None) or find_flag(spelling)
        if flag is None or (release and find_flag(spelling, release) is None):
            unknown.append(spelling)
        value, left_over = _value(flag, spelling, values)
        unknown += left_over
        name = flag.name if flag else spelling
        flags[name], typed[name] = value, spelling
    return replace(bare, flags=flags, typed=typed, unknown=tuple(unknown))


def _grouped(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag with the words after it. Words before the first flag come under an empty name."""
    spelling, values = "", list[str]()
    for word in words:
        if word.startswith("--") and len(word) > len("--"):
            if spelling or values:
                yield spelling, values
            spelling, equals, value = word.partition("=")
            values = [value] if equals else []
        else:
            values.append(word)
    if spelling or values:
        yield spelling, values


def _value(flag: Flag | None, spelling: str, values: Sequence[str]) -> tuple[Any, list[str]]:
    """The typed value of a flag from the words after it, and the words that are left over."""
    if flag is None:
        return (values[0], list(values[1:])) if values else (True, [])
    if spelling in flag.implied or flag.is_switch:
        return flag.implied.get(spelling, True), list(values)
    if not values:
        return None, []
    if flag.takes_list:
        return [converted(flag.kind, v) for v in values], []
    return converted(flag.kind, values[0]), list(values[1:])


_CONVERTERS: Mapping[str, Callable[[str], Any]] = {"int": int, "float": float, "json": json.loads}


def converted(kind: str, text: str) -> Any:
    """The value of one word; text that does not fit the type stays text, as ``$PORT`` does."""
    try:
        return _CONVERTERS.get(kind, str)(text)
    except (ValueError, RecursionError):
        return text
