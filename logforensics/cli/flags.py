"""``logforensics flags [NAME]``: the server flags of SGLang by release."""

# No `from __future__ import annotations`: typer reads these annotations when the program runs.
from typing import Annotated, Any

import typer

from logforensics.cli import options
from logforensics.cli.listing import ListFormat, as_json, table

EPILOG = options.examples(
    "logforensics flags hicache-size",
    "logforensics flags --sglang-version 0.5.8",
    "logforensics flags cuda-graph-max-bs --sglang-version 0.5.20",
)
_COLUMNS = ("flag", "takes", "default", "unit", "scope", "releases")

Name = Annotated[
    str | None, typer.Argument(metavar="NAME", help="A flag in any spelling, such as hicache-size or --tp; without it all are listed.")
]
Format = Annotated[ListFormat, typer.Option("--format", help="Form of the output.")]


def run(name: Name = None, *, sglang_version: options.SglangVersion = None, format: Format = ListFormat.TEXT) -> int:  # noqa: A002
    """Show SGLang's server flags.

    Spellings, type, default, scope and unit, by release; with a name everything known of one flag, its traps included.
    """
    from logforensics.cli.output import emit
    from logforensics.errors import InputError
    from logforensics.sglang import flags
    from logforensics.topics import find_flag, flag_page

    release = None
    if sglang_version is not None:
        release = flags.nearest_release(sglang_version)
        if release is None:
            raise InputError(f"--sglang-version {sglang_version!r} is not a release such as {flags.releases()[-1]}")
    if name is None:
        rows = _rows(release)
        emit(as_json(rows) if format is ListFormat.JSON else table(rows, _COLUMNS))
        return 0
    flag = find_flag(name)
    if flag is None:
        raise InputError(f"no SGLang release has the flag {name!r}{_hint(name)}")
    emit(as_json(_row(flag, release)) if format is ListFormat.JSON else flag_page(flag, release))
    return 0


def _rows(release: str | None) -> list[dict[str, Any]]:
    """One row a flag; with a release only those it accepts, under its spelling."""
    from logforensics.sglang import flags

    fields = (flag for flag in map(flags.flag_by_field, flags.all_fields()) if flag is not None and flag.name)
    rows = [_row(flag, release) for flag in fields if release is None or any(release in found for found in flag.spellings.values())]
    return sorted(rows, key=lambda row: str(row["flag"]))


def _row(flag: Any, release: str | None) -> dict[str, Any]:
    from logforensics.sglang import flags

    accepted = [name for name in flags.releases() if any(name in found for found in flag.spellings.values())]
    default = flags.default(flag.field, release or accepted[-1]) if accepted else None
    return {
        "flag": (flags.spelling_for(flag.field, release) if release else None) or flag.name,
        "field": flag.field,
        "takes": "switch" if flag.is_switch else ("list of " if flag.takes_list else "") + flag.kind,
        "default": default,
        "unit": None if flag.unit == "bool" else flag.unit,
        "scope": flag.scope,
        "releases": f"{accepted[0]} … {accepted[-1]}" if accepted else "",
        "spellings": {spelling: [name for name in flags.releases() if name in found] for spelling, found in flag.spellings.items()},
        "meaning": flag.meaning,
        "notes": list(flag.notes),
    }


def _hint(name: str) -> str:
    from difflib import get_close_matches

    from logforensics.sglang import flags

    known = [flag.name for flag in map(flags.flag_by_field, flags.all_fields()) if flag is not None and flag.name]
    close = get_close_matches(f"--{name.lstrip('-').replace('_', '-')}", known, n=3, cutoff=0.6)
    return f"; did you mean {', '.join(close)}?" if close else ""
