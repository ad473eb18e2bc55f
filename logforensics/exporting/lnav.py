"""A format file for lnav, made from the patterns: time, rank, body, and every figure that the patterns read as a field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from logforensics import lazy_re
from logforensics.parsing import packs
from logforensics.parsing.patterns import Pattern
from logforensics.schema import FRAMES

_PREFIX = r"^\[(?<timestamp>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)(?<ranks>(?: [^\]\[ ]{1,60})*)\] "
_STAMPED = lazy_re.compile(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_NUMBER = r"-?\d+(?:\.\d+)?"
_GROUP = lazy_re.compile(r"\(\?P<(\w+)>")
_FRAMES = ("memory", "kv_pool", "capacity", "host_pool", "host_guard", "retractions")
_KINDS = {"Int32": "integer", "Int64": "integer", "UInt64": "integer", "Float64": "float", "String": "string", "Boolean": "string"}
_SAMPLES = {
    "decode": "[2026-06-01 05:01:00 TP0] Decode batch, #running-req: 8, #token: 3894, token usage: 0.27, cuda graph: True, "
    "gen throughput (token/s): 135.85, #queue-req: 0",
    "prefill": "[2026-06-01 05:01:00 TP0] Prefill batch, #new-seq: 1, #new-token: 2048, #cached-token: 0, token usage: 0.01, "
    "#running-req: 0, #queue-req: 3",
}


def lnav_format() -> str:
    """The format as JSON text: save it as ``sglang.json`` and install it with ``lnav -i sglang.json``.

    Raises:
        PatternError: a pattern pack cannot be read.
    """
    patterns = [pattern for pattern in packs.load_strictly().patterns if pattern.frame in _FRAMES and _columns(pattern)]
    expressions = dict(_batches()) | dict(_events(patterns)) | {"message": {"pattern": _rest(patterns)}}
    samples = [*_SAMPLES.values(), *(sample.line for pattern in patterns for sample in pattern.samples[:1] if _STAMPED.match(sample.line))]
    form = {
        "$schema": "https://lnav.org/schemas/format-v1.schema.json",
        "sglang_log": {
            "title": "SGLang server log",
            "description": "Made by logforensics from its patterns",
            "url": "https://docs.sglang.ai/",
            "regex": expressions,
            "timestamp-format": ["%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S,%f", "%Y-%m-%dT%H:%M:%S"],
            "level-field": "body",
            "level": {"error": r"(?i)\berror\b|exception|Traceback|out of memory", "warning": r"(?i)\bwarning\b|Retract requests"},
            "body-field": "body",
            "value": _values(patterns),
            "sample": [{"line": line} for line in samples],
        },
    }
    return json.dumps(form, indent=2) + "\n"


def _batches() -> Iterator[tuple[str, dict[str, str]]]:
    """The two batch lines, their labels in any order."""
    table = packs.tables("batch.toml")
    for kind, words in (("decode", "Decode batch"), ("prefill", "Prefill batch")):
        labels: dict[str, list[str]] = {}
        for label, column in table[kind]["labels"].items():
            labels.setdefault(column, []).append(f"{label}: ")
        yield kind, {"pattern": f"{_PREFIX}(?<body>{words}{_ahead(labels.items())}.*)$"}


def _events(patterns: Sequence[Pattern]) -> Iterator[tuple[str, dict[str, str]]]:
    """One expression per pattern that reads figures."""
    for number, pattern in enumerate(patterns):
        named = _groups(pattern)
        fields = [(column, labels) for column, labels, _ in pattern.fields if column not in named]
        name = re.sub(r"\W", "_", f"{pattern.event}_{number:03d}")
        # what stands behind the literal may hold a label that begins with it, so the labels are looked for from the start
        yield name, {"pattern": f"{_PREFIX}(?<body>(?={_literals(pattern)}){_own(pattern)}{_ahead(fields)}.*)$"}


def _rest(patterns: Sequence[Pattern]) -> str:
    """Every other line. It must not fit the lines above: lnav tries the expression first that fitted last."""
    taken = "|".join(["(?:Decode|Prefill) batch", *(_literals(pattern) for pattern in patterns)])
    return f"{_PREFIX}(?<body>(?!{taken}).*)$"


def _literals(pattern: Pattern) -> str:
    """What a message begins with or holds."""
    heads, finds = map(re.escape, pattern.heads), (f".*?{re.escape(literal)}" for literal in pattern.finds)
    return "|".join([*heads, *finds])


def _groups(pattern: Pattern) -> frozenset[str]:
    """Columns that the pattern's own expression reads."""
    return frozenset(_GROUP.findall(pattern.regex or ""))


def _own(pattern: Pattern) -> str:
    """The pattern's own expression as an optional look ahead, anywhere in the message or at its beginning."""
    if not _groups(pattern) or not pattern.regex:
        return ""
    expression = pattern.regex.replace("(?P<", "(?<")
    return f"(?:(?={expression[1:]}))?" if expression.startswith("^") else f"(?:(?=.*?(?:{expression})))?"


def _columns(pattern: Pattern) -> set[str]:
    return {*_groups(pattern), *(column for column, _, _ in pattern.fields)}


def _ahead(fields: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Optional figures wherever their labels stand."""
    parts = []
    for column, labels in fields:
        words = "|".join(re.escape(label) for label in labels)
        parts.append(f"(?:(?=.*?(?:{words}) ?(?<{column}>{_NUMBER}|True|False)))?")
    return "".join(parts)


def _values(patterns: Sequence[Pattern]) -> dict[str, dict[str, object]]:
    """Kind and meaning of every field."""
    used = {column for pattern in patterns for column in _columns(pattern)}
    batch = packs.tables("batch.toml")
    used |= {column for kind in ("decode", "prefill") for column in batch[kind]["labels"].values()}
    columns = {column.name: column for frame in ("decode", "prefill", *_FRAMES) for column in FRAMES[frame] if column.name in used}
    values: dict[str, dict[str, object]] = {"ranks": {"kind": "string", "identifier": True}}
    for name, column in columns.items():
        values[name] = {"kind": _KINDS.get(column.dtype, "string"), "description": column.meaning}
    return values
