"""Speed at equal load: lines of both runs with the same batch size and alike contexts, weighted by the time both spent there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from logforensics.comparison import bootstrap
from logforensics.comparison.model import EqualLoad, Interval, LoadPoint, PrefillSpeed, Side
from logforensics.comparison.samples import FEW

if TYPE_CHECKING:
    import polars as pl

_EXACT = 20  # up to here a batch size is compared with the same batch size, above with those within 5 %
_BAND = 1.05
_CONTEXT_BAND = 0.223  # ln 1.25: contexts within a quarter of each other count as alike
_FEW_IN_CELL = 3
_WAITING = 0.5


class _Cell(NamedTuple):
    """Lines of both sides at one load."""

    a: pl.DataFrame
    b: pl.DataFrame

    @property
    def weight(self) -> float:
        """Seconds that both spent here; never zero, so that lines within one second count."""
        return max(min(float(self.a["weight"].sum()), float(self.b["weight"].sum())), 1e-3)


def equal_load(a: Side, b: Side) -> EqualLoad | None:
    """Decode speed of two runs where they carried the same load, on the closest match the logs allow; None where there is none.

    With a batch size in common, the figure of a load is the median of its lines, and loads are weighted by the time both runs spent
    there. Two full servers without a common batch size are measured by all their lines, weighted by interval.
    """
    whole = a.steady and b.steady
    least = _FEW_IN_CELL if whole else 1
    first, second = _core(a.samples), _core(b.samples)
    for matched, keys in (("running and tokens", ["load", "context"]), ("running", ["load"])):
        cells = _cells(first, second, keys, least)
        if cells and min(sum(cell.a.height for cell in cells), sum(cell.b.height for cell in cells)) >= (FEW if whole else 1):
            return _measured(matched, cells)
    first, second = (side.samples.filter(_in_core()) for side in (a, b))
    if min(first.height, second.height) >= (FEW if whole else 1) and _saturated(first) and _saturated(second):
        return _measured("saturation", [_Cell(first, second)])
    return None


def points(a: Side, b: Side) -> tuple[LoadPoint, ...]:
    """Medians at every batch size that both runs show; in whole logs only where both have five steady lines."""
    least = FEW if a.steady and b.steady else 1
    return tuple(_point(cell) for cell in _cells(_keyed(a.samples), _keyed(b.samples), ["load"], least))


def prefill_speed(a: Side, b: Side) -> PrefillSpeed | None:
    """Input throughput of large prefill batches; None where a log has none."""
    if a.chunks.is_empty() or b.chunks.is_empty():
        return None
    first, second = a.chunks["throughput"], b.chunks["throughput"]
    medians = _median(first) or 0.0, _median(second) or 0.0
    return PrefillSpeed((first.len(), second.len()), medians, medians[1] / medians[0], _interval_of_medians(first, second))


def _keyed(samples: pl.DataFrame) -> pl.DataFrame:
    """The even lines with their load: ``load`` by running requests, ``context`` by tokens."""
    import polars as pl

    above = _EXACT + ((pl.col("running") / _EXACT).log() / math.log(_BAND)).ceil()
    load = pl.when(pl.col("running") <= _EXACT).then(pl.col("running").cast(pl.Float64)).otherwise(above)
    context = (pl.col("tokens").clip(lower_bound=1).log() / _CONTEXT_BAND).floor()
    return samples.filter(pl.col("even")).with_columns(load.alias("load"), context.alias("context"))


def _core(samples: pl.DataFrame) -> pl.DataFrame:
    return _keyed(samples.filter(_in_core()))


def _in_core() -> pl.Expr:
    """Without warm-up and tail."""
    import polars as pl

    return pl.col("core")


def _cells(a: pl.DataFrame, b: pl.DataFrame, keys: list[str], least: int) -> list[_Cell]:
    """Cells with at least ``least`` lines on both sides, by load."""
    first = {key: lines for key, lines in a.drop_nulls(keys).partition_by(keys, as_dict=True).items() if lines.height >= least}
    second = {key: lines for key, lines in b.drop_nulls(keys).partition_by(keys, as_dict=True).items() if lines.height >= least}
    return [_Cell(first[key], second[key]) for key in sorted(first.keys() & second.keys())]


def _saturated(samples: pl.DataFrame) -> bool:
    """Whether requests were waiting most of the time."""
    import polars as pl

    seconds = float(samples["weight"].sum())
    return bool(seconds) and float(samples.filter(pl.col("queue") > 0)["weight"].sum()) >= _WAITING * seconds


def _measured(matched: str, cells: list[_Cell]) -> EqualLoad:
    shares = [cell.weight / sum(other.weight for other in cells) for cell in cells]
    middle = _mean if matched == "saturation" else _middle
    sides = [[cell.a for cell in cells], [cell.b for cell in cells]]
    throughput = [_pooled([middle(lines, "throughput") for lines in side], shares) or 0.0 for side in sides]
    running = [_pooled([_mean(lines, "running") for lines in side], shares) or 0.0 for side in sides]
    accept = [_pooled([_mean(lines, "accept") for lines in side], shares) for side in sides]
    tokens = [_pooled([_median(lines["tokens"]) for lines in side], shares) for side in sides]
    steps = [one / (batch * (length or 1.0)) for one, batch, length in zip(throughput, running, accept, strict=True)]
    lines = [sum(part.height for part in side) for side in sides]
    return EqualLoad(
        matched=matched,
        lines=(lines[0], lines[1]),
        running=(running[0], running[1]),
        tokens=(tokens[0], tokens[1]),
        throughput=(throughput[0], throughput[1]),
        ratio=throughput[1] / throughput[0],
        interval=None if min(lines) < FEW else _interval(cells, shares, by_median=matched != "saturation"),
        accept=(accept[0], accept[1]),
        steps=(steps[0], steps[1]),
    )


def _interval(cells: list[_Cell], shares: list[float], *, by_median: bool) -> Interval | None:
    """The interval of the ratio of the pooled figures: every cell is resampled by itself."""
    totals = [bootstrap.zeros(), bootstrap.zeros()]
    for number, (cell, share) in enumerate(zip(cells, shares, strict=True)):
        for place, lines in enumerate((cell.a, cell.b)):
            seed = 2 * number + place
            drawn = (
                bootstrap.medians(lines["throughput"], seed) if by_median else bootstrap.means(lines["throughput"], _weights(lines), seed)
            )
            totals[place] += drawn * share
    return bootstrap.interval(totals[1] / totals[0])


def _point(cell: _Cell) -> LoadPoint:
    first, second = cell.a["throughput"], cell.b["throughput"]
    medians = _median(first) or 0.0, _median(second) or 0.0
    sizes = [*cell.a["running"], *cell.b["running"]]
    return LoadPoint(
        min(sizes), max(sizes), (first.len(), second.len()), medians, medians[1] / medians[0], _interval_of_medians(first, second)
    )


def _interval_of_medians(first: pl.Series, second: pl.Series) -> Interval | None:
    if min(first.len(), second.len()) < FEW:
        return None
    return bootstrap.interval(bootstrap.medians(second, 1) / bootstrap.medians(first, 0))


def _weights(lines: pl.DataFrame) -> pl.Series:
    """Seconds, or one each where all lines fall into one second."""
    weights = lines["weight"]
    return weights if float(weights.sum()) else weights * 0 + 1.0


def _mean(lines: pl.DataFrame, column: str) -> float | None:
    """Mean weighted by interval, None where no line has the figure."""
    known = lines.drop_nulls(column)
    weights = _weights(known)
    return float((known[column] * weights).sum()) / float(weights.sum()) if known.height else None


def _middle(lines: pl.DataFrame, column: str) -> float | None:
    return _median(lines[column])


def _median(values: pl.Series) -> float | None:
    middle = values.median()
    return float(middle) if isinstance(middle, (int, float)) else None


def _pooled(values: list[float | None], shares: list[float]) -> float | None:
    """Mean over the loads by their shares, over those that have the figure."""
    known = [(value, share) for value, share in zip(values, shares, strict=True) if value is not None]
    total = sum(share for _, share in known)
    return sum(value * share for value, share in known) / total if total else None
