"""Bootstrap: how far a figure may be off because a log holds a finite number of lines. Seeded, so that a comparison repeats exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logforensics.comparison.model import Interval

if TYPE_CHECKING:
    import polars as pl

DRAWS = 2000
_SEED = 20_260_101
_MOST = 1000


def medians(values: pl.Series, seed: int) -> pl.Series:
    """Medians of 2,000 resamples of ``values``."""
    kept = _thinned(values)
    drawn = kept.sample(n=DRAWS * kept.len(), with_replacement=True, seed=_SEED + seed)
    return drawn.reshape((DRAWS, kept.len())).arr.median()


def means(values: pl.Series, weights: pl.Series, seed: int) -> pl.Series:
    """Weighted means of 2,000 resamples of the pairs (value, weight)."""
    import polars as pl

    count = min(values.len(), _MOST)
    product, weight = _blocked(values * weights, count), _blocked(weights, count)
    places = pl.int_range(count, eager=True).sample(n=DRAWS * count, with_replacement=True, seed=_SEED + seed)
    total = weight.gather(places).reshape((DRAWS, count)).arr.sum()
    drawn: pl.Series = product.gather(places).reshape((DRAWS, count)).arr.sum() / pl.Series(total).clip(lower_bound=1e-9)
    return drawn


def zeros() -> pl.Series:
    """A sum to begin with."""
    import polars as pl

    return pl.zeros(DRAWS, dtype=pl.Float64, eager=True)


def interval(ratios: pl.Series) -> Interval | None:
    """The middle 95 % of the ratios."""
    low, high = ratios.quantile(0.025, "linear"), ratios.quantile(0.975, "linear")
    return None if low is None or high is None else Interval(float(low), float(high))


def _thinned(values: pl.Series) -> pl.Series:
    """At most a thousand values spread over the whole log, in an order that does not follow their size."""
    return values if values.len() <= _MOST else values.gather_every(-(-values.len() // _MOST))


def _blocked(values: pl.Series, count: int) -> pl.Series:
    """The sums of ``count`` blocks of consecutive values; the values themselves where there are no more than that."""
    import polars as pl

    if values.len() <= count:
        return values
    block = pl.int_range(values.len(), eager=True) * count // values.len()
    sums: pl.Series = (
        pl.DataFrame({"block": block, "value": values}).group_by("block", maintain_order=True).agg(pl.col("value").sum())["value"]
    )
    return sums
