"""Which SGLang release wrote a log: the fields of server_args, and the wording of lines that came with a release.

SGLang does not print its version. Every sign narrows the range from below or from above; what the user says wins.
"""

from __future__ import annotations

from collections.abc import Callable

from logforensics.run.model import Run
from logforensics.sglang import flags

# sign in the run -> first release that prints it (reference: FORMATS §2-§6)
_SINCE: tuple[tuple[str, str, Callable[[Run], bool]], ...] = (
    ("0.4.7", "the capacity line ends in available_gpu_mem=", lambda run: any(item.avail_gib is not None for item in run.capacities)),
    ("0.5.7", "retractions name #new_tokens_gained", lambda run: bool(run.notice_with("#new_tokens_gained"))),
    (
        "0.5.9",
        "`Load weight end.` gives elapsed=",
        lambda run: any(item.stage == "load_end" and item.elapsed_s is not None for item in run.memory_steps),
    ),
    ("0.5.13", "the KV pool line names its dtype", lambda run: any(pool.dtype for pool in run.kv_pools)),
    ("0.5.17", "host pools are printed with their tokens", lambda run: any(pool.num_tokens is not None for pool in run.host_pools)),
    ("0.5.19", "server_args is printed as a dict", lambda run: run.launch is not None and run.launch.form == "dict"),
    ("0.5.21", "a memory baseline is printed", lambda run: "memory_baseline" in run.stages),
)
_UNTIL: tuple[tuple[str, str, Callable[[Run], bool]], ...] = (
    (
        "0.5.8",
        "`Load weight end.` has no elapsed=",
        lambda run: any(item.stage == "load_end" and item.elapsed_s is None and item.detail for item in run.memory_steps),
    ),
    ("0.5.18", "server_args is printed as ServerArgs(…)", lambda run: run.launch is not None and run.launch.form == "ServerArgs"),
    (
        "0.5.16",
        "host pools are printed without tokens",
        lambda run: any(pool.num_tokens is None and pool.label == "kv" for pool in run.host_pools),
    ),
    (
        "0.5.12",
        "the KV pool line names no dtype",
        lambda run: any(pool.dtype is None and pool.kind in ("mha", "mla") for pool in run.kv_pools),
    ),
)


def release_range(run: Run, stated: str | None) -> tuple[str, str, str]:
    """Oldest and newest release that fit, and why."""
    if stated is not None and (known := flags.nearest_release(stated)) is not None:
        return known, known, f"stated: {stated}"
    names = flags.releases()
    low, high, reasons = names[0], names[-1], []
    if run.launch is not None:
        low, high = run.launch.version_low or low, run.launch.version_high or high
        reasons.append(f"server_args has the fields of {low} … {high} (line {run.launch.mark.line})")
    for release, reason, holds in _SINCE:
        if flags.release_at_least(release, low) and release != low and holds(run):
            low = release
            reasons.append(f"{reason} (since {release})")
    for release, reason, holds in _UNTIL:
        if flags.release_at_least(high, release) and release != high and flags.release_at_least(release, low) and holds(run):
            high = release
            reasons.append(f"{reason} (until {release})")
    if not flags.release_at_least(high, low):
        high = low  # a fork mixes wordings: the field set and the newest wording count
    return low, high, "; ".join(reasons) or "nothing in the log tells"
