"""Prefill windows: how much of the time prompts took, what they starved, and how much of them came from the prefix cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logforensics.run.model import HeldLine, HitWindow, Mark, PrefillWindow, Rank
from logforensics.run.timeline import first_by, largest_of, mark_at, place_columns

if TYPE_CHECKING:
    import polars as pl

FULL_BATCH = 0.95  # of the largest batch: as many tokens as the budget allows
_HIT_PARTS = 10
_STARVING_LINES = 3


def prefill_window(rank: Rank, lines: pl.DataFrame) -> PrefillWindow:
    """Figures of one scheduler's prefill lines; ``lines`` is its timeline with at least one of them."""
    import polars as pl

    prefill = lines.filter(~pl.col("decode")).with_columns(pl.col("new_token").fill_null(0), pl.col("cached_token").fill_null(0))
    largest = int(largest_of(prefill["new_token"]))
    full = prefill.filter(pl.col("new_token") >= FULL_BATCH * largest) if largest else prefill.clear()
    pending = prefill.drop_nulls("pending_token")
    speed = full["input_throughput"].drop_nulls().median() if full.height else None
    starved = _starving(lines)
    return PrefillWindow(
        rank=rank,
        lines=prefill.height,
        seconds=float(prefill["weight"].sum()),
        total_seconds=float(lines["weight"].sum()),
        first=mark_at(prefill, 0),
        last=mark_at(prefill, -1),
        new_seq=int(prefill["new_seq"].sum() or 0),
        new_token=int(prefill["new_token"].sum()),
        cached_token=int(prefill["cached_token"].sum()),
        largest_new_token=largest,
        largest=first_by(prefill, "new_token") or mark_at(prefill, 0),
        full_lines=full.height,
        input_throughput=float(speed) if isinstance(speed, (int, float)) else None,
        queue_max=int(largest_of(prefill["queue"])),
        waiting_seconds=float(prefill.filter(pl.col("queue") > 0)["weight"].sum()),
        held=_held(prefill),
        pending_max=int(largest_of(pending["pending_token"])) if pending.height else None,
        pending_mark=first_by(pending, "pending_token"),
        starved_seconds=starved[0],
        starved_longest_seconds=starved[1],
        starved_longest_lines=starved[2],
        starved_first=starved[3],
        starved_last=starved[4],
        starved_running=starved[5],
        hits=tuple(_hits(prefill)),
    )


def _held(prefill: pl.DataFrame) -> HeldLine | None:
    """The line with the longest queue, the first of equals; None where nothing waits."""
    lines = prefill.sort("queue", descending=True, maintain_order=True)
    if not lines["queue"][0]:
        return None
    return HeldLine(mark_at(lines, 0), int(lines["running"][0]), int(lines["queue"][0]), float(lines["usage"][0]))


def _starving(lines: pl.DataFrame) -> tuple[float, float, int, Mark | None, Mark | None, int]:
    """Runs of prefill lines without a decode line between them while requests run: (seconds in all, longest, its lines, first, last, running)."""
    import polars as pl

    runs = (
        lines.filter(~pl.col("decode") & (pl.col("running") > 0))
        .group_by("run", maintain_order=True)
        .agg(seconds=pl.col("weight").sum(), lines=pl.len(), running=pl.col("running").max())
        .filter(pl.col("lines") >= _STARVING_LINES)
    )
    if runs.is_empty():
        return 0.0, 0.0, 0, None, None, 0
    run, seconds, count, running = runs.sort("seconds", "lines", descending=True, maintain_order=True).row(0)
    longest = lines.filter((pl.col("run") == run) & ~pl.col("decode") & (pl.col("running") > 0))
    return float(runs["seconds"].sum()), float(seconds), int(count), mark_at(longest, 0), mark_at(longest, -1), int(running)


def _hits(prefill: pl.DataFrame) -> list[HitWindow]:
    """Prefix reuse in ten parts of equally many prompt tokens."""
    import polars as pl

    prompt = pl.col("new_token") + pl.col("cached_token")
    total = int((prefill["new_token"] + prefill["cached_token"]).sum())
    if not total:
        return []
    part = ((prompt.cum_sum() - 1) * _HIT_PARTS // total).clip(0, _HIT_PARTS - 1)
    place = pl.struct(place_columns(prefill))
    parts = (
        prefill.with_columns(part.alias("part"))
        .group_by("part", maintain_order=True)
        .agg(
            cached=pl.col("cached_token").sum(),
            tokens=prompt.sum(),
            swa=pl.col("swa_token_usage").median(),
            mamba=pl.col("mamba_usage").median(),
            usage=pl.coalesce("full_token_usage", "token_usage").median(),
            first=place.first(),
            last=place.last(),
        )
    )
    return [
        HitWindow(
            row["cached"] / row["tokens"] if row["tokens"] else 0.0,
            row["tokens"],
            row["swa"],
            row["mamba"],
            row["usage"],
            Mark(**row["first"]),
            Mark(**row["last"]),
        )
        for row in parts.iter_rows(named=True)
    ]
