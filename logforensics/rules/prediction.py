"""The memory model against the log: a KV capacity that the flags, the model and the hardware do not explain."""

from __future__ import annotations

from logforensics.findings import Confidence, Severity
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite, rule, step
from logforensics.run.kv import main_pool

_TOLERANCE = 0.01


@rule("LF213", "kv_capacity_unexplained", "The KV pool is not the size that the memory model expects")
def kv_capacity_unexplained(case: Case) -> Verdict | None:
    """The logged KV tokens differ from `(A - P × (1 - f)) / c` by more than rounding explains.

    Why: something not printed takes or gives memory: another process whose memory moved while loading, draft or index rows, a KV dtype other
    than assumed, a cap (`--max-total-tokens`), a fork that sizes its pool in another way.
    Threshold: 1 %, and more than the two printed decimals and the page explain. Over 133 whole logs 99 % are within 1 %.
    Confirm: compare the bytes per token of the pool line with those of the architecture; the terms of the prediction are in `run.kv_prediction`.
    Fix: nothing by itself; it tells which assumption not to trust.
    False friends: less than 1 GiB of static share, and unified memory, where the free memory moves between two lines.
    """
    found, pool = case.kv_prediction, main_pool(case.run)
    if found is None or pool is None:
        return None
    logged, prediction = found
    if logged <= 0 or prediction.uncertain:
        return None
    error = prediction.relative_error(logged)
    if abs(error) <= max(_TOLERANCE, prediction.bound_tokens / logged):
        return None
    begin, end = case.run.lowest("load_begin"), case.run.lowest("load_end", last=True)
    cause = prediction.note or "something that is not printed takes or gives memory"
    return Verdict(
        Severity.INFO,
        Confidence.POSSIBLE,
        "kv_pool",
        f"{logged:,} KV tokens were logged, {prediction.tokens:,} are expected ({error:+.1%})",
        f"The likeliest cause: {cause}.",
        cite(
            [
                pool.mark.evidence("#tokens"),
                begin.mark.evidence("avail mem=") if begin else None,
                end.mark.evidence("avail mem=") if end else None,
            ]
        ),
        [*prediction.arithmetic, step("predicted over logged", f"{prediction.tokens:,} / {logged:,} - 1", error)],
    )
