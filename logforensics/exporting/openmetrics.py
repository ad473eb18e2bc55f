"""OpenMetrics text of a run's series, under the names of SGLang's own metrics, so that the same dashboards and alerts read them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from logforensics.errors import InputError
from logforensics.render.untrusted import visible
from logforensics.secrets import mask

if TYPE_CHECKING:
    import polars as pl

    from logforensics.parsing import ParsedLog

_RANKS = ("dp", "pp", "tp")


class _Family(NamedTuple):
    name: str
    kind: str
    frame: str
    value: str  # column, or an expression in SQL
    help: str


_FAMILIES = (
    _Family("sglang:num_running_reqs", "gauge", "decode", "running_req", "Requests in the decode batch."),
    _Family("sglang:num_queue_reqs", "gauge", "decode", "queue_req", "Requests waiting."),
    _Family("sglang:num_used_tokens", "gauge", "decode", "coalesce(num_tokens, full_num_tokens)", "KV tokens in use."),
    _Family("sglang:token_usage", "gauge", "decode", "coalesce(token_usage, full_token_usage)", "Share of the KV pool in use."),
    _Family("sglang:gen_throughput", "gauge", "decode", "gen_throughput", "Generated tokens per second."),
    _Family("sglang:spec_accept_length", "gauge", "decode", "accept_len", "Accepted tokens per verify step."),
    _Family("sglang:input_throughput", "gauge", "prefill", "input_throughput", "New prompt tokens per second."),
    _Family(
        "sglang:cache_hit_rate", "gauge", "prefill", "cached_token / (cached_token + new_token)", "Prefix hit rate of the prefill batch."
    ),
    _Family("sglang:prompt_tokens", "counter", "prefill", "new_token + cached_token", "Prompt tokens so far."),
    _Family("sglang:cached_tokens", "counter", "prefill", "cached_token", "Prompt tokens from the prefix cache so far."),
)


def openmetrics(parsed: ParsedLog) -> Iterator[str]:
    """The exposition, line by line. Log times have no zone; they are taken as UTC. Of several values in one second the last counts.

    Raises:
        InputError: the log has no dated batch line.
    """
    empty = True
    for family in _FAMILIES:
        series = _series(family, parsed.frames[family.frame])
        if series.is_empty():
            continue
        empty = False
        yield f"# TYPE {family.name} {family.kind}\n"
        yield f"# HELP {family.name} {family.help}\n"
        name = f"{family.name}_total" if family.kind == "counter" else family.name
        for source, dp, pp, tp, seconds, value in series.iter_rows():
            yield f"{name}{{{_labels(source, dp, pp, tp)}}} {value:g} {seconds}\n"
    if empty:
        raise InputError(f"{', '.join(parsed.sources)}: has no dated batch line, so there is no series to export")
    yield "# EOF\n"


def _series(family: _Family, frame: pl.DataFrame) -> pl.DataFrame:
    """One row per scheduler and second, in order of time; counters summed up."""
    import polars as pl

    value = pl.sql_expr(family.value).cast(pl.Float64).alias("value")
    keys = ["source", *_RANKS]
    table = frame.select(*keys, pl.col("time").dt.epoch("s").alias("seconds"), value).filter(
        pl.col("seconds").is_not_null() & pl.col("value").is_finite()
    )
    table = table.sort(*keys, "seconds", maintain_order=True, nulls_last=False)
    if family.kind == "counter":
        table = table.with_columns(pl.col("value").cum_sum().over(keys))
    return table.group_by([*keys, "seconds"], maintain_order=True).agg(pl.col("value").last())


def _labels(source: str, dp: int | None, pp: int | None, tp: int | None) -> str:
    named = [("source", _quoted(source)), ("dp_rank", dp), ("pp_rank", pp), ("tp_rank", tp)]
    return ",".join(f'{name}="{value}"' for name, value in named if value is not None)


def _quoted(text: str) -> str:
    return visible(mask(text)).replace("\\", "\\\\").replace('"', '\\"')
