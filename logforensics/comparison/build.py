"""Logs to a :class:`Comparison`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from logforensics import progress
from logforensics.comparison import settings
from logforensics.comparison.capacity import implied_bytes_per_token
from logforensics.comparison.figures import KINDS
from logforensics.comparison.load import equal_load, points, prefill_speed
from logforensics.comparison.meanings import in_one_meaning
from logforensics.comparison.model import Comparison, Figure, Pair, Side
from logforensics.comparison.side import group, labels, read_side
from logforensics.comparison.starts import by_source, by_start
from logforensics.comparison.verdict import judge
from logforensics.errors import InputError
from logforensics.parsing import ParsedLog, parse

Log = ParsedLog | str | os.PathLike[str]
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def compare(*logs: Log | Iterable[Log], baseline: str | None = None, by: str | None = None, context_len: int | None = None) -> Comparison:
    """Put runs side by side and say whether one is better, by how much, and through what.

    Args:
        logs: log files, folders, glob patterns, or parsed logs; one log with several server starts is compared start by start.
        baseline: the run the others are measured against, by its label, path, letter, or with ``by`` its flag's value. Default: the first.
        by: a flag (``--tp-size`` or ``tp_size``) by whose value runs are put together.
        context_len: context length in tokens, for logs that do not print it.

    Raises:
        InputError: fewer than two runs, an unknown baseline, or a flag that no run has.
    """
    parsed = list(_flat(logs))
    sides = _sides(parsed, context_len)
    if by is not None:
        sides = _grouped(sides, by)
    if len(sides) < 2:
        what = f"only one value of {by}" if by else "only one run"
        raise InputError(f"{what} was given ({sides[0].label}): compare needs two; name another log, a folder, or a pattern")
    sides = _named(_baseline_first(sides, baseline))
    progress.now("comparing")
    differences = settings.differences(sides)
    return Comparison(
        sides=tuple(sides),
        baseline=sides[0].name,
        by=by,
        differences=differences,
        figures=_figures(sides),
        pairs=tuple(_pair(sides[0], side) for side in sides[1:]),
        notes=tuple(
            dict.fromkeys(
                [
                    *(f"{side.name}: {note}" for side in sides for note in side.notes),
                    *(note for log in parsed for note in log.side.passed_over),
                ]
            )
        ),
    )


def _flat(logs: Iterable[Log | Iterable[Log]]) -> Iterator[ParsedLog]:
    """Every log by itself; a folder, a pattern and an archive are several."""
    for log in progress.each(list(logs)):
        if isinstance(log, (ParsedLog, str, os.PathLike)):
            yield from by_source(log if isinstance(log, ParsedLog) else parse(log))
        else:
            yield from _flat(log)


def _sides(logs: Sequence[ParsedLog], context_len: int | None) -> list[Side]:
    """One side per log, or per server start of the only log."""
    if not logs:
        raise InputError("no log was given: name two or more, a folder, or a pattern")
    names = labels([", ".join(log.sources) for log in logs])
    if len(logs) == 1 and len(parts := by_start(logs[0])) > 1:
        logs, names = parts, [f"{names[0]} start {number}" for number in range(1, len(parts) + 1)]
    sides = []
    for (log, remarks), name in progress.each(list(zip(in_one_meaning(logs), names, strict=True))):
        side = read_side(log, name, context_len)
        sides.append(replace(side, notes=(*side.notes, *remarks)))
    for log, side in zip(logs, sides, strict=True):
        if not side.figures.keys() - {"errors", "retractions"}:
            log.require_sglang()
    return sides


def _grouped(sides: Sequence[Side], by: str) -> list[Side]:
    """One side per value of a flag; runs without it stand for themselves under ``not set``."""
    field = settings.field_of(by)
    if not any(field in side.settings for side in sides):
        raise InputError(f"no run logs the flag {by}: write it as --tp-size or tp_size; logs without server_args have none")
    values: dict[str, list[Side]] = {}
    for side in sides:
        setting = side.settings.get(field)
        values.setdefault("not set" if setting is None or setting.value is None else str(setting.value), []).append(side)
    return [group(f"{field} = {value}", members) for value, members in values.items()]


def _baseline_first(sides: list[Side], baseline: str | None) -> list[Side]:
    if baseline is None:
        return sides
    for place, side in enumerate(sides):
        known = {
            side.label,
            *side.sources,
            *(Path(source).name for source in side.sources),
            side.label.rpartition(" = ")[2],
            _letter(place),
        }
        if baseline in known:
            return [side, *sides[:place], *sides[place + 1 :]]
    raise InputError(f"--baseline {baseline!r} is none of the runs: {', '.join(side.label for side in sides)}")


def _named(sides: Sequence[Side]) -> list[Side]:
    return [replace(side, name=_letter(place)) for place, side in enumerate(sides)]


def _letter(place: int) -> str:
    """Names of sides: A to Z, then A1 to Z1, and so on."""
    turn, letter = divmod(place, len(_LETTERS))
    return _LETTERS[letter] + (str(turn) if turn else "")


def _figures(sides: Sequence[Side]) -> tuple[Figure, ...]:
    """A row for every figure that at least one log gives."""
    rows = []
    for key, kind in KINDS.items():
        values = tuple(side.value(key) for side in sides)
        if any(value is not None for value in values):
            first = values[0]
            changes = tuple(value / first - 1 if value is not None and first else None for value in values)
            marks = tuple(side.figures[key].mark if key in side.figures else None for side in sides)
            rows.append(Figure(kind.section, key, kind.label, kind.unit, values, changes, marks))
    return tuple(rows)


def _pair(a: Side, b: Side) -> Pair:
    load, prefill = equal_load(a, b), prefill_speed(a, b)
    size, arithmetic = implied_bytes_per_token(a, b)
    verdict = judge(a, b, load, prefill, settings.differences([a, b]))
    return Pair(a.name, b.name, load, points(a, b), prefill, size, arithmetic, verdict)
