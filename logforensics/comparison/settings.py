"""Effective settings: renamed flags under their newest name, what SGLang changed by itself applied, defaults filled in by release."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from logforensics import lazy_re
from logforensics.comparison import stated
from logforensics.comparison.model import Difference, Setting, Side
from logforensics.rules import Case
from logforensics.run import Run
from logforensics.secrets import is_secret, mask
from logforensics.sglang import flags

# Names, addresses and what is written about a run: they differ between any two starts and decide nothing.
_INCIDENTAL = lazy_re.compile(
    r"""
      (?:.*_)?(?:host|hostname|port|ports|addr|address|folder|seed) | random_seed | node_rank | base_gpu_id | .*api_key.* | served_model_name
    | tokenizer_path | download_dir | .*log_.* | log_.* | .*_log | .*metrics.* | bucket_.* | .*trace.* | ssl_.* | uvicorn_.* | show_time_cost
    | watchdog_timeout | soft_watchdog_timeout | crash_dump_.* | file_storage_path | weight_version | chat_template | stream_interval
    | stream_output | .*_config_file | preferred_sampling_params | sampling_defaults | collect_tokens_histogram | decode_log_interval
    | gc_.* | .*warmup.* | .*parser | bench.* | debug_.* | fastapi_root_path | incremental_streaming_output
    """,
    re.VERBOSE,
)
_VARIES = "varies"
NAMES = {"cuda_graph": "cuda graph (batch lines)", "swa_sizing": "SWA sizing (logged)"}


def effective(case: Case) -> dict[str, Setting]:
    """Every known setting of a run by its newest server_args field."""
    run = case.run
    found: dict[str, Setting] = {}
    if run.launch is not None:
        for field, value in run.launch.args.items():
            found[newest(field)] = Setting(value, "logged", run.launch.mark)
    elif case.command is not None:
        found |= {newest(field): Setting(value, "launch command") for field, value in case.config.fields.items()}
    for field, setting in stated.settings(run.notices).items():
        found.setdefault(field, setting)
    for override in run.overrides:
        field = newest(override.flag.lstrip("-").replace("-", "_"))
        if override.new is not None and flags.flag_by_field(field) is not None:
            found[field] = Setting(_typed(override.new), f"changed by SGLang, line {override.mark.line}", override.mark)
    if not found.keys() & {"disable_cuda_graph", "cuda_graph_mode"} and (graph := _graph(run)) is not None:
        found["cuda_graph"] = graph
    return found


def newest(field: str) -> str:
    """The name under which the newest release holds a field's value."""
    seen = {field}
    while (flag := flags.flag_by_field(field)) is not None and flag.renamed_to and flag.renamed_to not in seen:
        field = flag.renamed_to
        seen.add(field)
    return field


def field_of(name: str) -> str:
    """The newest server_args field that ``--tp``, ``--tp-size``, ``tp-size`` or ``tp_size`` means."""
    flag = flags.find_flag(name if name.startswith("--") else f"--{name.replace('_', '-')}")
    return newest(flag.field if flag is not None else name.lstrip("-").replace("-", "_"))


def matters(field: str) -> bool:
    """Whether a setting may bear on speed or capacity."""
    return _INCIDENTAL.fullmatch(field) is None and not is_secret(field)


def spelling(field: str) -> str:
    """How a setting is called: its flag, or what it is where it is none."""
    flag = flags.flag_by_field(field)
    return NAMES.get(field) or (flag.name if flag is not None and flag.name else field)


def differences(sides: Sequence[Side]) -> tuple[Difference, ...]:
    """Settings whose effective values differ, those that matter first."""
    fields = sorted({field for side in sides for field in side.settings})
    found = [item for field in fields if (item := _difference(field, sides)) is not None]
    return tuple(sorted(found, key=lambda item: (not item.matters, item.flag)))


def common(members: Sequence[Mapping[str, Setting]]) -> dict[str, Setting]:
    """Settings of a group: the shared value, or the word that it varies."""
    fields = {field for settings in members for field in settings}
    merged: dict[str, Setting] = {}
    for field in fields:
        values = [settings[field] for settings in members if field in settings]
        same = len({_key(setting.value) for setting in values}) == 1
        merged[field] = values[0] if same else Setting(_VARIES, "differs within the group")
    return merged


def _difference(field: str, sides: Sequence[Side]) -> Difference | None:
    settings = [side.settings.get(field) or _default(field, side) for side in sides]
    known = [setting for setting in settings if setting is not None]
    if len({_key(setting.value) for setting in known}) < 2 and not _only_some_have_it(field, sides, settings):
        return None
    return Difference(
        flag=spelling(field),
        field=field,
        values=tuple(None if setting is None else _shown(field, setting.value) for setting in settings),
        origins=tuple("" if setting is None else setting.origin for setting in settings),
        matters=matters(field),
    )


def _default(field: str, side: Side) -> Setting | None:
    """What a flag is where the whole server_args do not name it: the default of the release, if the release has the flag."""
    if not side.complete or side.release_high is None or flags.flag_in(field, side.release_high) is None:
        return None
    return Setting(flags.default(field, side.release_high), f"default of {side.release_high}")


def _only_some_have_it(field: str, sides: Sequence[Side], settings: Sequence[Setting | None]) -> bool:
    """A flag that another release does not have is a difference only where it was moved off its default.

    Where a log simply does not tell its settings, nothing can be said.
    """
    if all(setting is not None for setting in settings) or not all(side.complete for side in sides):
        return False
    return any(
        setting is not None and side.release_high is not None and _key(setting.value) != _key(flags.default(field, side.release_high))
        for side, setting in zip(sides, settings, strict=True)
    )


def _graph(run: Run) -> Setting | None:
    """Whether decode batches ran in a graph, where every line agrees."""
    uses = [window.graph for window in run.serving.windows if window.graph is not None]
    on, off = sum(use.on_lines for use in uses), sum(use.off_lines for use in uses)
    if bool(on) == bool(off):
        return None
    mark = next((use.on_mark or use.off_mark for use in uses), None)
    return Setting(bool(on), "batch lines", mark)


def _typed(text: str) -> Any:
    """An override's value as server_args would hold it."""
    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    try:
        number = float(text)
    except ValueError:
        return text.strip("'\"")
    return int(number) if number.is_integer() and "." not in text else number


def _key(value: Any) -> str:
    """Values that mean the same have the same key: 0 and 0.0, a tuple and a list."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, (int, float)):
        return repr(float(value))
    return json.dumps(value, sort_keys=True, default=str)


def _shown(field: str, value: Any) -> Any:
    if is_secret(field) and value not in (None, ""):
        return "***"
    return mask(value) if isinstance(value, str) else value
