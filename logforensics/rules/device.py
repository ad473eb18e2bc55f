"""The GPU itself failed: bad memory accesses, device assertions, hardware faults, native crashes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from logforensics import lazy_re
from logforensics.findings import Confidence, Recommendation, Severity
from logforensics.rules import beside
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite, decrease, environment, other, rule, set_to, step, upgrade
from logforensics.rules.signs import Sign, active, cited, matching, ranks_of, said, where
from logforensics.run.model import Rank
from logforensics.run.troubles import Trouble

_HARDWARE = Sign(
    lazy_re.compile(
        r"uncorrectable ECC|ECC_UNCORRECTABLE|cudaErrorECC|\bXid \([^)]{1,40}\): (?:48|61|62|63|64|74|79|92|94|95|119|120|140)\b|fallen off the bus"
        r"|GPU is lost|GPU has been lost|[Nn][Vv][Ll]ink.{0,20}(?:fatal|uncorrectable)|uncorrectable NV[Ll]ink|cudaErrorNvlinkUncorrectable"
        r"|cudaErrorHardwareStackError|HW Exception by GPU|hipErrorECCNotCorrectable|row.?remap.{0,30}(?:fail|pending)",
    )
)
# The kernel log's own codes of a broken card; others, such as 13, 31 and 43, are what faulty software looks like to the driver.
_BROKEN_BY_DRIVER = lazy_re.compile(r"Xid \([^)]{1,60}\): (?:48|61|62|63|64|74|79|92|94|95|119|120|140)\b")
_ILLEGAL = Sign(
    lazy_re.compile(
        r"illegal memory access|ILLEGAL_ADDRESS|misaligned address|cudaErrorIllegalAddress|cudaErrorMisalignedAddress|hipErrorIllegalAddress"
        r"|Failed to encode tensor map: 700|Memory access fault by GPU|unspecified launch failure|an illegal instruction was encountered"
        r"|Warp Illegal Address|DDR address of the MTE instruction is out of range|aicore exception",
        re.IGNORECASE,
    )
)
_ASSERTED = Sign(lazy_re.compile(r"device-side assert triggered|cudaErrorAssert|hipErrorAssert"))
_ASSERTION = Sign(
    lazy_re.compile(
        r"\.(?:cu|cuh|hip)h?:\d+:.{0,400}Assertion|\bAssertion `.{1,300}(?:` ?failed|failed\.)|tl\.device_assert|block: \[\d+,\d+,\d+\], thread:"
    )
)
_SEGFAULT = Sign(lazy_re.compile(r"[Ss]egmentation fault|Segfault encountered|SIGSEGV|SIGBUS|Bus error"))
_BAD_PROBABILITY = lazy_re.compile(r"probability tensor contains|isnan|isinf|\bnan\b|\binf\b")
_BAD_INDEX = lazy_re.compile(r"[Ii]ndex|srcSelectDimSize|out of bounds|vocab|ind >=? ?0")


def local_gpu(case: Case, rank: Rank) -> int | None:
    """The GPU of a rank on its machine: ``--base-gpu-id`` plus the rank's place among those of its node."""
    if rank.tp is None:
        return None
    per_node = max(1, case.config.size("tp_size") // case.config.size("nnodes"))
    start = int(case.config.number("base_gpu_id") or 0)
    pipeline = (rank.pp or 0) * per_node
    return start + (rank.tp % per_node if case.config.fields.get("tp_size") else rank.tp % 8) + pipeline


def failed_hardware(case: Case) -> list[Trouble]:
    """Lines that say the card is broken, in the log or in a kernel log beside it."""
    return [*matching(case, _HARDWARE), *beside.driver_errors(case, _BROKEN_BY_DRIVER)]


@rule("LF408", "gpu_hardware_error", "A GPU reported a hardware fault")
def gpu_hardware_error(case: Case) -> Verdict | None:
    """A GPU reported a hardware fault: an uncorrectable memory error, a lost card, a broken link.

    Why: a row of GPU memory is damaged, or the card dropped off the bus. No setting of the server causes or cures it.
    Confirm: `uncorrectable ECC error encountered`, `Xid` 48, 63, 64, 74, 79, 94, 95 …, `GPU is lost`; then `nvidia-smi -q -d ECC,ROW_REMAPPER` and `dmesg | grep Xid`.
    Fix: take the card out of service, reset it (which remaps the row), and exchange it when the error returns. Serve on the other cards meanwhile.
    False friends: the hints about memory under `Capture cuda graph failed` are printed for every inner error; the other ranks only lose their peer.
    """
    struck = failed_hardware(case)
    if not struck:
        return None
    ranks = ranks_of(struck)
    gpu = local_gpu(case, ranks[0]) if ranks else _printed_gpu(struck)
    name = f"GPU {gpu}" if gpu is not None else "GPU"
    fix = [
        other(name, "nvidia-smi -q -d ECC,ROW_REMAPPER; reset the card, exchange it if the error returns"),
        environment("CUDA_VISIBLE_DEVICES", f"without {name}", "serves on the healthy cards meanwhile; --tp-size must fit what is left"),
    ]
    steps = [step("GPU of the rank", f"rank {ranks[0].label} on its node", gpu)] if ranks and gpu is not None else []
    return Verdict(
        Severity.CRITICAL,
        Confidence.CERTAIN,
        where(case, struck[0]),
        f"{name} reported a hardware fault{f' ({said(ranks)} said so first)' if ranks else ''}",
        f"'{_sentence(struck[0])}' comes from the card, not from software. The other ranks lost their peer and fail after it.",
        cited(struck),
        steps,
        fix,
        missing=[] if gpu is not None else ["`nvidia-smi -q -d ECC,ROW_REMAPPER` and `dmesg | grep -i xid`: they name the card"],
    )


def _printed_gpu(struck: Sequence[Trouble]) -> int | None:
    found = next((found for item in struck if (found := re.search(r"\bGPU[ :#](\d{1,2})\b", item.text))), None)
    return int(found[1]) if found else None


def _sentence(trouble: Trouble) -> str:
    """The decisive part of a line, for people."""
    for sign in (_HARDWARE, _ILLEGAL, _ASSERTED):
        if sign.text is not None and (found := sign.text.search(trouble.text)):
            return found[0].strip()
    return trouble.head


@rule("LF406", "illegal_memory_access", "A kernel accessed memory it must not")
def illegal_memory_access(case: Case) -> Verdict | None:
    """A kernel read or wrote outside its memory; the CUDA context is lost and the rank dies.

    Why: a defect of a kernel, or of the indices it was given. Errors are reported asynchronously, so the Python frame is only near the place.
    Confirm: the FIRST `illegal memory access` (CUDA code 700). Later lines such as `CUDA-capable device(s) is/are busy or unavailable`, `Failed to encode
    tensor map: 700`, NCCL aborts and lost peers are consequences in the same context.
    Fix: upgrade; for one run `CUDA_LAUNCH_BLOCKING=1` names the kernel, `--disable-overlap-schedule` makes the failing batch the current one; smaller chunks and
    another attention backend avoid many of these.
    False friends: out of memory; a device assertion (code 710); a hardware fault, which says so.
    """
    struck = matching(case, _ILLEGAL)
    if not struck or failed_hardware(case):
        return None
    ranks = ranks_of(struck)
    first, prefill = struck[0], case.run.serving.prefill
    chunk = case.config.number("chunked_prefill_size")
    fix: list[Recommendation] = [
        upgrade("sglang", None, "such defects are mended in kernels; later releases carry the fixes"),
        environment("CUDA_LAUNCH_BLOCKING", 1, "for one run: the traceback then names the kernel"),
        set_to("--disable-overlap-schedule", value=True, unit="", why="diagnostic: the failing batch is then the current one"),
    ]
    if not first.has_frame("forward_decode") and (first.has_frame("forward_extend") or prefill):
        smaller = 4096 if chunk is None or chunk > 4096 else max(1024, int(chunk) // 2)
        fix.append(
            decrease(
                "--chunked-prefill-size",
                smaller,
                "tokens",
                "Alternative: indices of a smaller prefill batch stay within what kernels were tested with",
            )
        )
    fix.append(other("--attention-backend", "Alternative: another attention backend avoids the kernel, if it is one of attention"))
    proven = any("700" in item.text or "illegal" in item.text.lower() or "misaligned" in item.text for item in struck)
    return Verdict(
        Severity.CRITICAL,
        Confidence.CERTAIN if proven else Confidence.PROBABLE,
        where(case, first),
        f"a kernel{_on(ranks)} accessed memory it must not",
        "The first CUDA error is the cause; everything the process says afterwards comes from a lost context. "
        f"The frame {_near(first)} is only near the place, because kernels run asynchronously.",
        cite([*cited(struck), prefill.last.evidence("#new-token") if prefill else None]),
        [step("ranks that report it", "distinct tags", len(ranks))] if ranks else [],
        fix,
        missing=["one run with CUDA_LAUNCH_BLOCKING=1: it names the kernel"],
    )


def _on(ranks: Sequence[Rank]) -> str:
    """`` on TP2`` for the first rank; nothing where the log names none."""
    return f" on {said(ranks[:1])}" if ranks else ""


def _near(trouble: Trouble) -> str:
    if not trouble.frames:
        return "of the error"
    name, line, function = trouble.frames[-1]
    return f"{function} ({name.rsplit('/', 1)[-1]}:{line})"


@rule("LF407", "device_assert", "An assertion failed in a kernel")
def device_assert(case: Case) -> Verdict | None:
    """A kernel checked its input and stopped: an index out of range, or NaN among the probabilities.

    Why: the data were wrong before the kernel ran. Sampling meets NaN or infinity when a layer overflowed; an index is out of range when token ids do
    not fit the vocabulary or positions exceed the table.
    Confirm: the line `Assertion `…` failed.` of the device (no rank, no time, before the Python error); the Python frame is only where the error surfaced.
    Fix: NaN: `--enable-nan-detection` names the batch, another `--attention-backend` or `--dtype bfloat16` finds or avoids the layer. Index: compare the
    tokenizer's vocabulary with the model's, and the context length.
    False friends: an illegal memory access (no assertion line); an AssertionError of Python.
    """
    struck = matching(case, _ASSERTED)
    if not struck:
        return None
    said_by_device = [item for item in matching(case, _ASSERTION) if item.origin == "notice"]
    text = "\n".join(item.text for item in said_by_device)
    if _BAD_PROBABILITY.search(text):
        why = "Sampling met NaN or infinity among the probabilities: a layer overflowed before it. Which one is not in the log."
        fix = [
            set_to("--enable-nan-detection", value=True, unit="", why="names the batch instead of asserting"),
            set_to(
                "--attention-backend",
                _another_backend(case),
                "",
                "Alternative: if another backend is clean, the layer that overflows is found",
            ),
            set_to("--dtype", "bfloat16", "", "Alternative: fp16 overflows where bfloat16 does not"),
        ]
    elif _BAD_INDEX.search(text):
        why = "A kernel was given an index outside its table: token ids beyond the vocabulary, or positions beyond the context."
        fix = [
            other("--tokenizer-path", "compare the tokenizer's vocabulary and added tokens with the model's embedding"),
            decrease("--context-length", None, "tokens", "Alternative: positions must stay within the model's table"),
            environment("CUDA_LAUNCH_BLOCKING", 1, "for one run: the traceback then names the kernel"),
        ]
    else:
        why = "The assertion's own line is not in the log, so what was wrong with the data cannot be told."
        fix = [
            environment("CUDA_LAUNCH_BLOCKING", 1, "for one run: the traceback then names the kernel"),
            set_to("--enable-nan-detection", value=True, unit="", why="rules NaN out"),
        ]
    fix.append(upgrade("sglang", None, "a later release may have mended the kernel or the check"))
    return Verdict(
        Severity.CRITICAL,
        Confidence.CERTAIN,
        where(case, struck[0]),
        f"an assertion failed in a kernel{_on(ranks_of(struck))}",
        f"{why} The Python frame is only where the asynchronous error surfaced.",
        cite([*cited(said_by_device, "Assertion", 2), *cited(struck)]),
        [],
        fix,
        missing=[] if said_by_device else ["the device's own line `Assertion … failed`: it says what was wrong"],
    )


def _another_backend(case: Case) -> str:
    return "flashinfer" if case.config.get("attention_backend") == "triton" else "triton"


@rule("LF409", "node_specific_segfault", "Processes crashed natively")
def node_specific_segfault(case: Case) -> Verdict | None:
    """Processes died of a segmentation fault: native code, a driver, or one machine.

    Why: several processes that crash in the same instant without a Python error have a common cause below them: driver, firmware, a library or the
    hardware of that node.
    Confirm: run the same image on another machine. If it serves there, the node is at fault.
    Fix: take the node out and run the vendor's diagnostics; else bisect the libraries.
    False friends: a segmentation fault after another error or after a stop is part of the dying.
    """
    struck = [
        item for item in active(case) if _SEGFAULT.matches(item) or (item.origin == "shutdown" and item.kind in ("exit -11", "exit -7"))
    ]
    earlier = [
        item
        for item in active(case)
        if item.origin == "exception" and struck and item.order < struck[0].order and not _SEGFAULT.matches(item)
    ]
    if not struck or earlier:
        return None
    crashed = [item for item in struck if item.origin == "exception"] or struck
    frames = next((item for item in crashed if item.frames), None)
    where_text = f" The innermost Python frame was {_near(frames)}." if frames else ""
    several = len(crashed) > 1
    return Verdict(
        Severity.CRITICAL,
        Confidence.PROBABLE if several else Confidence.POSSIBLE,
        where(case, crashed[0]),
        f"{len(crashed)} processes died of a segmentation fault" if several else "a process died of a segmentation fault",
        "No Python error comes before it, so native code, the driver or the machine is at fault."
        + where_text
        + (" Independent processes that crash alike have a common cause, not a cascade." if several else "")
        + " Whether it is this node alone cannot be decided from this log.",
        cited(crashed, limit=6) if len({item.identity for item in crashed}) > 1 else [item.evidence() for item in crashed[:6]],
        [step("native crashes", "distinct lines", len(crashed))],
        [
            other("node", "run the same image on another machine; if it serves there, exclude this node and run the vendor's diagnostics"),
            other("driver", "compare driver and firmware versions with a machine that works; dmesg names the faulting library"),
            upgrade("sgl-kernel", None, "Alternative: if it crashes on every machine, a native library is at fault"),
        ],
        missing=["the same run on another machine", "the kernel log of that minute: it names the faulting library (`segfault at … in …`)"],
    )
