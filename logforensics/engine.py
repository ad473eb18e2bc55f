"""From a log to a diagnosis: parse, build the run, apply the rules, order and quote what they found."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from typing import TYPE_CHECKING, Any

from logforensics import lazy_re, progress
from logforensics.diagnosis import CorrectedCommand, Diagnosis
from logforensics.diagnosis import Part as DiagnosedPart
from logforensics.errors import CommandError, InputError
from logforensics.findings import Action, Evidence, Finding, Severity, in_causal_order, passage
from logforensics.hardware import Hardware
from logforensics.parsing import ParsedLog, parse
from logforensics.records import record
from logforensics.rules import Case, Config, Release, Rule, all_rules, cascade, signs, starts
from logforensics.run import Part, Run, build_run, parts_of
from logforensics.run.facts import as_json
from logforensics.run.model import STAGES
from logforensics.run.telling import names_of
from logforensics.run.version import release_range
from logforensics.sglang import flags

if TYPE_CHECKING:
    from logforensics.command import LaunchCommand
    from logforensics.models import Model
    from logforensics.rules.own import OwnRule

Log = ParsedLog | str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
_START = STAGES[: STAGES.index("ready")]
_NODE_LOGS = lazy_re.compile(r"\blogs? of the (?:node|other nodes|missing rank)\b")
_OTHER_SIDE = ("the log of the other instance", "the log of the prefill instance")
_VERDICTS = ("failed", "degraded", "incomplete", "healthy")  # the worst first
_LOUD = (Severity.CRITICAL, Severity.ERROR, Severity.WARNING)


def diagnose(
    log: Log,
    *,
    hardware: Hardware | None = None,
    launch_command: str | None = None,
    version: str | None = None,
    model_config: str | os.PathLike[str] | None = None,
    rules: str | os.PathLike[str] | Sequence[OwnRule] | None = None,
    patterns: str | os.PathLike[str] | None = None,
) -> Diagnosis:
    """Say what went wrong in a server's log, with the lines that prove it.

    Args:
        log: a path, several paths, ``-`` for standard input, or a log that :func:`logforensics.parse` has read.
        hardware: what is known of the machine (host RAM and GPU memory in bytes).
        launch_command: the command the server was started with, where the log lacks its server_args.
        version: the SGLang release, where it is known.
        model_config: a Hugging Face ``config.json``, for a model that is not known by name.
        rules: a folder of rules of one's own (TOML and Python); its Python modules are run. Or what was loaded from one.
        patterns: a folder of pattern packs of one's own; a log that was read before is not read again.

    Raises:
        InputError: the log cannot be read or is not SGLang's, or the version is not one.
        RuleError: a rule of one's own is malformed.
        PatternError: a pattern pack of one's own is malformed.
    """
    own = _own_rules(rules) if isinstance(rules, (str, os.PathLike)) else rules or ()
    parsed = log if isinstance(log, ParsedLog) else parse(log, patterns=patterns)
    progress.now("diagnosing")
    known: dict[str, Any] = {"hardware": hardware, "launch_command": launch_command, "version": version, "model_config": model_config}
    answers = [_answer_for(parsed, part, case, own) for part, case in cases_of(parsed, **known)]
    if not any(_speaks_of_sglang(answer.case.run) or answer.is_loud for answer in answers):
        parsed.require_sglang()
    return _joined(answers) if len(answers) > 1 else answers[0].diagnosis


def cases_of(parsed: ParsedLog, *, launch_command: str | None = None, **known: Any) -> list[tuple[Part, Case]]:
    """The runs in a log, each with everything a rule may ask; ``known`` as for :func:`make_case`.

    A launch command is one server's: of several runs those have it that print no server_args.
    """
    parts = parts_of(parsed)
    runs = [(part, build_run(part)) for part in parts]
    several = len(parts) > 1
    return [
        (part, make_case(run, launch_command=None if several and run.launch is not None else launch_command, **known)) for part, run in runs
    ]


def main_case(parsed: ParsedLog, **known: Any) -> tuple[Part, Case]:
    """Of several runs the one that :func:`diagnose` tells first."""
    cases = cases_of(parsed, **known)
    if len(cases) == 1:
        return cases[0]
    first = min((_answer_for(parsed, part, case, ()) for part, case in cases), key=_prominence)
    return first.part, first.case


# ---------------------------------------------------------------------------------------------------------------- several runs


@record(frozen=True)
class _Answer:
    """The diagnosis of one run."""

    part: Part
    case: Case
    diagnosis: Diagnosis

    @property
    def is_loud(self) -> bool:
        """Whether something was found that is more than a remark."""
        return any(finding.severity in _LOUD for finding in self.diagnosis.findings)


def _answer_for(parsed: ParsedLog, part: Part, case: Case, own: Sequence[OwnRule]) -> _Answer:
    findings, failed = _apply(case, own)
    findings = _quoted(parsed, findings)
    verdict = _verdict(case, findings)
    earlier, loop = starts.before(part, lambda start: _outcome(start, own), _ending(case, verdict, findings))
    diagnosis = Diagnosis(
        verdict=verdict,
        summary=_summary(case, findings),
        run={**as_json(case), "timeline": cascade.timeline(case), "earlier_starts": earlier, "restart_loop": loop},
        findings=tuple(findings),
        coverage=parsed.coverage,
        sources=parsed.sources,
        recommended_command=_corrected(case, findings),
        missing=_missing(case, findings),
        notes=tuple(note for note in (loop, *case.run.notes, *cascade.doubts(case), *case.notes, *failed) if note is not None),
    )
    return _Answer(part, case, diagnosis)


def _outcome(part: Part, own: Sequence[OwnRule]) -> starts.Outcome:
    """How an earlier start ended."""
    case = make_case(build_run(part))
    findings, _ = _apply(case, own)
    return _ending(case, _verdict(case, findings), findings)


def _ending(case: Case, verdict: str, findings: Sequence[Finding]) -> starts.Outcome:
    first = next((finding for finding in findings if finding.severity in _LOUD), None)
    return starts.Outcome(case.run.stage, case.served(), verdict, first, signs.stopped_at(case), case.run.last_mark)


def _prominence(answer: _Answer) -> tuple[Any, ...]:
    """The worst run first; a router, or a file that only says who it is about, last; then by the names of its files."""
    silent = not answer.is_loud and answer.part.role == "router"
    return (silent, _VERDICTS.index(answer.diagnosis.verdict), answer.part.sources)


def _joined(answers: Sequence[_Answer]) -> Diagnosis:
    """One diagnosis of several runs: all findings, each with the name of its run; the facts are those of the worst."""
    from logforensics.run.grouping import relation

    ordered = sorted(answers, key=_prominence)
    first = ordered[0]
    main = first.diagnosis
    named = list(zip(ordered, names_of([answer.part for answer in ordered]), strict=True))
    return replace(
        main,
        summary=f"{named[0][1]}: {main.summary}",
        # by severity; those of one run stay in their order, causes first
        findings=tuple(merge(*(_named(answer, name) for answer, name in named), key=lambda finding: finding.severity.rank)),
        missing=_wanted(ordered),
        notes=tuple(f"{name}: {note}" for answer, name in named for note in answer.diagnosis.notes),
        parts=tuple(_as_part(answer, name, "" if answer is first else relation(answer.part, first.part)) for answer, name in named),
    )


def _wanted(answers: Sequence[_Answer]) -> tuple[str, ...]:
    """What would help, without the other side of a disaggregated deployment where it was given."""
    both = {"prefill", "decode"} <= {answer.part.role for answer in answers}
    asked = dict.fromkeys(item for answer in answers for item in answer.diagnosis.missing)
    return tuple(item for item in asked if not (both and item in _OTHER_SIDE))


def _named(answer: _Answer, name: str) -> list[Finding]:
    return [replace(finding, part=name) for finding in answer.diagnosis.findings]


def _as_part(answer: _Answer, name: str, how: str) -> DiagnosedPart:
    found = answer.diagnosis
    return DiagnosedPart(
        name, answer.part.role, how, answer.part.sources, found.verdict, found.summary, found.run, found.recommended_command
    )


def make_case(
    run: Run,
    *,
    hardware: Hardware | None = None,
    launch_command: str | None = None,
    version: str | None = None,
    model_config: str | os.PathLike[str] | None = None,
) -> Case:
    """Everything a rule may ask, from a run and what the user knows.

    Raises:
        InputError: the version is not an SGLang release, or the model configuration cannot be read.
    """
    unreleased = _unreleased(version)
    stated = run.side.version("sglang") if version is None else None
    if stated is not None and flags.nearest_release(str(stated.value)) is not None:
        version = str(stated.value)
    low, high, basis = release_range(run, version)
    release = Release(low, high, basis)
    command, notes = _read_launch(launch_command, release)
    fields: Mapping[str, Any] = run.launch.args if run.launch else {}
    if command is not None:
        typed = {flag.field: value for name, value in command.flags.items() if (flag := flags.find_flag(name, release.high)) is not None}
        fields = {**typed, **fields}
    model = _model(model_config) if model_config is not None else None
    machine, lines = run.side.completed(hardware or Hardware())
    return Case(run, Config(fields, run.launch, command), release, machine, command, (*notes, *unreleased, *run.side.notes), model, lines)


def _own_rules(folder: str | os.PathLike[str]) -> tuple[OwnRule, ...]:
    from logforensics.rules.own import load_rules

    return load_rules(folder)


def _model(config: str | os.PathLike[str]) -> Model:
    from logforensics.models import model_from_config

    return model_from_config(config)


def _unreleased(version: str | None) -> tuple[str, ...]:
    """A note where the stated version is a development build: its release is then read from the log.

    Raises:
        InputError: the version is neither a release nor a development build.
    """
    if version is None or flags.nearest_release(version) is not None:
        return ()
    if re.match(r"(?:main|master|dev|nightly|latest|git)\b|[0-9a-f]{7,40}$", version.strip(), re.IGNORECASE) is None:
        raise InputError(f"--sglang-version {version!r} is not a release such as 0.5.8")
    return (f"{version!r} is a development build; its release is taken from the log, as far as the log tells",)


def _speaks_of_sglang(run: Run) -> bool:
    """Whether a text without any of SGLang's records, such as a pasted traceback, still comes from SGLang."""
    if any("sglang" in name for failure in run.failures for name, _, _ in failure.frames):
        return True
    return any("sglang" in notice.text.lower() for notice in run.notices)


def _read_launch(text: str | None, release: Release) -> tuple[LaunchCommand | None, tuple[str, ...]]:
    """The launch command; flags without a program in front are taken as SGLang's."""
    if text is None:
        return None, ()
    from logforensics.command import read_command

    known = release.high if release.low == release.high else None
    try:
        return read_command(text, known), ()
    except CommandError as error:
        start = text.find("--")
        if start < 0:
            # the log is what counts: a command that cannot be read is a remark, not a reason to say nothing
            return None, (f"the launch command is not used: {error}",)
        note = "the launch command names no SGLang program; its flags are read as those of sglang.launch_server"
        return read_command(f"python -m sglang.launch_server {text[start:]}", known), (note,)


# ---------------------------------------------------------------------------------------------------------------- findings


def _apply(case: Case, own: Sequence[OwnRule]) -> tuple[list[Finding], list[str]]:
    """The findings in causal order, and notes about rules that failed."""
    answers = [_answer(rule, case) for rule in all_rules()] + [rule.apply(case) for rule in own]
    found = [finding for finding, _ in answers if finding is not None]
    return in_causal_order(_without_echoes(cascade.link(found, case))), [note for _, note in answers if note is not None]


def _answer(rule: Rule, case: Case) -> tuple[Finding | None, str | None]:
    """The finding of one rule; a defect in it costs its finding, said in a note, and not the whole answer."""
    try:
        return rule.apply(case), None
    except Exception as error:
        if os.environ.get("LOGFORENSICS_DEBUG"):
            raise
        return None, f"the rule {rule.code} failed, which is a bug in logforensics; please report it: {type(error).__name__}: {error}"


def _without_echoes(findings: list[Finding]) -> list[Finding]:
    """A log that merely stops is no news beside a finding that says why."""
    others = [finding for finding in findings if finding.root_cause != "log_ends_abruptly" and finding.severity in _LOUD]
    if not others:
        return findings
    return [replace(finding, severity=Severity.INFO) if finding.root_cause == "log_ends_abruptly" else finding for finding in findings]


def _quoted(parsed: ParsedLog, findings: list[Finding]) -> list[Finding]:
    """Fill in the text of every cited line."""
    wanted: dict[str, set[int]] = defaultdict(set)
    for finding in findings:
        for evidence in finding.evidence:
            wanted[evidence.source].add(evidence.line)
    texts = parsed.quote(wanted)
    return [replace(finding, evidence=tuple(_with_text(item, texts) for item in finding.evidence)) for finding in findings]


def _with_text(evidence: Evidence, texts: Mapping[tuple[str, int], str]) -> Evidence:
    return replace(evidence, text=excerpt(texts.get((evidence.source, evidence.line), ""), evidence.needle))


def excerpt(line: str, needle: str) -> str:
    """The part of a line to show: around ``needle`` where the line is long or holds several records.

    The result is a substring of the line, without escapes at its edges.
    """
    at = max(0, line.find(needle)) if needle else 0
    begin = max(line.rfind("\r", 0, at), line.rfind("\x1b[0m", 0, at) + 3 if "\x1b[0m" in line[:at] else -1) + 1
    end = line.find("\r", at)
    return passage(line[begin : end if end >= 0 else None], at - begin)


# ---------------------------------------------------------------------------------------------------------------- verdict


def _verdict(case: Case, findings: list[Finding]) -> str:
    """failed: it did not start or died · degraded: it serves, but … · incomplete: the log ends before the story does · healthy.

    A finding about a stage that the log has not reached is a prediction: the log is still incomplete.
    """
    run = case.run
    happened = [finding for finding in findings if not _is_ahead(case, finding)]
    worst = min((finding.severity.rank for finding in happened), default=Severity.INFO.rank)
    started = case.served()
    if worst == Severity.CRITICAL.rank:
        return "failed"
    if started:
        return "degraded" if worst <= Severity.WARNING.rank else "healthy"
    if worst == Severity.ERROR.rank and (run.failures or run.shutdowns or run.refusals or run.watchdogs):
        return "failed"
    return "healthy" if run.capacities and worst == Severity.INFO.rank and run.stage != "hicache" else "incomplete"


def _is_ahead(case: Case, finding: Finding) -> bool:
    """Whether a finding is about a stage of the start that no rank has reached yet."""
    if finding.stage not in _START or case.run.stage not in _START or case.run.failures or case.run.shutdowns:
        return False
    return _START.index(finding.stage) > _START.index(case.run.stage)


def _summary(case: Case, findings: list[Finding]) -> str:
    first = next((finding for finding in findings if finding.severity in _LOUD), None)
    if first is not None:
        return first.title
    if case.served():
        windows = case.run.serving.windows
        speed = f" at {case.run.serving.throughput_mean:,.0f} token/s on average" if windows else ""
        return f"the server started and served{speed}; nothing to report" if windows else "the server started; nothing to report"
    return f"nothing wrong so far; the log ends after {case.run.stage.replace('_', ' ')}"


def _missing(case: Case, findings: list[Finding]) -> tuple[str, ...]:
    """What would help, without the logs of nodes where all of them were given."""
    asked = dict.fromkeys(item for finding in findings if finding.severity in _LOUD for item in finding.missing)
    return tuple(item for item in asked if not (case.all_nodes_here and _NODE_LOGS.search(item)))


def _corrected(case: Case, findings: list[Finding]) -> CorrectedCommand | None:
    """The launch line with the changes of the loud findings, or None where there is no launch line or nothing to change."""
    recommendations = [item for finding in findings if finding.severity in _LOUD for item in finding.recommendations]
    changes = [item for item in recommendations if item.action in (Action.SET, Action.INCREASE, Action.DECREASE, Action.REMOVE, Action.ENV)]
    if not changes:
        return None
    from logforensics.command import from_server_args, rewrite

    command = case.command
    known = case.release.high if case.release.low == case.release.high or case.run.launch is None else case.release.low
    if command is None and case.run.launch is not None and case.run.launch.complete:
        command = from_server_args(case.run.launch.args, known)
    if command is None:
        return None
    corrected = rewrite(command, changes, known)
    if len(case.run.nodes) > 1:
        corrected = replace(corrected, notes=(*corrected.notes, "the same on every node, with its own --node-rank (and --host)"))
    return corrected if corrected.changes else None
