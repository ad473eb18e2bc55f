"""Flags that are valid alone but do not go together: the combinations SGLang refuses, as data, and the sizes that must divide."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from logforensics.findings import Action, Arithmetic, Confidence, Recommendation, Severity
from logforensics.planning.forecast import Outlook, forecast
from logforensics.planning.plan import Plan
from logforensics.rules.registry import set_to, step


@forecast("LF302")
def conflicting_flags(plan: Plan) -> Outlook | None:
    """The first conflict that stops the server, else the first that only makes a flag idle; all of them are said."""
    found = [entry for entry in _conflicts() if _holds(plan, entry)]
    sizes = _indivisible(plan)
    if not found and not sizes:
        return None
    stopping = [entry for entry in found if entry.get("severity") != "warning"]
    certain = bool(sizes) or any(plan.release.within(entry["since"], entry.get("until", plan.release.high)) for entry in stopping)
    said = [entry["says"] for entry in (*stopping, *(entry for entry in found if entry not in stopping))]
    said = [*(text for text, _, _ in sizes), *said]
    fix = [item for _, _, item in sizes] + [item for entry in found for item in _fix(entry)]
    return Outlook(
        Severity.ERROR if certain else Severity.WARNING,
        Confidence.CERTAIN if certain or not stopping else Confidence.PROBABLE,
        "launch",
        said[0],
        "; ".join(said[1:])
        or ("SGLang checks the combination before it loads anything." if stopping or sizes else "Nothing will say so in the log."),
        [name for entry in found for condition in entry["when"] for name in condition[0].split("|") if name not in ("model", "card")]
        + [flag for _, flag, _ in sizes],
        _steps(plan),
        fix,
    )


@cache
def _conflicts() -> list[dict[str, Any]]:
    text = (files("logforensics.sglang") / "data" / "conflicts.json").read_text(encoding="utf-8")
    loaded: list[dict[str, Any]] = json.loads(text)
    return loaded


def _holds(plan: Plan, entry: Mapping[str, Any]) -> bool:
    """Whether a release that fits has the conflict, and the plan meets its conditions."""
    if not plan.release.may_be(entry["since"], entry.get("until", plan.release.high)):
        return False
    return all(any(_TESTS[test](plan, name, *rest) for name in names.split("|")) for names, test, *rest in entry["when"])


def _model_is(plan: Plan, kind: str) -> bool:
    model = plan.model
    if model is None:
        return False
    if kind == "recurrent":
        return model.layers.linear > 0
    return bool(model.index_dim) if kind == "dsa" else model.layout == kind


def _not_blackwell(plan: Plan) -> bool:
    capability = plan.gpu.compute_capability if plan.gpu else None
    return bool(capability) and float(capability or 0) < 10.0


_TESTS: Mapping[str, Callable[..., bool]] = {
    "set": lambda plan, name: plan.has(name),
    "unset": lambda plan, name: not plan.has(name),
    "is": lambda plan, name, value: plan.args.get(name) == value,
    "in": lambda plan, name, values: plan.args.get(name) in values,
    "above": lambda plan, name, value: (plan.number(name) or 0) > value,
    "neither-1-nor-tp": lambda plan, name: (plan.number(name) or 1) not in (1, plan.number("tp_size") or 1),
    "not-blackwell": lambda plan, _: _not_blackwell(plan),
    **{kind: (lambda plan, _, kind=kind: _model_is(plan, kind)) for kind in ("recurrent", "compressed", "heads", "latent", "dsa")},
}


def _fix(entry: Mapping[str, Any]) -> list[Recommendation]:
    """Recommendations of an entry: ``remove``, ``set:value``; ``alternative-`` before them leaves the choice to the reader."""
    items = []
    for flag, action, why in entry["fix"]:
        other_way = action.startswith("alternative-")
        verb, _, value = action.removeprefix("alternative-").partition(":")
        rationale = f"Alternative: {why}" if other_way else why
        if verb == "remove":
            items.append(Recommendation(flag, Action.REMOVE, None, "", rationale))
        else:
            typed: Any = True if value == "true" else int(value) if value.isdigit() else value
            items.append(Recommendation(flag, Action.SET, typed, "", rationale))
    return items


def _indivisible(plan: Plan) -> list[tuple[str, str, Recommendation]]:
    """Sizes of flags that must be multiples of each other: a sentence, the field, and what to set."""
    found: list[tuple[str, str, Recommendation]] = []
    if not plan.layout_known:
        return found
    chunk, page = plan.number("chunked_prefill_size"), plan.number("page_size")
    if chunk and page and chunk > 0 and page > 1 and chunk % page and plan.release.since("0.4.6"):
        value = int(chunk // page * page)
        text = f"--chunked-prefill-size {chunk:g} is no multiple of --page-size {page:g}"
        found.append((text, "chunked_prefill_size", set_to("--chunked-prefill-size", value, "tokens", "the multiple below it")))
    tp, dp = plan.spread.tp, plan.spread.attention_dp
    if dp > 1 and tp % dp:
        value = max(size for size in range(1, min(dp, tp) + 1) if tp % size == 0)
        found.append(
            (
                f"--tp-size {tp} is no multiple of --dp-size {dp} under DP attention",
                "dp_size",
                set_to("--dp-size", value, "groups", "divides the tensor-parallel size"),
            )
        )
    nodes = plan.nodes
    if nodes > 1 and tp * plan.spread.pp % nodes:
        found.append(
            (
                f"{tp * plan.spread.pp} ranks cannot be spread over {nodes} nodes",
                "nnodes",
                set_to("--tp-size", max(tp // nodes, 1) * nodes, "ranks", "a multiple of the nodes"),
            )
        )
    return found


def _steps(plan: Plan) -> list[Arithmetic]:
    chunk, page = plan.number("chunked_prefill_size"), plan.number("page_size")
    return [step("remainder", f"{chunk:g} mod {page:g}", chunk % page, "tokens")] if chunk and page and chunk > 0 and chunk % page else []
