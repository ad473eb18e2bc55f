"""Lines of SGLang's router (sglang_router, sgl-model-gateway): the tracing form, its JSON form, and the older ``[Router (Rust)] …`` form.

2026-06-01 05:00:03  INFO http_request{method=POST uri=/generate … status_code=500 latency=406382}: smg::response: src/middleware.rs:349: text
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any

from logforensics import lazy_re
from logforensics.parsing import packs
from logforensics.parsing.prefix import time_of
from logforensics.parsing.tally import NOTICE_CHARS

_TARGET = r"(?:sglang_router|sgl_model_gateway|smg)\w*(?:::\w+)*"
_TRACING = lazy_re.compile(
    rf"""(?:(?P<stamp>\d{{4}}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{{1,9}})?)Z?\ +)?
    (?P<level>TRACE|DEBUG|INFO|WARN|ERROR)\ +
    (?P<spans>\w+\{{.*?\}}:\ )?                          # the request it belongs to, several times where spans are nested
    (?P<target>{_TARGET}):\ (?:(?P<place>[^\s:]+\.rs:\d+):\ )?(?P<text>.*)""",
    re.VERBOSE,
)
_OLDER = lazy_re.compile(r"\[Router \((?P<target>\w+)\)\] (?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) - (?P<level>[A-Z]+) - (?P<text>.*)")
_JSON_TARGET = lazy_re.compile(rf'"target" ?: ?"{_TARGET}"')
_FIELD = lazy_re.compile(r'\b(\w+)=("(?:[^"\\]|\\.)*"|.*?)(?= \w+=|$)')  # a bare value may hold blanks: `error=connection refused`
_WORKER = lazy_re.compile(r"https?://[\w.\[\]:-]+:\d+")
_LATENCY = lazy_re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ns|µs|us|ms|s|)")
_MILLISECONDS = {"ns": 1e-6, "µs": 1e-3, "us": 1e-3, "": 1e-3, "ms": 1.0, "s": 1e3}  # without a unit: microseconds
_LEVELS = {"TRACE": "info", "DEBUG": "info", "INFO": "info", "WARN": "warning", "WARNING": "warning", "ERROR": "error", "CRITICAL": "error"}
_MAY_BEGIN = ("20", "[R", '{"', "IN", "WA", "ER", "DE", "TR", " I", " W")


def read_router(text: str) -> tuple[datetime | None, dict[str, Any]] | None:
    """Time (UTC as a rule) and columns of ``router``; None for any other line."""
    if text[:2] not in _MAY_BEGIN:
        return None
    if text[:2] == '{"':
        return _of_json(text) if _JSON_TARGET.search(text) else None
    found = _TRACING.match(text) or _OLDER.match(text)
    if found is None:
        return None
    parts = found.groupdict()
    message, printed = _split(parts["text"])
    fields = _fields(parts.get("spans") or "") | _fields(printed)
    time = time_of(parts["stamp"][:26]) if parts["stamp"] else None
    return time, _row(parts["level"], parts["target"], parts.get("place"), message, fields, parts["text"])


def _of_json(text: str) -> tuple[datetime | None, dict[str, Any]] | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    flat: dict[str, Any] = {}
    for part in (*_mappings(record.get("spans")), *_mappings(record.get("span")), *_mappings(record.get("fields")), record):
        flat |= part
    message = str(flat.pop("message", ""))
    place = f"{flat['filename']}:{flat.get('line_number', '?')}" if "filename" in flat else None
    fields = {name: str(value) for name, value in flat.items() if not isinstance(value, (dict, list))}
    stamp = str(flat.get("timestamp", ""))[:26].rstrip("Z")
    printed = " ".join([message, *(f"{name}={value}" for name, value in fields.items() if name not in _ENVELOPE)])
    return time_of(stamp), _row(str(flat.get("level", "")), str(flat.get("target", "")), place, message, fields, printed)


_ENVELOPE = frozenset({"timestamp", "level", "target", "filename", "line_number", "name", "threadName", "threadId"})


def _mappings(value: Any) -> list[dict[str, Any]]:
    """One mapping or a list of them, as a list."""
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)]


def _split(text: str) -> tuple[str, str]:
    """The message and the fields printed after it."""
    first = re.search(r"(?:^| )\w+=", text)
    return (text[: first.start()], text[first.start() :].strip()) if first else (text, "")


def _fields(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in re.split(r"\b\w+\{|\}:\s?", text) if "{" in text and "}:" in text else [text]:
        found |= {name: value.rstrip(",").strip('"') for name, value in _FIELD.findall(part)}
    return found


def _row(level: str, target: str, place: str | None, message: str, fields: Mapping[str, str], text: str) -> dict[str, Any]:
    request = _request_of(fields)
    worker = next((fields[name] for name in ("worker_url", "worker", "url") if name in fields), None) or _worker_in(text)
    return {
        "level": _LEVELS.get(level, "unknown"),
        "target": target or None,
        "place": place,
        "event": _event_of(message),
        "worker_url": worker,
        "error": fields.get("error"),
        "text": text[:NOTICE_CHARS],
        **request,
    }


def _request_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """What the line says of the request it belongs to."""
    status = re.match(r"\d{3}(?!\d)", fields.get("status_code") or fields.get("status") or "")
    latency = _LATENCY.fullmatch(fields.get("latency") or "")
    return {
        "method": fields.get("method"),
        "path": fields.get("uri") or fields.get("route"),
        "request_id": fields.get("request_id"),
        "status": int(status[0]) if status else None,
        "latency_ms": float(latency["number"]) * _MILLISECONDS[latency["unit"]] if latency else None,
    }


def _worker_in(text: str) -> str | None:
    """The worker that a text names, where it names just one."""
    found = set(_WORKER.findall(text))
    return found.pop() if len(found) == 1 else None


@cache
def _events() -> tuple[tuple[str, str], ...]:
    return tuple((literal, name) for name, literals in packs.tables("router.toml")["event"].items() for literal in literals)


def _event_of(message: str) -> str | None:
    return next((name for literal, name in _events() if literal in message), None)
