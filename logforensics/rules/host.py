"""Host memory: HiCache pools, their guard, and pinning."""

from __future__ import annotations

import math
import re

from logforensics.findings import Action, Arithmetic, Confidence, Evidence, Recommendation, Severity
from logforensics.rules.case import Case
from logforensics.rules.endings import explained_by_exception, kernel_lines, names_a_victim, sigkills
from logforensics.rules.hostbudget import HostBudget, host_budget, safe_size
from logforensics.rules.performance import cell_bytes
from logforensics.rules.registry import Verdict, cite, decrease, increase, other, rule, set_to, step, upgrade
from logforensics.sglang.host_guard import RESERVE_BYTES, late_rank_bytes
from logforensics.units import GB, gb

_NOTABLE_TOTAL = 256 * GB  # without the RAM size, smaller totals are worth a remark only
_HOST_RAM = "host RAM (--host-ram, or the output of `free -b`)"
_FORMULA = "size per rank = (available − 5 GB × ranks for loading − max(10 GiB, 5 %)) / ranks"


@rule("LF101", "host_overallocation_per_rank", "The ranks' HiCache pools together exceed the host")
def host_overallocation_per_rank(case: Case) -> Verdict | None:
    """Every rank pins its own HiCache pool; together they ask for more than the host has.

    Why: `--hicache-size` is GB (1e9) for EACH scheduler process, and `--hicache-ratio` multiplies each rank's own device pool. Up to 0.5.18
    every rank compares only its own request with the machine's free memory, so all of them pass and exhaust the host together. 0.4.5 to 0.5.4
    also round each pool up to a power of two; side pools (DSA index, recurrent states, sliding window) come on top.
    Confirm: one `Allocating … GB host memory` line per rank with the same figure; then silence, `Killed`, exit code -9 or defunct workers.
    Fix: a size per rank that all ranks can have at once (the derivation is shown), or the same as a ratio. The host tier extends prefix
    reuse, not the number of running requests.
    False friends: SGLang's own refusal `Not enough host memory available` (hicache_host_guard); a server that came up with the same size.
    """
    budget = host_budget(case)
    if budget is None or case.served() or case.run.refusals:
        return None
    ram = case.hardware.host_ram_bytes
    if ram is None:
        return _unknown_ram(case, budget)
    if budget.total <= ram - RESERVE_BYTES:
        return None
    if budget.announced == 0 and case.release.since("0.5.19"):
        return None  # from 0.5.19 SGLang's guard divides by the ranks and refuses first: another finding
    safe = safe_size(case, budget, ram)
    steps = [*budget.steps, step("host memory", case.said_by("host_ram_bytes"), round(ram / GB, 2), "GB"), *safe.derivation]
    steps.append(step("more than the host has by", f"{gb(budget.total)} - {gb(ram)}", round((budget.total - ram) / GB, 2), "GB"))
    return Verdict(
        Severity.CRITICAL,
        Confidence.CERTAIN,
        "hicache",
        f"{budget.processes} ranks × {gb(budget.pinned)} of HiCache = {gb(budget.total)}; the host has {gb(ram)}",
        _explanation(case, budget),
        _proof(case, budget),
        steps,
        _fit(budget, safe.gb, safe.ratio),
    )


def _explanation(case: Case, budget: HostBudget) -> str:
    flag = (
        "--hicache-size is GB per rank" if budget.sized_by == "hicache_size" else "--hicache-ratio multiplies every rank's own device pool"
    )
    text = f"{flag}, not for the server: each of the {budget.processes} scheduler processes on this machine pins {gb(budget.each)}."
    if budget.pinned != budget.each:
        text += f" This release pins through torch, which rounds each pool up to a power of two: {gb(budget.pinned)}."
    if case.release.before("0.5.19"):
        text += " Each rank compares only its own request with the free memory, so SGLang does not stop it."
    if budget.announced == 0:
        text += " Nothing has been allocated yet: the pools come after graph capture, but the flags and the RAM size decide it already."
    return text


def _proof(case: Case, budget: HostBudget) -> list[Evidence]:
    return cite(
        [
            case.config.evidence(budget.sized_by, "hicache_size"),
            *budget.lines[:16],
            *(event.mark.evidence("-9") for event in sigkills(case)),
            *(event.mark.evidence() for event in kernel_lines(case)),
            case.hardware_lines.get("host_ram_bytes"),
        ]
    )


def _fit(budget: HostBudget, size: int, ratio: float | None) -> list[Recommendation]:
    """The size, with the ratio form beside it; the one in use comes first and goes into the corrected command."""
    per_rank = f"all {budget.processes} ranks can have this at once"
    by_size = set_to("--hicache-size", size, "GB per rank", per_rank)
    by_ratio = set_to("--hicache-ratio", ratio, "× device pool, per rank", "the same as a ratio") if ratio else None
    pair = [by_size] if size > 0 else []
    if by_ratio is not None:
        first, second = (by_ratio, by_size) if budget.sized_by == "hicache_ratio" else (by_size, by_ratio)
        pair = [first, Recommendation(second.flag, second.action, second.value, second.unit, f"Alternative: {second.rationale}")]
    if size <= 0:
        pair = [Recommendation("--enable-hierarchical-cache", Action.REMOVE, None, "", "no size fits this machine")]
    if budget.pinned != budget.each:
        pair.append(upgrade("sglang", ">=0.5.5", "pins the exact size"))
    pair.append(other("running requests", "a host tier extends the reach of prefix reuse; running requests need device tokens"))
    return pair


def _unknown_ram(case: Case, budget: HostBudget) -> Verdict | None:
    """Without the RAM size: what is asked for, the formula, and as much certainty as the way the log ends allows."""
    died = bool(sigkills(case) or kernel_lines(case)) and not explained_by_exception(case)
    stopped = budget.announced > 0 and case.run.stage == "hicache" and not case.failures
    if not died and budget.total < _NOTABLE_TOTAL and not stopped:
        return None
    if died and budget.announced == 0:
        return None  # killed before any pool: something else took the memory
    severity = Severity.CRITICAL if died else Severity.WARNING  # a log may simply end here, on a machine that has the memory
    confidence = Confidence.PROBABLE if died or stopped else Confidence.POSSIBLE
    if died and names_a_victim(case):
        confidence = Confidence.CERTAIN  # the kernel itself says that memory ran out while the pools were pinned
    if budget.processes == 1 and not died:
        return None
    steps = [*budget.steps, step("size that fits", _FORMULA, "needs the host RAM", "GB per rank")]
    return Verdict(
        severity,
        confidence,
        "hicache",
        f"{budget.processes} ranks × {gb(budget.pinned)} of HiCache = {gb(budget.total)} of host memory; the host's RAM is not known",
        _explanation(case, budget),
        _proof(case, budget),
        steps,
        [
            decrease(
                f"--{budget.sized_by.replace('_', '-')}",
                None,
                "GB per rank" if budget.sized_by == "hicache_size" else "× device pool",
                _FORMULA,
            )
        ],
        missing=[_HOST_RAM],
    )


@rule("LF102", "hicache_host_guard", "SGLang's own host-memory check refused a HiCache pool")
def hicache_host_guard(case: Case) -> Verdict | None:
    """SGLang's own host-memory check raised: a rank asked for more than it believes is available.

    Why: the check keeps 10 GiB back. To 0.4.9 the printed "free" is before that reserve, from 0.4.10 after it. From 0.5.19 the rest is divided
    by the ranks of the host, and is sampled again for every pool: a rank that comes late finds its peers' pools subtracted and divides again.
    Confirm: `Not enough host memory available. Requesting R GB but only have F GB free.`, and how F differs between ranks.
    Fix: a smaller size per rank. From 0.5.19 `(H − 10 GiB) / (2n − 1)` passes in every order of arrival; from 0.5.21 give no size at all.
    False friends: machines with enough memory can be refused (late ranks, page cache counted as used in 0.5.21).
    """
    refusals = case.run.refusals
    if not refusals:
        return _will_refuse(case)
    ranks = case.schedulers_per_host
    largest = max(refusals, key=lambda item: item.free_gb)
    asked = largest.requested_gb
    steps = [step("asked for by one rank", "printed", asked, "GB"), step("free, as SGLang printed it", "printed", largest.free_gb, "GB")]
    size, why = _size_after_refusal(case, largest.free_gb, asked, ranks, steps)
    genuine = len({round(item.free_gb) for item in refusals}) == 1 and not case.run.host_pools
    late = case.release.since("0.5.19") and not genuine
    title = f"a rank asked for {asked:g} GB of host memory, SGLang allows {largest.free_gb:g} GB"
    text = "SGLang keeps 10 GiB back and refuses a pool that is larger than the rest."
    if late:
        text += " Ranks that check late see the pools of their peers already subtracted and divide the rest once more, so they are refused although all pools together may fit."
    cell = cell_bytes(case)
    fix = [set_to("--hicache-size", size, "GB per rank", why)]
    if cell and (tokens := next((pool.num_tokens for pool in case.run.kv_pools if pool.num_tokens), None)):
        ratio = math.floor(size * GB / (cell[0] * tokens) * 100) / 100
        fix.append(set_to("--hicache-ratio", ratio, "× device pool, per rank", "Alternative: the same as a ratio"))
    if case.release.since("0.5.21"):
        fix.append(
            Recommendation(
                "--hicache-size", Action.REMOVE, None, "", "Alternative: without size and ratio this release fits the pool by itself"
            )
        )
    lines = {item.mark.line for item in refusals}
    evidence = [*(item.mark.evidence("Not enough host memory") for item in refusals[:8]), case.config.evidence("hicache_size")]
    evidence += [failure.mark.evidence("Traceback") for failure in case.failures if failure.message_line in lines][:4]
    evidence += [pool.mark.evidence("host memory") for pool in case.run.host_pools[:8]]
    return Verdict(Severity.CRITICAL, Confidence.CERTAIN, "hicache", title, text, cite(evidence), steps, fix)


def _size_after_refusal(case: Case, free_gb: float, asked_gb: float, ranks: int, steps: list[Arithmetic]) -> tuple[int, str]:
    """A size that passes, from the printed free figure; the meaning of that figure depends on the release.

    Source: mem_cache/memory_pool.py:HostKVCache.__init__ (0.4.9), memory_pool_host.py (0.4.10), pool_host/base.py:host_memory_budget_bytes (0.5.19).
    """
    reserve = RESERVE_BYTES / GB
    if free_gb > asked_gb or case.release.before("0.4.10"):
        usable = free_gb - reserve
        steps.append(step("usable: the reserve of 10 GiB is not in the printed figure", f"{free_gb:g} - {reserve:.2f}", usable, "GB"))
        size = usable / ranks
        if ranks > 1:
            steps.append(step("for each rank", f"{usable:.2f} / {ranks}", size, "GB"))
        return max(0, int(size)), "what is free less the hidden reserve of 10 GiB"
    if case.release.since("0.5.19"):
        available = int(free_gb * ranks * GB) + RESERVE_BYTES
        steps.append(step("host memory behind that figure", f"{free_gb:g} × {ranks} + {reserve:.2f}", round(available / GB, 2), "GB"))
        size = late_rank_bytes(available, ranks) / GB
        steps.append(step("passes in every order of arrival", f"({available / GB:.2f} - {reserve:.2f}) / (2 × {ranks} - 1)", size, "GB"))
        return max(0, int(size)), "passes SGLang's check whatever rank comes first"
    size = free_gb / ranks
    steps.append(step("for each rank", f"{free_gb:g} / {ranks}", size, "GB"))
    return max(0, int(size)), "all ranks together then ask for what is free"


def _will_refuse(case: Case) -> Verdict | None:
    """From 0.5.19, before anything is allocated: the flags and the RAM size decide that the check will refuse."""
    budget, ram = host_budget(case), case.hardware.host_ram_bytes
    if budget is None or ram is None or budget.announced or case.served() or not case.release.since("0.5.19"):
        return None
    allowed = (ram - RESERVE_BYTES) // budget.processes
    if budget.each <= allowed:
        return None
    safe = safe_size(case, budget, ram)
    steps = [
        *budget.steps,
        step("SGLang will allow each rank", f"({gb(ram)} - 10 GiB) / {budget.processes}", round(allowed / GB, 2), "GB"),
        *safe.derivation,
    ]
    return Verdict(
        Severity.CRITICAL,
        Confidence.CERTAIN,
        "hicache",
        f"each rank will ask for {gb(budget.each)} of host memory, SGLang will allow {gb(allowed)}",
        "This release divides the host's free memory less 10 GiB by the ranks of the machine and refuses a larger pool. The check comes after graph capture.",
        _proof(case, budget),
        steps,
        _fit(budget, min(safe.gb, safe.late_rank_gb or safe.gb), safe.ratio),
    )


@rule("LF103", "hicache_pool_smaller_than_device", "The HiCache host pool is smaller than the device pool")
def hicache_pool_smaller_than_device(case: Case) -> Verdict | None:
    """The host pool holds fewer tokens than the device pool: rejected to 0.5.14, of little use afterwards.

    Why: with write_through the host holds a copy of what is on the device; a smaller tier adds no reach.
    Confirm: host tokens on the `Allocating … host pool` line against `max_total_num_tokens=`.
    Fix: a larger `--hicache-size` (at least tokens × bytes per token), or a smaller static fraction.
    False friends: none; the figures decide.
    """
    refused = next((failure for failure in case.failures if "host memory should be larger than the device memory" in failure.text), None)
    warned = case.run.notice_with("is smaller than the device pool")
    pool = next((item for item in case.run.host_pools if item.label in ("kv", "full") and item.num_tokens), None)
    device = next((item for item in case.run.capacities), None)
    small = pool is not None and device is not None and (pool.num_tokens or 0) < device.max_total_num_tokens
    if not refused and not warned and not small:
        return None
    evidence = [refused.evidence() if refused else None, warned.mark.evidence() if warned else None]
    evidence += [
        pool.mark.evidence("tokens") if pool else None,
        device.mark.evidence("max_total_num_tokens=") if device else None,
        case.config.evidence("hicache_size"),
    ]
    steps: list[Arithmetic] = []
    value: float | None = None
    if pool is not None and device is not None and pool.num_tokens:
        steps.append(step("host tokens", "printed", pool.num_tokens, "tokens"))
        steps.append(step("device tokens", "printed", device.max_total_num_tokens, "tokens"))
        configured = case.config.number("hicache_size") or pool.gb
        value = math.ceil(configured * device.max_total_num_tokens / pool.num_tokens + 0.01)
        steps.append(
            step(
                "size that holds the device pool",
                f"{configured:g} GB × {device.max_total_num_tokens:,} / {pool.num_tokens:,}",
                value,
                "GB per rank",
            )
        )
    return Verdict(
        Severity.CRITICAL if refused else Severity.WARNING,
        Confidence.CERTAIN,
        "hicache",
        "the HiCache host pool is smaller than the device pool" + (": this release refuses it" if refused else ": it adds no reach"),
        "The host tier keeps a copy of what the device holds. With fewer tokens than the device it cannot extend the reach of prefix reuse.",
        cite(evidence),
        steps,
        [increase("--hicache-size", value, "GB per rank", "the host pool must hold more tokens than the device pool")],
    )


@rule("LF104", "hicache_pin_limit", "Pinning the HiCache pool failed for its size")
def hicache_pin_limit(case: Case) -> Verdict | None:
    """Pinning the host pool failed: size, memlock or IOMMU limits.

    Why: `cudaHostRegister` refuses a buffer; from 0.5.13 SGLang checks its return code (before, an unpinned pool went unnoticed).
    Confirm: `cudaHostRegister failed (rc=…)` with the size; compare it with the machine's RAM and `ulimit -l`.
    Fix: a smaller pool per rank, or from 0.5.19 smaller registration chunks (SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB).
    False friends: confidential computing and some drivers refuse any pinning (then the size does not matter).
    """
    failure = next(
        (
            item
            for item in case.failures
            if re.search(r"(?:cuda|hip)HostRegister failed|HostRegister.*(?:invalid argument|out of memory)", item.text)
        ),
        None,
    )
    if failure is None:
        return None
    unsupported = re.search(r"not supported|operation not permitted", failure.text, re.IGNORECASE) is not None
    if unsupported:
        return None
    size = re.search(r"size=(\d+)", failure.text)
    steps = [step("buffer that was refused", f"{int(size[1]):,} B", round(int(size[1]) / GB, 2), "GB")] if size else []
    ratio = case.config.number("hicache_ratio")
    fix = []
    if ratio and not case.config.number("hicache_size"):
        fix.append(decrease("--hicache-ratio", max(1.0, ratio / 2), "× device pool", "a smaller buffer per rank"))
    fix.append(
        decrease(
            "--hicache-size",
            int(int(size[1]) / GB / 2) if size else None,
            "GB per rank",
            "Alternative: a smaller buffer per rank" if fix else "a smaller buffer per rank",
        )
    )
    fix.append(other("SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB", "from 0.5.19 the buffer is registered in chunks of this size"))
    locked = case.side.least("locked_limit")
    if locked is not None and size and int(locked.value) < int(size[1]):
        fix.insert(0, other("memlock", "raise the limit of locked memory: `ulimit -l unlimited`, or `--ulimit memlock=-1` for docker"))
    return Verdict(
        Severity.CRITICAL,
        Confidence.PROBABLE,
        "hicache",
        "pinning the HiCache pool failed" + (f": a buffer of {gb(int(size[1]))} was refused" if size else ""),
        "The driver refused to register this host buffer. The machine may have the memory; a single registration of this size, the memlock limit or the IOMMU is what refuses.",
        cite([failure.evidence("failed"), case.config.evidence("hicache_ratio", "hicache_size"), locked.evidence if locked else None]),
        [
            *steps,
            *([step("locked memory per process", f"{locked.evidence.source}:{locked.evidence.line}", locked.value, "B")] if locked else []),
        ],
        fix,
        missing=_unknown_pinning(case),
    )


def _unknown_pinning(case: Case) -> list[str]:
    """What decides why a buffer could not be pinned and is not known."""
    locked = any("process limits" in file.kinds for file in case.side.files)
    ram = case.hardware.host_ram_bytes is not None
    return [text for text, known in (("`ulimit -l` of the server's process", locked), ("the host's RAM", ram)) if not known]


@rule("LF105", "hicache_pin_unsupported", "Pinning is not possible on this platform")
def hicache_pin_unsupported(case: Case) -> Verdict | None:
    """Pinning host memory is not possible here: confidential computing, or the driver does not support it.

    Why: `cudaHostRegister` answers "operation not supported" for any size.
    Confirm: `cudaHostRegister failed` with "not supported" or "not permitted".
    Fix: leave HiCache off on this platform.
    False friends: `invalid argument` for one large buffer is a limit of size (hicache_pin_limit).
    """
    failure = next(
        (
            item
            for item in case.failures
            if re.search(r"HostRegister", item.text) and re.search(r"not supported|not permitted", item.text, re.IGNORECASE)
        ),
        None,
    )
    if failure is None:
        return None
    return Verdict(
        Severity.CRITICAL,
        Confidence.PROBABLE,
        "hicache",
        "this platform does not allow pinning host memory",
        "The driver refuses to register host memory at all, so a HiCache pool cannot be used, whatever its size.",
        cite([failure.evidence("HostRegister"), case.config.evidence("enable_hierarchical_cache")]),
        [],
        [Recommendation("--enable-hierarchical-cache", Action.REMOVE, None, "", "host pools cannot be pinned here")],
    )
