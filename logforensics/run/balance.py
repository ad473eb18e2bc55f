"""Load over data-parallel ranks: each prints its own batch lines, so uneven load shows in lines of the same seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from logforensics.run.model import Balance, Mark, Rank
from logforensics.run.timeline import place_columns

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
    import polars as pl

    ranks = sorted({rank.dp for rank, _ in schedulers if rank.dp is not None})
    if len(ranks) < 2:
        return None
    means = _means([(rank, lines) for rank, lines in schedulers if rank.dp is not None and not rank.pp])
    buckets = _spreads(means, len(ranks))
    uneven = buckets.filter(pl.col("spread") > _FACTOR)
    if uneven.is_empty():
        return None
    waiting = uneven.filter(pl.col("queue") > 0)
    worst = (waiting if waiting.height else uneven).sort("queue", "spread", descending=True, maintain_order=True)["bucket"][0]
    return _described(means.filter(pl.col("bucket") == worst), ranks, buckets.height, uneven.height, waiting.height)


def _means(schedulers: Sequence[tuple[Rank, pl.DataFrame]]) -> pl.DataFrame:
    """Per rank and bucket: running requests and usage (means), queue (largest), and a line to show."""
    import polars as pl

    parts = [lines.with_columns(pl.lit(rank.dp, dtype=pl.Int64).alias("dp_rank")) for rank, lines in schedulers]
    whole = pl.concat(parts, how="diagonal")
    bucket = pl.col("time").dt.epoch("s") // BUCKET_SECONDS
    place = pl.struct(*place_columns(whole), *Rank._fields)
    return (
        whole.with_columns(bucket.fill_null(0).alias("bucket"))
        .group_by("bucket", "dp_rank", maintain_order=True)
        .agg(
            running=pl.col("running").mean(), usage=pl.col("usage").mean(), queue=pl.col("queue").max(), place=place.sort_by("queue").last()
        )
        .sort("bucket", "dp_rank")
    )


def _spreads(means: pl.DataFrame, ranks: int) -> pl.DataFrame:
    """Per bucket: the larger of max/min over usage and running requests (0 where too little runs to tell), and the fuller rank's queue."""
    import polars as pl

    def spread(column: str, noticeable: float) -> pl.Expr:
        high = pl.col(column).max()
        low = pl.when(pl.len() == ranks).then(pl.col(column).min()).otherwise(0.0)
        return pl.when(high < noticeable).then(0.0).otherwise(high / low)

    return means.group_by("bucket", maintain_order=True).agg(
        spread=pl.max_horizontal(spread("running", _NOTICEABLE_RUNNING), spread("usage", _NOTICEABLE_USAGE)),
        queue=pl.col("queue").sort_by("usage", "running").last(),
    )


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
    return Mark(place["source"], place["line"], place["time"], place.get("place"))  # type: ignore[arg-type]
