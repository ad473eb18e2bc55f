"""The figures of one run: each with the line it stands on, where it stands on one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from logforensics.comparison import stated
from logforensics.comparison.model import Measured
from logforensics.comparison.samples import FEW
from logforensics.run import BatchWindow, Mark, Run

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl


class Kind(NamedTuple):
    """A row of the comparison: where it stands, what it is called, in which unit."""

    section: str
    label: str
    unit: str


KINDS: dict[str, Kind] = {
    "free_before_load_gib": Kind("memory", "free before loading", "GiB"),
    "weights_gib": Kind("memory", "weights", "GiB"),
    "free_after_load_gib": Kind("memory", "free after loading", "GiB"),
    "kv_gib": Kind("memory", "KV pool", "GiB"),
    "graphs_gib": Kind("memory", "graphs", "GiB"),
    "left_gib": Kind("memory", "left when ready", "GiB"),
    "host_pool_gb": Kind("memory", "host pools, all ranks", "GB"),
    "kv_tokens": Kind("limits", "KV tokens", ""),
    "full_pool_tokens": Kind("limits", "full-attention pool", "tokens"),
    "swa_pool_tokens": Kind("limits", "sliding-window pool", "tokens"),
    "swa_prefix_tails": Kind("limits", "prefix tails", ""),
    "mamba_slots": Kind("limits", "recurrent-state slots", ""),
    "max_running_requests": Kind("limits", "running requests", ""),
    "chunked_prefill_size": Kind("limits", "prefill chunk", "tokens"),
    "max_prefill_tokens": Kind("limits", "prefill batch", "tokens"),
    "context_len": Kind("limits", "context", "tokens"),
    "kv_over_context": Kind("limits", "KV pool / context", "×"),
    "load_s": Kind("start", "loading weights", "s"),
    "graph_s": Kind("start", "graph capture", "s"),
    "ready_s": Kind("start", "start to ready", "s"),
    "throughput": Kind("serving", "throughput, mean", "token/s"),
    "throughput_scheduler": Kind("serving", "per scheduler, mean", "token/s"),
    "throughput_peak": Kind("serving", "throughput, peak", "token/s"),
    "schedulers": Kind("serving", "schedulers", ""),
    "running_mean": Kind("serving", "running, mean", ""),
    "running_max": Kind("serving", "running, most", ""),
    "queue_median": Kind("serving", "waiting, median", ""),
    "queue_max": Kind("serving", "waiting, most", ""),
    "waiting_share": Kind("serving", "time with a queue", "%"),
    "usage_median": Kind("serving", "KV usage, median", ""),
    "accept_len": Kind("serving", "accepted length", "tokens"),
    "steps_per_s": Kind("serving", "steps/s per request", ""),
    "graph_share": Kind("serving", "decode in graph", "%"),
    "serving_s": Kind("serving", "decode and prefill", "s"),
    "decode_lines": Kind("serving", "decode lines", ""),
    "input_throughput": Kind("prefill", "input, median", "token/s"),
    "hit_rate": Kind("prefill", "prefix hit rate", "%"),
    "prompt_tokens": Kind("prefill", "prompt tokens", ""),
    "pending_max": Kind("prefill", "pending, most", "tokens"),
    "errors": Kind("trouble", "errors", ""),
    "retractions": Kind("trouble", "retractions", ""),
    "watchdogs": Kind("trouble", "watchdogs", ""),
}


def figures(run: Run, samples: pl.DataFrame, chunks: pl.DataFrame, *, fragment: bool) -> dict[str, Measured]:
    """Every figure of :data:`KINDS` that the log gives.

    Args:
        run: the facts.
        samples: decode lines that say something about speed.
        chunks: large prefill batches.
        fragment: the log is an excerpt, so that sums over its schedulers mean nothing.
    """
    found = dict(_memory(run)) | dict(_limits(run)) | dict(_start(run)) | dict(_serving(run, samples, fragment=fragment))
    found |= dict(_prefill(run, chunks)) | dict(_trouble(run))
    for key, measured in stated.figures(run.notices).items():
        found.setdefault(key, measured)
    return found


def with_context(found: Mapping[str, Measured], context_len: int | None) -> dict[str, Measured]:
    """The figures with how many requests of full length the KV pool holds; ``context_len`` counts where the log does not say."""
    whole = dict(found)
    if context_len is not None:
        whole.setdefault("context_len", Measured(float(context_len)))
    if {"kv_tokens", "context_len"} <= whole.keys() and whole["context_len"].value:
        whole["kv_over_context"] = Measured(whole["kv_tokens"].value / whole["context_len"].value)
    return whole


def _memory(run: Run) -> Iterator[tuple[str, Measured]]:
    """The rank with the least free memory: SGLang sizes by it."""
    before = run.lowest("load_begin")
    if before is not None and before.avail_gib is not None:
        yield "free_before_load_gib", Measured(before.avail_gib, before.mark)
    loads = [step for step in run.memory_steps if step.stage == "load_end" and step.usage_gib is not None]
    if loads:
        most = max(loads, key=lambda step: step.usage_gib or 0.0)
        yield "weights_gib", Measured(sum(step.usage_gib or 0.0 for step in loads if step.rank == most.rank), most.mark)
    after = run.lowest("load_end", last=True)
    if after is not None and after.avail_gib is not None:
        yield "free_after_load_gib", Measured(after.avail_gib, after.mark)
    pools = [pool for pool in run.kv_pools if pool.gib is not None and pool.kind not in ("upper_bound", "swa")]
    if pools:
        yield "kv_gib", Measured(sum(pool.gib or 0.0 for pool in pools if pool.rank == pools[0].rank), pools[0].mark)
    graphs = [step for step in run.memory_steps if step.stage == "graph_end" and step.usage_gib is not None]
    if graphs:
        yield "graphs_gib", Measured(sum(step.usage_gib or 0.0 for step in graphs if step.rank == graphs[0].rank), graphs[0].mark)
    left = [(item.avail_gib, item.mark) for item in run.capacities if item.avail_gib is not None]
    step = run.lowest("graph_end", last=True) or run.lowest("pool_end", last=True)
    if step is not None and step.avail_gib is not None:
        left.append((step.avail_gib, step.mark))
    if left:
        yield "left_gib", Measured(*min(left, key=lambda item: item[0]))
    if run.host_pools:
        yield "host_pool_gb", Measured(sum(pool.gb for pool in run.host_pools), run.host_pools[0].mark)


def _limits(run: Run) -> Iterator[tuple[str, Measured]]:
    """Effective limits; of several schedulers the smallest."""
    names = {
        "kv_tokens": "max_total_num_tokens",
        "max_running_requests": "max_running_requests",
        "chunked_prefill_size": "chunked_prefill_size",
        "max_prefill_tokens": "max_prefill_tokens",
        "context_len": "context_len",
    }
    for key, name in names.items():
        known = [(getattr(item, name), item.mark) for item in run.capacities if getattr(item, name) is not None]
        if known:
            value, mark = min(known, key=lambda pair: pair[0])
            yield key, Measured(float(value), mark)
    if not run.capacities:
        capped = [item for item in run.overrides if item.flag == "max_running_requests" and (item.new or "").isdigit()]
        if capped:
            yield "max_running_requests", Measured(float(capped[-1].new or 0), capped[-1].mark)
    for key, kind, name in (("swa_pool_tokens", "swa", "num_tokens"), ("mamba_slots", "mamba", "slots")):
        pools = [pool for pool in run.kv_pools if pool.kind == kind and getattr(pool, name)]
        if pools:
            yield key, Measured(float(getattr(pools[0], name)), pools[0].mark)


def _start(run: Run) -> Iterator[tuple[str, Measured]]:
    """Seconds of the start, by the slowest rank."""
    for key, begin, end in (("load_s", "load_begin", "load_end"), ("graph_s", "graph_begin", "graph_end")):
        if begin in run.stages and end in run.stages and (seconds := _between(run.stages[begin].first, run.stages[end].last)) is not None:
            yield key, Measured(seconds, run.stages[end].last)
    if run.ready is not None and run.launch is not None and (seconds := _between(run.launch.mark, run.ready)) is not None:
        yield "ready_s", Measured(seconds, run.ready)


def _between(first: Mark, last: Mark) -> float | None:
    if first.time is None or last.time is None or last.time < first.time:
        return None
    return (last.time - first.time).total_seconds()


def _serving(run: Run, samples: pl.DataFrame, *, fragment: bool) -> Iterator[tuple[str, Measured]]:
    import polars as pl

    windows = [window for window in run.serving.windows if not window.rank.pp]
    if not windows:
        return
    seconds = sum(window.seconds for window in windows)
    lines = sum(window.lines for window in windows)
    if not fragment or len(windows) == 1:
        yield "throughput", Measured(sum(window.throughput_mean for window in windows))
    if len(windows) > 1:
        yield "throughput_scheduler", Measured(sum(window.throughput_mean * window.lines for window in windows) / lines)
    best = max(windows, key=lambda window: window.throughput_peak)
    yield "throughput_peak", Measured(best.throughput_peak if fragment else sum(window.throughput_peak for window in windows))
    yield "schedulers", Measured(float(len(windows)))
    if samples.height:
        weight = pl.col("weight")
        busy = samples.filter(pl.col("core"))
        row = busy.select(
            running=(pl.col("running") * weight).sum() / weight.sum(),
            steps=(pl.col("throughput") * weight).sum()
            / (pl.col("running") * pl.col("accept").fill_null(1.0).clip(lower_bound=1.0) * weight).sum(),
        ).row(0, named=True)
        if busy.height >= FEW and row["running"] is not None:
            yield "running_mean", Measured(row["running"])
        if row["steps"] is not None:
            yield "steps_per_s", Measured(row["steps"])
    yield from _window_figures(windows, seconds)
    if seconds > lines:
        yield "serving_s", Measured(seconds / len(windows))
    yield "decode_lines", Measured(float(lines))


def _window_figures(windows: list[BatchWindow], seconds: float) -> Iterator[tuple[str, Measured]]:
    yield "running_max", Measured(float(max(window.running_max for window in windows)))
    yield "queue_median", Measured(_middle([window.queue_median for window in windows]))
    yield "queue_max", Measured(float(max(window.queue_max for window in windows)))
    yield "waiting_share", Measured(100 * sum(window.waiting_share * window.seconds for window in windows) / max(seconds, 1e-9))
    yield "usage_median", Measured(_middle([window.usage_median for window in windows]))
    accept = _weighted((window.accept_len_mean, float(window.accept_weight)) for window in windows)
    if accept is not None:
        yield "accept_len", Measured(accept, windows[0].accept_mark if len(windows) == 1 else None)
    graph = _weighted((window.graph_off_share, float(window.lines)) for window in windows)
    if graph is not None:
        yield "graph_share", Measured(100 * (1 - graph))


def _prefill(run: Run, chunks: pl.DataFrame) -> Iterator[tuple[str, Measured]]:
    middle = chunks["throughput"].median() if chunks.height else None
    if isinstance(middle, (int, float)):
        yield "input_throughput", Measured(float(middle))
    prefill = run.serving.prefill
    if prefill is None:
        return
    prompt = prefill.new_token + prefill.cached_token
    if prompt:
        yield "hit_rate", Measured(100 * prefill.cached_token / prompt)
        yield "prompt_tokens", Measured(float(prompt))
    pending = [(window.pending_max, window.pending_mark) for window in run.serving.prefills if window.pending_max]
    if pending:
        most, mark = max(pending, key=lambda item: item[0] or 0)
        yield "pending_max", Measured(float(most or 0), mark)


def _trouble(run: Run) -> Iterator[tuple[str, Measured]]:
    yield "errors", Measured(float(len(run.failures)), run.failures[0].mark if run.failures else None)
    yield "retractions", Measured(float(run.serving.retraction_events), run.serving.retraction_first)
    if run.watchdogs:
        yield "watchdogs", Measured(float(len(run.watchdogs)), run.watchdogs[0].mark)


def _middle(values: list[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def _weighted(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    known = [(value, weight) for value, weight in pairs if value is not None]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None
