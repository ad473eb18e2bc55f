"""The verdict before the launch: what flags, model and machine decide, said with the codes and the figures of a diagnosis after the crash."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from logforensics import lazy_re
from logforensics.command import LaunchCommand, read_command, rewrite
from logforensics.command.model import DEFAULT_PROGRAM, image_version
from logforensics.command.release import first_release_serving
from logforensics.diagnosis import CorrectedCommand, Coverage, Diagnosis
from logforensics.errors import CommandError, InputError
from logforensics.findings import Action, Evidence, Finding, Severity, in_causal_order, passage
from logforensics.hardware import Hardware
from logforensics.models import Gpu, Model, cached_config, find_gpu, find_model, model_from_config
from logforensics.planning import Plan, all_forecasts
from logforensics.planning.facts import as_json
from logforensics.planning.notes import notes_for
from logforensics.planning.plan import arguments
from logforensics.rules import Release
from logforensics.secrets import MASK, is_secret
from logforensics.sglang import flags
from logforensics.units import GIB

_LOUD = (Severity.CRITICAL, Severity.ERROR, Severity.WARNING)
_STOPS = (Severity.CRITICAL, Severity.ERROR)
_CHANGES = frozenset({Action.SET, Action.INCREASE, Action.DECREASE, Action.REMOVE, Action.ENV})
_NOMINAL = lazy_re.compile(r"(\d{1,3})\s?GB\b", re.IGNORECASE)
_SOURCE = "<launch command>"
_MAX_FILE_BYTES = 4_000_000


def preflight(
    command: str | os.PathLike[str],
    *,
    hardware: Hardware | None = None,
    version: str | None = None,
    model_config: str | os.PathLike[str] | None = None,
) -> Diagnosis:
    """Say what a launch will run into, without launching it. Nothing that is given is ever executed.

    Args:
        command: the launch command in any form :func:`logforensics.command.read_command` understands, or a path to a file with it.
        hardware: the machine: GPU name and memory, GPUs per host, host RAM.
        version: the SGLang release; else the container image's tag decides, else the releases that accept the flags.
        model_config: a Hugging Face ``config.json``, for a model that is not known by name.

    Raises:
        InputError: the file cannot be read, the version is no release, or the model configuration cannot be read.
        CommandError: there is no SGLang launch in the text.
    """
    text, source = _text_of(command)
    if version is not None and flags.nearest_release(version) is None:
        raise InputError(f"--sglang-version {version!r} is not a release such as {flags.releases()[-1]}")
    launch, remarks = _read(text, version)
    plan = make_plan(launch, hardware=hardware or Hardware(), version=version, model_config=model_config)
    findings = _cited(_forecasts(plan), plan, text, source)
    return Diagnosis(
        verdict=_verdict(plan, findings),
        summary=_summary(plan, findings),
        run=as_json(plan),
        findings=tuple(findings),
        coverage=Coverage(),
        sources=(source,),
        recommended_command=_corrected(plan, findings),
        missing=_missing(plan, findings),
        notes=(*remarks, *notes_for(plan)),
        command={"flags": _shown_flags(launch), "env": _shown_env(launch)},
    )


def make_plan(
    command: LaunchCommand, *, hardware: Hardware, version: str | None = None, model_config: str | os.PathLike[str] | None = None
) -> Plan:
    """Everything a forecast may ask.

    Raises:
        InputError: the model configuration cannot be read.
    """
    said = version or image_version((*command.program, command.place.image or ""))
    release = _release(command, said)
    args = arguments(command, release.high)
    limit = command.place.memory_bytes
    ram = min((size for size in (hardware.host_ram_bytes, limit) if size), default=None)
    gpu = _gpu(hardware.gpu) if hardware.gpu else None
    memory = hardware.gpu_memory_bytes
    if memory is None and gpu is None and hardware.gpu and (nominal := _NOMINAL.search(hardware.gpu)):
        memory = int(nominal[1]) * GIB
    machine = replace(hardware, host_ram_bytes=ram, gpu_memory_bytes=memory)
    return Plan(command, args, release, said, machine, gpu, _model(args, model_config))


# ---------------------------------------------------------------------------------------------------------------- reading


def _text_of(command: str | os.PathLike[str]) -> tuple[str, str]:
    """The text to read, and its name as a source."""
    given = os.fspath(command)
    path = Path(given)
    is_path = not isinstance(command, str) or ("\n" not in given and _is_file(path))
    if not is_path:
        return given, _SOURCE
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise InputError(f"{given} has more than {_MAX_FILE_BYTES:,} bytes: preflight reads a launch command; for a log use diagnose")
        return path.read_text(encoding="utf-8", errors="replace"), given
    except OSError as error:
        raise InputError(f"cannot read {given}: {error.strerror or error}") from error


def _read(text: str, version: str | None) -> tuple[LaunchCommand, tuple[str, ...]]:
    """The launch command; flags without a program in front are taken as SGLang's."""
    try:
        return read_command(text, version), ()
    except CommandError:
        start = re.search(r"(?<!\S)--[a-z]", text)
        if start is None:
            raise
    # an excerpt of somebody's flags, with prose around them: words that belong to no flag are that prose
    flags_only = re.sub(r"\([^()]*\)|(?<!\S)(?:\.{3}|…)(?!\S)|,(?=\s)", " ", text[start.start() :])
    launch = read_command(f"{' '.join(DEFAULT_PROGRAM)} {flags_only}", version)
    note = "the text names no SGLang program; its flags are read as those of sglang.launch_server, other words are left out"
    return replace(launch, unknown=tuple(word for word in launch.unknown if word.startswith("--"))), (note,)


def _release(command: LaunchCommand, said: str | None) -> Release:
    """The release as a range: said, else all that accept every flag."""
    known = flags.nearest_release(said) if said else None
    if known is not None:
        return Release(known, known, f"stated: {said}")
    typed = {spelling for spelling in command.typed.values() if flags.find_flag(spelling)}
    fitting = [name for name in flags.releases() if all(flags.accepted(spelling, name) for spelling in typed)]
    fitting = [name for name in fitting if flags.release_at_least(name, _first_serving(command))] or fitting
    if not fitting:
        return Release(flags.releases()[0], flags.releases()[-1], "no single release accepts all flags")
    return Release(fitting[0], fitting[-1], "the releases that accept every flag")


def _first_serving(command: LaunchCommand) -> str:
    return first_release_serving(f"{command.flags.get('--model-path')} {command.flags.get('--served-model-name')}")


def _gpu(name: str) -> Gpu | None:
    """The accelerator that a name means; remarks behind it (``GB10 (DGX Spark) 128GB unified``) are left out word by word."""
    words = re.sub(r"\([^)]*\)", " ", name).split()
    for count in range(len(words), 0, -1):
        part = " ".join(words[:count])
        if re.search(r"[A-Za-z]+-?\d|RTX", part) and (found := find_gpu(part)) is not None:
            return found
    return None


def _model(args: Mapping[str, Any], config: str | os.PathLike[str] | None) -> Model | None:
    """The model: from the given config, a config beside the weights or in the hub's cache, or the bundled facts."""
    if config is not None:
        return model_from_config(config)
    names = [str(args[name]) for name in ("model_path", "served_model_name") if args.get(name)]
    for name in names[:1]:
        local = Path(name).expanduser() / "config.json"
        cached = local if _is_file(local) else cached_config(name) if re.fullmatch(r"[\w.-]+/[\w.-]+", name) else None
        if cached is not None:
            try:
                return model_from_config(cached)
            except InputError:
                break
    return next((model for name in names if (model := find_model(name)) is not None), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


# ---------------------------------------------------------------------------------------------------------------- answering


def _forecasts(plan: Plan) -> list[tuple[Finding, tuple[str, ...]]]:
    return [found for item in all_forecasts() if (found := item.apply(plan)) is not None]


def _cited(found: Iterable[tuple[Finding, tuple[str, ...]]], plan: Plan, text: str, source: str) -> list[Finding]:
    """Findings in causal order, each with the lines of the command that hold its flags."""
    lines = text.split("\n")
    cited = [replace(finding, evidence=tuple(_places(fields, plan, lines, source))) for finding, fields in found]
    return in_causal_order(cited)


def _places(fields: Sequence[str], plan: Plan, lines: Sequence[str], source: str) -> list[Evidence]:
    """The lines where the flags of some fields are typed."""
    places: dict[int, Evidence] = {}
    for name in fields:
        flag = flags.flag_by_field(name)
        spelling = plan.command.typed.get(flag.name if flag else f"--{name.replace('_', '-')}")
        words = [word for word in (spelling, spelling and spelling.lstrip("-"), name) if word]
        for number, line in enumerate(lines, start=1):
            word = next((word for word in words if re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", line)), None)
            if word:
                places.setdefault(number, Evidence(source, number, passage(line, max(0, line.find(word))), word))
                break
    return list(places.values())


def _verdict(plan: Plan, findings: Sequence[Finding]) -> str:
    """failed: it cannot start · degraded: it may run into something · healthy: nothing speaks against it · incomplete: too little is known."""
    worst = min((finding.severity.rank for finding in findings), default=Severity.INFO.rank)
    if worst <= Severity.ERROR.rank:
        return "failed"
    if worst == Severity.WARNING.rank:
        return "degraded"
    return "incomplete" if plan.rest_gib is None and not plan.on_cpu else "healthy"


def _summary(plan: Plan, findings: Sequence[Finding]) -> str:
    first = next((finding for finding in findings if finding.severity in _LOUD), None)
    if first is not None:
        return first.title
    if plan.rest_gib is None and not plan.on_cpu:
        return "nothing speaks against the flags; the memory could not be checked"
    tokens = f": about {plan.tokens.mid:,.0f} KV tokens for each scheduler" if plan.tokens else ""
    return f"nothing speaks against this launch{tokens}"


def _missing(plan: Plan, findings: Sequence[Finding]) -> tuple[str, ...]:
    wanted = [item for finding in findings if finding.severity in _LOUD for item in finding.missing]
    if plan.card_gib is None and not plan.on_cpu and not (plan.gpu and plan.gpu.unified):
        wanted.append("the GPU (--gpu H100, or --gpu-memory 80GiB)")
    if plan.model is None:
        wanted.append("the model's architecture (--model-config config.json)")
    if plan.release.low != plan.release.high:
        wanted.append("the SGLang release (--sglang-version 0.5.8)")
    if plan.has("enable_hierarchical_cache") and plan.hardware.host_ram_bytes is None:
        wanted.append("the host's RAM (--host-ram 449GB)")
    return tuple(dict.fromkeys(wanted))


def _corrected(plan: Plan, findings: Sequence[Finding]) -> CorrectedCommand | None:
    """The command with the changes of findings that stop the launch; of warnings only where nothing stops it."""
    stopping = [finding for finding in findings if finding.severity in _STOPS]
    chosen = stopping or [finding for finding in findings if finding.severity in _LOUD]
    changes = [item for finding in chosen for item in finding.recommendations if item.action in _CHANGES]
    if not changes and not plan.command.repairs:
        return None
    known = plan.release.high if plan.release.low == plan.release.high else None
    corrected = rewrite(plan.command, changes, known)
    return corrected if corrected.changes or plan.command.repairs else None


def _shown_flags(command: LaunchCommand) -> dict[str, Any]:
    """The flags as a shell would pass them: a leading tilde is the home folder; secrets are masked, placeholders are none."""
    return {name: _shown(name, value) for name, value in command.flags.items()}


def _shown_env(command: LaunchCommand) -> dict[str, str]:
    return {name: str(_shown(name, value)) for name, value in command.env.items()}


def _shown(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if is_secret(name) and not re.fullmatch(r"<[^<>]*>|\$.*", value):
        return MASK
    return os.path.expanduser(value) if value.startswith("~/") else value  # noqa: PTH111 (keeps a trailing slash)
