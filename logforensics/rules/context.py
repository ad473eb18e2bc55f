"""Requests that are longer than what the server takes."""

from __future__ import annotations

import re

from logforensics import lazy_re
from logforensics.findings import Action, Confidence, Evidence, Recommendation, Severity
from logforensics.rules.case import Case
from logforensics.rules.registry import Verdict, cite, other, rule, step, upgrade
from logforensics.run.model import Capacity, Notice

_TOO_LONG = (
    lazy_re.compile(r"[Ii]nput length \((?P<have>\d+) tokens\) exceeds the maximum allowed length \((?P<limit>\d+) tokens\)"),
    lazy_re.compile(r"input \((?P<have>\d+) tokens\) is longer than the model's context length \((?P<limit>\d+) tokens\)"),
    lazy_re.compile(r"maximum context length of (?P<limit>\d+) tokens"),
)
_SEVERAL = 3  # refusals that are no single mistake of a client
_DSV4_PAGE = 256  # tokens; page of the DeepSeek-V4 pools
_DSV4_SWA_RATIO = 0.1


@rule("LF318", "context_length_exceeded", "Requests are longer than the server takes")
def context_length_exceeded(case: Case) -> Verdict | None:
    """Requests are longer than what the server takes: the model's context, or what the pool holds.

    Why: a request may have as many tokens as the context length and, if the pool is smaller, as the pool. A prefill server of a
    sliding-window model takes no more than its window pool holds (`full tokens × --swa-full-tokens-ratio`, in whole pages).
    Confirm: `Input length (n tokens) exceeds the maximum allowed length (m tokens)`; compare m with `context_len` and `max_total_num_tokens`.
    Fix: where the pool is the limit, more KV memory; where it is the context length, the client or `--context-length`.
    False friends: a single too long request is the client's mistake; the server answers it with 400 and is well (an
    info; three or more, or a log without any batch line, are a warning).
    """
    refused = [(evidence, found) for evidence, text in _spoken(case) for pattern in _TOO_LONG if (found := pattern.search(text))]
    if not refused:
        return _window_pool(case)
    evidence, found = refused[0]
    limit = int(found["limit"])
    capacity = min(case.run.capacities, key=lambda item: item.max_total_num_tokens, default=None)
    pool_bound = capacity is not None and capacity.context_len is not None and limit < 0.9 * capacity.context_len
    steps = [step("longest request", "printed", limit, "tokens")]
    if "have" in found.groupdict():
        steps.insert(0, step("request", "printed", int(found["have"]), "tokens"))
    return Verdict(
        Severity.WARNING if pool_bound or len(refused) >= _SEVERAL or not case.run.serving.windows else Severity.INFO,
        Confidence.CERTAIN,
        "serving",
        f"requests of more than {limit:,} tokens are refused" + (": the KV pool holds no more" if pool_bound else ""),
        "The limit is the pool, not the model's context length."
        if pool_bound
        else "The limit is the context length that the server was started with.",
        cite([evidence, capacity.mark.evidence("max_total_num_tokens=") if capacity else None]),
        steps,
        _longer(case, capacity, pool_bound=pool_bound),
    )


def _spoken(case: Case) -> list[tuple[Evidence, str]]:
    """Evidence and text of refusals: of requests in the log's own lines and in errors."""
    needles = ("exceeds the maximum allowed length", "longer than the model's context length", "maximum context length")
    found = [
        (notice.mark.evidence("tokens"), notice.text) for notice in case.run.notices if any(needle in notice.text for needle in needles)
    ]
    return [
        *found,
        *((failure.evidence("tokens"), failure.text) for failure in case.failures if any(needle in failure.text for needle in needles)),
    ]


def _longer(case: Case, capacity: Capacity | None, *, pool_bound: bool) -> list[Recommendation]:
    if pool_bound:
        return [
            Recommendation("--mem-fraction-static", Action.INCREASE, None, "share", "more KV tokens: one request must fit into the pool"),
            Recommendation("--kv-cache-dtype", Action.SET, "fp8_e4m3", "", "Alternative: half the bytes per token"),
        ]
    now = case.config.number("context_length") or (capacity.context_len if capacity else None)
    return [
        other("client", "shorter prompts or a smaller max_tokens: the request and its answer share the context"),
        Recommendation(
            "--context-length",
            Action.INCREASE,
            None,
            "tokens",
            f"Alternative, where the model allows more than {now:g}" if now else "Alternative, where the model allows more",
        ),
        Recommendation(
            "--allow-auto-truncate",
            Action.SET,
            value=True,
            unit="",
            rationale="Alternative: the server cuts long prompts instead of refusing them",
        ),
    ]


def _window_pool(case: Case) -> Verdict | None:
    """A prefill server whose sliding-window pool is smaller than the requests it will get."""
    notice = case.run.notice_with("memory calculation:", "full_token=")
    if notice is None or case.config.get("disaggregation_mode") != "prefill":
        return None
    found = re.search(r"full_token=(\d+)", notice.text)
    if found is None:
        return None
    full, ratio = int(found[1]), case.config.number("swa_full_tokens_ratio") or _DSV4_SWA_RATIO
    page = int(case.config.number("page_size") or _DSV4_PAGE)
    window = int(full * ratio) // page * page
    context = case.config.number("context_length") or next((item.context_len for item in case.run.capacities if item.context_len), None)
    if context is not None and window >= context:
        return None
    profile = case.run.notice_with("rest_memory=")
    return Verdict(
        Severity.WARNING,
        Confidence.PROBABLE,
        "kv_pool",
        f"this prefill server takes requests of at most {window:,} tokens: its sliding-window pool holds no more",
        "In prefill mode a request must fit into the window pool as a whole. The pool of full attention would hold many times as much.",
        cite(
            [
                notice.mark.evidence("full_token="),
                profile.mark.evidence("rest_memory=") if profile else None,
                case.config.evidence("swa_full_tokens_ratio"),
            ]
        ),
        [
            step("tokens of full attention", "printed", full, "tokens"),
            step("window pool", f"floor({full:,} × {ratio:g} / {page}) × {page}", window, "tokens"),
        ],
        _wider_window(case, ratio, profile),
        missing=[] if context is not None else ["the longest request that the clients send"],
    )


def _wider_window(case: Case, ratio: float, profile: Notice | None) -> list[Recommendation]:
    fix = [
        Recommendation(
            "--swa-full-tokens-ratio",
            Action.INCREASE,
            min(1.0, max(0.5, ratio * 2)),
            "share",
            "the limit grows with the window pool; the full pool shrinks",
        )
    ]
    now = case.config.number("mem_fraction_static")
    rest = re.search(r"rest_memory=([\d.]+)", profile.text) if profile else None
    if now is not None:
        why = f"only {rest[1]} GiB are left for KV" if rest else "more memory for both pools"
        fix.append(
            Recommendation(
                "--mem-fraction-static", Action.INCREASE, round(min(0.94, now + 0.03), 3), "share of the memory free before loading", why
            )
        )
    return [*fix, upgrade("sglang", None, "later releases may lift the clip")]
