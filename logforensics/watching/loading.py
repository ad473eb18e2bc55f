"""Checkpoint loading, rank by rank: how far it is and how long it will still take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from logforensics.run.model import Rank
from logforensics.secrets import mask

if TYPE_CHECKING:
    import polars as pl

_KEYS = ("percent", "shards_done", "shards_total", "elapsed_s", "rate_per_s")


def latest_bars(frame: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """The last state of every bar of the last server start in a ``load_progress`` frame; bars are told apart by rank and kind."""
    import polars as pl

    if frame.is_empty():
        return
    lines = frame.filter(pl.col("launch") == frame["launch"][-1])
    for row in lines.unique(["tp", "dp", "pp", "kind"], keep="last", maintain_order=True).iter_rows(named=True):
        rank = Rank(row["tp"], row["dp"], row["pp"])
        yield {**row, "rank": rank.label if rank != Rank() else ""}


def progress(bar: Mapping[str, Any]) -> dict[str, Any]:
    """A bar as plain values, with the seconds it still needs; ``rank`` is "" where the bar does not say whose it is."""
    left, rate = bar["shards_total"] - bar["shards_done"], bar["rate_per_s"]
    figures = {key: bar[key] for key in _KEYS}
    return {"rank": bar["rank"], "kind": mask(bar["kind"]), **figures, "eta_s": round(left / rate, 1) if rate else None}
