"""What was configured against what took effect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from logforensics.render.words import number
from logforensics.reporting.model import Place, Setting
from logforensics.rules import Case
from logforensics.run.model import Mark
from logforensics.secrets import MASK, is_secret
from logforensics.sglang import flags

_BY_LIMIT = {
    "max_total_tokens": ("max_total_num_tokens", "KV tokens"),
    "max_running_requests": ("max_running_requests", "requests"),
    "chunked_prefill_size": ("chunked_prefill_size", "tokens a chunk"),
    "max_prefill_tokens": ("max_prefill_tokens", "tokens a batch"),
    "context_length": ("context_len", "tokens a request"),
}
_UNREMARKABLE = frozenset({"random_seed", "tokenizer_path", "device", "nccl_port"})


def settings_of(case: Case) -> tuple[Setting, ...]:
    """Flags that were typed, that differ from the release's default, that SGLang changed, or whose effect the log shows."""
    effects = dict(_effects(case))
    typed = _typed(case)
    names = [*typed, *effects, *(name for name in case.config.fields if name not in _UNREMARKABLE)]
    rows = (_setting(case, name, typed.get(name, ""), effects.get(name)) for name in dict.fromkeys(names))
    return tuple(row for row in rows if row.typed or row.effect or (row.logged != row.default and row.logged not in ("", "None")))


def _typed(case: Case) -> dict[str, str]:
    if case.command is None:
        return {}
    found = {}
    for name, value in case.command.flags.items():
        flag = flags.find_flag(name, case.release.high)
        found[flag.field if flag else name.lstrip("-").replace("-", "_")] = _shown(name, value)
    return found


def _setting(case: Case, name: str, typed: str, effect: tuple[str, Mark] | None) -> Setting:
    flag = flags.flag_by_field(name)
    launch = case.run.launch
    logged = _shown(name, launch.args[name]) if launch is not None and name in launch.args else ""
    default = flags.default(name, case.release.high)
    mark = effect[1] if effect else launch.mark if launch is not None and logged else None
    return Setting(
        flag=flag.name if flag and flag.name else name,
        typed=typed,
        logged=logged,
        default=_shown(name, default),
        effect=effect[0] if effect else "",
        place=Place(mark.source, mark.line) if mark else None,
    )


def _shown(name: str, value: Any) -> str:
    if is_secret(name) and value not in (None, ""):
        return MASK
    return "on" if value is True else "off" if value is False else str(value)


def _effects(case: Case) -> Iterator[tuple[str, tuple[str, Mark]]]:
    run = case.run
    for item in run.overrides:
        change = f"{item.old} → {item.new}" if item.old is not None else f"SGLang set {item.new}" if item.new is not None else item.text
        yield item.flag, (change, item.mark)
    for field, (column, unit) in _BY_LIMIT.items():
        values = {getattr(item, column) for item in run.capacities} - {None}
        if values:
            text = " / ".join(number(value) for value in sorted(values))
            yield field, (f"{text} {unit}", run.capacities[0].mark)
    if run.host_pools:
        total = sum(pool.gb for pool in run.host_pools)
        sizes = " / ".join(number(gb) for gb in sorted({pool.gb for pool in run.host_pools}))
        yield "hicache_size", (f"{sizes} GB on each of {len(run.host_pools)} pools: {number(total)} GB", run.host_pools[0].mark)
    dtypes = {pool.dtype for pool in run.kv_pools} - {None}
    if dtypes:
        yield "kv_cache_dtype", (", ".join(sorted(str(dtype) for dtype in dtypes)), run.kv_pools[0].mark)
    left = [item for item in run.capacities if item.avail_gib is not None]
    if left:
        least = min(left, key=lambda item: item.avail_gib or 0.0)
        yield "mem_fraction_static", (f"{least.avail_gib} GiB of GPU memory left", least.mark)
