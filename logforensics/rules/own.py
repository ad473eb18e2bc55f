"""Rules of one's own (``--rules DIR``): tables of signatures in TOML, and Python modules that use the same ``@rule``.

Python modules run with the rights of whoever names the folder; nothing is loaded unless a folder is named. Own codes never begin with LF, so
that a later release of logforensics cannot collide with them.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from logforensics import lazy_re
from logforensics.errors import InputError, PatternError, RuleError
from logforensics.findings import Arithmetic, Confidence, Evidence, Finding, Recommendation, Severity
from logforensics.records import record
from logforensics.rules import registry, signatures, signs
from logforensics.rules.case import Case
from logforensics.rules.registry import Rule, Verdict
from logforensics.rules.signatures import Hit, Signature
from logforensics.run.troubles import Trouble
from logforensics.toml_places import place_in, read_tables

_CODE = lazy_re.compile(r"(?!LF)[A-Z][A-Z0-9_-]{1,15}")
_SLUG = lazy_re.compile(r"[a-z][a-z0-9_]{1,60}")


@record(frozen=True)
class OwnRule:
    """A rule with the ``file:line`` it was read from."""

    rule: Rule
    place: str

    def apply(self, case: Case) -> tuple[Finding | None, str | None]:
        """The finding, or a note that says why the rule gave none: whatever a rule of one's own does, the diagnosis goes on."""
        try:
            finding = self.rule.apply(case)
            if finding is not None:
                _require_sound(finding)
        except Exception as error:  # noqa: BLE001 (code of other people)
            return None, f"{self.place}: the rule {self.rule.code} failed and is left out: {type(error).__name__}: {error}"
        return finding, None


def load_rules(folder: str | os.PathLike[str]) -> tuple[OwnRule, ...]:
    """The rules of a folder: ``*.toml`` and ``*.py``, by name.

    Raises:
        InputError: there is no such folder, or no rule in it.
        RuleError: a rule is malformed, a module cannot be loaded, or a code is taken; the message names file and line.
    """
    place = Path(folder)
    if not place.is_dir():
        raise InputError(f"{place}: is not a folder of rules")
    found = [rule for path in sorted(place.glob("*.toml")) for rule in _of_tables(path)]
    found += [rule for path in sorted(place.glob("*.py")) for rule in _of_module(path)]
    if not found:
        raise InputError(f"{place}: holds no rule (*.toml, *.py)")
    taken = {rule.code: "logforensics" for rule in registry.all_rules()}
    for own in found:
        code = own.rule.code
        if code in taken:
            raise RuleError(f"{own.place}: the code {code!r} is taken by {taken[code]}")
        if _CODE.fullmatch(code) is None:
            raise RuleError(f"{own.place}: the code {code!r} must be 2 to 16 capitals and digits that do not begin with LF, such as OWN001")
        if _SLUG.fullmatch(own.rule.root_cause) is None:
            raise RuleError(f"{own.place}: the root cause {own.rule.root_cause!r} must be a word such as gateway_timeout")
        taken[code] = own.place
    return tuple(found)


def _require_sound(finding: Finding) -> None:
    """Types that the rest of the program relies on.

    Raises:
        TypeError: a field holds something else.
    """
    parts: tuple[tuple[str, Sequence[Any], type], ...] = (
        ("severity", (finding.severity,), Severity),
        ("confidence", (finding.confidence,), Confidence),
        ("title, explanation or stage", (finding.title, finding.explanation, finding.stage), str),
        ("evidence", finding.evidence, Evidence),
        ("arithmetic", finding.arithmetic, Arithmetic),
        ("fix", finding.recommendations, Recommendation),
        ("missing", finding.missing, str),
    )
    for name, values, kind in parts:
        if wrong := [value for value in values if not isinstance(value, kind)]:
            raise TypeError(f"{name} holds {wrong[0]!r}, which is no {kind.__name__}")


# ---------------------------------------------------------------------------------------------------------------- Python


def _of_module(path: Path) -> list[OwnRule]:
    name = f"logforensics_own_rules_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RuleError(f"{path}: cannot be loaded as a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    with registry.gathering() as gathered:
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise RuleError(f"{path}:{_line_in(path, error)}: cannot be loaded: {type(error).__name__}: {error}") from error
        finally:
            del sys.modules[name]
    return [OwnRule(rule, f"{path}:{rule.function.__code__.co_firstlineno}") for rule in gathered]


def _line_in(path: Path, error: Exception) -> int:
    """The line of a module at which an error was raised."""
    if isinstance(error, SyntaxError) and error.lineno:
        return error.lineno
    lines = [frame.lineno or 1 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return lines[-1] if lines else 1


# ---------------------------------------------------------------------------------------------------------------- TOML


def _of_tables(path: Path) -> list[OwnRule]:
    """Signatures of one code are one rule; the first that fits speaks."""
    rows: dict[str, list[tuple[Signature, Severity | None]]] = {}
    places: dict[str, int] = {}
    for line, raw in read_tables(path, "signature", RuleError):
        code, signature, severity = _row(path, line, raw)
        rows.setdefault(code, []).append((signature, severity))
        places.setdefault(code, line)
    return [OwnRule(_rule(code, found), f"{path}:{places[code]}") for code, found in rows.items()]


def _row(path: Path, line: int, raw: Mapping[str, Any]) -> tuple[str, Signature, Severity | None]:
    origin = f"{path}:{line}"
    own = dict(raw)
    code, severity = own.pop("code", None), own.pop("severity", None)
    if not isinstance(code, str):
        raise RuleError(f"{origin}: needs the key 'code', such as OWN001")
    try:
        signature = signatures.read_signature({"start_only": False, "name": code, **own}, origin)
        for number, sample in enumerate(signature.samples, 1):
            _check_sample(signature, sample, f"{origin}: sample {number}")
        return code, signature, Severity(severity) if severity is not None else None
    except PatternError as error:
        absent = isinstance(error.__cause__, KeyError)
        message = ("needs the key " if absent else "") + str(error).removeprefix(f"{origin}: ")
        raise RuleError(f"{place_in(path, line, message)}: {message}") from error
    except ValueError as error:
        raise RuleError(f"{place_in(path, line, repr('severity'))}: {error}") from error
    except (TypeError, AttributeError, KeyError) as error:
        raise RuleError(f"{origin}: a value has the wrong form: {error}") from error


def _check_sample(signature: Signature, sample: Mapping[str, Any], origin: str) -> None:
    found = signature.match(sample["text"])
    if found is None:
        raise PatternError(f"{origin} is not recognised")
    wanted = dict(sample.get("gives", {}))
    given = {name: found.groupdict().get(name) for name in wanted}
    if given != wanted:
        raise PatternError(f"{origin} gives {given}, not {wanted}")


def _rule(code: str, rows: Sequence[tuple[Signature, Severity | None]]) -> Rule:
    first = rows[0][0]
    title = _unfilled(first.title) or first.cause

    def decide(case: Case) -> Verdict | None:
        return _decide(case, rows)

    decide.__doc__ = _described([signature for signature, _ in rows])
    return Rule(code, first.cause, title, decide)


def _described(rows: Sequence[Signature]) -> str:
    """The page of a rule that is a table: why, what it looks for, and what it advises."""
    lines = list(dict.fromkeys(f"Why: {_unfilled(row.why)}" for row in rows if row.why))
    lines.append("Confirm: the log says " + ", or ".join(f"`{literal}`" for row in rows for literal in row.find) + ".")
    advice = dict.fromkeys(f"{_unfilled(fix.why)} (`{fix.flag}`)" for row in rows for fix in row.fix)
    return "\n".join([*lines, *(f"Fix: {text}." for text in advice)])


def _unfilled(text: str) -> str:
    """A template without a sentence to fill it from."""
    return re.sub(r"\{\w+\}", "…", text)


def _decide(case: Case, rows: Sequence[tuple[Signature, Severity | None]]) -> Verdict | None:
    texts = _spoken(case)
    for signature, severity in rows:
        found = [hit for trouble in texts if (hit := _hit(case, signature, trouble)) is not None]
        if not found:
            continue
        first = found[0]
        return Verdict(
            severity or _severity(case, first.trouble),
            signature.confidence,
            signature.stage or signs.where(case, first.trouble),
            signatures.filled(signature.title, first.groups) or signature.cause.replace("_", " "),
            signatures.filled(signature.why, first.groups) or first.trouble.head,
            registry.cite([*signatures.proof(found), case.config.evidence(*signature.cites) if signature.cites else None]),
            (),
            signatures.recommendations(first),
            missing=signature.missing,
        )
    return None


def _spoken(case: Case) -> list[Trouble]:
    """Errors first, then every line that SGLang or a library wrote and that is no error."""
    known = {(item.mark.source, item.line) for item in case.run.troubles}
    notices = (
        Trouble("notice", notice.level, (notice.text,), notice.mark, notice.mark.line, notice.mark.line, notice.rank)
        for notice in case.run.notices
        if (notice.mark.source, notice.mark.line) not in known
    )
    return [*case.run.troubles, *notices]


def _hit(case: Case, signature: Signature, trouble: Trouble) -> Hit | None:
    """How a signature fits a trouble; with ``start_only`` only before the server serves."""
    if signature.start_only and case.served(trouble.mark):
        return None
    for place, text in enumerate(trouble.texts):
        if (found := signature.match(text)) is not None and signature.fits(trouble):
            groups = {name: value.strip() for name, value in found.groupdict().items() if value is not None}
            return Hit(signature, trouble, groups, found[0].split("\n", 1)[0][:80].strip(), place)
    return None


def _severity(case: Case, trouble: Trouble) -> Severity:
    """A remark of a server that serves is a warning; anything else weighs as an error of SGLang's own would."""
    return Severity.WARNING if trouble.origin == "notice" and case.served() else signatures.severity(case, trouble)
