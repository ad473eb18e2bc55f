"""Load over data-parallel ranks: each prints its own batch lines, so uneven load shows in lines of the same seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from logforensics.run.model import Balance, Mark, Rank
from logforensics.run.timeline import largest_of

if TYPE_CHECKING:
    import polars as pl

BUCKET_SECONDS = 10
_FACTOR = 2.0
_NOTICEABLE_RUNNING = 4  # fewer requests than this on the fuller rank are chance, not imbalance
_NOTICEABLE_USAGE = 0.2


def balance(schedulers: Sequence[tuple[Rank, pl.DataFrame]]) -> Balance | None:
    """Compare data-parallel ranks bucket by bucket; None where fewer than two of them print batch lines.

    A rank without a line in a bucket runs nothing: an idle scheduler prints nothing.
    """
    ranks = sorted({rank.dp for rank, _ in schedulers if rank.dp is not None})
    if len(ranks) < 2:
        return None
    means = _means([(rank, lines) for rank, lines in schedulers if rank.dp is not None and not rank.pp])
    buckets = means.partition_by("bucket", maintain_order=True)
    found = [(_spread(bucket, len(ranks)), bucket) for bucket in buckets]
    uneven = [(spread, bucket) for spread, bucket in found if spread > _FACTOR]
    if not uneven:
        return None
    waiting = [(spread, bucket) for spread, bucket in uneven if _fuller(bucket)["queue"] > 0]
    _, worst = max(waiting or uneven, key=lambda item: (_fuller(item[1])["queue"], item[0]))
    return _described(worst, ranks, len(found), len(uneven), len(waiting))


def _means(schedulers: Sequence[tuple[Rank, pl.DataFrame]]) -> pl.DataFrame:
    """Per rank and bucket: running requests and usage (means), queue (largest), and a line to show."""
    import polars as pl

    parts = [lines.with_columns(pl.lit(rank.dp, dtype=pl.Int64).alias("dp_rank")) for rank, lines in schedulers]
    whole = pl.concat(parts, how="diagonal")
    bucket = pl.col("time").dt.epoch("s") // BUCKET_SECONDS
    place = pl.struct("source", "line", "time", "tp", "dp", "pp", "ep")
    return (
        whole.with_columns(bucket.fill_null(0).alias("bucket"))
        .group_by("bucket", "dp_rank", maintain_order=True)
        .agg(
            running=pl.col("running").mean(), usage=pl.col("usage").mean(), queue=pl.col("queue").max(), place=place.sort_by("queue").last()
        )
        .sort("bucket", "dp_rank")
    )


def _fuller(bucket: pl.DataFrame) -> dict[str, float]:
    return bucket.sort("usage", "running", descending=True, maintain_order=True).row(0, named=True)


def _spread(bucket: pl.DataFrame, ranks: int) -> float:
    """The larger of max/min over usage and running requests; 0 where too little runs to tell."""
    spreads = [0.0]
    for column, noticeable in (("running", _NOTICEABLE_RUNNING), ("usage", _NOTICEABLE_USAGE)):
        high = float(bucket[column].max() or 0.0)  # type: ignore[arg-type]
        low = -largest_of(-bucket[column]) if bucket.height == ranks else 0.0
        if high >= noticeable:
            spreads.append(high / low if low else float("inf"))
    return max(spreads)


def _described(bucket: pl.DataFrame, ranks: Sequence[int], buckets: int, uneven: int, waiting: int) -> Balance:
    ordered = list(bucket.sort("usage", "running", descending=True, maintain_order=True).iter_rows(named=True))
    high = ordered[0]
    silent = set(ranks) - {row["dp_rank"] for row in ordered}
    low = None if silent else ordered[-1]
    return Balance(
        ranks=len(ranks),
        buckets=buckets,
        uneven=uneven,
        uneven_waiting=waiting,
        high_rank=_rank(high["place"]),
        low_rank=_rank(low["place"]) if low else Rank(dp=min(silent)),
        high_running=high["running"],
        low_running=low["running"] if low else 0.0,
        high_usage=high["usage"],
        low_usage=low["usage"] if low else 0.0,
        high=_mark(high["place"]),
        low=_mark(low["place"]) if low else None,
    )


def _rank(place: dict[str, int | None]) -> Rank:
    return Rank(place["tp"], place["dp"], place["pp"], place["ep"])


def _mark(place: dict[str, object]) -> Mark:
    return Mark(place["source"], place["line"], place["time"])  # type: ignore[arg-type]
