"""Memory of the cards beyond the pool: neighbours, imbalance, recurrent states, and what nobody uses."""

from __future__ import annotations

import math
from dataclasses import replace

from logforensics import lazy_re
from logforensics.findings import Arithmetic, Confidence, Evidence, Recommendation, Severity
from logforensics.models import all_gpus
from logforensics.rules import beside, oom, signatures
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite, decrease, environment, increase, other, rule, step, upgrade
from logforensics.rules.signatures import Hit
from logforensics.run.model import Capacity, KvPool, MemoryStep

GIB = 2**30
_DRAFT_FRAMES = ("eagle", "draft", "nextn", "standalone_worker", "spec_worker", "dflash")
_BALANCE = 0.9  # model_runner.py: the least free card must have 0.9 of each rank's own
_GUIDE_FREE_GIB = 8.0  # SGLang's tuning page: 5 to 8 GiB left after start is right, more is wasted
_PLENTY = 0.2  # share of the memory before loading that is plenty, whatever the activations
_TOTAL = lazy_re.compile(r"Reported total GPU memory per device \(MiB\): \[([\d, ]+)\]")
_FIGURES = lazy_re.compile(r"(?:min_per_gpu_memory|pre_model_load_memory)=([\d.]+), local_gpu_memory=([\d.]+)")


# ---------------------------------------------------------------------------------------------------------------- neighbours, imbalance


@rule("LF209", "memory_imbalance", "Ranks start with unequal free memory")
def memory_imbalance(case: Case) -> Verdict | None:
    """Ranks have unequal free GPU memory, and the smallest decides for all.

    Why: cards of different size, a neighbour on some of them, or the check running again for the draft worker, after weights, pool and
    graphs (to 0.4.5; objects broadcast through CUDA had landed on one rank).
    Confirm: `min_per_gpu_memory`/`pre_model_load_memory` against `local_gpu_memory`; small figures and draft frames mean the draft stage.
    Fix: switch the check off where the least card is enough; equal cards; a release that does not check draft workers.
    False friends: "Some GPUs may be occupied by other processes" is a guess of the message.
    """
    hit, least, local = _unbalanced(case)
    if hit is None:
        return _uneven_start(case)
    if not (_draft_stage(case, hit) or _mixed_cards(least, local)):
        return None
    draft = _draft_stage(case, hit)
    title = "the draft worker found unequal free memory after the target model was loaded" if draft else "the cards have different sizes"
    why = (
        "The check ran again for the draft worker. The difference comes from what the ranks allocated themselves, not from another process."
        if draft
        else "Both figures are about what a whole card of its size has free. The smallest card decides for all ranks."
    )
    fix = (
        [
            *_switch_off(case),
            upgrade("sglang", "0.4.6" if draft else None, "later releases broadcast on the CPU and do not check draft workers"),
        ]
        if draft
        else _switch_off(case)
    )
    return _balance_verdict(case, hit, title, why, _balance_steps(least, local), fix)


@rule("LF210", "gpu_occupied_by_other_process", "Another process holds memory on the card")
def gpu_occupied_by_other_process(case: Case) -> Verdict | None:
    """Another process holds memory on the card.

    Why: another engine, an earlier server that did not end, or a desktop. `--mem-fraction-static` is a share of what is free, so a
    neighbour costs tokens on every rank; SGLang refuses a start whose least card has less than 0.9 of a rank's own.
    Confirm: free memory before loading far below the card's size; `Process … has N GiB memory in use` in an OOM text; nvidia-smi.
    Fix: end the other process, or choose other cards; to live with it, switch the check off and size for the least card.
    False friends: mixed card sizes, the draft stage of the check (memory_imbalance), and unified memory, where the host's use counts.
    """
    hit, least, local = _unbalanced(case)
    if hit is not None and not _draft_stage(case, hit) and not _mixed_cards(least, local):
        steps = _balance_steps(least, local)
        fix = [
            *_switch_off(case),
            other("gpu", "end the other process (nvidia-smi names it), or choose other cards with CUDA_VISIBLE_DEVICES or --base-gpu-id"),
        ]
        fix.append(decrease("--mem-fraction-static", None, "share", "Alternative: the fraction counts from what the fullest card has free"))
        why = "At this point nothing of this server is on the cards. The gap is what something else holds."
        return _named(case, _balance_verdict(case, hit, "another process holds memory on one of the cards", why, steps, fix))
    return _named(case, _neighbour_in_oom(case) or _card_not_free(case))


def _named(case: Case, verdict: Verdict | None) -> Verdict | None:
    """The verdict with the neighbours that nvidia-smi lists, where its output was given: that makes it certain."""
    others = beside.strangers(case)[:8]
    if verdict is None or not others:
        return verdict
    held = [
        step(f"held by process {process.pid} ({process.name})", f"{line.source}:{line.line}", process.used_mib or 0, "MiB")
        for process, line in others
    ]
    return replace(
        verdict,
        confidence=Confidence.CERTAIN,
        evidence=cite([*verdict.evidence, *(line for _, line in others)]),
        arithmetic=[*verdict.arithmetic, *held],
        missing=[item for item in verdict.missing if "nvidia-smi" not in item],
    )


def _unbalanced(case: Case) -> tuple[Hit | None, float | None, float | None]:
    """The failed balance check with the least free memory and this rank's own, GiB; the figures may stand on the next line."""
    hit = next(iter(signatures.hits(case, "memory_unbalanced")), None)
    if hit is None:
        return None, None, None
    least, local = hit.groups.get("least"), hit.groups.get("local")
    if least is None or local is None:
        wrapped = next((found for notice in case.run.notices if (found := _FIGURES.search(notice.text))), None) or _FIGURES.search(
            hit.trouble.text
        )
        least, local = (wrapped[1], wrapped[2]) if wrapped else (None, None)
    return hit, float(least) if least else None, float(local) if local else None


def _draft_stage(case: Case, hit: Hit) -> bool:
    """Whether the check that failed was the draft worker's: its frames, or weights that were loaded before it."""
    loaded = any(item.stage == "load_end" and item.mark.order < hit.trouble.said_at for item in case.run.memory_steps)
    return loaded or hit.trouble.has_frame(*_DRAFT_FRAMES)


def _mixed_cards(least: float | None, local: float | None) -> bool:
    """Whether both figures are what an empty card of some known size has free (96 to 99.9 % of what its driver prints)."""
    if least is None or local is None:
        return False
    sizes = {size / 1024 for gpu in all_gpus() for size in (gpu.memory_mib, *gpu.other_mib) if size}
    return all(any(0.96 <= value / size <= 0.999 for size in sizes) for value in (least, local))


def _balance_steps(least: float | None, local: float | None) -> list[Arithmetic]:
    if least is None or local is None:
        return []
    return [
        step("least free memory of a rank", "printed", least, "GiB"),
        step("free on this rank", "printed", local, "GiB"),
        step("ratio, must be 0.9", f"{least:.2f} / {local:.2f}", least / local),
        step("gap", f"{local:.2f} - {least:.2f}", local - least, "GiB"),
    ]


def _switch_off(case: Case) -> list[Recommendation]:
    """The variable that turns the refusal into a warning, by release."""
    fix = []
    if case.release.may_be("0.5.7", "99.0.0"):
        fix.append(
            environment(
                "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK", "0", "the refusal becomes a warning (0.5.7+); the least card still decides"
            )
        )
    if case.release.may_be("0.4.6", "0.5.17") or case.release.before("0.4.6"):
        fix.append(environment("SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK", "1", "the same in 0.4.6 to 0.5.17"))
    return fix


def _balance_verdict(case: Case, hit: Hit, title: str, why: str, steps: list[Arithmetic], fix: list[Recommendation]) -> Verdict:
    figures = next((notice.mark.evidence("local_gpu_memory=") for notice in case.run.notices if _FIGURES.search(notice.text)), None)
    return Verdict(
        signatures.severity(case, hit.trouble),
        Confidence.PROBABLE,
        "init_dist",
        title,
        why,
        cite([hit.evidence(), figures, *_begins(case)]),
        steps,
        fix,
        missing=["`nvidia-smi` of that moment: which processes hold memory on which card"],
    )


def _begins(case: Case) -> list[Evidence]:
    lowest = case.run.lowest("load_begin")
    return [lowest.mark.evidence("avail mem=")] if lowest else []


def _uneven_start(case: Case) -> Verdict | None:
    """Ranks that begin loading with free memory more than a tenth apart."""
    steps = [found for ledger in case.run.ledgers.values() if (found := ledger.first("load_begin")) and found.avail_gib]
    if len(steps) < 2:
        return None
    low, high = min(steps, key=_free), max(steps, key=_free)
    if _free(low) >= _BALANCE * _free(high):
        return None
    return Verdict(
        Severity.WARNING,
        Confidence.CERTAIN,
        "load",
        f"{low.rank.label} starts with {_free(low):.2f} GiB free, {high.rank.label} with {_free(high):.2f}: the least decides for all",
        "The pool of every rank is sized by the rank with the least free memory; the difference is lost on all others.",
        cite([low.mark.evidence("avail mem="), high.mark.evidence("avail mem=")]),
        [step("gap", f"{_free(high):.2f} - {_free(low):.2f}", _free(high) - _free(low), "GiB")],
        [other("gpu", "find what holds memory on that card (nvidia-smi), or choose equal cards")],
        missing=["`nvidia-smi` of that moment"],
    )


def _free(item: MemoryStep) -> float:
    return item.avail_gib or 0.0


def _neighbour_in_oom(case: Case) -> Verdict | None:
    """An out-of-memory text before any serving that names another process on the card."""
    for failure, stage in oom.gpu_ooms(case):
        sizes = oom.figures(oom.root_text(failure))
        if stage not in ("load", "pool", "unknown") or (sizes.others or 0.0) < 1.0 or case.served():
            continue
        return Verdict(
            Severity.CRITICAL,
            Confidence.PROBABLE,
            "load",
            f"another process holds {sizes.others:.1f} GiB of the card",
            "The error text lists another process on the same card. What it holds is missing here.",
            cite([failure.evidence("memory in use"), *_begins(case)]),
            [*sizes.steps(), step("held by others", "from the error text", sizes.others or 0.0, "GiB")],
            [
                other(
                    "gpu", "end the other process (nvidia-smi names it), or choose another card with CUDA_VISIBLE_DEVICES or --base-gpu-id"
                ),
                decrease("--mem-fraction-static", None, "share", "Alternative: both fit only if the shares add up to less than the card"),
            ],
            missing=["`nvidia-smi` of that moment"],
        )
    return None


def _card_not_free(case: Case) -> Verdict | None:
    """Free memory before loading far below the size of the card, where the log or the user gives the size."""
    begin = case.run.lowest("load_begin")
    card, source = card_gib(case)
    if begin is None or begin.avail_gib is None or card is None or begin.avail_gib >= 0.8 * card:
        return None
    unified = is_unified(case)
    enough = any(item.context_len and item.max_total_num_tokens >= item.context_len for item in case.run.capacities)
    return Verdict(
        Severity.INFO if enough else Severity.WARNING,
        Confidence.PROBABLE,
        "load",
        f"only {begin.avail_gib:.1f} of {card:.1f} GiB were free before loading: something else uses the card",
        "The fraction is a share of what is free."
        + (" This machine's memory is unified: the host's processes and caches count as well." if unified else ""),
        cite([begin.mark.evidence("avail mem="), source]),
        [step("used by others", f"{card:.2f} - {begin.avail_gib:.2f}", card - begin.avail_gib, "GiB")],
        [other("other processes on the GPU", "free what they hold (nvidia-smi names them)")],
        missing=["`nvidia-smi` of that moment"],
    )


def card_gib(case: Case) -> tuple[float | None, Evidence | None]:
    """Memory of one card, GiB: as SGLang reports it, else as the user said; with its line."""
    for notice in case.run.notices:
        if found := _TOTAL.search(notice.text):
            return min(float(item) for item in found[1].split(",")) / 1024, notice.mark.evidence("Reported total GPU memory")
    given = case.hardware.gpu_memory_bytes
    return (given / GIB, case.hardware_lines.get("gpu_memory_bytes")) if given else (None, None)


def is_unified(case: Case) -> bool:
    """Whether GPU and host share one memory: nvidia-smi has no figure for it there, or both sizes given by the user are the same."""
    host, gpu = case.hardware.host_ram_bytes, case.hardware.gpu_memory_bytes
    if host and gpu and abs(host - gpu) < 0.04 * host:
        return True
    return case.run.notice_with("Failed to get GPU memory capacity from nvidia-smi", "Reported total GPU memory") is not None


# ---------------------------------------------------------------------------------------------------------------- recurrent states


@rule("LF211", "mamba_state_no_room", "No room for the recurrent-state pool")
def mamba_state_no_room(case: Case) -> Verdict | None:
    """A hybrid model's recurrent-state pool gets a negative or zero size.

    Why: after weights, draft and the reserves for activations the static share holds nothing, so no state slot can be made. The reserve
    grows with chunk and prefill sizes, speculation multiplies the states per request.
    Confirm: `Computed max_mamba_cache_size=-n (total_rest_memory=… GB, mamba_cache_per_req=… MB)`.
    Fix: with a negative rest: smaller chunk and prefill sizes, a higher fraction, a smaller model; with a small positive one: fewer running requests.
    False friends: the printed list puts fewer requests first; that cannot create memory where the rest is already negative.
    """
    found = signatures.hits(case, "mamba_state_no_room")
    if not found:
        return None
    hit = found[0]
    rest = float(hit.groups["rest"]) if "rest" in hit.groups else None
    each = float(hit.groups["each"]) if "each" in hit.groups else None
    steps: list[Arithmetic] = [step("state slots", "printed", hit.number("slots") or 0, "slots")]
    if rest is not None and each is not None:
        steps += [step("rest of the static share", "printed", rest, "GB"), step("states of one request", "printed", each, "MB")]
        if rest < 0:
            steps.append(step("missing before any slot", f"0 - ({rest:g})", -rest, "GB"))
        else:
            steps.append(step("requests that fit", f"{rest:g} × 1024 / {each:g}", math.floor(rest * 1024 / each), "requests"))
    title = "the recurrent states of this hybrid model have no room" + (
        f": {-rest:g} GB are missing before the first slot" if rest is not None and rest < 0 else ""
    )
    fix = _smaller_reserves(case, rest, each)
    return signatures.verdict(case, "mamba_state_no_room", title=title, arithmetic=steps, fix=fix)


def _smaller_reserves(case: Case, rest: float | None, each: float | None) -> list[Recommendation]:
    """Halve what reserves memory, and raise the fraction where there is room for that."""
    fix = []
    for flag, field, unit in (
        ("--chunked-prefill-size", "chunked_prefill_size", "tokens"),
        ("--max-prefill-tokens", "max_prefill_tokens", "tokens"),
        ("--max-running-requests", "max_running_requests", "requests"),
    ):
        now = case.config.number(field)
        value = max(1, int(now) // 2) if now and now > 1 else None
        if field == "max_running_requests" and rest is not None and each and rest > 0:
            value = max(1, math.floor(rest * 1024 / each))
        fix.append(
            decrease(
                flag, value, unit, "states are held per request" if "running" in field else "the reserve for activations grows with it"
            )
        )
    now = case.config.number("mem_fraction_static")
    if now is None or now < 0.9:
        fix.append(increase("--mem-fraction-static", round(now + 0.05, 3) if now else None, "share", "more memory for states and KV"))
    if case.config.get("speculative_algorithm"):
        fix.append(decrease("--speculative-num-draft-tokens", None, "tokens", "every draft token keeps a state of its own"))
    return [
        *fix,
        increase("--tp-size", case.config.size("tp_size") * 2, "ranks", "Alternative: weights and states are divided over more cards"),
    ]


# ---------------------------------------------------------------------------------------------------------------- unused memory


@rule("LF212", "unused_gpu_memory", "GPU memory stays unused while KV is the bottleneck")
def unused_gpu_memory(case: Case) -> Verdict | None:
    """GPU memory is left over after the start that the KV pool could use.

    Why: a cautious fraction, a cap on the pool, or a pool that is smaller than its share: releases before 0.5.9 counted the
    sliding-window layers of two-pool models twice in the bytes per token.
    Threshold: SGLang's tuning page asks for 5 to 8 GiB of `available_gpu_mem` after start; more than that and than a fifth of the card is
    plenty, also for long prompts and images, where requests wait for KV.
    Confirm: `available_gpu_mem=` on the capacity line, against the pool's usage while requests queue.
    Fix: raise `--mem-fraction-static` by what is left beyond 8 GiB, in steps; drop a cap that is not meant.
    False friends: a pool that is never full needs nothing; long prompts and images need the rest for activations.
    """
    return _roomy_card(case) or _window_counted_twice(case)


def _roomy_card(case: Case) -> Verdict | None:
    """Much memory left after a start whose pool is full while requests wait."""
    left = min((item for item in case.run.capacities if item.avail_gib is not None), key=lambda item: item.avail_gib or 0.0, default=None)
    begin = case.run.lowest("load_begin")
    full = max(case.run.serving.windows, key=lambda window: window.full_share, default=None)
    if (
        left is None
        or left.avail_gib is None
        or begin is None
        or left.avail_gib <= max(_GUIDE_FREE_GIB, _PLENTY * _free(begin))
        or full is None
        or full.full_share < 0.2
        or full.full_mark is None
    ):
        return None
    now = case.config.number("mem_fraction_static")
    steps = [
        step("left after start", "printed", left.avail_gib, "GiB"),
        step("needed beside the pool", "SGLang's tuning page", _GUIDE_FREE_GIB, "GiB"),
    ]
    fix = _use_it(now, left, begin, steps)
    return Verdict(
        Severity.WARNING,
        Confidence.PROBABLE,
        "capacity",
        f"{left.avail_gib:.1f} GiB of GPU memory stay unused while requests wait for KV",
        "The pool is full and requests wait, but the card has memory left that the pool could have.",
        cite(
            [
                left.mark.evidence("available_gpu_mem="),
                full.full_mark.evidence("#queue-req"),
                case.config.evidence("mem_fraction_static", "max_total_tokens"),
            ]
        ),
        steps,
        fix,
    )


def _use_it(now: float | None, left: Capacity, begin: MemoryStep | None, steps: list[Arithmetic]) -> list[Recommendation]:
    spare = (left.avail_gib or 0.0) - _GUIDE_FREE_GIB
    if now is None or begin is None or not begin.avail_gib:
        return [increase("--mem-fraction-static", None, "share", "gives the rest to the pool, in steps of 0.02")]
    value = math.floor((now + spare / begin.avail_gib) * 100) / 100
    steps.append(step("fraction that uses it", f"{now:g} + {spare:.2f}/{begin.avail_gib:.2f}", value))
    return [increase("--mem-fraction-static", min(0.95, value), "share of the memory free before loading", "leaves 8 GiB beside the pool")]


def _window_counted_twice(case: Case) -> Verdict | None:
    """A two-pool model whose layers differ, on a release that sized both pools as if they did not."""
    split = _split(case)
    uneven = next((pool for pool in case.run.kv_pools if _unequal(pool)), None)
    if split is None or uneven is None or not case.release.may_be("0.4.10", "0.5.8") or not _pool_below_share(case):
        return None
    steps = [step("K against V", f"{uneven.k_gib:.2f} / {uneven.v_gib:.2f}", (uneven.k_gib or 0) / (uneven.v_gib or 1))]
    now = case.config.number("mem_fraction_static")
    return Verdict(
        Severity.WARNING,
        Confidence.PROBABLE if case.release.before("0.5.9") else Confidence.POSSIBLE,
        "kv_pool",
        "the pools of this sliding-window model are smaller than their share of the memory allows",
        "Up to 0.5.8 the bytes per token counted the sliding-window layers twice and took the heads of one kind of layer for both. K and V differ here, so "
        "the estimate is too large and the pools come out too small; the rest of the share is never allocated.",
        cite([split, uneven.mark.evidence("K size"), case.config.evidence("mem_fraction_static")]),
        steps,
        [
            upgrade("sglang", "0.5.9", "counts the layers of each pool once"),
            increase(
                "--mem-fraction-static",
                round(min(0.9, now + 0.1), 2) if now is not None and now < 0.88 else None,
                "share",
                "Alternative: until then, more share for the same pool",
            ),
        ],
        missing=["`Load weight begin`, `Memory pool end` and the capacity line: they give what is left"],
    )


def _unequal(pool: KvPool) -> bool:
    return bool(pool.k_gib and pool.v_gib) and abs((pool.k_gib or 0) / (pool.v_gib or 1) - 1) > 0.05


def _split(case: Case) -> Evidence | None:
    """The line that says how the tokens are split over two pools."""
    pool = next((pool for pool in case.run.kv_pools if pool.kind == "swa" and pool.num_tokens), None)
    if pool is not None:
        return pool.mark.evidence("swa_layer_tokens=")
    notice = case.run.notice_with("Use sliding window memory pool", "swa_layer_tokens=")
    return notice.mark.evidence("swa_layer_tokens=") if notice else None


def _pool_below_share(case: Case) -> bool:
    """Whether the ledger, where it is complete, leaves more than ``P × (1 - f)`` plus 2 GiB after the pools."""
    begin, end, now = case.run.lowest("load_begin"), case.run.lowest("pool_end", last=True), case.config.number("mem_fraction_static")
    if begin is None or end is None or now is None or begin.avail_gib is None or end.avail_gib is None:
        return True
    return end.avail_gib > begin.avail_gib * (1 - now) + 2
