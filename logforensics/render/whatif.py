"""What each lever would give, as a table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from logforensics.render.document import Block, Bullets, Heading, Paragraph, Table, to_html, to_markdown, to_text
from logforensics.render.screen import Screen
from logforensics.render.words import number
from logforensics.secrets import mask

if TYPE_CHECKING:
    from logforensics.sglang.host_size import TierRow
    from logforensics.whatif import Outcome, WhatIf

_UNKNOWN = "?"


def render_whatif(answer: WhatIf, fmt: Literal["text", "json", "md", "html"] = "text", screen: Screen | None = None) -> str:
    """The table in one of the formats, ending in a newline."""
    if fmt == "json":
        return mask(json.dumps({"schema": "logforensics.whatif/1", **dataclasses.asdict(answer)}, indent=2, allow_nan=False)) + "\n"
    blocks = list(_blocks(answer))
    if fmt == "md":
        return to_markdown(blocks)
    return to_html(blocks) if fmt == "html" else to_text(blocks, screen or Screen())


def _blocks(answer: WhatIf) -> Iterator[Block]:
    yield Heading("What other settings would have given", level=1)
    header: tuple[str, ...] = ("setting", "KV tokens", "change", "in all", "requests", "GPU GiB left", "host GB")
    rows = tuple(_row(outcome, answer.now) for outcome in (answer.now, *answer.rows))
    if all(outcome.host_gb is None for outcome in (answer.now, *answer.rows)):
        header, rows = header[:-1], tuple(row[:-1] for row in rows)  # HiCache is off: there is nothing to say of the host
    yield Table(header, rows)
    if answer.host_tier:
        yield Heading("Sizes of the host tier")
        yield Table(
            ("GB per rank", "GB in all", "host tokens", "× device", "prefix tokens in reach", "fits"),
            tuple(map(_tier_row, answer.host_tier)),
        )
        yield Paragraph("More prefixes can be found again; no more requests run. Only device tokens admit a request.", quiet=True)
    said = tuple(f"{outcome.change}: {outcome.risk}" for outcome in answer.rows if outcome.risk)
    if said:
        yield Heading("Mind")
        yield Bullets(said)
    yield Paragraph(" ".join(answer.notes), quiet=True)


def _tier_row(row: TierRow) -> tuple[str, ...]:
    fits = _UNKNOWN if row.fits is None else "yes" if row.fits else "no"
    figures = (row.gb_per_process, row.gb_in_all, row.host_tokens, round(row.ratio, 2), row.prefix_reach)
    return (*map(number, figures), fits)


def _row(outcome: Outcome, now: Outcome) -> tuple[str, ...]:
    change = ""
    if outcome is not now and outcome.kv_tokens is not None and now.kv_tokens:
        change = f"{outcome.kv_tokens / now.kv_tokens - 1:+.0%}"
    figures = (outcome.kv_tokens, change, outcome.kv_tokens_in_all, outcome.requests, outcome.left_gib, outcome.host_gb)
    return (
        outcome.change or "as it was",
        *(text if isinstance(text, str) else _UNKNOWN if text is None else number(text) for text in figures),
    )
