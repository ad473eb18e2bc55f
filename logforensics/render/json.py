"""The JSON form: the contract of ``diagnose --format json`` (docs/diagnosis.schema.json)."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from logforensics.diagnosis import SCHEMA
from logforensics.render.untrusted import masked

if TYPE_CHECKING:
    from logforensics.diagnosis import Coverage, Diagnosis, Part
    from logforensics.findings import Finding


def diagnosis_to_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as plain JSON values: no NaN, no infinities, times in ISO 8601, secrets masked."""
    safe = masked(diagnosis)
    command = safe.recommended_command
    form = {
        "schema": SCHEMA,
        "verdict": safe.verdict,
        "summary": safe.summary,
        "run": safe.run,
        "recommended_command": command.text if command else None,
        "command_changes": command.changes if command else (),
        "missing": safe.missing,
        "coverage": _coverage(safe.coverage),
        "notes": (*safe.notes, *(command.notes if command else ())),
        "sources": safe.sources,
        "findings": [_finding(finding) for finding in safe.findings],
    }
    if safe.parts:
        form["parts"] = [_part(part) for part in safe.parts]
    if safe.command is not None:
        form["command"] = safe.command
    plain_form: dict[str, Any] = _plain(form)
    return plain_form


def dumps(diagnosis: Diagnosis) -> str:
    """The JSON text, indented, in ASCII (so that no terminal escape in a log survives), ending in a newline."""
    return json.dumps(diagnosis_to_dict(diagnosis), indent=2, allow_nan=False) + "\n"


def _finding(finding: Finding) -> dict[str, Any]:
    form = {
        "code": finding.code,
        "root_cause": finding.root_cause,
        "severity": finding.severity,
        "confidence": finding.confidence,
        "stage": finding.stage,
        "title": finding.title,
        "explanation": finding.explanation,
        "caused_by": finding.caused_by,
        "evidence": [_line(e.source, e.line, e.text) for e in finding.evidence],
        "arithmetic": finding.arithmetic,
        "recommendations": finding.recommendations,
    }
    return form if finding.part is None else {**form, "part": finding.part}


def _part(part: Part) -> dict[str, Any]:
    command = part.recommended_command
    return {
        "name": part.name,
        "role": part.role,
        "relation": part.relation,
        "sources": part.sources,
        "verdict": part.verdict,
        "summary": part.summary,
        "recommended_command": command.text if command else None,
        "run": part.run,
    }


def _coverage(coverage: Coverage) -> dict[str, Any]:
    return {
        "lines": coverage.lines,
        "parsed": coverage.parsed,
        "noise": coverage.noise,
        "unknown": coverage.unknown,
        "damaged": coverage.damaged,
        "unfinished": coverage.unfinished,
        "unknown_examples": [_line(*example) for example in coverage.unknown_examples],
        "damaged_examples": [_line(*example) for example in coverage.damaged_examples],
        "damaged_lines": [{"file": source, "first": first, "last": last} for source, first, last in coverage.damaged_lines],
    }


def _line(source: str, line: int, text: str) -> dict[str, Any]:
    return {"file": source, "line": line, "text": text}


def _plain(value: Any) -> Any:
    """``value`` as JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    """One value; what JSON has no word for becomes null (NaN, infinity) or text."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
