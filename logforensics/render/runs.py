"""The facts of a run as a few labelled lines. Every key is optional: a log that broke off early has few."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import PurePath
from typing import Any

from logforensics import lazy_re
from logforensics.render.words import cut, number, stage_name

_LEDGER = (
    ("free_before_load_gib", "{} GiB free"),
    ("weights_gib", "− {} weights"),
    ("kv_gib", "− {} KV"),
    ("graphs_gib", "− {} graphs"),
    ("left_gib", "→ {} GiB left"),
)
_RANKS_SHOWN = 4
_STARTS_SHOWN = 5
_NUMBER = lazy_re.compile(r"\d+")
_TP = lazy_re.compile(r"TP(\d+)")
_ROLES = ("first", "same error", "consequence", "no error", "silent")
_ERROR_CHARS = 120

Row = tuple[str, str]


def run_rows(run: Mapping[str, Any], *, verbose: bool = False) -> list[Row]:
    """Label and text of what is known of the run; ``verbose`` adds how the release was told and every rank."""
    rows: list[Row] = []
    rows += _row("SGLang", _version(run, verbose=verbose))
    rows += _row("model", run.get("model_path") or run.get("model"))
    rows += _row("layout", _layout(run))
    names = _file_names(run)
    rows += _listed("files", _members(run.get("members") or (), names))
    rows += _listed("earlier", _earlier(run, verbose=verbose))
    rows += _listed("stages", [_stage(stage, names) for stage in run.get("stages") or ()])
    rows += _listed("ranks", _timeline(run.get("timeline") or (), names))
    rows += _row("loading", _loading(run.get("load") or (), names))
    memory = run.get("memory") or {}
    ledgers = _grouped(memory.get("gpu") or ())
    rows += _listed("GPU memory", ledgers if verbose else _ends(ledgers))
    rows += _row("host memory", _host(memory.get("host") or {}))
    rows += _listed("plan", _plan(run.get("plan") or {}))
    rows += _listed("limits", _distinct(_limits(limit) for limit in run.get("limits") or ()))
    rows += _listed("serving", _serving(run.get("serving") or {}, verbose=verbose))
    return rows + _row("KV prediction", _prediction(run.get("kv_prediction") or {}))


def _row(label: str, text: object) -> list[Row]:
    return [(label, str(text))] if text else []


def _listed(label: str, texts: Sequence[str]) -> list[Row]:
    return [(label if place == 0 else "", text) for place, text in enumerate(texts)]


def _ends(texts: Sequence[str]) -> Sequence[str]:
    return texts if len(texts) <= _RANKS_SHOWN else [*texts[: _RANKS_SHOWN - 1], f"… and {len(texts) - _RANKS_SHOWN + 1} more"]


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(text for text in texts if text))


def _version(run: Mapping[str, Any], *, verbose: bool) -> str | None:
    known = dict.fromkeys(str(run[key]) for key in ("version_low", "version_high") if run.get(key))
    basis = f" ({run['version_basis']})" if verbose and run.get("version_basis") else ""
    return " to ".join(known) + basis if known else None


def _layout(run: Mapping[str, Any]) -> str | None:
    sizes = run.get("layout") or {}
    parts = [
        f"{key.removesuffix('_size').upper()} {size}" for key, size in sizes.items() if key != "nnodes" and (size > 1 or key == "tp_size")
    ]
    if run.get("dp_attention"):
        parts.append("DP attention")
    if sizes.get("nnodes", 1) > 1:
        parts.append(f"{sizes['nnodes']} nodes")
    if run.get("ranks_per_host"):
        parts.append(f"{run['ranks_per_host']} scheduler process{'es' if run['ranks_per_host'] != 1 else ''} on a host")
    return ", ".join(parts) or None


def _file_names(run: Mapping[str, Any]) -> dict[str, str]:
    """The names of the run's files without their folders, where there are several."""
    sources = [str(member.get("source", "")) for member in run.get("members") or ()]
    names = [PurePath(source).name or source for source in sources]
    return dict(zip(sources, names if len(set(names)) == len(names) else sources, strict=True)) if len(sources) > 1 else {}


def _members(members: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[str]:
    """The files of a run: node, ranks, clock."""
    return [_member(member, names) for member in members] if names else []


def _member(member: Mapping[str, Any], names: Mapping[str, str]) -> str:
    parts = [f"node {member['node']}"] if member.get("node") is not None else []
    parts += [_numbers([str(rank) for rank in member.get("ranks") or ()])] if member.get("ranks") else []
    parts += [str(member["role"])] if member.get("role") != "server" or not parts else []
    clock = member.get("clock") or {}
    if clock.get("corrected_by_s"):
        parts.append(f"clock {clock['corrected_by_s']:+,.0f} s, taken off the times here")
    elif clock.get("basis") == "unknown" and member.get("ranks"):
        parts.append("clock not known")
    return f"{names[str(member['source'])]}: {', '.join(parts)}"


def _earlier(run: Mapping[str, Any], *, verbose: bool) -> list[str]:
    """The starts before this one, the latest last; with many of them only the latest."""
    starts = run.get("earlier_starts") or ()
    shown = starts if verbose else starts[-_STARTS_SHOWN:]
    files = {str(start.get("source")) for start in starts} | {str(member.get("source")) for member in run.get("members") or ()}
    left = [f"… {len(starts) - len(shown)} more before these"] if len(shown) < len(starts) else []
    return left + [_start(start, named=len(files) > 1) for start in shown]


def _start(start: Mapping[str, Any], *, named: bool) -> str:
    file = f"{PurePath(str(start.get('source'))).name} " if named else ""
    until = f"–{start['last_line']}" if start.get("last_line") else " on"
    where = f"{file}start {start.get('start')} of {start.get('of')} (lines {start.get('line')}{until})"
    if start.get("ended") is None:
        return f"{where}: not looked into"
    stage = str(start.get("stage") or "")
    came = "it served" if start.get("served") else f"it came to: {stage_name(stage)}"
    told = f"; {start['code']} {start['title']}" if start.get("code") else ""
    how = {"failed": "failed", "stopped": "stopped from outside"}.get(str(start["ended"]), "ended without an error")
    return f"{where}: {how}, {came}{cut(told, _ERROR_CHARS)}"


def _stage(stage: Mapping[str, Any], names: Mapping[str, str]) -> str:
    time = stage.get("time")
    clock = f"{time:%H:%M:%S}  " if isinstance(time, datetime) else ""
    name = str(stage.get("stage", ""))
    first, last, ranks = stage.get("line"), stage.get("last_line"), stage.get("ranks") or 1
    where = f"line {first}" if first == last or last is None else f"lines {first}–{last}"
    if names:
        begin, end = (
            f"{names.get(str(stage.get(key)), stage.get(key))}:{line}" for key, line in (("source", first), ("last_source", last))
        )
        where = begin if begin == end else f"{begin} – {end}"
    return f"{clock}{stage_name(name)}{f' on {ranks} ranks' if ranks > 1 else ''} ({where})"


def _timeline(ranks: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> list[str]:
    """What each rank reached and what went wrong on it, first errors first, ranks that say the same in one line."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for rank in sorted(
        ranks, key=lambda row: (_ROLES.index(row["role"]) if row.get("role") in _ROLES else len(_ROLES), row.get("error_line") or 0)
    ):
        groups.setdefault(_told(rank), []).append(rank)
    return [f"{_names([str(rank.get('rank', '')) for rank in found])}: {text}{_lines(found, names)}" for text, found in groups.items()]


def _told(rank: Mapping[str, Any]) -> str:
    role, stage = str(rank.get("role", "")), str(rank.get("stage") or "")
    if role == "silent":
        return "silent: expected, but not in this log"
    reached = f", reached: {stage_name(stage)}" if stage else ""
    if not rank.get("error"):
        return role + reached
    time = rank.get("error_time")
    clock = f" at {time:%H:%M:%S}" if isinstance(time, datetime) else ""
    return f"{'first error' if role == 'first' else role}{clock}{reached}: {cut(str(rank['error']), _ERROR_CHARS)}"


def _lines(ranks: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> str:
    numbers = [
        f"{names[rank['source']]}:{rank['error_line']}" if names else str(rank["error_line"]) for rank in ranks if rank.get("error_line")
    ]
    if names and numbers:
        return f" ({', '.join(numbers[:_RANKS_SHOWN])}{', …' if len(numbers) > _RANKS_SHOWN else ''})"
    return (
        f" (line{'s' if len(numbers) > 1 else ''} {', '.join(numbers[:_RANKS_SHOWN])}{', …' if len(numbers) > _RANKS_SHOWN else ''})"
        if numbers
        else ""
    )


def _loading(bars: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> str | None:
    if not bars:
        return None
    bar = bars[-1]
    text = f"{bar.get('shards_done')} of {bar.get('shards_total')} shards"
    if bar.get("elapsed_s"):
        text += f" in {number(bar['elapsed_s'])} s"
    if bar.get("rate_per_s"):
        text += f", {number(round(bar['rate_per_s'], 2))} shards/s"
    where = f"{names[bar['source']]}:{bar.get('line')}" if bar.get("source") in names else f"line {bar.get('line')}"
    return f"{text} ({where})"


def _grouped(ledgers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ledgers, ranks with the same figures in one line."""
    groups: dict[str, list[str]] = {}
    for ledger in ledgers:
        text = " ".join(form.format(f"{ledger[key]:.2f}") for key, form in _LEDGER if isinstance(ledger.get(key), (int, float)))
        if text:
            groups.setdefault(text, []).append(str(ledger.get("rank", "")))
    return [f"{_names(ranks)}: {text}" for text, ranks in groups.items()]


def _names(ranks: Sequence[str]) -> str:
    """Ranks with consecutive numbers as one span: ``TP0 … TP5, TP7``; what lies between is never claimed."""
    spans: list[list[str]] = []
    for rank in ranks:
        if spans and _follows(spans[-1][-1], rank):
            spans[-1].append(rank)
        else:
            spans.append([rank])
    return ", ".join(f"{span[0]} … {span[-1]}" if len(span) > 2 else ", ".join(span) for span in spans)


def _numbers(ranks: Sequence[str]) -> str:
    """Ranks by their TP number alone: a rank writes some lines with all its tags and some with few."""
    numbers = sorted({int(found[1]) for rank in ranks if (found := _TP.search(rank))})
    return _names([f"TP{number}" for number in numbers]) if numbers and not any("PP" in rank for rank in ranks) else _names(ranks)


def _follows(before: str, after: str) -> bool:
    """Whether two labels differ by one in a number and in nothing else but numbers: ``DP1 TP3`` and ``DP1 TP4``."""
    one, two = _NUMBER.findall(before), _NUMBER.findall(after)
    steps = {int(b) - int(a) for a, b in zip(one, two, strict=False)}
    return len(one) == len(two) > 0 and _NUMBER.sub("", before) == _NUMBER.sub("", after) and steps <= {0, 1} and 1 in steps


def _plan(plan: Mapping[str, Any]) -> list[str]:
    """What preflight predicts of one GPU, in GiB: likeliest value, and the bounds in brackets."""
    words = (
        ("free_before_load_gib", "{} GiB free before loading"),
        ("weights_gib", "{} GiB of weights"),
        ("kv_and_states_gib", "{} GiB for KV"),
        ("kv_tokens", "{} KV tokens"),
    )
    found = [form.format(_between(plan[key])) for key, form in words if isinstance(plan.get(key), Mapping)]
    if plan.get("outside_gib") is not None:
        wanted = sum(float(item.get("gib") or 0) for item in plan.get("wanted_outside") or ())
        found.append(f"{plan['outside_gib']:.1f} GiB beside the static share, about {wanted:.1f} wanted there")
    return found


def _between(span: Mapping[str, float]) -> str:
    return (
        f"{span['mid']:,.0f} ({span['low']:,.0f} … {span['high']:,.0f})"
        if span["mid"] >= 100
        else f"{span['mid']:.1f} ({span['low']:.1f} … {span['high']:.1f})"
    )


def _host(host: Mapping[str, Any]) -> str | None:
    pools = host.get("pools") or ()
    if not pools:
        return None
    sizes: dict[tuple[str, float], int] = {}
    for pool in pools:
        key = (str(pool.get("label")), float(pool.get("gb") or 0))
        sizes[key] = sizes.get(key, 0) + 1
    parts = [f"{count} × {number(gb)} GB {label}" for (label, gb), count in sizes.items()]
    hosts = host.get("hosts") or ()
    if len(hosts) > 1:
        each = "; ".join(f"{number(one['total_gb'])} GB on node {one['node']}" for one in hosts)
        return f"{' + '.join(parts)}: {each}"
    return f"{' + '.join(parts)} = {number(host.get('total_gb'))} GB"


def _limits(limit: Mapping[str, Any]) -> str:
    words = (
        ("max_total_num_tokens", "{} KV tokens"),
        ("max_running_requests", "{} running requests"),
        ("chunked_prefill_size", "prefill chunks of {} tokens"),
        ("context_len", "context {}"),
    )
    return ", ".join(form.format(number(limit[key])) for key, form in words if limit.get(key) is not None)


def _serving(serving: Mapping[str, Any], *, verbose: bool) -> list[str]:
    windows = serving.get("windows") or ()
    texts = [_window(window, named=len(windows) > 1) for window in windows]
    prefill = serving.get("prefill")
    if prefill:
        seen = prefill["new_token"] + prefill["cached_token"]
        cached = f", {prefill['cached_token'] / seen:.0%} of them from the prefix cache" if seen else ""
        texts.append(f"{number(prefill['lines'])} prefill batches, {number(seen)} prompt tokens{cached}")
    if serving.get("retraction_events"):
        texts.append(f"{number(serving['retraction_events'])} retractions")
    return texts if verbose else list(_ends(texts))


def _window(window: Mapping[str, Any], *, named: bool) -> str:
    name = f"{window['rank']}: " if named else ""
    return (
        f"{name}{_whole(window['throughput_mean'])} token/s on average, {_whole(window['throughput_peak'])} at best; "
        f"{_whole(window['running_median'])} running and {_whole(window['queue_median'])} waiting (medians), "
        f"KV usage {window['usage_median']:.2f}; {number(window['lines'])} decode lines over {_whole(window['seconds'])} s"
    )


def _whole(value: float | None) -> str:
    """A figure without decimals; a log may print ``nan``."""
    return "–" if value is None or not math.isfinite(value) else number(round(value))


def _prediction(prediction: Mapping[str, Any]) -> str | None:
    if prediction.get("tokens") is None or prediction.get("logged") is None:
        return None
    error = prediction.get("relative_error")
    off = f" ({error:+.2%})" if isinstance(error, (int, float)) else ""
    return f"{number(prediction['tokens'])} tokens predicted, {number(prediction['logged'])} logged{off}"
