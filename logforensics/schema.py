"""Every frame: its columns, their dtypes, units and meaning. The tables in docs/frames.md are generated from here.

Memory on the GPU side is in GiB (2^30 bytes, although SGLang prints "GB"), HiCache host memory is in GB (1e9 bytes).
"""

from __future__ import annotations

from logforensics.records import record


@record(frozen=True)
class Column:
    """One column: ``dtype`` is a polars dtype name (kept as text so that nothing here imports polars)."""

    name: str
    dtype: str
    unit: str
    meaning: str


COMMON = (
    Column("source", "String", "", "the file as it was given, or <stdin>"),
    Column("line", "UInt64", "", "1-based line number, counting only newlines, as `sed -n Np` does; the entry's number in a JSON array"),
    Column(
        "time", "Datetime(us)", "local time", "time stamp of the line; null where it has none; 1970-01-01 where the release prints no date"
    ),
    Column("launch", "UInt32", "", "0-based number of the server start within its source"),
    Column("tp", "UInt16", "rank", "tensor-parallel rank, null where the line has no such tag"),
    Column("dp", "UInt16", "rank", "data-parallel rank, null where the line has no such tag"),
    Column("pp", "UInt16", "rank", "pipeline-parallel rank, null where the line has no such tag"),
    Column("ep", "UInt16", "rank", "expert-parallel rank, null where the line has no such tag"),
)


def _columns(*rows: tuple[str, str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(*row) for row in rows)


_COUNT, _TOKENS, _FLOAT, _TEXT = "Int32", "Int64", "Float64", "String"

FRAMES: dict[str, tuple[Column, ...]] = {
    "launches": _columns(
        ("server_args", _TEXT, "JSON", "every field of the logged server_args"),
        ("model_path", _TEXT, "", "model_path of server_args"),
        ("tp_size", _COUNT, "ranks", "tensor-parallel size"),
        ("dp_size", _COUNT, "ranks", "data-parallel size"),
        ("pp_size", _COUNT, "ranks", "pipeline-parallel size"),
        ("nnodes", _COUNT, "nodes", "number of nodes"),
        ("node_rank", _COUNT, "", "this node's number"),
        ("version_low", _TEXT, "", "oldest release that the fields, the wording of the start's lines, and a printed version fit"),
        ("version_high", _TEXT, "", "newest release that they fit"),
        ("version_basis", _TEXT, "", "what told the range, with the lines"),
        ("complete", "Boolean", "", "false where the line was cut before the closing bracket"),
        ("form", _TEXT, "", "ServerArgs (to 0.5.18) or dict (from 0.5.19)"),
    ),
    "load_progress": _columns(
        ("kind", _TEXT, "", "what is loaded, the text before the colon of the bar"),
        ("percent", _COUNT, "%", "printed percentage"),
        ("shards_done", _COUNT, "shards", "shards loaded"),
        ("shards_total", _COUNT, "shards", "shards in all"),
        ("elapsed_s", _FLOAT, "s", "time since the bar began"),
        ("remaining_s", _FLOAT, "s", "tqdm's estimate of the time left; null where it prints ?"),
        ("rate_per_s", _FLOAT, "shards/s", "rate; s/it is converted; null where it prints ?"),
    ),
    "memory": _columns(
        ("stage", _TEXT, "", "init_dist_begin, init_dist_end, load_begin, load_end, pool_end, graph_begin, graph_progress, graph_end, …"),
        ("avail_gib", _FLOAT, "GiB", "free GPU memory at this moment"),
        ("usage_gib", _FLOAT, "GiB", "GPU memory the step took"),
        ("elapsed_s", _FLOAT, "s", "duration of the step"),
        ("detail", _TEXT, "", "what the step worked on: model class, kind of graph, batch size"),
    ),
    "kv_pool": _columns(
        ("num_tokens", _TOKENS, "tokens", "tokens the pool holds on this rank"),
        ("k_gib", _FLOAT, "GiB", "size of K"),
        ("v_gib", _FLOAT, "GiB", "size of V"),
        ("kv_gib", _FLOAT, "GiB", "size of the latent buffer (MLA)"),
        ("slots", _TOKENS, "slots", "recurrent-state slots (kind mamba)"),
        ("dtype", _TEXT, "", "printed element type"),
        ("kind", _TEXT, "", "mha, mla, swa, mamba, upper_bound, or the printed label (draft, …)"),
    ),
    "capacity": _columns(
        ("max_total_num_tokens", _TOKENS, "tokens", "KV tokens of this scheduler"),
        ("chunked_prefill_size", _TOKENS, "tokens", "effective token budget of a prefill batch"),
        ("max_prefill_tokens", _TOKENS, "tokens", "effective limit of a prefill batch"),
        ("max_running_requests", _TOKENS, "requests", "effective limit of running requests"),
        ("context_len", _TOKENS, "tokens", "longest request"),
        ("avail_gib", _FLOAT, "GiB", "free GPU memory after start; on a CPU server free host memory"),
    ),
    "host_pool": _columns(
        ("label", _TEXT, "", "which pool: kv, mamba, dsa_indexer, draft, …"),
        ("num_tokens", _TOKENS, "tokens", "tokens the pool holds; null where the release does not print it"),
        ("gb", _FLOAT, "GB", "host memory this rank asks for (1e9 bytes)"),
    ),
    "host_guard": _columns(
        ("requested_gb", _FLOAT, "GB", "host memory one rank asked for"),
        ("free_gb", _FLOAT, "GB", "host memory SGLang believed to be free"),
    ),
    "prefill": _columns(
        ("new_seq", _COUNT, "requests", "requests in this prefill batch"),
        ("new_token", _TOKENS, "tokens", "tokens computed now"),
        ("cached_token", _TOKENS, "tokens", "tokens taken from the prefix cache"),
        ("pending_token", _TOKENS, "tokens", "tokens waiting for prefill"),
        ("running_req", _COUNT, "requests", "running before this batch"),
        ("queue_req", _COUNT, "requests", "waiting"),
        ("token_usage", _FLOAT, "share", "KV pool in use, 0 to 1"),
        ("num_tokens", _TOKENS, "tokens", "KV tokens in use"),
        ("full_num_tokens", _TOKENS, "tokens", "tokens in use, full-attention pool"),
        ("full_token_usage", _FLOAT, "share", "full-attention pool in use"),
        ("swa_num_tokens", _TOKENS, "tokens", "tokens in use, sliding-window pool"),
        ("swa_token_usage", _FLOAT, "share", "sliding-window pool in use"),
        ("mamba_usage", _FLOAT, "share", "recurrent-state slots in use"),
        ("input_throughput", _FLOAT, "token/s", "new tokens over the time since the last prefill line"),
        ("cuda_graph", "Boolean", "", "the batch ran in a graph (cuda, cpu, npu or musa)"),
        ("cache_hit_rate_pct", _FLOAT, "%", "cumulative hit rate (to 0.4.3)"),
        ("bootstrap_req", _COUNT, "requests", "PD prefill: waiting for bootstrap"),
        ("inflight_req", _COUNT, "requests", "PD prefill: transfers in flight"),
        ("optimistic_req", _COUNT, "requests", "PD prefill: requests of this batch not yet bootstrapped"),
        ("iteration", _TOKENS, "", "forward counter in brackets"),
        ("extra", _TEXT, "JSON", "labels this table does not know, with their values"),
    ),
    "decode": _columns(
        ("running_req", _COUNT, "requests", "requests in the decode batch"),
        ("queue_req", _COUNT, "requests", "waiting"),
        ("num_tokens", _TOKENS, "tokens", "KV tokens in use"),
        ("token_usage", _FLOAT, "share", "KV pool in use, 0 to 1"),
        ("full_num_tokens", _TOKENS, "tokens", "tokens in use, full-attention pool"),
        ("full_token_usage", _FLOAT, "share", "full-attention pool in use"),
        ("swa_num_tokens", _TOKENS, "tokens", "tokens in use, sliding-window pool"),
        ("swa_token_usage", _FLOAT, "share", "sliding-window pool in use"),
        ("mamba_num", _COUNT, "slots", "recurrent-state slots in use"),
        ("mamba_usage", _FLOAT, "share", "recurrent-state slots in use"),
        ("accept_len", _FLOAT, "tokens", "accepted tokens per verify step"),
        ("accept_rate", _FLOAT, "share", "accepted share of the drafted tokens"),
        ("cuda_graph", "Boolean", "", "the batch ran in a graph (cuda, cpu, npu or musa)"),
        ("gen_throughput", _FLOAT, "token/s", "generated tokens over the time since the last decode line"),
        ("preallocated_usage", _FLOAT, "share", "PD decode: pre-allocated share of the pool"),
        ("prealloc_req", _COUNT, "requests", "PD decode: waiting for pre-allocation"),
        ("transfer_req", _COUNT, "requests", "PD decode: waiting for the KV transfer"),
        ("retracted_req", _COUNT, "requests", "PD decode: retracted and waiting"),
        ("host_receive_req", _COUNT, "requests", "PD decode: received on the host"),
        ("largest_len", _TOKENS, "tokens", "longest request (0.4.4)"),
        ("iteration", _TOKENS, "", "forward counter in brackets"),
        ("extra", _TEXT, "JSON", "labels this table does not know, with their values"),
    ),
    "retractions": _columns(
        ("retracted_req", _COUNT, "requests", "requests sent back to the queue"),
        ("new_tokens_gained", _TOKENS, "tokens", "tokens freed"),
        ("new_token_ratio_old", _FLOAT, "share", "admission reserve before"),
        ("new_token_ratio_new", _FLOAT, "share", "admission reserve after"),
    ),
    "errors": _columns(
        ("kind", _TEXT, "", "exception class, signal name, or fatal"),
        ("message", _TEXT, "", "the exception's text"),
        ("message_line", "UInt64", "", "line on which the exception's text begins"),
        ("frame_file", _TEXT, "", "file of the innermost frame"),
        ("frame_line", _COUNT, "", "line of the innermost frame"),
        ("frame_function", _TEXT, "", "function of the innermost frame"),
        ("frames", _TEXT, "JSON", "all frames, outermost first, as [file, line, function]"),
        ("chain", _TEXT, "JSON", "exceptions this one was raised from, root first, as [kind, message, line]"),
        ("line_end", "UInt64", "", "last line of the traceback"),
        ("process", _TEXT, "", "Scheduler, TokenizerManager, ASGI, … where the log names it"),
    ),
    "ready": _columns(("event", _TEXT, "", "fired_up: the server answers requests")),
    "watchdog": _columns(
        ("name", _TEXT, "", "which watchdog: Scheduler, TokenizerManager, …, nccl"),
        ("timeout_s", _FLOAT, "s", "its limit"),
        ("text", _TEXT, "", "the line's message"),
    ),
    "shutdown": _columns(
        ("event", _TEXT, "", "sigterm, sigquit, child_failed, child_crashed, scheduler_dead, uvicorn_shutdown, drain, killed"),
        ("exit_code", _COUNT, "", "exit code where printed; negative for a signal"),
        ("remaining_req", _COUNT, "requests", "requests still to drain"),
        ("text", _TEXT, "", "the line's message"),
    ),
    "overrides": _columns(
        ("flag", _TEXT, "", "field of server_args that SGLang changed by itself"),
        ("old", _TEXT, "", "value before, where printed"),
        ("new", _TEXT, "", "value after, where printed"),
        ("text", _TEXT, "", "the line's message"),
    ),
    "requests": _columns(
        ("event", _TEXT, "", "receive, finish, time_stats or http"),
        ("rid", _TEXT, "", "request id where printed"),
        ("method", _TEXT, "", "HTTP method"),
        ("path", _TEXT, "", "HTTP path"),
        ("status", _COUNT, "", "HTTP status; rows only for status codes other than 200"),
        ("text", _TEXT, "", "the line's message, cut at 400 characters"),
    ),
    "router": _columns(
        ("level", _TEXT, "", "error, warning or info"),
        ("target", _TEXT, "", "module of the router, such as smg::routers::http::router"),
        ("place", _TEXT, "", "source file and line of the router"),
        (
            "event",
            _TEXT,
            "",
            (
                "request, response, request_failed, no_worker, retry, circuit_breaker, starting, ready, worker_added, worker_removed, "
                "worker_failed, …; null for others"
            ),
        ),
        ("worker_url", _TEXT, "", "the server the line is about, where it names one"),
        ("method", _TEXT, "", "HTTP method of the request it belongs to"),
        ("path", _TEXT, "", "HTTP path of the request it belongs to"),
        ("request_id", _TEXT, "", "the router's id of the request"),
        ("status", _COUNT, "", "HTTP status of the answer"),
        ("latency_ms", _FLOAT, "ms", "time from request to answer"),
        ("error", _TEXT, "", "the error the line names"),
        ("text", _TEXT, "", "the line's message with its fields, cut at 400 characters; the router's times are UTC"),
    ),
    "benchmark": _columns(
        ("block", "UInt64", "", "line of the block's title: figures with the same one belong together"),
        ("title", _TEXT, "", "title of the block: Serving Benchmark Result, …"),
        ("section", _TEXT, "", "heading above the figure: End-to-End Latency, …; null before the first"),
        ("name", _TEXT, "", "what was measured, as printed: Mean TTFT, Request throughput, …"),
        ("unit", _TEXT, "", "its unit as printed: ms, req/s, tok/s, …; null where none is printed"),
        ("value", _FLOAT, "", "the figure; null where it is none"),
        ("text", _TEXT, "", "the value as printed, which may be a word (backend, inf)"),
    ),
    "notices": _columns(
        ("level", _TEXT, "", "error, warning, info or unknown"),
        ("logger", _TEXT, "", "logger or file name where printed"),
        ("text", _TEXT, "", "the line, cut at 400 characters"),
    ),
}


def columns(frame: str) -> tuple[Column, ...]:
    """All columns of a frame, the common ones first."""
    return COMMON + FRAMES[frame]
