"""A log file as rows of the table: one per server start."""

from __future__ import annotations

from datetime import datetime
from pathlib import PurePath
from typing import Any

from logforensics.comparison.starts import by_source, by_start
from logforensics.diagnosis import Diagnosis
from logforensics.engine import diagnose
from logforensics.errors import InputError
from logforensics.findings import Severity
from logforensics.parsing import ParsedLog, parse
from logforensics.secrets import MASK, is_secret, mask

Row = dict[str, Any]


def examine(path: str) -> dict[str, Any]:
    """What a file holds: ``{"rows": […]}``, or ``{"problem": "why it has none"}``. Secrets are masked."""
    try:
        parts = by_source(parse(path, threads=1))
        rows = [row for part in parts if part.is_sglang for row in _of_source(part)]
    except InputError as error:
        return {"problem": str(error)}
    return {"rows": rows} if rows else {"problem": f"{path}: no SGLang server log"}


def _of_source(parsed: ParsedLog) -> list[Row]:
    starts = by_start(parsed)
    return [_row(start, number, len(starts)) for number, start in enumerate(starts, 1)]


def _row(parsed: ParsedLog, number: int, starts: int) -> Row:
    diagnosis = diagnose(parsed)
    run = diagnosis.run
    return {
        "source": parsed.sources[0],
        "start": number,
        "starts": starts,
        "model": _model(run),
        "version_low": run["version_low"] if run["model"] else None,
        "version_high": run["version_high"] if run["model"] else None,
        **_limits(run),
        **_speed(run),
        "stage": run["stage"],
        "verdict": diagnosis.verdict,
        **_finding(diagnosis),
        "errors": run["errors"],
        "begin": _iso(run["first"]["time"]),
        "end": _iso(run["last"]["time"]),
        "args": _arguments(parsed),
    }


def _model(run: Any) -> str | None:
    name = run["model"] or run["model_path"]
    return PurePath(str(name)).name if name else None


def _limits(run: Any) -> Row:
    """Effective limits; of several schedulers the smallest."""
    names = {"kv_tokens": "max_total_num_tokens", "max_running_requests": "max_running_requests", "context_len": "context_len"}
    found = {key: [limit[name] for limit in run["limits"] if limit[name] is not None] for key, name in names.items()}
    return {key: min(values, default=None) for key, values in found.items()}


def _speed(run: Any) -> Row:
    """Token/s of all schedulers together: the mean weighted by interval without pauses, and the sum of their best lines."""
    windows = (run["serving"] or {}).get("windows") or ()
    first_stage = [window for window in windows if "PP" not in window["rank"] or "PP0" in window["rank"]]
    return {
        "peak_tok_s": round(sum(window["throughput_peak"] for window in first_stage), 2) if windows else None,
        "steady_tok_s": run["serving"]["throughput_mean"] if windows else None,
        "running_max": max((window["running_max"] for window in windows), default=None),
        "queue_max": max((window["queue_max"] for window in windows), default=None),
    }


def _finding(diagnosis: Diagnosis) -> Row:
    """The first finding that is more than a remark."""
    loud = next((item for item in diagnosis.findings if item.severity is not Severity.INFO), None)
    return {
        "code": loud.code if loud else None,
        "root_cause": loud.root_cause if loud else None,
        "finding": mask(loud.title) if loud else None,
        "line": loud.first_line if loud and loud.evidence else None,
    }


def _iso(time: datetime | None) -> str | None:
    return time.isoformat(sep=" ") if time is not None and time.year > 1970 else None


def _arguments(parsed: ParsedLog) -> Row:
    """The logged server_args without secrets."""
    import json

    launches = parsed.frames["launches"]
    if launches.is_empty():
        return {}
    arguments: Row = json.loads(launches["server_args"][-1])
    return {field: _masked(field, value) for field, value in arguments.items()}


def _masked(field: str, value: Any) -> Any:
    if is_secret(field) and value not in (None, ""):
        return MASK
    return mask(value) if isinstance(value, str) else value
