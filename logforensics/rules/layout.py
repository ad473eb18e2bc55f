"""The parallel layout: sizes that do not divide, and more ranks than cards."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from logforensics.findings import Action, Arithmetic, Recommendation
from logforensics.rules import signatures
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, decrease, other, remove, rule, set_to, step
from logforensics.rules.signatures import Hit


@rule("LF303", "tp_divisibility", "A size of the model is not divisible by the parallel size")
def tp_divisibility(case: Case) -> Verdict | None:
    """Heads, experts, the hidden size or a quantisation block of the model cannot be divided over this many ranks.

    Why: every rank takes an equal part. Not only the text heads count: the vision tower has heads of its own, expert layers have an
    intermediate size, and a block-quantised weight must be cut at whole blocks.
    Confirm: `N is not divisible by M` (ensure_divisibility), `must be divisible by`, `weight_block_size_n`, with a model file among the frames.
    Fix: the largest parallel size that divides the number; for quantised experts also `--ep-size`.
    False friends: `chunked_prefill_size must be divisible by page_size` and `tp_size must be divisible by number of nodes` speak of flags, not of the model.
    """
    found = signatures.hits(case, "tp_divisibility")
    if not found:
        return None
    hit = found[0]
    numerator, denominator = hit.number("numerator"), hit.number("denominator")
    if hit.number("block") is not None:
        value, steps = _whole_blocks(case, hit)
    elif hit.number("ep") is not None:
        value, steps = hit.number("denominator"), []
    elif numerator is None:
        value, steps = case.config.size("tp_size") // 2 or None, []
    else:
        value, steps = _dividing(case, numerator, denominator)
    what = hit.groups.get("what", "").replace("_", " ") or _component(hit)
    title = (
        f"{numerator} {what} cannot be divided over {denominator} ranks"
        if numerator and denominator
        else f"the {what} cannot be divided over the ranks"
    )
    why = "every rank takes an equal part of it" + (" (and of the text heads)" if "vision" in what else "")
    flag = "--ep-size" if hit.number("ep") is not None else "--tp-size"
    fix = [set_to(flag, value, "ranks", why)] if value else [decrease(flag, None, "ranks", why)]
    if hit.number("block") is not None:
        fix.append(
            Recommendation(
                "--ep-size", Action.SET, case.config.size("tp_size"), "ranks", "Alternative: whole experts per rank instead of slices"
            )
        )
    return signatures.verdict(case, "tp_divisibility", title=title, arithmetic=steps, fix=fix)


def _component(hit: Hit) -> str:
    names = " ".join(f"{name} {function}" for name, _, function in hit.trouble.frames).lower()
    if "visual" in names or "vision" in names or re.search(r"models/\w*_?vl\w*\.py", names):
        return "heads of the vision tower"
    return "experts" if "expert" in names or "/moe" in names else "heads or columns"


def _dividing(case: Case, numerator: int | None, ranks: int | None) -> tuple[int | None, list[Arithmetic]]:
    """The largest size below ``ranks`` that divides ``numerator``: a power of two where there is one."""
    if not numerator or not ranks:
        return None, []
    divisors = [size for size in range(1, ranks) if numerator % size == 0]
    best = largest_dividing(numerator, ranks)
    steps = [
        step("remainder", f"{numerator} mod {ranks}", numerator % ranks),
        step("sizes that divide it", f"divisors of {numerator} below {ranks}", ", ".join(map(str, divisors))),
    ]
    tp = case.config.size("tp_size")
    outer = tp // ranks if tp > ranks and tp % ranks == 0 else 1  # the text counts the ranks of one attention group
    return best * outer, steps


def largest_dividing(numerator: int, ranks: int) -> int:
    """The largest size below ``ranks`` that divides ``numerator``: a power of two where there is one above 1."""
    divisors = [size for size in range(1, ranks) if numerator % size == 0]
    powers = [size for size in divisors if size & (size - 1) == 0]
    return max(powers) if len(powers) > 1 else max(divisors, default=1)


def _whole_blocks(case: Case, hit: Hit) -> tuple[int | None, list[Arithmetic]]:
    """The largest TP size whose part of the weight is a whole number of quantisation blocks."""
    block, part, tp = hit.number("block") or 0, hit.number("part"), hit.number("denominator") or case.config.size("tp_size")
    total = hit.number("numerator") or (part * tp if part else None)
    if not total or not block:
        return None, []
    fitting = [size for size in range(1, tp) if total % size == 0 and (total // size) % block == 0]
    steps = [step("part of one rank", f"{total} / {tp}", total / tp), step("blocks", f"{total / tp:g} / {block}", total / tp / block)]
    return max(fitting, default=None), steps


@rule("LF304", "gpu_count_mismatch", "More ranks than visible GPUs, or wrong nodes")
def gpu_count_mismatch(case: Case) -> Verdict | None:
    """The launch asks for more ranks on this machine than it has visible GPUs.

    Why: `tp_size × pp_size / nnodes` ranks start on each machine, each on a GPU of its own. Multi-node commands copied to a single machine,
    CUDA_VISIBLE_DEVICES and containers without GPUs lead here.
    Confirm: `invalid device ordinal` (the rank's device does not exist), `No CUDA GPUs are available`, or `device=n, num_gpus=m`.
    Fix: a parallel size that fits the visible GPUs, the right `--nnodes`, or the devices made visible.
    False friends: `CUDA-capable device(s) is/are busy or unavailable` comes after another rank's crash.
    """
    found = signatures.hits(case, "gpu_count_mismatch")
    if not found:
        return None
    hit, config = found[0], case.config
    world, nodes = config.size("tp_size") * config.size("pp_size"), config.size("nnodes")
    planned = max(1, world // nodes)
    steps = [step("ranks on this machine", f"{world} / {nodes}", planned, "ranks")]
    gpus, lowest = hit.number("gpus"), _lowest_failing(found, planned)
    if gpus is not None:
        steps.append(step("visible GPUs", "printed in the error", gpus))
    elif lowest is not None:
        steps.append(step("visible GPUs at most", f"device {lowest} does not exist", lowest))
    elif case.hardware.gpus is not None:
        steps.append(step("GPUs of the machine", case.said_by("gpus"), case.hardware.gpus))
    none = re.search(r"No \w+ GPUs|No accelerator|no NVIDIA|No GPU memory", hit.trouble.text) is not None
    certain = 0 if none else gpus if gpus is not None else case.hardware.gpus or 1
    fix: list[Recommendation] = []
    if certain and planned > certain:
        value = certain * nodes
        why = f"{certain} GPU(s) per machine on {nodes} machine(s)" + (
            "" if gpus is not None else "; more if this machine has more (`nvidia-smi -L`)"
        )
        fix.append(decrease("--tp-size", value, "ranks", why))
    if nodes > 1:
        fix.append(remove("--nnodes", "Alternative: for a single machine, without --node-rank and --dist-init-addr"))
    fix.append(
        other(
            "CUDA_VISIBLE_DEVICES", "the server's process must see the GPUs: check the variable and the container's --gpus / device plugin"
        )
    )
    title = (
        "no GPU is visible to the server"
        if none
        else f"{planned} ranks were started on this machine, and it does not have that many visible GPUs"
    )
    missing = [] if gpus is not None or none or case.hardware.gpus is not None else ["how many GPUs the machine has (`nvidia-smi -L`)"]
    base = signatures.verdict(case, "gpu_count_mismatch", title=title, arithmetic=steps, fix=fix)
    return None if base is None else replace(base, missing=[*base.missing, *missing])


def _lowest_failing(found: Iterable[Hit], planned: int) -> int | None:
    devices = [hit.trouble.rank.tp % planned for hit in found if hit.trouble.rank.tp is not None]
    return min(devices, default=None)
