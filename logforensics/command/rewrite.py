"""A command with recommendations applied, ready to paste."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from logforensics import lazy_re
from logforensics.command.launch import env_of_words
from logforensics.diagnosis import CorrectedCommand, FlagChange
from logforensics.findings import Action, Recommendation
from logforensics.secrets import MASK, is_secret, mask
from logforensics.sglang.flags import Flag, find_flag, flag_in, nearest_release, spelling_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logforensics.command.model import LaunchCommand


def rewrite(command: LaunchCommand, recommendations: Sequence[Recommendation], release: str | None) -> CorrectedCommand:
    """The command with the recommendations applied, ready to paste.

    Only changes with a concrete value count, the first for each flag wins, and alternatives (their rationale says so) are left to the
    reader. Order and spelling of the given flags stay; flags the release would refuse are renamed or dropped, which the notes say.
    """
    draft = _Draft(command, release)
    for recommendation in recommendations:
        draft.apply(recommendation)
    return draft.finish()


_SETTING = frozenset({Action.SET, Action.INCREASE, Action.DECREASE})

_REFERENCE = lazy_re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})")

# Two ways to say one thing: setting one takes the other away.
_EITHER_OR: Mapping[str, str] = {"hicache_size": "hicache_ratio", "hicache_ratio": "hicache_size"}


class _Draft:
    """A command while it is being changed."""

    def __init__(self, command: LaunchCommand, release: str | None) -> None:
        self.command = command
        self.release = nearest_release(release or "") or command.image_release
        self.program = list(command.program)
        self.env = dict(command.env)
        self.flags = dict(command.flags)
        self.settled: set[str] = set()
        self.changes: list[FlagChange] = []
        self.notes: list[str] = []

    def apply(self, recommendation: Recommendation) -> None:
        """Take over one recommendation, where it can be and no earlier one has settled the matter."""
        if recommendation.rationale.startswith("Alternative:"):
            return
        if recommendation.action is Action.ENV:
            self._set_variable(recommendation)
        elif recommendation.action is Action.REMOVE or (recommendation.action in _SETTING and recommendation.value is not None):
            self._change_flag(recommendation)

    def finish(self) -> CorrectedCommand:
        """The command as text, with what was changed and what the reader has to know."""
        words = [self._words_of(name, value) for name, value in self.flags.items()]
        stray = [w for w in self.command.unknown if not w.startswith("--")]
        if stray:
            self.notes.append(f"left out, because no flag takes them: {mask(' '.join(map(shlex.quote, stray)))}")
        in_program = env_of_words(self.program)
        lines = [f"{n}={_quoted(_hidden(n, v))}" for n, v in self.env.items() if n not in in_program]
        lines.append(" ".join(_quoted(mask(word)) for word in self.program))
        lines += [" ".join(map(_quoted, w)) for w in words if w]
        text = mask(" \\\n  ".join(lines))
        if MASK in text:
            self.notes.append(f"{MASK} stands for a secret that is not shown: put it in again before starting the server")
        return CorrectedCommand(text, tuple(self.changes), tuple(self.notes))

    def _change_flag(self, recommendation: Recommendation) -> None:
        flag = self._flag(recommendation.flag)
        if flag is None:
            if recommendation.flag.startswith("--"):
                self.notes.append(f"the recommended {recommendation.flag} is left out: {self._refusal}")
            return
        if flag.field in self.settled:
            return
        self.settled.add(flag.field)
        if recommendation.action is Action.REMOVE or (flag.is_switch and not recommendation.value):
            self._remove(flag.field, recommendation.rationale)
            return
        name = self._present(flag.field) or flag.name
        value = _fitting(flag, recommendation.value)
        self._record(name, value, recommendation.rationale)
        self.flags[name] = value
        rival = _EITHER_OR.get(flag.field)
        if rival:
            self.settled.add(rival)
            self._remove(rival, f"{flag.name} takes its place")

    def _set_variable(self, recommendation: Recommendation) -> None:
        name, value = recommendation.flag, recommendation.value
        if name in self.settled or value is None or not name.isidentifier():
            return
        self.settled.add(name)
        text = str(int(value) if isinstance(value, bool) else value)
        old = self.env.get(name)
        if old == text:
            return
        self.changes.append(FlagChange(name, old and _hidden(name, old), _hidden(name, text), recommendation.rationale))
        self.env[name] = text
        if name in env_of_words(self.program):
            given = re.compile(rf"((?:--env=)?{name}=).*", re.DOTALL)
            self.program = [f"{found[1]}{text}" if (found := given.fullmatch(word)) else word for word in self.program]
        elif "run" in self.program and self.program[0].rpartition("/")[2] in {"docker", "podman", "sudo"}:
            after = self.program.index("run") + 1
            self.program[after:after] = ["-e", f"{name}={text}"]

    def _remove(self, field_name: str, why: str) -> None:
        name = self._present(field_name)
        if name is not None:
            self._record(name, None, why)
            del self.flags[name]

    def _record(self, name: str, new: Any, why: str) -> None:
        old = self.flags.get(name)
        if old != new or isinstance(old, bool) != isinstance(new, bool):
            self.changes.append(FlagChange(name, _hidden(name, old), _hidden(name, new), why))

    def _present(self, field_name: str) -> str | None:
        """The name under which the command has a flag, which may be an older or newer one."""
        return next((n for n in self.flags if (f := self._flag(self.command.typed.get(n, n))) and f.field == field_name), None)

    def _flag(self, spelling: str) -> Flag | None:
        """The flag as the release knows it; None where it has none. Without a release, the newest one that knows it."""
        flag = (find_flag(spelling, self.release) if self.release else None) or find_flag(spelling)
        if flag is None or self.release is None:
            return flag
        return flag_in(flag.field, self.release)

    @property
    def _refusal(self) -> str:
        return f"SGLang {self.release} does not accept it" if self.release else "no known SGLang release accepts it"

    def _words_of(self, name: str, value: Any) -> list[str]:
        """The words of one flag, or none (with a note) where the release would refuse it."""
        typed = self.command.typed.get(name, name)
        if value is None:
            return self._dropped(name, f"{typed} has no value: left out")
        known = find_flag(typed, self.release) if self.release else find_flag(typed)
        if known and typed in known.implied and known.implied[typed] == value:
            return [typed]
        if known and typed not in known.implied and (not known.is_switch or value is True):
            return _written(typed, value)
        return self._respelled(name, typed, value)

    def _respelled(self, name: str, typed: str, value: Any) -> list[str]:
        """The words of a flag that cannot stay as it was written."""
        flag = find_flag(typed) or find_flag(name)
        spelling = spelling_for(flag.field, self.release) if flag and self.release else flag and flag.name
        if flag and value is False:  # a switch that is off is not written
            return []
        words = _written(spelling, value) if spelling else self._replacement(flag)
        if words:
            self.notes.append(f"{typed} is written {' '.join(words)}: SGLang {self.release} does not accept the old form")
            return words
        hint = f" (see {flag.replacement})" if flag and flag.replacement else ""
        return self._dropped(name, f"{typed} is left out: {self._refusal}{hint}")

    def _replacement(self, flag: Flag | None) -> list[str]:
        """``--flag value`` where SGLang names exactly that as the successor of a switch, and the release knows it."""
        instead, equals, value = str(flag.replacement if flag else "").partition("=")
        return [instead, value] if equals and self.release and find_flag(instead, self.release) else []

    def _dropped(self, name: str, note: str) -> list[str]:
        self.notes.append(note)
        self.changes.append(FlagChange(name, _hidden(name, self.flags[name]), None, note))
        return []


def _written(spelling: str, value: Any) -> list[str]:
    """The words of a flag: a switch stands alone, a list puts one word per value behind it."""
    if value is True:
        return [spelling]
    shown = [_hidden(spelling, v) for v in (value if isinstance(value, list) else [value])]
    words = [json.dumps(v, default=str) if isinstance(v, dict) else f"{v:.15g}" if isinstance(v, float) else str(v) for v in shown]
    if len(words) == 1 and words[0].startswith("-") and not re.fullmatch(r"-[\d.]+", words[0]):
        return [f"{spelling}={words[0]}"]  # argparse would take the value for a flag
    return [spelling, *words]


def _fitting(flag: Flag, value: Any) -> Any:
    """A recommended value in the type the flag takes."""
    if flag.is_switch:
        return True
    if flag.kind == "int" and isinstance(value, float):
        value = int(value)
    return [value] if flag.takes_list and not isinstance(value, list) else value


def _hidden(name: str, value: Any) -> Any:
    """The value, masked where it is a secret. A reference to a variable is none."""
    if isinstance(value, str) and not value.startswith("$"):
        return MASK if is_secret(name) else mask(value)
    return value


def _quoted(word: str) -> str:
    """The word as a shell needs it. Variables and a leading ~ keep their meaning; commands inside a word never get one."""
    if re.fullmatch(r"~/[\w@%+=:,./-]*", word):
        return word
    rest = _REFERENCE.sub("", word)
    if rest != word and not re.search(r'[$`"\\!\n]', rest):
        return f'"{word}"'
    return shlex.quote(word)
