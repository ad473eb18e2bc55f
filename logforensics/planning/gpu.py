"""GPU memory before the launch: weights against the card, the static share against the weights, and what must fit beside it."""

from __future__ import annotations

import math

from logforensics.findings import Arithmetic, Confidence, Recommendation, Severity
from logforensics.planning.forecast import Outlook, forecast
from logforensics.planning.outside import demands, graph_demands
from logforensics.planning.plan import Plan
from logforensics.rules.registry import decrease, increase, other, set_to, step
from logforensics.sglang.prediction import draft_weights_first
from logforensics.sglang.terms import arithmetic

_HIGHEST_USEFUL = 0.97
_KV_HEADROOM_GIB = 1.0
_TIGHT_GIB = 1.0  # beside the static share, whatever the demands: SGLang's tuning page asks for 5 to 8
_COMFORTABLE_GIB, _COMFORTABLE_SHARE = 5.0, 0.04  # after graph capture; the share is for small cards
_ESTIMATE = "The sizes are estimates from the model's parameters and its number format; the lines after `Load weight` will tell."


def _weight_steps(plan: Plan) -> list[Arithmetic]:
    found = list(arithmetic(plan.weights.terms)) if plan.weights else []
    if plan.free_gib:
        found.append(step("free before loading", "card less driver, context and communication", plan.free_gib.mid, "GiB"))
    if plan.resident_gib:
        found.append(
            step(
                "weights of one rank, lowest to highest",
                f"{plan.resident_gib.low:.1f} … {plan.resident_gib.high:.1f}",
                plan.resident_gib.mid,
                "GiB",
            )
        )
    return found


def _too_heavy(plan: Plan) -> bool:
    """Whether the weights alone are likely to exceed the card."""
    return plan.weights is not None and plan.free_gib is not None and plan.weights.gib.mid > plan.free_gib.mid


@forecast("LF202")
def weights_exceed_card(plan: Plan) -> Outlook | None:
    """The weights of one rank are larger than the card."""
    if not _too_heavy(plan) or plan.weights is None or plan.free_gib is None:
        return None
    certain = plan.weights.gib.low > plan.free_gib.high and plan.weights.certain
    ranks = plan.spread.tp * plan.spread.pp
    needed = 1 << max(0, math.ceil(math.log2(plan.weights.gib.mid * ranks / (plan.free_gib.mid * 0.85))))
    return Outlook(
        Severity.CRITICAL if certain else Severity.WARNING,
        Confidence.CERTAIN if certain else Confidence.PROBABLE,
        "load",
        f"about {plan.weights.gib.mid:.0f} GiB of weights per rank do not fit on a card with {plan.free_gib.mid:.0f} GiB free",
        "Weights are loaded before anything else; no memory flag can make room for them. " + _ESTIMATE,
        ["model_path", "tp_size", "quantization"],
        _weight_steps(plan),
        [
            increase(
                "--tp-size",
                max(needed // plan.spread.pp, plan.spread.tp * 2),
                "ranks",
                "so many cards hold the weights and leave room for KV",
            ),
            other("--model-path", "a quantised checkpoint (FP8, AWQ, …) of the same model needs half the memory or less"),
        ],
    )


@forecast("LF201")
def no_room_for_kv(plan: Plan) -> Outlook | None:
    """The static share does not hold the weights, or hardly more."""
    rest, free, held, fraction = plan.rest_gib, plan.free_gib, plan.resident_gib, plan.fraction
    if rest is None or free is None or held is None or fraction is None or _too_heavy(plan):
        return None
    certain, likely = rest.high <= 0 and plan.weights is not None and plan.weights.certain, rest.mid <= 0.0
    if not likely and rest.low > 0:
        return None
    if not likely and rest.mid > 0.12 * held.mid:
        return None  # only the most pessimistic reading of the weights leaves nothing
    floor = held.mid / free.mid
    value = min(_HIGHEST_USEFUL, math.ceil((floor + 0.03) * 100) / 100)
    typed = plan.number("mem_fraction_static") is not None
    origin = f"--mem-fraction-static {fraction.fraction:g}" if typed else f"the automatic fraction {fraction.fraction:.3f}"
    fix: list[Recommendation] = []
    if floor > _HIGHEST_USEFUL:
        fix.append(increase("--tp-size", plan.spread.tp * 2, "ranks", "the weights alone need almost the whole card"))
    elif value > fraction.fraction:
        fix.append(increase("--mem-fraction-static", value, "share of the memory free before loading", "holds the weights and some KV"))
    chunk = plan.number("chunked_prefill_size")
    if not typed and chunk and chunk > 8192:
        fix.append(
            decrease("--chunked-prefill-size", 8192, "tokens", "Alternative: each chunk token takes 1.5 MiB from the automatic fraction")
        )
    return Outlook(
        Severity.CRITICAL if certain else Severity.WARNING,
        Confidence.CERTAIN if certain else Confidence.PROBABLE if likely else Confidence.POSSIBLE,
        "kv_pool",
        f"{origin} {'leaves' if certain else 'may leave'} no room for the KV pool beside about {held.mid:.0f} GiB of weights",
        "Weights and KV pool share the static fraction of the memory that is free before loading. " + _ESTIMATE,
        ["mem_fraction_static", "chunked_prefill_size", "tp_size"],
        [
            *_weight_steps(plan),
            *arithmetic(fraction.terms[-1:]),
            step("room for KV", f"{fraction.fraction:g} × {free.mid:.1f} - {held.mid:.1f}", rest.mid, "GiB"),
            step("smallest fraction that holds the weights", f"{held.mid:.1f} / {free.mid:.1f}", floor),
        ],
        fix,
    )


@forecast("LF204")
def static_share_too_large(plan: Plan) -> Outlook | None:
    """What must fit beside the static share is more than it leaves, or hardly anything is left at all."""
    if plan.number("mem_fraction_static") is None or plan.outside_gib is None or plan.fraction is None or plan.free_gib is None:
        return None
    if (_too_heavy(plan) and plan.outside_gib >= _TIGHT_GIB) or (plan.gpu is not None and plan.gpu.unified):
        return None
    wanted = demands(plan)
    needed = sum(float(term.value) for term in wanted)
    left = plan.outside_gib - needed
    after_graphs = plan.outside_gib - sum(float(term.value) for term in graph_demands(plan))
    if left >= 0 and plan.outside_gib >= _TIGHT_GIB and after_graphs >= min(_COMFORTABLE_GIB, _COMFORTABLE_SHARE * plan.free_gib.mid):
        return None
    value = math.floor((plan.fraction.fraction - (1.0 - left) / plan.free_gib.mid) * 100) / 100
    floor = plan.resident_gib.mid / plan.free_gib.mid if plan.resident_gib else 0.0
    fix: list[Recommendation] = []
    if value > floor and value > 0.2:
        fix.append(
            decrease(
                "--mem-fraction-static",
                value,
                "share of the memory free before loading",
                "leaves what is wanted beside the pool, and one GiB",
            )
        )
    fix.append(decrease("--cuda-graph-max-bs", None, "requests", "Alternative: fewer and smaller graphs (to 0.5.19)"))
    fix.append(decrease("--chunked-prefill-size", None, "tokens", "Alternative: smaller activations"))
    return Outlook(
        Severity.WARNING,
        Confidence.PROBABLE if plan.outside_gib < _TIGHT_GIB else Confidence.POSSIBLE,
        "kv_pool",
        f"--mem-fraction-static {plan.fraction.fraction:g} leaves {plan.outside_gib:.1f} GiB beside the static share, about {needed:.1f} are wanted",
        "Only P × (1 - f) is left for the request table, graphs, communication buffers and activations. The demands are estimates, good to a few GiB.",
        ["mem_fraction_static", "context_length", "cuda_graph_max_bs", "chunked_prefill_size"],
        [
            step("beside the static share", f"{plan.free_gib.mid:.1f} × (1 - {plan.fraction.fraction:g})", plan.outside_gib, "GiB"),
            *arithmetic(tuple(wanted)),
            step("left", f"{plan.outside_gib:.1f} - {needed:.1f}", left, "GiB"),
        ],
        fix,
    )


@forecast("LF203")
def graphs_exceed_rest(plan: Plan) -> Outlook | None:
    """The demands up to the end of graph capture alone exceed what is beside the static share."""
    if plan.number("mem_fraction_static") is None or plan.outside_gib is None or _too_heavy(plan):
        return None
    wanted = graph_demands(plan)
    graphs = [term for term in wanted if term.source == "graphs"]
    needed = sum(float(term.value) for term in wanted)
    if not graphs or needed <= 0.75 * plan.outside_gib or (plan.gpu is not None and plan.gpu.unified):
        return None
    return Outlook(
        Severity.WARNING,
        Confidence.POSSIBLE,
        "graph",
        f"graph capture may run out: about {needed:.1f} GiB are wanted by then, {plan.outside_gib:.1f} are beside the static share",
        "Graphs and their buffers come after the pool, out of P × (1 - f). The demands are estimates, good to a few GiB.",
        ["cuda_graph_max_bs", "mem_fraction_static", "context_length"],
        [*arithmetic(tuple(wanted)), step("beside the static share", "P × (1 - f)", plan.outside_gib, "GiB")],
        [
            decrease("--mem-fraction-static", None, "share", "leaves more for graphs"),
            decrease("--cuda-graph-max-bs", None, "requests", "Alternative: fewer and smaller graphs (to 0.5.19)"),
            decrease("--cuda-graph-max-bs-decode", None, "requests", "Alternative: fewer and smaller graphs (0.5.14+)"),
        ],
    )


@forecast("LF208")
def draft_without_room(plan: Plan) -> Outlook | None:
    """Speculation at a fraction so high that the draft model's share cannot be found anywhere."""
    if not plan.has("speculative_algorithm") or plan.fraction is None or plan.free_gib is None or plan.outside_gib is None:
        return None
    if str(plan.args.get("speculative_algorithm")).upper() == "NGRAM" or plan.number("mem_fraction_static") is None:
        return None
    squeezed = plan.outside_gib < _TIGHT_GIB
    rest, drafts = plan.rest_gib, plan.drafts[0]
    inside = rest is not None and draft_weights_first(plan.spoken) and rest.mid <= 0 < rest.mid + drafts.mid
    before = draft_weights_first(plan.spoken) is False and plan.outside_gib < 2 * drafts.mid + _KV_HEADROOM_GIB
    if not (squeezed or inside or before):
        return None
    return Outlook(
        Severity.WARNING,
        Confidence.POSSIBLE,
        "kv_pool",
        "target and draft model together may leave no room",
        f"The static share is {plan.fraction.fraction:g} of the card and {plan.outside_gib:.1f} GiB are beside it. "
        + (
            "This release loads the draft model into the static share, and its graphs beside it."
            if draft_weights_first(plan.spoken)
            else "This release keeps draft weights, draft KV and draft graphs beside the static share."
        ),
        ["speculative_algorithm", "speculative_draft_model_path", "mem_fraction_static"],
        [step("beside the static share", "P × (1 - f)", plan.outside_gib, "GiB"), *arithmetic(plan.drafts[1])],
        [
            increase("--tp-size", plan.spread.tp * 2, "ranks", "halves the weights per rank"),
            set_to("--speculative-algorithm", "NGRAM", "", "Alternative: drafts without a model"),
        ],
    )
