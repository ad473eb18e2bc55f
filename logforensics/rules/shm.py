"""Shared memory of the container."""

from __future__ import annotations

from collections.abc import Sequence

from logforensics.findings import Action, Evidence, Recommendation
from logforensics.rules import signatures
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite, increase, rule, set_to, step
from logforensics.rules.signatures import Hit

_SHM = "/dev/shm"  # noqa: S108 - a mount that is spoken of, not used


@rule("LF108", "shm_exhausted", "Shared memory of the container is too small")
def shm_exhausted(case: Case) -> Verdict | None:
    """Shared memory (/dev/shm) is too small: NCCL's segments or another process's shared memory did not fit.

    Why: containers get 64 MB of /dev/shm by default. NCCL makes segments of several MB for every pair of ranks.
    Confirm: `Error while creating shared memory segment /dev/shm/nccl-… (size …)`, `No space left on device` for /dev/shm, a bus error in a worker.
    Fix: `--shm-size 16g` or more, `--ipc=host`, in Kubernetes an emptyDir with `medium: Memory` on /dev/shm.
    False friends: `Killed` a moment later is SGLang ending its own tree, not the OOM killer.
    """
    found = signatures.hits(case, "shm_exhausted")
    if not found:
        return None
    ranks = case.config.size("tp_size")
    size = found[0].number("size")
    steps = [step("segment that was refused", "from the error text", round(size / 2**20, 2), "MiB")] if size else []
    value = 32 if ranks >= 8 or ranks == 1 else 16
    fix = [
        increase(f"{_SHM} size", value, "GB", "docker --shm-size, or an emptyDir with medium: Memory mounted on /dev/shm"),
        set_to("--shm-size", f"{value}g", "", "the container's flag"),
        Recommendation("--ipc", Action.OTHER, "host", "", "Alternative: the host's /dev/shm"),
    ]
    title = f"{_SHM} is too small" + (f": {found[0].groups['segment']} could not be made" if "segment" in found[0].groups else "")
    stage = "init_dist" if not case.served() else "serving"
    return Verdict(
        signatures.severity(case, found[0].trouble),
        found[0].signature.confidence,
        stage,
        title,
        "Shared memory of this container ran out. It is a mount of its own, independent of the host's RAM and of the GPU.",
        cite([*(hit.evidence() for hit in found[:4]), *_after(case, found)]),
        steps,
        fix,
        missing=["`df -h /dev/shm` inside the container"],
    )


def _after(case: Case, found: Sequence[Hit]) -> list[Evidence]:
    """The line that announces the end that followed."""
    return [event.mark.evidence() for event in case.run.shutdowns if event.event == "child_failed"][:1] if found else []
