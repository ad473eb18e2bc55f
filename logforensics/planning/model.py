"""What the model itself asks of the launch: remote code, and a context that fits the pool."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from logforensics.findings import Confidence, Severity
from logforensics.planning.forecast import Outlook, forecast
from logforensics.planning.plan import Plan
from logforensics.rules.registry import decrease, increase, set_to, step


@forecast("LF312")
def remote_code_needed(plan: Plan) -> Outlook | None:
    """A repository known to bring code of its own, and no ``--trust-remote-code``."""
    if plan.has("trust_remote_code") or not any(_names(plan.model_name, known) for known in _needing_code()):
        return None
    return Outlook(
        Severity.WARNING,
        Confidence.PROBABLE,
        "launch",
        "the model's repository has code of its own, and --trust-remote-code is missing",
        "Its configuration or tokenizer is Python that transformers runs only with that flag. A copy without such files does not need it.",
        ["model_path"],
        [],
        [set_to("--trust-remote-code", value=True, unit="", why="lets the model's own code be used; read it first")],
    )


def _names(name: str, known: str) -> bool:
    """Whether a path or id names a known repository, by its whole id or its last part."""
    wanted, last = known.lower(), known.lower().rstrip("/").rsplit("/", 1)[-1]
    lowered = name.lower().rstrip("/")
    return lowered.startswith(wanted) or (not known.endswith("/") and lowered.rsplit("/", 1)[-1].startswith(last))


@cache
def _needing_code() -> tuple[str, ...]:
    text = (files("logforensics.planning") / "data" / "shapes.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["needs_remote_code"])


@forecast("LF318")
def context_exceeds_pool(plan: Plan) -> Outlook | None:
    """A typed context length that no single request can reach, because the pool holds fewer tokens."""
    context, tokens = plan.number("context_length"), plan.tokens
    if not context or tokens is None or tokens.mid <= 0 or tokens.mid >= context:
        return None
    return Outlook(
        Severity.WARNING,
        Confidence.PROBABLE if tokens.high < context else Confidence.POSSIBLE,
        "serving",
        f"--context-length {context:,.0f} is more than the about {tokens.mid:,.0f} KV tokens the pool will hold",
        "A request must fit into the device pool with prompt and output; longer ones are refused or cut whatever the context length says.",
        ["context_length", "mem_fraction_static"],
        [
            step("KV tokens", "predicted", int(tokens.mid), "tokens"),
            step("missing", f"{context:,.0f} - {tokens.mid:,.0f}", int(context - tokens.mid), "tokens"),
        ],
        [
            decrease("--context-length", int(tokens.mid * 0.95) // 1024 * 1024, "tokens", "what the pool can hold"),
            increase("--mem-fraction-static", None, "share", "Alternative: more KV tokens"),
            set_to("--kv-cache-dtype", "fp8_e4m3", "", "Alternative: half the bytes per token"),
        ],
    )
