"""The facts of a plan as plain data, for ``run`` of the JSON output and for the summaries of the other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logforensics.planning.outside import demands, running_requests
from logforensics.sglang.host_guard import processes_on_host

if TYPE_CHECKING:
    from logforensics.planning.plan import Plan
    from logforensics.planning.weights import Span


def as_json(plan: Plan) -> dict[str, Any]:
    """Model, release, layout, and the memory stage by stage; what cannot be known is left out."""
    facts: dict[str, Any] = {
        "model": plan.model.id if plan.model else None,
        "model_path": plan.args.get("model_path"),
        "version_low": plan.release.low,
        "version_high": plan.release.high,
        "version_basis": plan.release.basis,
        "gpu": plan.gpu.id if plan.gpu else plan.hardware.gpu,
        "dp_attention": plan.spread.attention_dp > 1,
    }
    if plan.layout_known:
        facts["layout"] = {
            "tp_size": plan.spread.tp,
            "dp_size": max(plan.spread.attention_dp, plan.spread.replicas),
            "pp_size": plan.spread.pp,
            "nnodes": plan.nodes,
        }
        facts["ranks_per_host"] = processes_on_host(plan.args).total
    facts["plan"] = _memory(plan)
    return facts


def _memory(plan: Plan) -> dict[str, Any]:
    """GiB of one GPU through the start, each as low, mid, high."""
    stages: dict[str, Any] = {
        "free_before_load_gib": _span(plan.free_gib),
        "weights_gib": _span(plan.resident_gib),
        "mem_fraction_static": plan.fraction.fraction if plan.fraction else None,
        "fraction_is_automatic": plan.number("mem_fraction_static") is None,
        "kv_and_states_gib": _span(plan.rest_gib),
        "kv_bytes_per_token": plan.kv.sized if plan.kv else None,
        "kv_tokens": _span(plan.tokens, digits=0),
        "max_running_requests": running_requests(plan),
    }
    if plan.outside_gib is not None:
        stages["outside_gib"] = round(plan.outside_gib, 2)
        stages["wanted_outside"] = [
            {"name": term.name, "gib": round(float(term.value), 2), "how": term.expression} for term in demands(plan)
        ]
    return {name: value for name, value in stages.items() if value is not None}


def _span(span: Span | None, digits: int = 2) -> dict[str, float] | None:
    if span is None:
        return None
    return {"low": round(span.low, digits), "mid": round(span.mid, digits), "high": round(span.high, digits)}
