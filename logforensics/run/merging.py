"""Logs that were read together, run by run: the files of a run as one log in the order of time, each on the clock of the first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from logforensics.run.clocks import clock_of
from logforensics.run.grouping import File, Work, differences, grouped, is_restart, rank_in_name
from logforensics.run.model import Launch, Mark, Member, Rank
from logforensics.run.parts import MERGED, REFERENCE, ROLES, Frames, Part, Start, launches_of, of_start, pd_mode, ranks_in, starts_before

if TYPE_CHECKING:
    import polars as pl

    from logforensics.parsing import ParsedLog

_WORK = ("memory", "kv_pool", "capacity", "prefill", "decode")
_OF_PREFILL, _OF_DECODE = ("bootstrap_req", "inflight_req"), ("prealloc_req", "transfer_req")


def parts_of_files(parsed: ParsedLog) -> tuple[Part, ...]:
    """The runs in several files."""
    files = [_file(parsed, source) for source in parsed.sources]
    parts = _without_restarts(parsed, grouped(files))
    return tuple(sorted(parts, key=lambda part: (ROLES.index(part.role), part.sources)))


# ---------------------------------------------------------------------------------------------------------------- files


def _file(parsed: ParsedLog, source: str) -> File:
    whole = of_start(parsed.frames, source)
    launches = launches_of(whole["launches"])
    frames = whole if len(launches) < 2 else of_start(whole, source, launches[-1].number)
    named = rank_in_name(source)
    if named is not None and ranks_in(frames):
        named = None
    if named is not None:
        frames = _with_rank(frames, named)
    work = dict(_work(frames))
    return File(source, frames, launches, frozenset(ranks_in(frames)), work, _role(frames, launches), named, parsed.newest_first(source))


def _with_rank(frames: Frames, number: int) -> dict[str, pl.DataFrame]:
    """Lines without any tag, in a file that is named after its rank, are that rank's."""
    import polars as pl

    return {name: frame.with_columns(pl.lit(number, dtype=pl.UInt16).alias("tp")) for name, frame in frames.items()}


def _work(frames: Frames) -> Iterator[tuple[Rank, Work]]:
    """First and last line of each scheduler's own, and whether it loaded or sized its memory here."""
    import polars as pl

    parts = [
        frame.select("source", "line", "time", *Rank._fields, pl.lit(name in ("memory", "kv_pool")).alias("starts"))
        for name, frame in frames.items()
        if name in _WORK and frame.height
    ]
    if not parts:
        return
    rows = pl.concat(parts).sort("line")
    for row in (
        rows.group_by(Rank._fields, maintain_order=True)
        .agg(
            first=pl.struct("source", "line", "time").first(),
            last=pl.struct("source", "line", "time").last(),
            starts=pl.col("starts").any(),
        )
        .iter_rows(named=True)
    ):
        yield Rank(*(row[name] for name in Rank._fields)), Work(Mark(**row["first"]), Mark(**row["last"]), row["starts"])


def _role(frames: Frames, launches: Sequence[Launch]) -> str:
    """Prefill or decode of a disaggregated deployment, the router in front of it, or a server."""
    if launches:
        return pd_mode(launches[-1].args) or "server"
    if any(frames["prefill"][name].count() for name in _OF_PREFILL):
        return "prefill"
    if any(frames["decode"][name].count() for name in _OF_DECODE):
        return "decode"
    works = any(frames[name].height for name in _WORK)
    return "router" if frames["router"].height and not works else "server"


# ---------------------------------------------------------------------------------------------------------------- starts before


def _without_restarts(parsed: ParsedLog, runs: Sequence[list[File]]) -> list[Part]:
    """Parts; a run of one file that is the same server's start before another's is told with that one."""
    parts: list[Part] = []
    alone = [run[0] for run in runs if len(run) == 1]
    before = [file for file in alone if any(is_restart(later, file) for later in alone if later is not file)]
    for run in runs:
        if run[0] in before:
            continue
        old = [file for file in before if len(run) == 1 and is_restart(run[0], file)]
        old.sort(key=lambda file: (str(file.launches[-1].mark.time), file.source))
        starts = [
            start
            for file in old
            for start in (*starts_before(parsed, file.launches), Start(parsed, file.launches[-1], len(file.launches), last_line=None))
        ]
        starts += [start for file in run for start in starts_before(parsed, file.launches)]
        parts.append(_part(parsed, run, tuple(starts)))
    return parts


# ---------------------------------------------------------------------------------------------------------------- one log out of several


def _part(parsed: ParsedLog, run: Sequence[File], earlier: tuple[Start, ...]) -> Part:
    """The files of a run as one log. The first is the reference of the clocks: node 0, else the lowest rank."""
    reference = run[0]
    members = tuple(
        Member(
            file.source,
            file.role,
            file.launch,
            file.node,
            tuple(sorted(file.ranks, key=lambda rank: tuple(-1 if number is None else number for number in rank))),
            REFERENCE if file is reference else clock_of(file, reference),
            differences(file.args, reference.args) if file.launches and reference.launches else (),
        )
        for file in run
    )
    log = replace(parsed, sources=tuple(member.source for member in members), frames=reference.frames)
    if len(run) == 1:
        return Part(log, members, earlier)
    return Part(replace(log, frames=merged(run, members)), members, earlier)


def merged(run: Sequence[File], members: Sequence[Member]) -> dict[str, pl.DataFrame]:
    """The frames of all files, times on the clock of the first, rows in one order: column ``merge_order``."""
    import polars as pl

    shifted = [_on_reference(file, member.clock.correction_s) for file, member in zip(run, members, strict=True)]
    sheets = _placed([_written(file, frames) for file, frames in zip(run, shifted, strict=True)])
    whole = {}
    for name in run[0].frames:
        pieces = [
            _with_place(frames[name], sheet, turned=file.newest_first) for file, frames, sheet in zip(run, shifted, sheets, strict=True)
        ]
        whole[name] = pl.concat(pieces).sort(MERGED, maintain_order=True)
    return whole


def _on_reference(file: File, ahead_s: float) -> Frames:
    import polars as pl

    if not ahead_s:
        return file.frames
    late = timedelta(seconds=ahead_s)
    return {name: frame.with_columns((pl.col("time") - late).cast(pl.Datetime("us"))) for name, frame in file.frames.items()}


def _written(file: File, frames: Frames) -> pl.DataFrame:
    """Stretches of lines that stay together: each begins where the time grows. Columns ``begin`` (in the order of writing), ``time``, ``length``."""
    import polars as pl

    lines = pl.concat([frame.select("line", "time") for frame in frames.values()])
    end = int(lines["line"].max() or 1)  # type: ignore[arg-type]
    written = (end + 1 - pl.col("line").cast(pl.Int64)) if file.newest_first else pl.col("line").cast(pl.Int64)
    dated = lines.drop_nulls("time").select(written.alias("begin"), "time").sort("begin", "time").with_columns(pl.col("time").cum_max())
    starts = dated.filter((pl.col("time") > pl.col("time").shift(1)).fill_null(value=True)).unique(
        "begin", keep="last", maintain_order=True
    )
    if starts.is_empty():
        starts = pl.DataFrame({"begin": [1], "time": [None]}, schema=dated.schema)
    first = pl.int_range(pl.len()) == 0  # what comes before the first stamp stays with it
    starts = starts.with_columns(pl.when(first).then(1).otherwise(pl.col("begin")).alias("begin"))
    return starts.with_columns((pl.col("begin").shift(-1, fill_value=end + 1) - pl.col("begin")).alias("length"))


def _placed(stretches: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """The stretches of every file with ``place``, the number of their first line in the order of time; files without times come last."""
    import polars as pl

    whole = pl.concat([sheet.with_columns(pl.lit(number).alias("file")) for number, sheet in enumerate(stretches)])
    whole = whole.sort("time", "file", "begin", nulls_last=True).with_columns(
        (pl.col("length").cum_sum() - pl.col("length") + 1).alias("place")
    )
    return [whole.filter(pl.col("file") == number).sort("begin") for number in range(len(stretches))]


def _with_place(frame: pl.DataFrame, sheet: pl.DataFrame, *, turned: bool) -> pl.DataFrame:
    import polars as pl

    line = frame["line"].cast(pl.Int64)
    if turned:
        end = int(sheet["begin"][-1]) + int(sheet["length"][-1]) - 1
        line = end + 1 - line
    at = (sheet["begin"].search_sorted(line, side="right").cast(pl.Int64) - 1).clip(lower_bound=0)
    place: Any = sheet["place"].gather(at) + line - sheet["begin"].gather(at)
    return frame.with_columns(place.cast(pl.UInt64).alias(MERGED))
