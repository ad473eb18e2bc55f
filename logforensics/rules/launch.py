"""The launch line: flags that this release does not know, and flags that do not go together."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from logforensics import lazy_re
from logforensics.findings import Action, Recommendation
from logforensics.rules import signatures
from logforensics.rules.case import Case, Release
from logforensics.rules.registry import Verdict, decrease, environment, other, remove, rule, set_to, upgrade
from logforensics.rules.signatures import Hit
from logforensics.sglang import flags

_FLAG = lazy_re.compile(r"--[a-z][\w-]+")


@rule("LF301", "invalid_flag", "A flag is unknown, removed, ambiguous or mistyped")
def invalid_flag(case: Case) -> Verdict | None:
    """The launch line holds a flag that this release does not know, or a value that it does not take.

    Why: flags come and go between releases (0.5.20 removed many old spellings), and other engines call the same things by other names.
    Confirm: argparse prints the usage text and one line `error: unrecognized arguments: …`, `ambiguous option`, `invalid choice`, `invalid int value`.
    Fix: the spelling of this release. The finding names the nearest flag, what the flag of another engine is called here, or since when it exists.
    False friends: the usage text above the error is no error; `is deprecated and will be removed` is only a warning.
    """
    found = signatures.hits(case, "invalid_flag")
    if not found:
        return None
    groups = found[0].groups
    if "rest" in groups:
        title, fix = _unrecognised(case, groups["rest"])
    elif "ambiguous" in groups:
        title, fix = _ambiguous(groups["ambiguous"], _FLAG.findall(groups["candidates"]))
    elif "required" in groups:
        flag = groups["required"].split(",")[0].split("/")[0].strip()
        flag = flag if flag.startswith("--") else f"--{flag.replace('_', '-')}"
        title, fix = f"{flag} is missing", [Recommendation(flag, Action.SET, None, "", "required")]
    elif "field" in groups:
        title, fix = _unrecognised(case, f"--{groups['field'].replace('_', '-')}")
    else:
        title, fix = _wrong_value(
            groups["flag"].split("/")[0].strip(), groups.get("value"), groups.get("choices") or groups.get("problem", "")
        )
    return signatures.verdict(case, "invalid_flag", title=title, fix=fix)


def _unrecognised(case: Case, rest: str) -> tuple[str, list[Recommendation]]:
    """What to say of arguments that argparse did not recognise; a word after a flag is its value."""
    words = rest.split()
    unknown = [word.partition("=")[0] for word in words if word.startswith("--")]
    if not unknown:
        return f"the launch line holds stray words: {rest[:80]}", [other("launch command", f"remove or quote {rest[:80]!r}")]
    fix: list[Recommendation] = []
    for flag in unknown:
        fix += instead(case.release, flag, _value_after(words, flag))
    return f"this release does not know {', '.join(unknown)}", fix


def _value_after(words: Sequence[str], flag: str) -> str | None:
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == flag:
            return value if equals else next((item for item in words[place + 1 : place + 2] if not item.startswith("--")), None)
    return None


def instead(release: Release, flag: str, value: str | None) -> list[Recommendation]:
    """What to type instead of an unknown flag: another engine's word, one of another release, or the nearest spelling."""
    meant = _others().get(flag)
    if meant is not None:
        fix = [
            remove(
                flag,
                f"a flag of another engine; SGLang calls it {meant}" if meant else "a flag of another engine; SGLang does this by itself",
            )
        ]
        return [*fix, Recommendation(meant, Action.SET, _typed_value(meant, value), "", f"what {flag} is called here")] if meant else fix
    known = flags.find_flag(flag)
    if known is not None and flag in known.spellings:
        return _of_another_release(release, flag, known, value)
    from difflib import get_close_matches

    near = get_close_matches(flag, _names(release.high), n=1, cutoff=0.78)
    if near:
        return [
            Recommendation(near[0], Action.SET, _typed_value(near[0], value), "", f"{flag} looks like a misspelling of it"),
            remove(flag, "no release knows it"),
        ]
    return [remove(flag, "no release of SGLang knows this flag")]


def _of_another_release(release: Release, flag: str, known: flags.Flag, value: str | None) -> list[Recommendation]:
    """A flag that other releases know."""
    since = next((name for name in flags.releases() if name in known.releases), None)
    if since is not None and release.before(since):
        return [upgrade("sglang", since, f"{flag} exists from {since} on"), remove(flag, "Alternative: this release does not have it")]
    fix = []
    heir = flags.flag_by_field(known.renamed_to) if known.renamed_to else None
    if heir is not None and heir.name:
        fix.append(Recommendation(heir.name, Action.SET, _typed_value(heir.name, value), "", f"took the place of {flag}"))
    elif known.name and known.name != flag:
        fix.append(Recommendation(known.name, Action.SET, _typed_value(known.name, value), "", f"the spelling that replaced {flag}"))
    elif known.replacement:
        fix.append(other(known.replacement.split()[0].partition("=")[0], f"type {known.replacement} instead of {flag}"))
    newest = next((name for name in reversed(flags.releases()) if name in known.releases), None)
    return [*fix, remove(flag, f"releases up to {newest} know it" if newest else "this release does not know it")]


def _ambiguous(flag: str, candidates: Sequence[str]) -> tuple[str, list[Recommendation]]:
    """An abbreviation that fits several flags: usually the name of a flag that was split into several."""
    fix = [Recommendation(name, Action.SET, None, "", f"one of the flags that {flag} may mean") for name in candidates[:4]]
    return f"{flag} may mean several flags: {', '.join(candidates[:4])}", [*fix, remove(flag, "write the flag in full")]


def _wrong_value(flag: str, value: str | None, detail: str) -> tuple[str, list[Recommendation]]:
    """A value that the flag does not take."""
    choices = re.findall(r"'([^']+)'", detail) if value is not None else []
    choices = choices or ([item.strip() for item in detail.split(",")] if value is not None else [])
    from difflib import get_close_matches

    near = get_close_matches(value or "", choices, n=1, cutoff=0.3)
    if near:
        fix = [set_to(flag, near[0], "", f"the nearest of the values it takes: {', '.join(choices[:12])}")]
    elif value is not None:
        known = flags.find_flag(flag)
        fix = [
            Recommendation(
                flag, Action.SET, None, "", f"one of {', '.join(choices[:12])}" if choices else "a value that this release takes"
            )
        ]
        if known is not None and value in map(str, known.choices):
            fix.append(upgrade("sglang", None, f"later releases take {value}"))
    else:
        number = re.search(r"invalid int value: '(\d+)\.\d*", detail)
        fix = [
            Recommendation(
                flag, Action.SET, int(number[1]) if number else None, "", "it takes a whole number" if number else detail.strip()[:160]
            )
        ]
    fix.append(remove(flag, "Alternative: leave it to the default"))
    return f"{flag} does not take {value}" if value is not None else f"{flag}: {detail.strip()[:120]}", fix


def _typed_value(flag: str, text: str | None) -> float | int | str | bool | None:
    known = flags.find_flag(flag)
    if text is None:
        return True if known is not None and known.is_switch else None
    try:
        return (
            int(text) if known is not None and known.kind == "int" else float(text) if known is not None and known.kind == "float" else text
        )
    except ValueError:
        return text


@cache
def _names(release: str) -> tuple[str, ...]:
    """The canonical spellings that the argparse of a release knows."""
    text = files("logforensics.sglang").joinpath("data").joinpath("flags.json").read_text(encoding="utf-8")
    names = {entry.get("name") or "" for entry in json.loads(text)["flags"]}
    return tuple(sorted(name for name in names if name and flags.accepted(name, release)))


def _others() -> Mapping[str, str]:
    """Flags of other engines and what they are called here."""
    found: Mapping[str, str] = signatures.table("flags_of_others.toml")["flags"]
    return found


# ---------------------------------------------------------------------------------------------------------------- combinations


@rule("LF302", "invalid_config_combination", "Flags that are valid alone but conflict")
def invalid_config_combination(case: Case) -> Verdict | None:
    """Flags that are valid alone do not go together.

    Why: SGLang checks the combination in `server_args.py` (and a few places later) and stops with an assertion or a ValueError.
    Confirm: the innermost frame is `check_server_args`, `__post_init__` or a `_handle_…` function, or the sentence says what excludes what.
    Fix: the sentence names the flags. Where one value must be a multiple of another the finding computes it.
    False friends: lines such as `… is disabled because …` or `is adjusted to`: there SGLang resolved the conflict itself.
    """
    found = signatures.hits(case, "invalid_config_combination")
    if not found:
        return None
    hit = found[0]
    fix = signatures.recommendations(hit) or _cpu_binding(hit) or _from_sentence(case, hit.groups.get("sentence", ""))
    return signatures.verdict(case, "invalid_config_combination", fix=fix)


def _cpu_binding(hit: Hit) -> list[Recommendation]:
    ranks = hit.number("ranks")
    if ranks is None:
        return []
    example = "|".join(str(core) for core in range(ranks))
    return [
        environment(
            "SGLANG_CPU_OMP_THREADS_BIND", example, "one list of cores per rank, separated by |; for real work ranges such as 0-31|32-63"
        ),
        decrease("--tp-size", hit.number("nodes"), "ranks", "Alternative: one rank per NUMA node"),
    ]


def _from_sentence(case: Case, sentence: str) -> list[Recommendation]:
    """What the sentence itself asks for: the multiple it demands, the flags and variables it names."""
    multiple = re.search(r"(\w+) must be divisible by (\w+)", sentence)
    if multiple and (value := _multiple(case, multiple[1], multiple[2])) is not None:
        name = _flag_name(multiple[1])
        return [set_to(name, value, "", f"the largest multiple of {_flag_name(multiple[2])} below it")]
    named = list(dict.fromkeys([*_FLAG.findall(sentence), *map(_flag_name, _fields_in(sentence))]))
    asked = set(_FLAG.findall(" ".join(re.findall(r"(?:set|use|enable|specify|provide|with) ((?:--[\w-]+[ ,and]*)+)", sentence))))
    unwanted = re.search(r"exclusive|not compatible|incompatible|cannot|not support|remove|only support", sentence) is not None
    fix = []
    for name in named[:5]:
        known = flags.find_flag(name)
        if name in asked:
            fix.append(Recommendation(name, Action.SET, True if known and known.is_switch else None, "", "the message asks for it"))
        elif unwanted:
            fix.append(remove(name, "one of the flags that exclude each other"))
        else:
            fix.append(Recommendation(name, Action.SET, None, "", "named by the message"))
    fix += [environment(name, 1, "named by the message") for name in dict.fromkeys(re.findall(r"\bSGL(?:ANG)?_[A-Z0-9_]{4,}", sentence))]
    return fix or _spoken(sentence) or [other("launch command", sentence[:200])]


def _multiple(case: Case, name: str, of: str) -> int | None:
    value, unit = case.config.number(name), case.config.number(of)
    if not value or not unit or value < unit:
        return None
    return int(value // unit * unit)


def _fields_in(sentence: str) -> list[str]:
    """Fields of server_args that the sentence names, with underscores or hyphens."""
    words = (word.replace("-", "_") for word in re.findall(r"(?<![\w-])[a-z]+(?:[_-][a-z0-9]+)+(?![\w-])", sentence))
    return [word for word in words if flags.flag_by_field(word) is not None]


def _spoken(sentence: str) -> list[Recommendation]:
    """Features that the sentence names in words: what turns each of them off."""
    said = sentence.lower()
    found = (item for item in signatures.table("spoken_flags.toml")["feature"] if item["words"] in said)
    return [
        Recommendation(
            item["flag"], Action.SET if "value" in item else Action.REMOVE, item.get("value"), "", f"Alternative: without {item['words']}"
        )
        for item in found
    ]


def _flag_name(field: str) -> str:
    known = flags.flag_by_field(field)
    return known.name if known is not None and known.name else f"--{field.replace('_', '-')}"
