"""The last minutes of a server in a few numbers: throughput, requests and KV usage, and their course for a sparkline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logforensics.records import record

if TYPE_CHECKING:
    import polars as pl

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = ".:-=+*#%"
_RECENT_LINES = 4_000
POINTS = 40


@record(frozen=True)
class Pulse:
    """What the last decode lines say, the sum over schedulers (usage: the fullest of them), and the course of each figure."""

    line: int
    time: Any
    throughput: float  # token/s
    running: int
    queue: int
    usage: float  # share of the KV pool
    accept_len: float | None
    course: dict[str, list[float]]

    def as_json(self) -> dict[str, Any]:
        """The figures of now."""
        return {
            "gen_throughput": round(self.throughput, 2),
            "running_req": self.running,
            "queue_req": self.queue,
            "token_usage": round(self.usage, 4),
            "accept_len": self.accept_len,
        }


def pulse(decode: pl.DataFrame) -> Pulse | None:
    """The pulse of the last server start in a decode frame, or None where it has not decoded."""
    import polars as pl

    if decode.is_empty():
        return None
    lines = decode.filter((pl.col("launch") == decode["launch"][-1]) & (pl.col("pp").fill_null(0) == 0)).tail(_RECENT_LINES)
    if lines.is_empty():
        return None
    speed = pl.col("gen_throughput")
    lines = lines.with_columns(pl.when(speed.is_finite()).then(speed))  # a division by no time at all is printed as inf or nan
    scheduler = pl.struct("dp", "tp")
    latest = lines.group_by(scheduler.alias("scheduler"), maintain_order=True).last()
    last = lines.row(-1, named=True)
    return Pulse(
        line=last["line"],
        time=last["time"],
        throughput=float(latest["gen_throughput"].sum()),
        running=int(latest["running_req"].sum()),
        queue=int(latest["queue_req"].sum()),
        usage=_largest(latest["token_usage"]),
        accept_len=last["accept_len"],
        course=_course(lines),
    )


def _largest(values: pl.Series) -> float:
    top = values.max()
    return float(top) if isinstance(top, (int, float)) else 0.0


def _course(lines: pl.DataFrame) -> dict[str, list[float]]:
    """At most POINTS values a figure: means of a scheduler within a slice of time, then summed over schedulers."""
    import polars as pl

    place = pl.col("time").dt.timestamp("ms") if lines["time"].null_count() == 0 else pl.col("line").cast(pl.Int64)
    at = lines.select(place).to_series()
    first = int(at[0])
    width = max(1, (int(at[-1]) - first) // POINTS + 1)
    slices = lines.with_columns(((at - first) // width).alias("slice"))
    figures = ("gen_throughput", "running_req", "queue_req", "token_usage")
    means = slices.group_by("slice", "dp", "tp", maintain_order=True).agg(pl.col(figures).mean())
    sums = means.group_by("slice", maintain_order=True).agg(pl.col(figures[:-1]).sum(), pl.col("token_usage").max())
    table = sums.sort("slice").fill_null(0.0)
    return {name: table[name].to_list() for name in figures}


def sparkline(values: list[float], *, top: float | None = None, ascii_only: bool = False) -> str:
    """Values as bars, 0 at the bottom and ``top`` (default: the largest value) at the top."""
    bars = _ASCII_BARS if ascii_only else _BARS
    highest = max(values, default=0.0) if top is None else top
    if highest <= 0:
        return bars[0] * len(values)
    return "".join(bars[min(len(bars) - 1, max(0, int(value / highest * len(bars))))] for value in values)
