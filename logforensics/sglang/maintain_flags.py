"""Rebuild ``data/flags.json``, the compact table of SGLang's server flags that ``flags.py`` reads.

Run it when the reference files have a new release, from the root of the repository::

    python -m logforensics.sglang.maintain_flags \
        --reference ../shared/reference --contradictions ../shared/commands/flag_contradictions.json

``--reference`` is the folder with ``flags.json`` (fields, defaults, spellings, deprecations by wheel). ``--contradictions`` lists
where the argparse of the wheels disagrees with it; there the list is right. The result is written beside this module: one flag a
line, empty values left out, releases as ranges over the list of known releases (``0.3.6-0.5.13,0.5.15``).
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TARGET = Path(__file__).parent / "data" / "flags.json"

# Defaults that the reference gives as source expressions; the values they have on a CUDA machine.
_EXPRESSIONS: Mapping[str, object] = {
    "1024 * 1024": 1 << 20,
    "10 * 1000 * 1000": 10_000_000,
    "sys.maxsize": (1 << 63) - 1,
    "ENCODER_TRANSFER_BACKEND_CHOICES[0]": "zmq_to_scheduler",
    "DEFAULT_LORA_EVICTION_POLICY": "lru",
    "lambda: is_hip()()": False,
    "lambda: list(DEFAULT_UVICORN_ACCESS_LOG_EXCLUDE_PREFIXES)()": [],
}

# "Renames" of the reference that change what the value means: a value must not be carried over by itself.
_CHANGED_MEANING = frozenset({"enable_dp_attention", "hybrid_kvcache_ratio"})

# Options without a field of their own in server_args, and the kind of their value.
_WITHOUT_FIELD: Mapping[str, str] = {
    "--config": "str",
    "--disable-nan-detection": "bool",
    "--enable-flashinfer-cutedsl-moe": "bool",
    "--enable-overlap-schedule": "bool",
}


class _Table:
    """The reference files, joined: which field owns which spelling in which release."""

    def __init__(self, reference: Mapping[str, Any], contradictions: Mapping[str, Any]) -> None:
        self.releases: list[str] = reference["versions"]
        self.fields: dict[str, dict[str, Any]] = {f["name"]: f for f in reference["flags"]}
        self.deprecated: dict[str, dict[str, Any]] = {d["flag"]: d for d in reference["deprecated_cli"]}
        self.existing = {name: self._existence(f) for name, f in self.fields.items()}
        self.owners: dict[str, dict[str, str]] = defaultdict(dict)  # spelling -> release -> field
        self._own_by_reference()
        self._own_by_contradiction(contradictions)

    def span(self, first: str, last: str) -> list[str]:
        """The known releases from ``first`` to ``last``, both included."""
        return self.releases[self.releases.index(first) : self.releases.index(last) + 1]

    def ranges(self, chosen: Iterable[str]) -> str:
        """``0.1.26-0.3.0,0.5.2`` for a set of releases."""
        wanted = set(chosen)
        runs: list[list[str]] = []
        follows = False
        for release in self.releases:
            if release in wanted:
                if follows:
                    runs[-1].append(release)
                else:
                    runs.append([release])
            follows = release in wanted
        return ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)

    def _existence(self, field: Mapping[str, Any]) -> set[str]:
        return set(self.span(field["first_wheel"], field["last_wheel"])) - set(field["missing_between"])

    def _own_by_reference(self) -> None:
        for name, field in self.fields.items():
            for spelling in field["cli"]:
                self.owners[spelling].update(dict.fromkeys(self.existing[name], name))
        for spelling, entry in self.deprecated.items():
            for release in self.span(entry["deprecated_in"], entry["last_accepted"]):
                self.owners[spelling].setdefault(release, self._claimant(spelling, release))

    def _own_by_contradiction(self, contradictions: Mapping[str, Any]) -> None:
        for entry in contradictions["accepted_but_missing_in_flags_json"]:
            for release in entry["releases"]:
                self.owners[entry["flag"]].setdefault(release, self._claimant(entry["flag"], release))
        for entry in contradictions["in_flags_json_but_refused"]:
            for release in entry["releases"]:
                self.owners[entry["flag"]].pop(release, None)

    def _claimant(self, spelling: str, release: str) -> str:
        """The field that an option of ``release`` sets when it is not among the field's ordinary spellings there."""
        positive = re.sub(r"^--no-", "--", spelling)
        claims = [n for n, f in self.fields.items() if {spelling, positive} & {*f["cli"], *f["deprecated_cli"]}]
        present = [n for n in claims if release in self.existing[n]]
        if not claims and spelling not in _WITHOUT_FIELD:
            raise SystemExit(f"{spelling}: no field owns it; add it to _WITHOUT_FIELD")
        return next(iter(present or claims), spelling.removeprefix("--").replace("-", "_"))

    def spellings_of(self, name: str) -> dict[str, list[str]]:
        """Every spelling of a field with the releases that accept it, the preferred spelling first."""
        field = self.fields.get(name)
        order = [*field["cli"], *field["deprecated_cli"]] if field else []
        mine = {s: [r for r, owner in owned.items() if owner == name] for s, owned in self.owners.items()}
        ranked = sorted((s for s, found in mine.items() if found), key=lambda s: (order.index(s) if s in order else len(order), s))
        return {s: mine[s] for s in ranked}

    def successor(self, name: str) -> str | None:
        """The field that took over this field's value unchanged, if there is one."""
        field = self.fields[name]
        if name in _CHANGED_MEANING:
            return None
        if field["renamed_to"]:
            return str(field["renamed_to"])
        for other, candidate in self.fields.items():
            same_option = field["cli"] and field["cli"][0] in {*candidate["cli"], *candidate["deprecated_cli"]}
            if candidate["renamed_from"] == name or (other != name and same_option and self._later(other, name)):
                return None if self._implied(field["cli"][0], other) is not None else other
        return None

    def _later(self, one: str, other: str) -> bool:
        return self.releases.index(self.fields[one]["first_wheel"]) > self.releases.index(self.fields[other]["first_wheel"])

    def _implied(self, spelling: str, name: str) -> object:
        """The value that a spelling sets by itself: ``--no-x`` is False, some old switches are a value of a newer flag."""
        if spelling.startswith("--no-"):
            return False
        flag, equals, value = str(self.deprecated.get(spelling, {}).get("replacement") or "").partition("=")
        if equals and flag in self.fields[name]["cli"]:
            return value
        return None

    def implied_values(self, name: str, spellings: Iterable[str]) -> dict[str, object]:
        """The spellings of a field that carry their value in their name."""
        found = {s: self._implied(s, name) for s in spellings if name in self.fields}
        return {s: value for s, value in found.items() if value is not None}


def build(reference: Mapping[str, Any], contradictions: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``data/flags.json``."""
    table = _Table(reference, contradictions)
    known = [_entry(table, name) for name in table.fields]
    extra = [_extra(table, spelling, kind) for spelling, kind in _WITHOUT_FIELD.items()]
    return {"releases": table.releases, "flags": sorted(known + extra, key=lambda e: str(e["field"]))}


def _entry(table: _Table, name: str) -> dict[str, Any]:
    field = table.fields[name]
    spellings = table.spellings_of(name)
    kind, is_list = _kind(field["type"])
    entry = {
        "field": name,
        "name": _canonical(table, name, spellings),
        "kind": kind,
        "list": is_list,
        "spellings": {s: table.ranges(found) for s, found in spellings.items()},
        "in": table.ranges(table.existing[name]),
        "defaults": {h["since"]: _default(h["default"]) for h in field["default_history"]},
        "implied": table.implied_values(name, spellings),
        "choices": field["choices"],
        "scope": field["scope"],
        "unit": field["unit"],
        "meaning": field["meaning"],
        "notes": field["notes"],
        "renamed_to": table.successor(name),
        "replacement": _replacement(table, field, spellings),
    }
    return _without_empty(entry)


def _replacement(table: _Table, field: Mapping[str, Any], spellings: Iterable[str]) -> str | None:
    """What SGLang tells people to type instead, unless that is this very flag."""
    advice = (str(table.deprecated.get(s, {}).get("replacement") or "") for s in spellings)
    return next((a for a in advice if a and a.partition("=")[0] not in field["cli"]), None)


def _extra(table: _Table, spelling: str, kind: str) -> dict[str, Any]:
    name = spelling.removeprefix("--").replace("-", "_")
    return {"field": name, "name": spelling, "kind": kind, "spellings": {spelling: table.ranges(table.owners[spelling])}}


def _canonical(table: _Table, name: str, spellings: Iterable[str]) -> str | None:
    """The one name that all spellings of a flag share, also across a rename that kept the old spelling as an ordinary alias."""
    first = next(iter(spellings), None)
    heir = table.successor(name)
    if heir and first in table.fields[heir]["cli"]:
        return str(table.fields[heir]["cli"][0])
    return first


def _kind(annotation: str) -> tuple[str, bool]:
    """What a value is (bool, int, float, str or json) and whether several may follow the flag."""
    inner = re.sub(r"\bOptional\[(.*)\]$", r"\1", annotation)
    if re.search(r"\bdict\[.*\], *List\[str\]", inner):  # lora_paths: name=path words, or JSON
        return "str", True
    if re.search(r"\bDict\b|\bdict\[|CudaGraphConfig", inner) and "Union[str" not in inner:
        return "json", False
    several = re.search(r"\bList\[(\w+)\]", inner)
    if several:
        return several[1], True
    return (inner if inner in {"bool", "int", "float"} else "int" if inner in {"Union[int]", "Literal[1, 2]"} else "str"), False


def _default(value: object) -> object:
    return _EXPRESSIONS[value["expr"]] if isinstance(value, dict) and "expr" in value else value


def _without_empty(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if value not in (None, [], {}, "", False)}


def write(content: Mapping[str, Any], target: Path = TARGET) -> None:
    """Write the table with one flag a line, so that a new release is a readable diff."""
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) for entry in content["flags"])
    releases = json.dumps(content["releases"])
    target.parent.mkdir(exist_ok=True)
    target.write_text(f'{{"releases": {releases},\n"flags": [\n{lines}\n]}}\n', encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the two reference files and write the table."""
    parser = argparse.ArgumentParser(description="rebuild the table of SGLang's server flags")
    parser.add_argument("--reference", type=Path, required=True, help="folder with flags.json")
    parser.add_argument("--contradictions", type=Path, required=True, help="flag_contradictions.json")
    given = parser.parse_args(arguments)
    reference = json.loads((given.reference / "flags.json").read_text(encoding="utf-8"))
    write(build(reference, json.loads(given.contradictions.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
