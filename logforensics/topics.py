"""Pages of ``logforensics explain`` that are no findings: traps, equations, flags."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from logforensics.records import record
from logforensics.sglang import flags

if TYPE_CHECKING:
    from logforensics.sglang.flags import Flag


@record(frozen=True)
class Trap:
    """A belief about a flag that its scope or unit disappoints.

    Attributes:
        id: short name.
        flags: server_args fields it is about.
        releases: where it holds, in words.
        belief: what people expect.
        truth: what happens.
        tool: what logforensics does about it.
    """

    id: str
    flags: tuple[str, ...]
    releases: str
    belief: str
    truth: str
    tool: str


@cache
def traps() -> tuple[Trap, ...]:
    """All traps, the most often met first."""
    return tuple(Trap(**{**entry, "flags": tuple(entry["flags"])}) for entry in _data("traps.json"))


@cache
def names() -> tuple[str, ...]:
    """The names of all traps and equations."""
    return (*(trap.id for trap in traps()), *(entry["id"] for entry in _data("equations.json")))


def page(topic: str) -> str | None:
    """The page of a topic as Markdown; None where there is no such topic.

    Args:
        topic: a trap or equation by name, or a flag in any spelling (``--tp``, ``hicache_size``).
    """
    wanted = topic.strip().lower().replace("_", "-")
    trap = next((item for item in traps() if item.id == wanted), None)
    if trap is not None:
        return _trap_page(trap)
    equation = next((entry for entry in _data("equations.json") if entry["id"] == wanted), None)
    if equation is not None:
        return _equation_page(equation)
    flag = find_flag(topic)
    return flag_page(flag) if flag is not None else None


def find_flag(name: str) -> Flag | None:
    """A flag by field or spelling, with or without dashes."""
    bare = name.strip().lstrip("-")
    return flags.flag_by_field(bare.replace("-", "_")) or flags.find_flag(f"--{bare.replace('_', '-')}")


def flag_page(flag: Flag, release: str | None = None) -> str:
    """Everything known of a flag as Markdown; with a release, what holds there first."""
    lines = [f"# {flag.name or flag.field}", ""]
    lines += [flag.meaning, ""] if flag.meaning else []
    if release is not None:
        lines += [f"In {release}: {_in_release(flag, release)}", ""]
    facts = [
        ("field of server_args", f"`{flag.field}`"),
        (
            "takes",
            "nothing: it is a switch" if flag.is_switch else f"{'a list of ' if flag.takes_list else ''}{_KINDS.get(flag.kind, flag.kind)}",
        ),
        ("unit", flag.unit if flag.unit != "bool" else None),
        ("counts", _SCOPES.get(flag.scope or "", flag.scope)),
        ("choices", ", ".join(map(str, flag.choices[:20]))),
        ("spellings", "; ".join(f"`{spelling}` {_range(found)}" for spelling, found in flag.spellings.items())),
        ("defaults", "; ".join(f"{_shown(value)} since {since}" for since, value in flag.defaults)),
        ("now called", f"`{heir.name}`" if flag.renamed_to and (heir := flags.flag_by_field(flag.renamed_to)) else None),
        ("instead", flag.replacement),
    ]
    lines += [f"- {label}: {text}" for label, text in facts if text]
    lines += [f"- {note}" for note in flag.notes]
    related = [trap for trap in traps() if flag.field in trap.flags]
    if related:
        lines += ["", "## Traps", "", *(f"- **{trap.id}**: {trap.truth}" for trap in related)]
    return "\n".join(lines) + "\n"


def _in_release(flag: Flag, release: str) -> str:
    spelling = flags.spelling_for(flag.field, release)
    if spelling is None:
        return "not accepted"
    return f"typed `{spelling}`, default {_shown(flags.default(flag.field, release))}"


def _trap_page(trap: Trap) -> str:
    fields = ", ".join(f"`{flag.name}`" for name in trap.flags if (flag := flags.flag_by_field(name)))
    return (
        f"# Trap: {trap.id}\n\n"
        + (f"Flags: {fields}  \n" if fields else "")
        + f"Releases: {trap.releases}\n\n## What people believe\n\n{trap.belief}\n\n## What happens\n\n{trap.truth}\n\n## What logforensics does\n\n{trap.tool}\n"
    )


def _equation_page(entry: dict[str, Any]) -> str:
    formula = "\n".join(f"    {line}" for line in entry["formula"].split("\n"))
    return f"# {entry['title']}\n\n{formula}\n\n{entry['where']}\n\nReleases: {entry['releases']}  \nSource: {entry['source']}\n"


_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "json": "JSON"}
_SCOPES = {
    "per-rank": "for each rank",
    "per-dp-worker": "for each data-parallel worker",
    "per-node": "for each machine",
    "engine": "for the whole server",
    "replica": "for each replica",
}


def _shown(value: Any) -> str:
    return "computed or unset" if value is None else f"`{value}`"


def _range(found: Sequence[str] | frozenset[str]) -> str:
    """``0.4.6 … 0.5.23`` of a set of releases."""
    known = [release for release in flags.releases() if release in found]
    return f"{known[0]} … {known[-1]}" if len(known) > 1 else "".join(known)


@cache
def _data(name: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = json.loads((files("logforensics.sglang") / "data" / name).read_text(encoding="utf-8"))
    return loaded
