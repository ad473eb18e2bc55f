"""A read log as one log per source and server start."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from logforensics.parsing import ParsedLog

if TYPE_CHECKING:
    import polars as pl

_ANY_PROGRAM = frozenset({"notices", "errors", "requests", "shutdown"})


def by_source(parsed: ParsedLog) -> list[ParsedLog]:
    """One log per source: a folder, a pattern or an archive may name several."""
    import polars as pl

    if len(parsed.sources) == 1:
        return [parsed]
    return [_part(parsed, pl.col("source") == source, (source,)) for source in parsed.sources]


def by_start(parsed: ParsedLog) -> list[ParsedLog]:
    """One log per server start; a log that prints server_args once, or not at all, is one."""
    import polars as pl

    launches = parsed.frames["launches"]["launch"].unique(maintain_order=True)
    if launches.len() < 2:
        return [parsed]
    return [_part(parsed, pl.col("launch") == launch, parsed.sources) for launch in launches]


def _part(parsed: ParsedLog, rows: pl.Expr, sources: tuple[str, ...]) -> ParsedLog:
    frames = {name: frame.filter(rows) for name, frame in parsed.frames.items()}
    is_sglang = any(frame.height for name, frame in frames.items() if name not in _ANY_PROGRAM)
    return replace(parsed, frames=frames, sources=sources, is_sglang=is_sglang)
