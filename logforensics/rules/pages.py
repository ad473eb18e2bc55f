"""The page of each rule, made from its docstring: what it says, why it happens, how to confirm and fix it, and its false friends."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

from logforensics import topics
from logforensics.errors import UnknownCodeError
from logforensics.rules.registry import Rule, all_rules

_SECTIONS = {
    "Why:": "Why it happens",
    "Threshold:": "Threshold",
    "Confirm:": "How to confirm",
    "Fix:": "How to fix",
    "False friends:": "False friends",
}


def find(code: str, own: Sequence[Rule] = ()) -> Rule:
    """The rule of a code (``LF101``) or root cause (``kv_pool_no_room``), among the rules of the user's own too.

    Raises:
        UnknownCodeError: there is no such rule; the message names the nearest ones.
    """
    wanted = code.strip()
    rules = [*all_rules(), *own]
    for rule in rules:
        if wanted.upper() == rule.code or wanted.lower().replace("-", "_") == rule.root_cause:
            return rule
    from difflib import get_close_matches

    names = [name for rule in rules for name in (rule.code, rule.root_cause)]
    close = get_close_matches(wanted, [*names, *topics.names()], n=3, cutoff=0.4)
    hint = f"; did you mean {', '.join(close)}?" if close else "; `logforensics explain --list` names them all"
    raise UnknownCodeError(f"there is no finding or topic {code!r}{hint}")


def page(code: str, own: Sequence[Rule] = ()) -> str:
    """The page of a rule, of the user's own ones too, as Markdown; else that of a trap, an equation or a flag.

    Raises:
        UnknownCodeError: there is no such rule or topic.
    """
    try:
        rule = find(code, own)
    except UnknownCodeError:
        topic = topics.page(code)
        if topic is None:
            raise
        return topic
    text = inspect.cleandoc(rule.function.__doc__ or "")
    for key, heading in _SECTIONS.items():
        text = re.sub(rf"^{re.escape(key)} *(.)", lambda found: f"\n## {heading}\n\n{found[1].upper()}", text, flags=re.MULTILINE)  # noqa: B023 - used at once
    text = re.sub(r"\n{3,}", "\n\n", text)
    return f"# {rule.code}: {rule.title}\n\nRoot cause: `{rule.root_cause}`\n\n{text}\n"


def listing(own: Sequence[Rule] = ()) -> str:
    """Everything that can be explained: a rule a line, then the names of the topics."""
    rules = [*all_rules(), *own]
    width = max(len(rule.code) for rule in rules)
    lines = [f"{rule.code:<{width}}  {rule.root_cause}: {rule.title}" for rule in rules]
    return "\n".join([*lines, "", *topics.names(), ""])


def index() -> str:
    """All rules as a Markdown table."""
    rows = [f"| [{rule.code}]({rule.code}.md) | `{rule.root_cause}` | {rule.title} |" for rule in all_rules()]
    return "\n".join(["| code | root cause | what it says |", "|---|---|---|", *rows, ""])
