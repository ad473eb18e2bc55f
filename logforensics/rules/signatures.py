"""Failures that a sentence gives away: tables of what SGLang and the libraries under it say, read from ``data/*.toml``.

A signature names its root cause, the sentences (with named groups for what varies), and what to do about it. One trouble belongs to one
signature, the first that fits in the order of the tables, so that two root causes never claim the same error. Arithmetic and exclusions are
not data: a rule that needs them asks for :func:`hits` and computes with their groups.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from logforensics import lazy_re
from logforensics.errors import PatternError
from logforensics.findings import Action, Arithmetic, Confidence, Evidence, Recommendation, Severity
from logforensics.records import record
from logforensics.rules import signs
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite
from logforensics.run.model import Link, Notice
from logforensics.run.troubles import Trouble

if TYPE_CHECKING:
    from importlib.abc import Traversable

ELSEWHERE = "elsewhere"  # claimed by a rule of another family: nothing of this table may touch it
_DISTINCT = 400  # different sentences looked at; a log that says more repeats itself
_KEYS = {
    "cause",
    "name",
    "find",
    "says",
    "unless",
    "frames",
    "stage",
    "title",
    "why",
    "confidence",
    "start_only",
    "innermost",
    "cites",
    "missing",
    "fix",
    "sample",
}
# Said in passing at every start, or about something that is then left out: never a failure.
_IN_PASSING = lazy_re.compile(
    r"^(?:Ignor(?:e|ing) |Fall(?:ing)? ?back|Fail(?:ed)? to set RLIMIT|usage: |\s*File \"|\w*Warning: |WARNING: )|[Ff]all(?:ing)? ?back (?:to|on)\b|will be skipped"
    r"|: \w*Warning: |is deprecated|Failed to load generation config|if you (?:want|see) |To silence this"
)


@record(frozen=True)
class Fix:
    """A recommendation as a template: ``{name}`` stands for a named group; one whose groups are missing is left out."""

    flag: str
    action: Action
    value: float | int | str | bool | None
    unit: str
    why: str


@record(frozen=True)
class Signature:
    """One way a root cause shows itself."""

    cause: str
    name: str
    find: tuple[str, ...]  # literals, one of which must occur: cheap, before any regex
    says: tuple[re.Pattern[str], ...]
    unless: re.Pattern[str] | None
    frames: tuple[str, ...]
    innermost: bool  # only the innermost frame counts
    stage: str | None
    title: str
    why: str
    confidence: Confidence
    start_only: bool
    cites: tuple[str, ...]
    missing: tuple[str, ...]
    fix: tuple[Fix, ...]
    samples: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)

    def match(self, text: str) -> re.Match[str] | None:
        """How a text says it, or None."""
        if not any(literal in text for literal in self.find):
            return None
        if self.unless is not None and self.unless.search(text):
            return None
        return next((found for pattern in self.says if (found := pattern.search(text))), None)

    def fits(self, trouble: Trouble) -> bool:
        """Whether the frames are those of this signature, where it names any."""
        if not self.innermost:
            return not self.frames or trouble.has_frame(*self.frames)
        name, _, function = trouble.frames[-1] if trouble.frames else ("", 0, "")
        return any(needle in name or needle in function for needle in self.frames)


@record(frozen=True)
class Hit:
    """A trouble and the signature that claims it, with the groups of the sentence."""

    signature: Signature
    trouble: Trouble
    groups: Mapping[str, str]
    needle: str
    place: int = -1  # which text of the trouble's chain says it
    line: int | None = None  # where that text stands, if not where the trouble is cited

    def evidence(self) -> Evidence:
        """Cite the sentence: within a chain the exception that says it, not the last one raised from it."""
        if self.line is None:
            return self.trouble.evidence(self.needle)
        return Evidence(self.trouble.mark.source, self.line, needle=self.needle)

    def number(self, name: str) -> int | None:
        """A group as a whole number; None where the sentence does not give it."""
        value = self.groups.get(name)
        return int(float(value)) if value else None


def hits(case: Case, *causes: str) -> list[Hit]:
    """The troubles that belong to one of these root causes, in the order they happened."""
    return [hit for hit in claims(case) if hit.signature.cause in causes]


def claims(case: Case) -> list[Hit]:
    """All troubles that a signature claims, in the order they happened; worked out once for a case."""
    if "claims" not in case.memo:
        case.memo["claims"] = _claims(case)
    found: list[Hit] = case.memo["claims"]
    return found


def _claims(case: Case) -> list[Hit]:
    chains = {(item.mark.source, item.message_line): item.chain for item in case.run.failures if item.chain}
    found = (hit for trouble in _heard(case) if (hit := claim(trouble)) is not None and _timely(case, hit))
    return [_at_its_link(hit, chains.get((hit.trouble.mark.source, hit.trouble.line), ())) for hit in found]


def _at_its_link(hit: Hit, chain: Sequence[Link]) -> Hit:
    return replace(hit, line=chain[hit.place].line) if 0 <= hit.place < len(chain) else hit


def claim(trouble: Trouble) -> Hit | None:
    """The first signature that fits a trouble, the root of its chain before what was raised from it."""
    for place, text in enumerate(trouble.texts):
        for signature in signatures():
            if (found := signature.match(text)) is None or not signature.fits(trouble):
                continue
            groups = {name: value.strip().rstrip(".,") for name, value in found.groupdict().items() if value is not None}
            return Hit(signature, trouble, _with_package(groups), found[0].split("\n", 1)[0][:80].strip(), place)
    return None


def _timely(case: Case, hit: Hit) -> bool:
    """Whether a hit is a failure at all: a sentence of the start that the server outlived is none."""
    if hit.trouble.origin == "notice" and case.served():
        return False
    return not (hit.signature.start_only and (_up_before(case, hit.trouble) or _outlived(case, hit.trouble)))


def _up_before(case: Case, trouble: Trouble) -> bool:
    """Whether the server was up before this trouble: its warm-up request does not count."""
    if case.run.ready is not None:
        return case.run.ready.is_before(trouble.mark)
    return any(window.lines > 1 and window.first.order < trouble.mark.order for window in case.run.serving.windows)


def _outlived(case: Case, trouble: Trouble) -> bool:
    """Whether the server became ready after this trouble in spite of it."""
    return case.run.ready is not None and trouble.mark.is_before(case.run.ready)


def _heard(case: Case) -> list[Trouble]:
    """Troubles in order, one of each sentence and rank; in a start that failed, every line that was not read otherwise as well."""
    heard = signs.active(case)
    if not case.served():
        known = {(item.mark.source, item.line) for item in case.run.troubles}
        spoken = (notice for notice in case.run.notices if _any_literal().search(notice.text))
        others = (_as_trouble(notice) for notice in spoken if (notice.mark.source, notice.mark.line) not in known)
        heard = _merged(heard, list(others))
    seen: dict[tuple[object, str], Trouble] = {}
    for item in heard:
        if item.origin == "notice" and (len(seen) >= _DISTINCT or _IN_PASSING.search(item.texts[0])):
            continue
        seen.setdefault((item.rank, item.identity + item.texts[-1][:200]), item)
    return list(seen.values())


def _merged(heard: list[Trouble], others: list[Trouble]) -> list[Trouble]:
    """Both in order, backwards where the log is an export with the newest line first."""
    backwards = len(heard) > 1 and heard[0].said_at > heard[-1].said_at
    return sorted((*heard, *others), key=lambda item: item.said_at, reverse=backwards)


@cache
def _any_literal() -> re.Pattern[str]:
    literals = {literal for signature in signatures() for literal in signature.find}
    return re.compile("|".join(re.escape(literal) for literal in sorted(literals)))


def _as_trouble(notice: Notice) -> Trouble:
    return Trouble("notice", notice.level, (notice.text,), notice.mark, notice.mark.line, notice.mark.line, notice.rank)


# ---------------------------------------------------------------------------------------------------------------- verdicts


def verdict(
    case: Case, cause: str, *, arithmetic: Sequence[Arithmetic] = (), fix: Sequence[Recommendation] | None = None, title: str | None = None
) -> Verdict | None:
    """The verdict on a root cause: its first hit speaks, the same sentence on other ranks is cited as well.

    Args:
        case: the case.
        cause: the slug of the root cause.
        arithmetic: what a rule computed with the groups.
        fix: recommendations to give instead of the table's.
        title: a title to give instead of the table's.
    """
    found = hits(case, cause)
    if not found:
        return None
    first = found[0]
    same = [hit for hit in found if hit.signature is first.signature]
    return Verdict(
        severity(case, first.trouble),
        first.signature.confidence,
        first.signature.stage or signs.where(case, first.trouble),
        title or filled(first.signature.title, first.groups) or cause.replace("_", " "),
        filled(first.signature.why, first.groups) or first.trouble.head,
        cite([*proof(same), case.config.evidence(*first.signature.cites) if first.signature.cites else None]),
        arithmetic,
        recommendations(first) if fix is None else fix,
        missing=first.signature.missing,
    )


def proof(found: Sequence[Hit], limit: int = 4) -> list[Evidence]:
    """The sentences of some hits, and for the first the line on which its traceback opens and the error that ended it."""
    lines = [hit.evidence() for hit in found[:limit]]
    first = found[0].trouble
    whole = (first.mark.evidence(), first.evidence())
    return [lines[0], *(item for item in whole if item.line != lines[0].line), *lines[1:]]


def severity(case: Case, trouble: Trouble) -> Severity:
    """Critical: it did not start, or a scheduler died of it. Error: requests failed. Info: it was outlived at the start."""
    if not case.served():
        return Severity.CRITICAL
    if _outlived(case, trouble) and not case.served(trouble.mark):
        return Severity.INFO
    ended = any(
        event.event in ("child_failed", "scheduler_dead", "child_crashed") and event.mark.order > trouble.mark.order
        for event in case.run.shutdowns
    )
    return Severity.CRITICAL if trouble.process in ("Scheduler", None) and ended else Severity.ERROR


def recommendations(hit: Hit) -> list[Recommendation]:
    """The table's recommendations with the groups of the sentence filled in."""
    found = []
    for item in hit.signature.fix:
        flag, why = filled(item.flag, hit.groups), filled(item.why, hit.groups)
        value = _value(item.value, hit.groups) if isinstance(item.value, str) else item.value
        if flag and why and (value is not None or item.value is None):
            found.append(Recommendation(flag, item.action, value, item.unit, why))
    return found


def _value(template: str, groups: Mapping[str, str]) -> int | str | None:
    """A value with its groups; what was a whole number in the sentence is one again."""
    text = filled(template, groups)
    return int(text) if text is not None and text != template and text.isdigit() else text


def filled(template: str, groups: Mapping[str, str]) -> str | None:
    """A template with its groups, or None where one of them is missing; ``a || b`` gives the first alternative that can be filled."""
    for alternative in template.split(" || "):
        names = re.findall(r"\{(\w+)\}", alternative)
        if all(name in groups for name in names):
            return re.sub(r"\{(\w+)\}", lambda name: groups[name[1]], alternative)
    return None


# ---------------------------------------------------------------------------------------------------------------- the tables


@cache
def signatures() -> tuple[Signature, ...]:
    """All signatures, in the order in which they are tried.

    Raises:
        PatternError: a table is malformed; the message names the file and the row.
    """
    return tuple(read_signature(row, origin) for origin, row in _rows())


@cache
def table(name: str) -> dict[str, Any]:
    """A file of ``data/`` as plain TOML."""
    from logforensics import toml

    loaded: dict[str, Any] = toml.loads(_folder().joinpath(name).read_text(encoding="utf-8"))
    return loaded


def _folder() -> Traversable:
    return files("logforensics.rules").joinpath("data")


def _rows() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in sorted(place.name for place in _folder().iterdir()):
        for number, row in enumerate(table(name).get("signature", []), 1):
            yield f"{name}: signature {number} ({row.get('name', '?')})", row


def read_signature(row: Mapping[str, Any], origin: str) -> Signature:
    """A row of a table as a signature; ``origin`` says where the row stands.

    Raises:
        PatternError: a key is unknown or missing, or an expression does not compile.
    """
    if unknown := row.keys() - _KEYS:
        raise PatternError(f"{origin}: unknown key {min(unknown)!r}")
    try:
        return Signature(
            cause=row["cause"],
            name=row["name"],
            find=_texts(row["find"]),
            says=tuple(re.compile(text) for text in _texts(row["says"])) if "says" in row else _literally(_texts(row["find"])),
            unless=re.compile(row["unless"]) if "unless" in row else None,
            frames=_texts(row.get("frames", ())),
            innermost=row.get("innermost", False),
            stage=row.get("stage"),
            title=row.get("title", ""),
            why=row.get("why", ""),
            confidence=Confidence(row.get("confidence", "certain")),
            start_only=row.get("start_only", True),
            cites=_texts(row.get("cites", ())),
            missing=_texts(row.get("missing", ())),
            fix=tuple(
                Fix(item["flag"], Action(item["action"]), item.get("value"), item.get("unit", ""), item["why"])
                for item in row.get("fix", [])
            ),
            samples=tuple(row.get("sample", [])),
        )
    except (KeyError, ValueError, re.error) as error:
        raise PatternError(f"{origin}: {error}") from error


def _literally(texts: Sequence[str]) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(re.escape(text)) for text in texts)


def _texts(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _with_package(groups: dict[str, str]) -> dict[str, str]:
    """With ``package``, the distribution that holds the ``module`` (or the attribute of a library) the sentence names."""
    if "package" not in groups and (module := groups.get("module")):
        top = module.split(".", 1)[0]
        groups["package"] = table("packages.toml")["packages"].get(top, top)
    return groups
