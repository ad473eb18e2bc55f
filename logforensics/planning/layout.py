"""Sizes of the model that the ranks must divide, and ranks that need GPUs."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from logforensics.findings import Confidence, Severity
from logforensics.planning.forecast import Outlook, forecast
from logforensics.planning.plan import Plan
from logforensics.rules.registry import decrease, increase, other, remove, set_to, step

_FP8_BLOCK = 128


@forecast("LF303")
def indivisible_model(plan: Plan) -> Outlook | None:
    """Heads, vision heads or quantisation blocks that the ranks cannot share."""
    if plan.model is None or not plan.layout_known or plan.on_cpu:
        return None
    heads, ranks = plan.model.heads, plan.spread.attention_tp
    if heads and ranks > 1 and heads % ranks:
        return _not_divided(plan, f"{heads} attention heads", heads, ranks)
    kv = plan.model.kv_heads if plan.model.layout == "heads" else None
    if kv and ranks > 1 and kv % ranks and ranks % kv:
        return _not_divided(plan, f"{kv} KV heads", kv, ranks)
    vision = _shapes().get(plan.model.id, {}).get("vision_heads")
    if vision and plan.spread.tp > 1 and vision % plan.spread.tp and not plan.has("mm_enable_dp_encoder") and not plan.has("language_only"):
        return _not_divided(plan, f"{vision} heads of the vision tower", vision, plan.spread.tp)
    return _cut_blocks(plan)


def _not_divided(plan: Plan, what: str, number: int, ranks: int) -> Outlook:
    fitting = [size for size in range(1, ranks) if number % size == 0]
    value = max(size for size in fitting) * (plan.spread.tp // ranks)
    return Outlook(
        Severity.ERROR,
        Confidence.CERTAIN if plan.model and plan.model.confidence in ("config", "log") else Confidence.PROBABLE,
        "load",
        f"{what} cannot be divided over {ranks} ranks",
        "Every rank takes an equal part. The server stops while it builds the model, before any weight is read.",
        ["tp_size", "dp_size"],
        [
            step("remainder", f"{number} mod {ranks}", number % ranks),
            step("sizes that divide it", f"divisors of {number} below {ranks}", ", ".join(map(str, fitting))),
        ],
        [set_to("--tp-size", value, "ranks", f"the largest size below {plan.spread.tp} that divides {number}")],
    )


def _cut_blocks(plan: Plan) -> Outlook | None:
    """FP8 checkpoints in blocks of 128: every rank's slice of an expert must be whole blocks."""
    model = plan.model
    if model is None or not _is_block_fp8(plan):
        return None
    width = _shapes().get(model.id, {}).get("expert_width")
    slices = plan.spread.tp // max(int(plan.number("ep_size") or 1), 1)
    whole_experts = (
        plan.has("enable_ep_moe") or plan.has("enable_deepep_moe") or str(plan.args.get("moe_a2a_backend") or "none") not in ("none", "")
    )
    if not width or slices <= 1 or whole_experts or (width % slices == 0 and (width // slices) % _FP8_BLOCK == 0):
        return None
    fitting = [size for size in range(1, slices) if width % size == 0 and (width // size) % _FP8_BLOCK == 0]
    return Outlook(
        Severity.ERROR if width // slices < _FP8_BLOCK else Severity.WARNING,
        Confidence.PROBABLE,
        "load",
        f"experts {width} wide cannot be cut into {slices} slices of whole FP8 blocks",
        f"The checkpoint is quantised in blocks of {_FP8_BLOCK}; a rank's slice of {width / slices:g} is no whole number of them.",
        ["tp_size", "ep_size"],
        [
            step("slice of one rank", f"{width} / {slices}", width / slices),
            step("blocks", f"{width / slices:g} / {_FP8_BLOCK}", width / slices / _FP8_BLOCK),
        ],
        [
            set_to("--ep-size", plan.spread.tp, "ranks", "whole experts per rank instead of slices"),
            set_to("--tp-size", max(fitting, default=1), "ranks", "Alternative: the largest size that cuts at blocks"),
        ],
    )


def _is_block_fp8(plan: Plan) -> bool:
    name, model = plan.model_name.lower(), plan.model
    if any(word in name for word in ("bf16", "fp4", "int4", "int8", "w4a", "w8a", "awq", "gptq")):
        return False
    return "fp8" in name or (model is not None and model.quantization == "fp8" and not plan.has("quantization"))


@cache
def _shapes() -> dict[str, dict[str, Any]]:
    text = (files("logforensics.planning") / "data" / "shapes.json").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, Any]] = json.loads(text)["models"]
    return loaded


@forecast("LF304")
def too_few_gpus(plan: Plan) -> Outlook | None:
    """More ranks on this machine than it has GPUs for them."""
    gpus = visible_gpus(plan)
    if gpus is None or not plan.layout_known or plan.on_cpu:
        return None
    nodes = plan.nodes
    needed = max(plan.spread.tp * plan.spread.pp // nodes, 1) * plan.spread.replicas
    base = int(plan.number("base_gpu_id") or 0)
    if needed + base <= gpus:
        return None
    first = [step("ranks on this machine", f"{plan.spread.tp} × {plan.spread.pp} / {nodes} × {plan.spread.replicas}", needed, "ranks")]
    first += [step("first GPU", "--base-gpu-id", base)] if base else []
    fix = [
        decrease("--tp-size", max((gpus - base) // plan.spread.replicas, 1) * nodes // plan.spread.pp, "ranks", f"{gpus} GPUs per machine")
    ]
    if nodes == 1:
        fix.append(
            increase(
                "--nnodes",
                -(-needed // gpus),
                "machines",
                "Alternative: the same ranks on more machines, with --node-rank and --dist-init-addr",
            )
        )
    else:
        fix.append(remove("--nnodes", "Alternative: for a single machine"))
    fix.append(other("CUDA_VISIBLE_DEVICES", "the process must see the GPUs: check the variable and the container's device list"))
    return Outlook(
        Severity.ERROR,
        Confidence.CERTAIN,
        "launch",
        f"{needed} ranks will start on this machine, and it has {gpus} GPU{'s' if gpus != 1 else ''} for them"
        + (f" from number {base} on" if base else ""),
        "Every rank takes a GPU of its own; the first one without a GPU ends the launch.",
        ["tp_size", "dp_size", "pp_size", "nnodes", "base_gpu_id"],
        [*first, step("visible GPUs", "given", gpus)],
        fix,
    )


def visible_gpus(plan: Plan) -> int | None:
    """GPUs the process may use on one machine: the fewest that the user, the container or the environment says; None where nobody does."""
    said = [plan.hardware.gpus, plan.command.place.gpus]
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        devices = plan.command.env.get(name, "")
        if devices and "$" not in devices:
            said.append(len([device for device in devices.split(",") if device.strip()]))
    known = [count for count in said if count]
    return min(known, default=None)
