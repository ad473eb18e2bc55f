"""From a log to a post-mortem."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from logforensics._version import __version__
from logforensics.diagnosis import Diagnosis
from logforensics.engine import Log, diagnose, excerpt, main_case
from logforensics.hardware import Hardware
from logforensics.parsing import ParsedLog, parse
from logforensics.reporting import charts, foresight, settings, story
from logforensics.reporting.anonymize import Anonymizer, map_strings
from logforensics.reporting.model import Excerpt, Foresight, Moment, Report
from logforensics.rules import Case
from logforensics.rules.own import load_rules
from logforensics.secrets import mask
from logforensics.units import gb

_CONTEXT = 1  # lines shown before and after a cited one
_MOST_CITED = 150


def build_report(
    log: Log,
    *,
    title: str | None = None,
    anonymize: bool = False,
    hardware: Hardware | None = None,
    launch_command: str | None = None,
    version: str | None = None,
    model_config: str | os.PathLike[str] | None = None,
    rules: str | os.PathLike[str] | None = None,
    patterns: str | os.PathLike[str] | None = None,
) -> Report:
    """The post-mortem of a log; for ``hardware`` and the rest see :func:`logforensics.diagnose`.

    Args:
        log: a path, several paths, ``-`` for standard input, or a log that :func:`logforensics.parse` has read.
        title: the report's title; by default the diagnosis's summary makes one.
        anonymize: replace hosts, users, paths and model names, each always by the same word.
        hardware: what is known of the machine.
        launch_command: the command the server was started with.
        version: the SGLang release.
        model_config: a Hugging Face ``config.json``.
        rules: a folder of rules of one's own.
        patterns: a folder of pattern packs of one's own.

    Raises:
        InputError: the log cannot be read or is not SGLang's.
    """
    own = load_rules(rules) if rules is not None else ()
    parsed = log if isinstance(log, ParsedLog) else parse(log, patterns=patterns)
    known: dict[str, Any] = {"hardware": hardware, "launch_command": launch_command, "version": version, "model_config": model_config}
    diagnosis = diagnose(parsed, rules=own, **known)
    part, case = main_case(parsed, **known)
    frames = part.log.frames
    moments = story.timeline_of(case, diagnosis.findings)
    inside = [finding for finding in diagnosis.findings if not diagnosis.parts or finding.part == diagnosis.parts[0].name]
    seen = foresight.foresight_of(part, case, inside, known, own)
    told = Report(
        title=title or f"Post-mortem: {diagnosis.summary}",
        diagnosis=diagnosis,
        impact=story.impact_of(case, frames["requests"]),
        timeline=moments,
        settings=settings.settings_of(case),
        foresight=seen,
        advice=tuple(_advice(case, diagnosis, seen)),
        charts=(),
        excerpts=tuple(_excerpts(parsed, diagnosis, moments)),
        versions=(("logforensics", __version__), ("SGLang", case.release.text), ("how the release was told", case.release.basis)),
        anonymized=anonymize,
    )
    safe: Report = map_strings(told, mask)
    if anonymize:
        safe = map_strings(safe, Anonymizer(case.config.fields, parsed.sources))
    # the charts come last: their thousands of points hold numbers, times and ranks, and nothing to hide
    return replace(safe, charts=charts.charts_of(case.run, diagnosis.run, frames))


def _advice(case: Case, diagnosis: Diagnosis, seen: Sequence[Foresight]) -> Iterator[str]:
    """What to do so that it is seen earlier the next time."""
    options = _hardware_options(case.hardware)
    if any(item.by_flags_alone for item in seen):
        command = diagnosis.recommended_command
        program = command.text.split("\\\n", 1)[0].strip() if command else "python -m sglang.launch_server"
        yield f"Before the start: logforensics preflight{options} -- {program} …"
    log = shlex.quote(diagnosis.sources[0]) if len(diagnosis.sources) == 1 else "server.log"
    if seen:
        yield f"During the start: logforensics watch {log} --until ready{options}, whose exit status is 1 as soon as something is found."
    if any(item.stage == "serving" for item in seen):
        yield "While it serves: alert on token usage of 0.95 and more while #queue-req is above 0."


def _hardware_options(hardware: Hardware) -> str:
    parts = [("--host-ram", hardware.host_ram_bytes), ("--gpu-memory", hardware.gpu_memory_bytes)]
    text = "".join(f" {flag} {gb(size, 3).replace(' ', '').replace(',', '')}" for flag, size in parts if size is not None)
    return text + (f" --gpus {hardware.gpus}" if hardware.gpus is not None else "")


# ---------------------------------------------------------------------------------------------------------------- cited lines


def _excerpts(parsed: ParsedLog, diagnosis: Diagnosis, moments: Iterable[Moment]) -> Iterator[Excerpt]:
    """Every cited line with its neighbours, neighbouring ones together."""
    needles = {(item.source, item.line): item.needle for finding in diagnosis.findings for item in finding.evidence}
    cited = list(dict.fromkeys([*needles, *((moment.place.source, moment.place.line) for moment in moments)]))[:_MOST_CITED]
    for source in dict.fromkeys(source for source, _ in cited):
        lines = {line for name, line in cited if name == source}
        wanted = sorted({near for line in lines for near in range(max(1, line - _CONTEXT), line + _CONTEXT + 1)})
        texts = {line: text for (_, line), text in parsed.quote({source: wanted}).items()}
        for group in _consecutive([line for line in wanted if line in texts]):
            shown = tuple((line, excerpt(texts[line], needles.get((source, line), ""))) for line in group)
            yield Excerpt(source, shown, frozenset(lines & set(group)))


def _consecutive(lines: Sequence[int]) -> Iterator[list[int]]:
    group: list[int] = []
    for line in lines:
        if group and line != group[-1] + 1:
            yield group
            group = []
        group.append(line)
    if group:
        yield group
