"""The facts of a case as plain data, for ``run`` of the JSON output and for the summaries of the other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logforensics.run.model import STAGES, BatchWindow, GpuLedger, Mark, Run
from logforensics.run.telling import members_as_json

if TYPE_CHECKING:
    from logforensics.rules import Case


def as_json(case: Case) -> dict[str, Any]:
    """Model, ranks, release, stages with times, memory ledgers, effective limits, serving windows."""
    run = case.run
    return {
        "model": case.config.get("served_model_name") or case.config.get("model_path"),
        "model_path": case.config.get("model_path"),
        "version_low": case.release.low,
        "version_high": case.release.high,
        "version_basis": case.release.basis,
        "launches": [{"line": launch.mark.line, "source": launch.mark.source, "time": launch.mark.time} for launch in run.launches],
        "members": members_as_json(run),
        "ranks": [rank.label for rank in run.ranks],
        "ranks_per_host": case.schedulers_per_host,
        "layout": {name: case.config.size(name) for name in ("tp_size", "dp_size", "pp_size", "ep_size", "nnodes")},
        "dp_attention": case.dp_attention,
        "stage": run.stage,
        "stages": _stages(run),
        "load": _load(run),
        "memory": {"gpu": [_ledger(run, ledger) for ledger in run.ledgers.values()], "host": _host(run)},
        "limits": _limits(case),
        "serving": _serving(run),
        "kv_prediction": _kv_prediction(case),
        "errors": len(run.failures),
        "first": {"source": run.first_mark.source, "line": run.first_mark.line, "time": run.first_mark.time},
        "last": {"source": run.last_mark.source, "line": run.last_mark.line, "time": run.last_mark.time},
    }


def _kv_prediction(case: Case) -> dict[str, Any] | None:
    found = case.kv_prediction
    if found is None:
        return None
    logged, prediction = found
    return {
        "tokens": prediction.tokens,
        "logged": logged,
        "relative_error": round(prediction.relative_error(logged), 6) if logged else None,
        "bound": round(prediction.bound_tokens / logged, 6) if logged else None,
        "uncertain": prediction.uncertain,
        "note": prediction.note,
        "terms": [
            {"name": term.name, "expression": term.expression, "value": term.value, "unit": term.unit, "source": term.source}
            for term in prediction.terms
        ],
    }


def _stages(run: Run) -> list[dict[str, Any]]:
    found = []
    for name in STAGES:
        if (stage := run.stages.get(name)) is not None:
            first, last = stage.first, stage.last
            found.append(
                {
                    "stage": name,
                    "source": first.source,
                    "line": first.line,
                    "time": first.time,
                    "last_source": last.source,
                    "last_line": last.line,
                    "last_time": last.time,
                    "ranks": len(stage.marks),
                }
            )
    return found


def _load(run: Run) -> list[dict[str, Any]]:
    return [
        {
            "kind": bar.kind,
            "source": bar.mark.source,
            "line": bar.mark.line,
            "percent": bar.percent,
            "shards_done": bar.done,
            "shards_total": bar.total,
            "elapsed_s": bar.elapsed_s,
            "rate_per_s": bar.rate_per_s,
        }
        for bar in run.bars
    ]


def _ledger(run: Run, ledger: GpuLedger) -> dict[str, Any]:
    begin, end = ledger.first("load_begin"), ledger.last("load_end")
    pool_end, graph_end = ledger.last("pool_end"), ledger.last("graph_end")
    kv = sum(pool.gib or 0.0 for pool in run.kv_pools if pool.rank == ledger.rank and pool.kind not in ("swa", "upper_bound"))
    graphs = [step.usage_gib for step in ledger.all("graph_end") if step.usage_gib is not None]
    weights = [step.usage_gib for step in ledger.all("load_end") if step.usage_gib is not None]
    capacity = next((item for item in run.capacities if item.rank == ledger.rank and item.avail_gib is not None), None)
    left = capacity.avail_gib if capacity else (graph_end or pool_end or end).avail_gib if (graph_end or pool_end or end) else None  # type: ignore[union-attr]
    return {
        "rank": ledger.rank.label,
        "node": run.node_of.get(ledger.steps[0].mark.source) if ledger.steps else None,
        "free_before_load_gib": begin.avail_gib if begin else None,
        "weights_gib": round(sum(weights), 2) if weights else None,
        "free_after_load_gib": end.avail_gib if end else None,
        "kv_gib": round(kv, 2) if kv else None,
        "free_after_pool_gib": pool_end.avail_gib if pool_end else None,
        "graphs_gib": round(sum(graphs), 2) if graphs else None,
        "left_gib": left,
    }


def _host(run: Run) -> dict[str, Any] | None:
    if not run.host_pools and not run.refusals:
        return None
    return {
        "pools": [
            {"rank": pool.rank.label, "label": pool.label, "gb": pool.gb, "tokens": pool.num_tokens, **_place(pool.mark)}
            for pool in run.host_pools
        ],
        "total_gb": round(sum(pool.gb for pool in run.host_pools), 2),
        "hosts": _by_host(run),
        "refused": [
            {"rank": item.rank.label, "requested_gb": item.requested_gb, "free_gb": item.free_gb, **_place(item.mark)}
            for item in run.refusals
        ],
    }


def _place(mark: Mark) -> dict[str, Any]:
    return {"source": mark.source, "line": mark.line}


def _by_host(run: Run) -> list[dict[str, Any]]:
    """GB of the pools on each machine: the nodes of a run do not share their memory."""
    totals: dict[int | None, float] = {}
    for pool in run.host_pools:
        node = run.node_of.get(pool.mark.source)
        totals[node] = totals.get(node, 0.0) + pool.gb
    return [{"node": node, "total_gb": round(total, 2)} for node, total in sorted(totals.items(), key=lambda item: item[0] or 0)]


def _limits(case: Case) -> list[dict[str, Any]]:
    return [
        {
            "rank": item.rank.label,
            **_place(item.mark),
            "max_total_num_tokens": item.max_total_num_tokens,
            "chunked_prefill_size": item.chunked_prefill_size,
            "max_prefill_tokens": item.max_prefill_tokens,
            "max_running_requests": item.max_running_requests,
            "context_len": item.context_len,
            "available_gpu_mem_gib": item.avail_gib,
        }
        for item in case.run.capacities
    ]


def _serving(run: Run) -> dict[str, Any] | None:
    serving = run.serving
    if not serving.windows and serving.prefill is None:
        return None
    prefill = serving.prefill
    return {
        "throughput_mean": round(serving.throughput_mean, 2),
        "windows": [_window(window) for window in serving.windows],
        "prefill": None
        if prefill is None
        else {
            "lines": prefill.lines,
            "new_token": prefill.new_token,
            "cached_token": prefill.cached_token,
            "largest_new_token": prefill.largest_new_token,
            "queue_max": prefill.queue_max,
        },
        "retraction_events": serving.retraction_events,
    }


def _window(window: BatchWindow) -> dict[str, Any]:
    return {
        "rank": window.rank.label,
        "source": window.first.source,
        "first_line": window.first.line,
        "last_line": window.last.line,
        "lines": window.lines,
        "seconds": window.seconds,
        "throughput_mean": round(window.throughput_mean, 2),
        "throughput_peak": window.throughput_peak,
        "running_median": window.running_median,
        "running_max": window.running_max,
        "queue_median": window.queue_median,
        "queue_max": window.queue_max,
        "usage_median": window.usage_median,
        "usage_max": window.usage_max,
        "accept_len_mean": window.accept_len_mean,
        "graph_off_share": window.graph_off_share,
        "full_share": round(window.full_share, 4),
        "waiting_share": round(window.waiting_share, 4),
    }
