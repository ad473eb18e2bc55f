"""The KV tokens a run printed against those the memory model expects of its flags, its model and two of its lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logforensics.models import Model
from logforensics.run.model import KvPool, Run
from logforensics.sglang.prediction import KvPrediction, draft_weights_first, logged_bytes_per_token, predict_kv_tokens
from logforensics.sglang.sharding import positive

_NOT_THE_TARGET = frozenset({"mamba", "upper_bound", "draft"})


def kv_prediction(
    run: Run, args: Mapping[str, Any], model: Model | None, release_low: str | None, release_high: str | None
) -> tuple[int, KvPrediction] | None:
    """Logged tokens and the prediction; None where the log lacks one of the lines.

    P and A are the minimum over the ranks of ``avail mem`` (GiB) before and after loading; from 0.5.14 the draft model's loading counts too.
    """
    pool, begin = main_pool(run), run.lowest("load_begin")
    if pool is None or pool.num_tokens is None or pool.gib is None or begin is None or begin.avail_gib is None:
        return None
    end = run.lowest("load_end", last=draft_weights_first(release_high or release_low or "0.1.26"))
    if end is None or end.avail_gib is None:
        return None
    per_token = logged_bytes_per_token(pool.gib, pool.num_tokens, positive(args, "page_size"))
    prediction = predict_kv_tokens(args, model, begin.avail_gib, end.avail_gib, per_token, release_low, release_high)
    if prediction is None:
        return None
    return (run.capacities[0].max_total_num_tokens if run.capacities else pool.num_tokens), prediction


def main_pool(run: Run) -> KvPool | None:
    """The pool of the full-attention layers: the first of those with the most tokens (sliding-window pools have fewer)."""
    sized = [pool for pool in run.kv_pools if pool.num_tokens and pool.gib and pool.kind not in _NOT_THE_TARGET]
    return max(sized, key=lambda pool: pool.num_tokens or 0, default=None)
