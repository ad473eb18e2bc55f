"""What argparse will say to the command: flags the release does not know, values it does not take, characters no shell understands."""

from __future__ import annotations

import re
from typing import Any

from logforensics import lazy_re
from logforensics.findings import Confidence, Recommendation, Severity
from logforensics.planning.forecast import Outlook, forecast
from logforensics.planning.plan import Plan, impossible
from logforensics.rules.launch import instead
from logforensics.rules.registry import other, set_to
from logforensics.sglang.flags import accepted, find_flag, releases

_FILLED_LATER = lazy_re.compile(r"[$<{]|^\.\.\.$|^…$")  # a variable, a placeholder or an ellipsis
_NOT_FINAL = lazy_re.compile(r"(?:rc|post|dev|a|b)\d*", re.IGNORECASE)


@forecast("LF301")
def refused_arguments(plan: Plan) -> Outlook | None:
    """Everything that would end the launch with a usage message, in one finding."""
    unknown = [word for word in plan.command.unknown if word.startswith("--")]
    stray = [word for word in plan.command.unknown if not word.startswith("--") and not _FILLED_LATER.search(word)]
    wrong = _wrong_values(plan)
    if not (unknown or stray or wrong or plan.command.repairs):
        return None
    said = [f"{', '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} unknown to it"] if unknown else []
    said += [f"no flag takes the words {' '.join(map(repr, stray))[:120]}"] if stray else []
    said += [text for text, _ in wrong]
    said += [f"the text holds {name}, which a shell does not understand" for name in plan.command.repairs]
    fix = [item for flag in unknown for item in instead(plan.release, flag, _text(plan.command.flags.get(flag)))]
    fix += [item for _, items in wrong for item in items]
    fix += [other("launch command", f"take out {word!r}") for word in stray[:4]]
    fix += [other("launch command", "type it again, or paste the corrected command below") for _ in plan.command.repairs[:1]]
    doubtful = bool(unknown) and not stray and not wrong and not plan.command.repairs and _neighbour_knows(plan, unknown)
    where = f"SGLang {plan.version or plan.release.text}" if plan.release.low == plan.release.high else "SGLang"
    return Outlook(
        Severity.WARNING if doubtful else Severity.ERROR,
        Confidence.POSSIBLE if doubtful else Confidence.CERTAIN,
        "launch",
        f"{where} will refuse the command: {'; '.join(said)}",
        "argparse reads the command before anything else happens and ends the launch with a usage message."
        + (" A neighbouring release knows the flag, so this build may." if doubtful else ""),
        [name.lstrip("-").replace("-", "_") for name in unknown],
        [],
        fix,
    )


def _neighbour_knows(plan: Plan, unknown: list[str]) -> bool:
    """Whether the version is between two releases (a candidate, a post release), and the one before or after knows every flag."""
    known = list(releases())
    if plan.release.low != plan.release.high or not _NOT_FINAL.search(plan.version or ""):
        return False
    at = known.index(plan.release.low)
    around = known[max(at - 1, 0) : at + 2]
    return all(any(accepted(flag, release) for release in around) for flag in unknown)


def _wrong_values(plan: Plan) -> list[tuple[str, list[Recommendation]]]:
    """Values that are not of their flag's type, and flags without the value they need."""
    found: list[tuple[str, list[Recommendation]]] = []
    for name, value in plan.command.flags.items():
        flag = find_flag(plan.command.typed.get(name, name), plan.spoken) or find_flag(name)
        if flag is None or flag.is_switch:
            continue
        values = value if isinstance(value, list) else [value]
        if value is None or not values:
            found.append((f"{name} has no value", [other(name, "it takes a value")]))
        if impossible(flag.field, value):
            found.append((f"{name} cannot be {value:g}", [other(name, "give it a value that a server can start with")]))
        texts = [item for item in values if isinstance(item, str) and flag.kind in _KINDS and not _FILLED_LATER.search(item)]
        found += [(f"{name} takes {_KINDS[flag.kind]}, not {item!r}", _number_instead(name, flag.kind, item)) for item in texts]
    return found


_KINDS = {"int": "a whole number", "float": "a number"}


def _number_instead(name: str, kind: str, text: str) -> list[Recommendation]:
    """The nearest value that the flag takes."""
    number = re.match(r"(\d+)(?:\.\d+)?", text)
    if kind == "int" and number:
        return [set_to(name, int(number[1]), "", "rounded down: the flag takes whole numbers")]
    return [other(name, f"give it {_KINDS[kind]}")]


def _text(value: Any) -> str | None:
    return None if value is None or value is True else str(value[0] if isinstance(value, list) and value else value)
