"""The HTTP and tokenizer processes: their exceptions do not harm the ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from logforensics import lazy_re
from logforensics.findings import Confidence, Evidence, Recommendation, Severity
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite, decrease, environment, other, rule, set_to, step, upgrade
from logforensics.rules.signs import Sign, active, cited
from logforensics.run.troubles import Trouble

FRONTEND = ("ASGI", "TokenizerManager", "HTTP")
_FRONT_FRAMES = (
    "tokenizer_manager",
    "http_server",
    "entrypoints/openai",
    "multimodal/processors",
    "uvicorn",
    "starlette",
    "async_mm_data_processor",
    "serving_chat",
)
_OOM = lazy_re.compile(r"out of memory", re.IGNORECASE)
_LIMIT = Sign(lazy_re.compile(r"TimeoutError|CancelledError.{0,40}timeout"), frames=(*_FRONT_FRAMES, "wait_for"), origins=("exception",))
_SLOW_WORK = (
    "_process_single_image",
    "process_mm_data",
    "load_mm_data",
    "image_processing",
    "multimodal/processors",
    "async_mm_data_processor",
    "load_image",
    "mm_utils",
)
_MISMATCH = Sign(
    lazy_re.compile(
        r"(?:image|video|audio|multimodal|mm)[ _-]?(?:token|placeholder|item|data|feature|grid|pad|input)s?.{0,120}(?:mismatch|do(?:es)? not match|not match|!="
        r"|expected|more than|less than|exceed)"
        r"|[Mm]ismatch.{0,80}(?:image|video|audio|multimodal|placeholder)|number of (?:images|image tokens|videos|placeholders).{0,80}(?:match|expected|does)"
        r"|exception occurred while loading multimodal data|[Ff]ailed to (?:load|decode|open|fetch|download).{0,40}(?:image|video|audio)|cannot identify image file"
        r"|Error while (?:loading|processing).{0,40}(?:image|video|audio|multimodal|data)|UnidentifiedImageError|absolute aspect ratio must be smaller"
        r"|is not a multimodal model|does not support (?:image|video|audio|multimodal)"
    ),
)


# SGLang's own comparison of prompt and data, wherever it is made
_PROMPT = lazy_re.compile(
    r"multimodal embeddings? does not match those in the input text|Insufficient multimodal embedding length|[Ii]mage features and image tokens do not match"
)


def _of_frontend(trouble: Trouble) -> bool:
    """Whether an exception was raised in the HTTP or tokenizer process."""
    if trouble.process in FRONTEND:
        return True
    return trouble.process is None and trouble.has_frame(*_FRONT_FRAMES) and not trouble.has_frame("managers/scheduler", "tp_worker")


def frontend_troubles(case: Case) -> list[Trouble]:
    """Exceptions of the HTTP and tokenizer processes, out-of-memory errors left out."""
    return [item for item in active(case) if item.origin == "exception" and _of_frontend(item) and not _OOM.search(item.text)]


def _is_limit(trouble: Trouble) -> bool:
    return (
        trouble.kind.rsplit(".", 1)[-1] == "TimeoutError"
        and _of_frontend(trouble)
        and (_LIMIT.matches(trouble) or trouble.has_frame(*_SLOW_WORK))
    )


def _is_mismatch(trouble: Trouble) -> bool:
    if _PROMPT.search(trouble.text):
        return True
    return _MISMATCH.matches(trouble) and trouble.process not in ("Scheduler", "TpModelWorkerClient")


@rule("LF425", "frontend_request_timeout", "Preprocessing of requests exceeded its own time limit")
def frontend_request_timeout(case: Case) -> Verdict | None:
    """Requests died in the HTTP process because preprocessing them took longer than its limit.

    Why: image work runs on a CPU pool; many clients at once queue there, and each image has a limit (`REQUEST_TIMEOUT`, 10 s). The GPU idles meanwhile.
    Confirm: `TimeoutError` under `asyncio.wait_for` in a preprocessing frame; decode lines with few requests.
    Fix: a longer `REQUEST_TIMEOUT`, more `SGLANG_CPU_WORKERS`, fewer clients at once.
    False friends: clients may see HTTP 200, because streaming had begun; the schedulers are unharmed.
    """
    struck = [item for item in frontend_troubles(case) if _is_limit(item)]
    if not struck:
        return None
    running = max((window.running_max for window in case.run.serving.windows), default=None)
    steps = [step("requests that exceeded the limit", "exceptions", len(struck))]
    if running is not None:
        steps.append(step("most requests running on the GPU", "decode lines", running, "requests"))
    return Verdict(
        Severity.ERROR,
        Confidence.CERTAIN if struck[0].has_frame("wait_for") else Confidence.PROBABLE,
        "serving",
        f"{len(struck)} requests died in preprocessing: it took longer than its own limit",
        "The time went into the HTTP process, before any rank saw the request. The ranks are unharmed and were waiting for work.",
        cite([*(item.evidence() for item in struck[:3]), struck[-1].evidence()]),
        steps,
        [
            environment("REQUEST_TIMEOUT", 60, "seconds for one image; the default is 10"),
            environment("SGLANG_CPU_WORKERS", "one per core that is free", "preprocessing is the limit"),
            decrease("client concurrency", 16, "requests", "as many as the pool works through within the limit"),
        ],
    )


@rule("LF426", "multimodal_request_error", "A multimodal request did not fit")
def multimodal_request_error(case: Case) -> Verdict | None:
    """A multimodal request failed because its prompt and its data do not match, or its data cannot be read.

    Why: the number of placeholders differs from the number of images, an image cannot be fetched or decoded, or the model takes no such data.
    Confirm: the sentence about placeholders or images; the server goes on.
    Fix: on the client: the chat template's own placeholders, readable data, fewer items.
    False friends: an exception inside the scheduler ends the server and is `scheduler_exception`; out of memory in preprocessing is `frontend_gpu_oom`.
    """
    struck = [item for item in active(case) if _is_mismatch(item) and not _OOM.search(item.text)]
    struck = [item for item in struck if item.origin == "exception" or item.kind == "error" or "exception occurred" in item.text]
    if not struck:
        return None
    fatal = any(item.process == "Scheduler" and item.origin == "exception" for item in struck)
    unreadable = re.search(r"cannot identify|load|decode|open|fetch|download", struck[0].text) is not None
    fix: list[Recommendation] = [
        other(
            "client",
            "send data that can be fetched and decoded" if unreadable else "use the placeholders of the chat template, one for each item",
        )
    ]
    if not unreadable:
        fix.append(other("--chat-template", "Alternative: the template must emit the model's own placeholder tokens"))
        fix.append(upgrade("sglang", None, "Alternative: the processor of this model may count tokens otherwise in later releases"))
    return Verdict(
        Severity.CRITICAL if fatal else Severity.ERROR,
        Confidence.CERTAIN,
        "serving",
        f"{len(struck)} multimodal request{'s' if len(struck) != 1 else ''} failed: {'their data cannot be read' if unreadable else 'prompt and data do not match'}",
        f"{struck[0].head}. "
        + ("It was met in the scheduler, which ended." if fatal else "Only these requests failed; the ranks are unharmed."),
        cited(struck),
        [step("failed requests", "lines", len(struck))],
        fix,
        missing=["the request"],
    )


@rule("LF424", "frontend_exception", "An exception in the HTTP or tokenizer process")
def frontend_exception(case: Case) -> Verdict | None:
    """An exception in the HTTP or tokenizer process. This finding stands only where no other explains it.

    Why: a defect of request handling. The ranks are unharmed; when it strikes in the warm-up request, the start is given up.
    Confirm: `Exception in ASGI application`, or a traceback through `tokenizer_manager`, and no `Scheduler hit an exception`.
    Fix: mend the code or upgrade. `--skip-server-warmup` only hides it.
    False friends: a client that disconnects; a time limit (`frontend_request_timeout`); out of memory (`frontend_gpu_oom`).
    """
    struck = [item for item in frontend_troubles(case) if not _is_limit(item) and not _is_mismatch(item)]
    raised = [item for item in struck if not _reports_status(item)]
    if not raised:
        return None
    first = raised[0]
    warmup = [item for item in case.run.troubles if item.has_frame("_execute_server_warmup") or "warmup error" in item.text]
    started = case.served()
    name = first.frames[-1] if first.frames else None
    place = f" in {name[2]} ({name[0].rsplit('/', 1)[-1]}:{name[1]})" if name else ""
    fix = [
        other("source", f"mend{place or ' the code of request handling'}: a programming error, no setting"),
        upgrade("sglang", None, "request handling is mended release by release"),
    ]
    if warmup and not started:
        fix.append(set_to("--skip-server-warmup", value=True, unit="", why="only hides it: requests of this kind would fail"))
    return Verdict(
        Severity.ERROR if started else Severity.CRITICAL,
        Confidence.PROBABLE,
        "serving" if started else "warmup",
        f"the HTTP process raised {first.kind.rsplit('.', 1)[-1]}{place}" + ("; the start was given up" if warmup and not started else ""),
        f"{first.head}. The ranks are unharmed: models, pools and graphs are not the cause."
        + (" The warm-up request met it, so the server was not opened." if warmup and not started else ""),
        cite([*cited(raised, limit=3), *_last(warmup)]),
        [step("exceptions of the HTTP process", "tracebacks", len(raised))],
        fix,
    )


def _reports_status(trouble: Trouble) -> bool:
    """Whether an exception only reports the failed warm-up request, or groups others without a text of its own."""
    return trouble.has_frame("_execute_server_warmup") or (
        trouble.kind.endswith("ExceptionGroup") and "unhandled errors in a TaskGroup" in trouble.text
    )


def _last(warmup: Sequence[Trouble]) -> list[Evidence]:
    return [warmup[-1].evidence()] if warmup else []
