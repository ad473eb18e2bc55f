"""Host memory before the launch. The rules that read logs decide here too: they get a case whose pools are planned instead of printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from logforensics.findings import Confidence, Severity
from logforensics.planning.forecast import Outlook, forecast
from logforensics.planning.plan import Plan
from logforensics.rules import Case, Config
from logforensics.rules.host import hicache_host_guard, host_overallocation_per_rank
from logforensics.rules.hostbudget import host_budget
from logforensics.rules.registry import Verdict, decrease, increase, step, upgrade
from logforensics.run.model import KvPool, Mark, Rank, Run, Serving
from logforensics.sglang.host_pool import DEFAULT_RATIO, SMALL_POOL, SmallPool
from logforensics.units import GB, GIB, gb

_PLANNED = Mark("the launch command", 1)
_LARGEST_REGISTRATION = 256 * GIB
_FIELDS = ("enable_hierarchical_cache", "hicache_size", "hicache_ratio", "tp_size")


def planned_case(plan: Plan) -> Case:
    """A case without a log: the typed flags, and the pools that the memory model predicts."""
    fields = dict(plan.args)
    if fields.get("enable_hierarchical_cache") and not fields.get("hicache_size") and plan.release.before("0.5.21"):
        fields.setdefault("hicache_ratio", DEFAULT_RATIO)
    return Case(
        _planned_run(_planned_pools(plan)), Config(fields, None, plan.command), plan.release, plan.hardware, plan.command, (), plan.model
    )


def _planned_pools(plan: Plan) -> tuple[KvPool, ...]:
    """The device pools as the log would print them."""
    if plan.tokens is None or plan.kv is None or plan.model is None or plan.tokens.mid <= 0:
        return ()
    tokens, page = int(plan.tokens.mid), int(plan.number("page_size") or 1)
    mirrored = plan.kv.stored if plan.model.layout == "compressed" else plan.kv.full
    kind = "mla" if plan.model.layout in ("latent", "compressed") else "mha"
    pools = [KvPool(Rank(), _PLANNED, tokens, None, None, mirrored * (tokens + page) / GIB, None, kind, None)]
    if plan.model.layers.linear:
        pools.append(KvPool(Rank(), _PLANNED, None, None, None, None, None, "mamba", None))
    if plan.kv.sliding and plan.model.layout == "heads":
        pools.append(KvPool(Rank(), _PLANNED, None, None, None, None, None, "swa", None))
    if plan.kv.index and plan.model.layout == "latent":
        pools.append(KvPool(Rank(), _PLANNED, tokens, None, None, plan.kv.index * (tokens + page) / GIB, None, "dsa_index", None))
    return tuple(pools)


def _planned_run(pools: tuple[KvPool, ...]) -> Run:
    return Run(
        sources=(),
        launches=(),
        launch=None,
        ranks=(),
        ledgers={},
        stages={},
        kv_pools=pools,
        capacities=(),
        host_pools=(),
        refusals=(),
        bars=(),
        failures=(),
        overrides=(),
        notices=(),
        shutdowns=(),
        watchdogs=(),
        serving=Serving((), None, 0, None, None),
        ready=None,
        first_mark=_PLANNED,
        last_mark=_PLANNED,
    )


def _outlook(verdict: Verdict | None) -> Outlook | None:
    if verdict is None:
        return None
    return Outlook(
        verdict.severity,
        verdict.confidence,
        verdict.stage,
        verdict.title,
        verdict.explanation,
        _FIELDS,
        verdict.arithmetic,
        verdict.fix,
        verdict.missing,
    )


def _by_rule(plan: Plan, rule: Callable[[Case], Verdict | None]) -> Outlook | None:
    """A rule's verdict; where it rests on a predicted pool it is only as sure as the prediction."""
    if not plan.layout_known or not plan.args.get("enable_hierarchical_cache") or (plan.gpu is not None and plan.gpu.unified):
        return None
    outlook = _outlook(rule(planned_case(plan)))
    if outlook is None or outlook.severity is not Severity.CRITICAL or plan.number("hicache_size"):
        return outlook
    budget, ram, tokens = host_budget(planned_case(plan)), plan.hardware.host_ram_bytes, plan.tokens
    if budget is None or ram is None or tokens is None or tokens.mid <= 0:
        return outlook
    if budget.total * tokens.low / tokens.mid > ram:
        return replace(outlook, confidence=Confidence.PROBABLE)
    return replace(outlook, severity=Severity.WARNING, confidence=Confidence.POSSIBLE)


@forecast("LF101")
def pools_exceed_host(plan: Plan) -> Outlook | None:
    """Every rank's pool together against the host."""
    return _by_rule(plan, host_overallocation_per_rank)


@forecast("LF102")
def guard_will_refuse(plan: Plan) -> Outlook | None:
    """SGLang's own check from 0.5.19 on."""
    return _by_rule(plan, hicache_host_guard)


@forecast("LF104")
def pool_exceeds_registration(plan: Plan) -> Outlook | None:
    """One registration of more than 256 GiB, which ROCm refused in public reports; 0.5.19+ registers in chunks."""
    if plan.gpu is None or plan.gpu.vendor != "amd" or not plan.args.get("enable_hierarchical_cache") or not plan.release.before("0.5.19"):
        return None
    budget = host_budget(planned_case(plan)) if plan.layout_known else None
    if budget is None or budget.each <= _LARGEST_REGISTRATION:
        return None
    return Outlook(
        Severity.WARNING,
        Confidence.POSSIBLE,
        "hicache",
        f"each rank will register one host buffer of {gb(budget.each)}; ROCm has refused buffers of that size",
        "This release registers the whole pool with one call. From 0.5.19 it is registered in chunks of 256 GiB.",
        _FIELDS,
        budget.steps,
        [
            decrease("--hicache-ratio", None, "× device pool", "a smaller buffer per rank"),
            upgrade("sglang", ">=0.5.19", "registers in chunks"),
        ],
    )


@forecast("LF103")
def host_pool_smaller(plan: Plan) -> Outlook | None:
    """A host pool that holds fewer tokens than the device pool."""
    size = plan.number("hicache_size")
    if not plan.args.get("enable_hierarchical_cache") or not size or plan.kv is None or plan.tokens is None or not plan.kv.stored:
        return None
    held = int(size * GB / plan.kv.stored)
    if held >= plan.tokens.low:
        return None
    refused = plan.release.before("0.5.15") and SMALL_POOL.at(plan.spoken) is SmallPool.REFUSED
    value = int(plan.tokens.mid * plan.kv.stored / GB) + 1
    return Outlook(
        Severity.WARNING,
        Confidence.PROBABLE if held < plan.tokens.mid else Confidence.POSSIBLE,
        "hicache",
        f"the host pool will hold {held:,} tokens, the device pool about {plan.tokens.mid:,.0f}"
        + (": this release refuses that" if refused else ": it adds no reach"),
        "The host tier keeps a copy of what the device holds. With fewer tokens than the device it cannot extend prefix reuse.",
        ["hicache_size"],
        [
            step("host tokens", f"{size:g} GB / {plan.kv.stored:,.0f} B", held, "tokens"),
            step("device tokens", "predicted", int(plan.tokens.mid), "tokens"),
        ],
        [increase("--hicache-size", value, "GB per rank", "holds more tokens than the device pool, if the host has the memory")],
    )
