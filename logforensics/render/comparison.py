"""A comparison as text, markdown, HTML or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from logforensics.comparison.model import SCHEMA, Comparison, Difference, EqualLoad, Figure, Interval, Outcome, Pair, Side
from logforensics.render.document import Block, Bullets, Heading, Paragraph, Table, to_html, to_markdown, to_text
from logforensics.render.screen import Detail, Screen
from logforensics.render.words import number
from logforensics.secrets import mask

if TYPE_CHECKING:
    from logforensics.run import Mark

_BADGES = {
    Outcome.BETTER: ("{} IS BETTER", "bold green"),
    Outcome.WORSE: ("{} IS BETTER", "bold green"),
    Outcome.NO_DIFFERENCE: ("NO SIGNIFICANT DIFFERENCE", "bold cyan"),
    Outcome.TRADE_OFF: ("A TRADE", "bold yellow"),
    Outcome.NOT_COMPARABLE: ("NOT COMPARABLE", "bold red"),
    Outcome.UNDECIDED: ("UNDECIDED", "bold cyan"),
}
_HEADINGS = {
    "memory": "GPU memory, the rank with the least",
    "limits": "Effective limits",
    "start": "Start",
    "serving": "Serving",
    "prefill": "Prefill",
    "trouble": "Trouble",
}
_REMARKABLE = 0.0005  # relative changes below are printed as "="
_POINTS_SHOWN = 12
# rows that say nothing where every value is zero
_DULL_AT_ZERO = frozenset({"errors", "retractions", "watchdogs", "queue_median", "queue_max", "waiting_share", "hit_rate", "usage_median"})


def render_comparison(comparison: Comparison, fmt: Literal["text", "json", "md", "html"] = "text", screen: Screen | None = None) -> str:
    """The comparison in one of the formats, ending in a newline."""
    if fmt == "json":
        return json.dumps(comparison_to_dict(comparison), indent=2, allow_nan=False) + "\n"
    if fmt == "md":
        return to_markdown(_blocks(comparison, Detail.VERBOSE))
    if fmt == "html":
        return to_html(list(_blocks(comparison, Detail.VERBOSE)))
    screen = screen or Screen()
    return to_text(_blocks(comparison, screen.detail), screen)


def _blocks(comparison: Comparison, detail: Detail) -> Iterator[Block]:
    for pair in comparison.pairs:
        yield from _verdict(pair, alone=len(comparison.pairs) == 1)
    if detail is Detail.QUIET:
        return
    yield _legend(comparison.sides)
    yield from _differences(comparison, detail)
    rows = [row for row in comparison.figures if _tells(row)]
    if rows:
        yield Heading("Figures")
        yield _table(comparison.sides, rows)
    for pair in comparison.pairs:
        yield from _speed(pair, detail, alone=len(comparison.pairs) == 1)
    if comparison.notes:
        yield Heading("Notes")
        yield Bullets(comparison.notes)


def _verdict(pair: Pair, *, alone: bool) -> Iterator[Block]:
    badge, style = _BADGES[pair.verdict.outcome]
    summary = pair.verdict.summary
    text = summary if alone or pair.candidate in summary.split() else f"{pair.candidate} against {pair.baseline}: {summary}"
    yield Heading(text[:1].upper() + text[1:], 1, badge.format(pair.verdict.better), style)
    if pair.verdict.reasons:
        yield Bullets(pair.verdict.reasons)


def _legend(sides: Sequence[Side]) -> Table:
    rows = []
    for side in sides:
        release = side.release_low or "?"
        if side.release_high and side.release_high != side.release_low:
            release = f"{side.release_low} to {side.release_high}"
        runs = f"{side.members} runs" if side.members > 1 else side.verdict
        rows.append((side.name, side.label, release, runs, f"reached {side.stage.replace('_', ' ')}"))
    return Table(("", "run", "SGLang", "verdict", ""), tuple(rows), left=5)


def _differences(comparison: Comparison, detail: Detail) -> Iterator[Block]:
    moved = [item for item in comparison.differences if item.matters]
    names = tuple(side.name for side in comparison.sides)
    yield Heading("Settings that differ")
    if moved:
        yield Table(("", *names), tuple(_difference(item) for item in moved))
        origins = tuple(text for item in moved for text in _origins(item, names))
        if origins:
            yield Bullets(origins)
    else:
        logged = all(side.settings for side in comparison.sides)
        yield Paragraph("none that is logged" if logged else "not known: not every log holds its server_args")
    rest = [item for item in comparison.differences if not item.matters]
    if rest and detail is Detail.VERBOSE:
        yield Paragraph("and, without a bearing on the figures:", quiet=True)
        yield Table(("", *names), tuple(_difference(item) for item in rest))
    elif rest:
        yield Paragraph(f"and, without a bearing on the figures: {', '.join(item.flag for item in rest)}", quiet=True)


def _difference(item: Difference) -> tuple[str, ...]:
    return (item.flag, *(_setting(value, origin) for value, origin in zip(item.values, item.origins, strict=True)))


def _setting(value: Any, origin: str) -> str:
    if value is None:
        return "none" if origin else "—"
    return value if isinstance(value, str) else json.dumps(value) if isinstance(value, (dict, list)) else str(value)


def _origins(item: Difference, names: Sequence[str]) -> Iterator[str]:
    """Where a value that the log's server_args do not show comes from."""
    for name, origin in zip(names, item.origins, strict=True):
        if origin not in ("", "logged", "batch lines"):
            yield f"{item.flag} of {name}: {origin}"


def _tells(row: Figure) -> bool:
    """Whether a row is worth its line."""
    if row.key == "schedulers":
        return set(row.values) != {1.0}
    return row.key not in _DULL_AT_ZERO or any(row.values)


def _table(sides: Sequence[Side], rows: Sequence[Figure]) -> Table:
    """Figures side by side, each followed by its change against the baseline."""
    header = ["", sides[0].name, *(name for side in sides[1:] for name in (side.name, ""))]
    lines: list[tuple[str, ...]] = []
    section = ""
    for row in rows:
        if row.section != section:
            section = row.section
            lines.append((_HEADINGS[section],))
        cells = [f"{row.label}, {row.unit}" if row.unit else row.label, _figure(row.values[0], row.unit)]
        for value, change in zip(row.values[1:], row.changes[1:], strict=True):
            cells += [_figure(value, row.unit), _change(change)]
        lines.append(tuple(cells))
    return Table(tuple(header), tuple(lines))


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "—"
    if unit in ("GiB", "GB", "×"):
        return f"{value:,.2f}"
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.1f}" if abs(value) >= 20 else number(round(value, 2))


def _change(change: float | None) -> str:
    if change is None:
        return ""
    if abs(change) < _REMARKABLE:
        return "="
    return f"{1 + change:.1f}×" if change >= 1 else f"{100 * change:+.1f} %".replace("-", "−")


def _speed(pair: Pair, detail: Detail, *, alone: bool) -> Iterator[Block]:
    """Decode speed by batch size, and the size of a token."""
    named = "" if alone else f": {pair.candidate} against {pair.baseline}"
    points = sorted(pair.points, key=lambda point: -min(point.lines)) if detail is not Detail.VERBOSE else list(pair.points)
    shown = sorted(points[:_POINTS_SHOWN] if detail is not Detail.VERBOSE else points, key=lambda point: point.running_low)
    if shown:
        yield Heading(f"Decode speed at equal batch size, token/s of one scheduler (medians){named}")
        header = ("running", "lines", "", pair.baseline, pair.candidate, "", "95 % interval")
        yield Table(
            header,
            tuple(
                (
                    str(p.running_low) if p.running_low == p.running_high else f"{p.running_low}–{p.running_high}",
                    str(p.lines[0]),
                    str(p.lines[1]),
                    f"{p.medians[0]:,.1f}",
                    f"{p.medians[1]:,.1f}",
                    _change(p.ratio - 1),
                    _interval(p.interval),
                )
                for p in shown
            ),
        )
        if len(shown) < len(points):
            yield Paragraph(f"and {len(points) - len(shown)} more batch sizes with fewer lines (--verbose)", quiet=True)
    if pair.bytes_per_token is not None:
        yield Heading(f"One token takes {pair.bytes_per_token:,} bytes of KV cache on each rank{named}")
        rows = tuple((step.label, step.expression, f"{number(step.value)} {step.unit}") for step in pair.arithmetic)
        yield Table(("", "", ""), rows, left=3)


def _interval(interval: Interval | None) -> str:
    if interval is None:
        return "too few lines"
    return f"{100 * (interval.low - 1):+.1f} to {100 * (interval.high - 1):+.1f} %".replace("-", "−")


# ---------------------------------------------------------------------------------------------------------- json


def comparison_to_dict(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain JSON values, secrets masked; values stand in the order of ``sides``."""
    return {
        "schema": SCHEMA,
        "baseline": comparison.baseline,
        "by": comparison.by,
        "verdict": _verdict_dict(comparison.pairs[0]),
        "sides": [_side_dict(side) for side in comparison.sides],
        "differences": [
            {
                "flag": item.flag,
                "field": item.field,
                "values": [mask(value) if isinstance(value, str) else value for value in item.values],
                "origins": list(item.origins),
                "matters": item.matters,
            }
            for item in comparison.differences
        ],
        "figures": [_figure_dict(row, comparison.sides) for row in comparison.figures],
        "pairs": [_pair_dict(pair) for pair in comparison.pairs],
        "notes": [mask(note) for note in comparison.notes],
    }


def _side_dict(side: Side) -> dict[str, Any]:
    return {
        "name": side.name,
        "label": mask(side.label),
        "sources": [mask(source) for source in side.sources],
        "runs": side.members,
        "version_low": side.release_low,
        "version_high": side.release_high,
        "verdict": side.verdict,
        "finding": mask(side.finding) if side.finding else None,
        "stage": side.stage,
        "steady_lines": side.samples.height if side.steady else 0,
    }


def _figure_dict(row: Figure, sides: Sequence[Side]) -> dict[str, Any]:
    lines = [_line(mark) if side.members == 1 else None for side, mark in zip(sides, row.marks, strict=True)]
    return {
        "section": row.section,
        "key": row.key,
        "label": row.label,
        "unit": row.unit,
        "values": [_rounded(value) for value in row.values],
        "changes": [_rounded(change) for change in row.changes],
        "lines": lines,
    }


def _line(mark: Mark | None) -> int | None:
    return None if mark is None else mark.line


def _pair_dict(pair: Pair) -> dict[str, Any]:
    prefill = pair.prefill
    return {
        "baseline": pair.baseline,
        "candidate": pair.candidate,
        "verdict": _verdict_dict(pair),
        "equal_load": None if pair.equal_load is None else _load_dict(pair.equal_load),
        "by_running": [
            {
                "running_low": point.running_low,
                "running_high": point.running_high,
                "lines": list(point.lines),
                "medians": [_rounded(value) for value in point.medians],
                "ratio": _rounded(point.ratio),
                "interval": _interval_list(point.interval),
            }
            for point in pair.points
        ],
        "prefill": None
        if prefill is None
        else {
            "lines": list(prefill.lines),
            "medians": [_rounded(value) for value in prefill.medians],
            "ratio": _rounded(prefill.ratio),
            "interval": _interval_list(prefill.interval),
        },
        "bytes_per_token": pair.bytes_per_token,
        "arithmetic": [
            {"label": step.label, "expression": step.expression, "value": step.value, "unit": step.unit} for step in pair.arithmetic
        ],
    }


def _verdict_dict(pair: Pair) -> dict[str, Any]:
    verdict = pair.verdict
    return {
        "outcome": verdict.outcome.value,
        "better": verdict.better,
        "summary": mask(verdict.summary),
        "reasons": [mask(reason) for reason in verdict.reasons],
    }


def _load_dict(load: EqualLoad) -> dict[str, Any]:
    return {
        "matched": load.matched,
        "lines": list(load.lines),
        "running": [_rounded(value) for value in load.running],
        "tokens": [_rounded(value) for value in load.tokens],
        "throughput": [_rounded(value) for value in load.throughput],
        "ratio": _rounded(load.ratio),
        "interval": _interval_list(load.interval),
        "accept_len": [_rounded(value) for value in load.accept],
        "steps_per_s_per_request": [_rounded(value) for value in load.steps],
    }


def _interval_list(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else [_rounded(interval.low), _rounded(interval.high)]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)
