"""What another setting would have given: KV tokens, requests that fit, memory left on the GPU and on the host, one row per lever.

Anchored at what the log printed: the memory model gives the ratio between two settings, the log the absolute figure.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from logforensics.command import read_command
from logforensics.engine import make_case
from logforensics.errors import InputError
from logforensics.hardware import Hardware
from logforensics.parsing import ParsedLog, parse
from logforensics.records import record
from logforensics.rules.hostbudget import HostBudget, host_budget, safe_size
from logforensics.rules.performance import cell_bytes
from logforensics.run import Capacity, build_run
from logforensics.sglang import flags
from logforensics.sglang.device import request_table_bytes, request_table_rows
from logforensics.sglang.host_size import TierRow, host_tier_table
from logforensics.sglang.prediction import predict_kv_tokens
from logforensics.sglang.sharding import sharding
from logforensics.units import GB, GIB, gb

if TYPE_CHECKING:
    from logforensics.rules import Case

_COMFORTABLE_GIB = 4.0
_TIGHT_GIB = 1.0


@record(frozen=True)
class Outcome:
    """What a setting gives, per scheduler; None where the log and the model do not tell.

    Attributes:
        change: the flags that differ, as they are typed; empty for the run as it was.
        kv_tokens: KV tokens of one scheduler.
        kv_tokens_in_all: KV tokens over all schedulers (DP groups).
        requests: requests that fit at the size they had in the log, limited by the request cap; over all schedulers.
        left_gib: GPU memory left after start, GiB, on the rank with the least.
        host_gb: host memory pinned in all, GB.
        risk: what may go wrong, and what the change does not give.
    """

    change: str
    kv_tokens: int | None
    kv_tokens_in_all: int | None
    requests: int | None
    left_gib: float | None
    host_gb: float | None
    risk: str


@record(frozen=True)
class WhatIf:
    """The run as it was, each change alone, and all changes together where there are several.

    ``host_tier`` has a row for each size of the HiCache pool worth considering, where HiCache is on in one of them.
    """

    now: Outcome
    rows: tuple[Outcome, ...]
    notes: tuple[str, ...]
    host_tier: tuple[TierRow, ...] = ()


@record(frozen=True)
class _Base:
    """The run that the levers start from."""

    case: Case
    capacity: Capacity
    before_gib: float
    after_gib: float
    cell: float
    per_request: float | None


def whatif(
    log: ParsedLog | str | os.PathLike[str],
    changes: str | Iterable[str] = (),
    *,
    hardware: Hardware | None = None,
    launch_command: str | None = None,
    version: str | None = None,
    model_config: str | os.PathLike[str] | None = None,
) -> WhatIf:
    """Compute what each changed flag would give.

    Args:
        log: a path or a parsed log that has the lines of a whole start.
        changes: server flags with values, ``--mem-fraction-static 0.9``; without any, the usual levers are shown.
        hardware: host RAM and GPU memory in bytes, where known.
        launch_command: the launch command, where the log lacks server_args.
        version: the SGLang release, where known.
        model_config: a Hugging Face ``config.json``, for a model that is not known by name.

    Raises:
        InputError: the log lacks the lines that the arithmetic needs, or a flag is none that it can compute.
        CommandError: the flags cannot be read.
    """
    parsed = log if isinstance(log, ParsedLog) else parse(log)
    parsed.require_sglang()
    case = make_case(build_run(parsed), hardware=hardware, launch_command=launch_command, version=version, model_config=model_config)
    base = _base(case)
    words = shlex.split(changes) if isinstance(changes, str) else list(changes)
    wanted = [_fields(case, words)] if words else _usual(base)
    rows = (
        [_outcome(base, {name: value}) for fields in wanted for name, value in fields.items()]
        if words
        else [_outcome(base, f) for f in wanted]
    )
    if words and len(wanted[0]) > 1:
        rows.append(_outcome(base, wanted[0]))
    return WhatIf(_outcome(base, {}), tuple(rows), _notes(base), _host_tier(base, [{}, *wanted]))


def _base(case: Case) -> _Base:
    before, after = case.run.lowest("load_begin"), case.run.lowest("load_end", last=True)
    cell = cell_bytes(case)
    if not case.run.capacities or before is None or after is None or cell is None or not before.avail_gib or after.avail_gib is None:
        raise InputError(
            "whatif needs a log of a whole start: the lines `Load weight begin/end. avail mem=`, `KV Cache is allocated` and "
            "`max_total_num_tokens=`"
        )
    capacity = min(case.run.capacities, key=lambda item: item.max_total_num_tokens)
    window = max(case.run.serving.windows, key=lambda item: item.running_median, default=None)
    held = window.num_tokens_max / window.running_median if window and window.num_tokens_max and window.running_median else None
    return _Base(case, capacity, before.avail_gib, after.avail_gib, cell[0], held)


def _fields(case: Case, words: list[str]) -> dict[str, Any]:
    """The changed server_args fields.

    Raises:
        InputError: a flag is unknown to the release, or its effect cannot be computed.
    """
    command = read_command(shlex.join(["python", "-m", "sglang.launch_server", *words]), case.release.high)
    fields: dict[str, Any] = {}
    for name, value in command.flags.items():
        flag = flags.find_flag(name, case.release.high)
        if flag is None:
            raise InputError(f"{name} is no flag of SGLang {case.release.text}")
        if flag.field not in _LEVERS:
            can = ", ".join(sorted(known.name for field in _LEVERS if (known := flags.flag_by_field(field)) is not None and known.name))
            raise InputError(f"what {name} gives cannot be computed; these can: {can}")
        fields[flag.field] = value
    return fields


def _usual(base: _Base) -> list[dict[str, Any]]:
    """The levers people reach for, as far as they apply."""
    now = base.case.config.number("mem_fraction_static")
    left = base.capacity.avail_gib
    levers: list[dict[str, Any]] = []
    if now is not None:
        room = 0.05 if left is None else max(0.01, (left - _COMFORTABLE_GIB) / base.before_gib)
        levers.append({"mem_fraction_static": round(min(0.95, now + room), 2)})
    if "fp8" not in str(base.case.config.get("kv_cache_dtype", "auto")):
        levers.append({"kv_cache_dtype": "fp8_e4m3"})
    tp = base.case.config.size("tp_size")
    if tp > 1 and not base.case.dp_attention and any(pool.kind == "mla" for pool in base.case.run.kv_pools):
        levers.append({"enable_dp_attention": True, "dp_size": tp})
    levers.append({"tp_size": tp * 2})
    if base.capacity.context_len:
        levers.append({"context_length": base.capacity.context_len // 2})
    return levers


# ---------------------------------------------------------------------------------------------------------------- one setting


def _outcome(base: _Base, fields: Mapping[str, Any]) -> Outcome:
    args = {**base.case.config.fields, **fields}
    tokens = _tokens(base, args, fields)
    groups = sharding(args).attention_dp if fields else sharding(base.case.config.fields).attention_dp
    left = _left(base, args, tokens)
    host = _host(base, args, tokens)
    return Outcome(
        change=_typed(fields, base.case.release.high),
        kv_tokens=tokens,
        kv_tokens_in_all=None if tokens is None else tokens * groups,
        requests=_requests(base, args, tokens, groups),
        left_gib=None if left is None else round(left, 2),
        host_gb=None if host is None else round(host.total / GB, 2),
        risk=_risk(base, fields, left, host),
    )


def _typed(fields: Mapping[str, Any], release: str) -> str:
    words = []
    for name, value in fields.items():
        spelling = flags.spelling_for(name, release) or "--" + name.replace("_", "-")
        words.append(spelling if value is True else f"{spelling} {value}")
    return " ".join(words)


def _tokens(base: _Base, args: Mapping[str, Any], fields: Mapping[str, Any]) -> int | None:
    """KV tokens: the logged ones times what the memory model says the setting changes."""
    logged = base.capacity.max_total_num_tokens
    if not fields:
        return logged
    case = base.case
    span = (case.release.low, case.release.high)
    after = _after_load(base, args)
    was = predict_kv_tokens(case.config.fields, case.model, base.before_gib, base.after_gib, base.cell, *span)
    then = predict_kv_tokens(args, case.model, base.before_gib, after, None if case.model else _cell_then(base, args), *span)
    if was is None or then is None or was.tokens <= 0:
        return None
    return max(0, int(logged * then.tokens / was.tokens))


def _after_load(base: _Base, args: Mapping[str, Any]) -> float:
    """Free memory after loading at another parallel size: the weights of a rank shrink with TP × PP. GiB."""
    was, then = sharding(base.case.config.fields), sharding(args)
    weights = base.before_gib - base.after_gib
    return base.before_gib - weights * (was.tp * was.pp) / (then.tp * then.pp)


def _cell_then(base: _Base, args: Mapping[str, Any]) -> float | None:
    """Bytes per token for a model that is not known: only the KV dtype can be taken into account."""
    was, then = str(base.case.config.get("kv_cache_dtype", "auto")), str(args.get("kv_cache_dtype") or "auto")
    if was == then:
        return base.cell
    return base.cell / 2 if "fp8" in then and "fp8" not in was else None


def _left(base: _Base, args: Mapping[str, Any], tokens: int | None) -> float | None:
    """GPU memory left after start: what was left, less what the static share and the request table take more. GiB."""
    left = base.capacity.avail_gib
    was, then = base.case.config.number("mem_fraction_static"), args.get("mem_fraction_static")
    if left is None or was is None or not isinstance(then, (int, float)) or tokens is None:
        return left if tokens is not None else None
    more_static = (then - was) * base.before_gib
    return (
        left - more_static - (_table(base, args, tokens) - _table(base, base.case.config.fields, base.capacity.max_total_num_tokens)) / GIB
    )


def _table(base: _Base, args: Mapping[str, Any], tokens: int) -> int:
    """Bytes of the request table."""
    context = int(args.get("context_length") or base.capacity.context_len or 0)
    if not context:
        return 0
    limit = args.get("max_running_requests")
    return request_table_bytes(request_table_rows(tokens, context, int(limit) if limit else None), context)


def _requests(base: _Base, args: Mapping[str, Any], tokens: int | None, groups: int) -> int | None:
    if tokens is None or base.per_request is None:
        return None
    fit = int(tokens / base.per_request) * groups
    limit = args.get("max_running_requests") or (base.capacity.max_running_requests or 0) * groups
    return min(fit, int(limit)) if limit else fit


def _host(base: _Base, args: Mapping[str, Any], tokens: int | None) -> HostBudget | None:
    """Host memory of the HiCache pools under the changed flags."""
    from dataclasses import replace

    if not args.get("enable_hierarchical_cache") or tokens is None:
        return None
    changed = args.get("hicache_size") != base.case.config.get("hicache_size") or args.get("hicache_ratio") != base.case.config.get(
        "hicache_ratio"
    )
    run = replace(base.case.run, host_pools=()) if changed else base.case.run
    return host_budget(replace(base.case, run=run, config=replace(base.case.config, fields=args)))


def _host_tier(base: _Base, settings: Iterable[Mapping[str, Any]]) -> tuple[TierRow, ...]:
    """What each size of the host tier gives: the sizes asked for, half and twice of them, and the largest that the host can give.

    Nothing where HiCache is off, and nothing where a rank has pools beside the KV pool, which the size does not tell.
    """
    asked = {**base.case.config.fields, **{name: value for fields in settings for name, value in fields.items()}}
    budgets = [_host(base, {**base.case.config.fields, **fields}, base.capacity.max_total_num_tokens) for fields in settings]
    known = [budget for budget in budgets if budget is not None]
    if not known or any(budget.side_share or (budget.steps[:-1] and budget.sized_by == "hicache_size") for budget in known):
        return ()
    sizes = {round(budget.each / GB, 1) for budget in known}
    sizes |= {round(size * factor, 1) for size in sizes for factor in (0.5, 2)}
    room, ram = None, base.case.hardware.host_ram_bytes
    if ram is not None:
        safe = safe_size(base.case, known[-1], ram)
        room = next((round(float(term.value) * GB) for term in safe.terms if term.name == "for all host pools"), None)
        sizes |= {float(safe.gb)} if safe.gb else set()
    return host_tier_table(
        sorted(sizes),
        known[-1].processes,
        round(base.cell),
        base.capacity.max_total_num_tokens,
        write_policy=str(asked.get("hicache_write_policy") or "write_through"),
        budget_bytes=room,
    )


def _risk(base: _Base, fields: Mapping[str, Any], left: float | None, host: HostBudget | None) -> str:
    said = [text for name in fields if (text := _LEVERS[name](base, fields))]
    if fields and left is not None and left < _TIGHT_GIB:
        said.append(f"only {left:.1f} GiB stay free on the GPU: a long prefill may run out")
    elif fields and left is not None and left < _COMFORTABLE_GIB:
        said.append(f"{left:.1f} GiB stay free on the GPU; SGLang's tuning page asks for 5 to 8")
    ram = base.case.hardware.host_ram_bytes
    if host is not None and ram is not None and host.total > ram:
        said.append(f"{gb(host.total)} of host memory are asked for, the host has {gb(ram)}")
    return "; ".join(dict.fromkeys(said))


def _more_gpus(base: _Base, fields: Mapping[str, Any]) -> str:
    was, then = sharding(base.case.config.fields), sharding({**base.case.config.fields, **fields})
    more = then.tp * then.pp - was.tp * was.pp
    return f"needs {more} more GPUs" if more > 0 else "each rank holds more of the weights" if more < 0 else ""


def _says(text: str) -> Callable[[_Base, Mapping[str, Any]], str]:
    return lambda _base, _fields: text


# server_args field -> what to say of changing it, beside the figures
_LEVERS: dict[str, Callable[[_Base, Mapping[str, Any]], str]] = {
    "mem_fraction_static": _says(""),
    "kv_cache_dtype": _says("check the quality of the answers"),
    "max_running_requests": _says("a limit: it adds no KV tokens"),
    "max_total_tokens": _says("a cap: a value above what fits is ignored"),
    "context_length": _says("longer requests are refused; changes the request table, not the KV pool"),
    "tp_size": _more_gpus,
    "pp_size": _more_gpus,
    "dp_size": _says(""),
    "attn_dp_size": _says(""),
    "enable_dp_attention": _says("every group has its own requests and pool; one may be full while others idle"),
    "page_size": _says(""),
    "enable_hierarchical_cache": _says("extends prefix reuse; running requests need device tokens"),
    "hicache_size": _says("GB per rank; extends prefix reuse, not running requests"),
    "hicache_ratio": _says("per rank; extends prefix reuse, not running requests"),
}


def _notes(base: _Base) -> tuple[str, ...]:
    notes = [f"Anchored at the {base.capacity.max_total_num_tokens:,} tokens of line {base.capacity.mark.line}."]
    if base.per_request is None:
        notes.append("Requests that fit are not given: the log has no decode lines to take their size from.")
    else:
        notes.append(f"Requests are taken to hold {base.per_request:,.0f} KV tokens each, as in the log.")
    if base.case.model is None:
        notes.append("The model is not known by its name: give --model-config for levers that need its architecture.")
    return tuple(notes)
