"""Which logs given together are one run, and what each file is in it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from logforensics.records import record
from logforensics.run.model import Clock, Launch, Mark, Member, Rank

if TYPE_CHECKING:
    import polars as pl

    from logforensics.parsing import ParsedLog

Frames = Mapping[str, "pl.DataFrame"]

MERGED = "merge_order"  # the column of merged frames that holds a row's place in time
REFERENCE = Clock(0.0, 0.0, "reference")
ROLES = ("prefill", "decode", "server", "router")


def ranks_in(frames: Frames) -> set[Rank]:
    """Every set of tags in the frames, but for the empty one."""
    found: set[Rank] = set()
    for frame in frames.values():
        if frame.height:
            found |= {Rank(*row) for row in frame.select(Rank._fields).unique().iter_rows()}
    return found - {Rank()}


def node_of(args: Mapping[str, Any]) -> int | None:
    """The number of the node that printed server_args; None where there is only one, or they do not tell."""
    number = args.get("node_rank")
    return number if isinstance(number, int) and (args.get("nnodes") or 1) > 1 else None


@record(frozen=True)
class Start:
    """A server start before the one that a run is about, and the lines it spans (``last_line`` None: to the end of its file)."""

    parsed: ParsedLog = field(repr=False)  # the logs it stands in
    launch: Launch
    of: int  # starts in its file
    last_line: int | None

    def part(self) -> Part:
        """This start as a run of its own."""
        return part_of_start(self.parsed, self.launch)


@record(frozen=True)
class Part:
    """One run out of the logs that were given: its frames in the order of corrected time, its files and the starts before it."""

    log: ParsedLog
    members: tuple[Member, ...]
    earlier: tuple[Start, ...] = ()

    @property
    def role(self) -> str:
        """prefill, decode, server, or router where no file is a server's."""
        roles = {member.role for member in self.members}
        return next((role for role in ROLES if role in roles), "server")

    @property
    def sources(self) -> tuple[str, ...]:
        """Its files, the reference of the clocks first."""
        return tuple(member.source for member in self.members)

    @property
    def args(self) -> Mapping[str, Any]:
        """server_args of the first file that has them."""
        return next((member.launch.args for member in self.members if member.launch is not None), {})


def parts_of(parsed: ParsedLog) -> tuple[Part, ...]:
    """The runs in a log: one for one file; of several starts of a file the last, with the earlier ones beside it."""
    if len(parsed.sources) < 2:
        launches = launches_of(parsed.frames["launches"])
        if len(launches) > 1:
            return (replace(part_of_start(parsed, launches[-1]), earlier=tuple(starts_before(parsed, launches))),)
        source = parsed.sources[0] if parsed.sources else ""
        return (Part(parsed, (_only_member(source, launches[0] if launches else None),)),)
    from logforensics.run.merging import parts_of_files  # a single file does not pay for what several need

    return parts_of_files(parsed)


def part_of_start(parsed: ParsedLog, launch: Launch) -> Part:
    """One server start of one file as a run."""
    source = launch.mark.source
    log = replace(parsed, frames=of_start(parsed.frames, source, launch.number), sources=(source,))
    return Part(log, (_only_member(source, launch),))


def _only_member(source: str, launch: Launch | None) -> Member:
    role = pd_mode(launch.args) if launch else None
    return Member(source, role or "server", launch, node_of(launch.args) if launch else None, (), REFERENCE)


def launches_of(frame: pl.DataFrame) -> tuple[Launch, ...]:
    """Server starts in the order of the rows."""
    return tuple(
        Launch(
            Mark(row["source"], row["line"], row["time"], row.get(MERGED)),
            json.loads(row["server_args"]),
            row["version_low"],
            row["version_high"],
            bool(row["complete"]),
            row["launch"],
            row["form"],
            row["version_basis"],
        )
        for row in frame.iter_rows(named=True)
    )


def of_start(frames: Frames, source: str, number: int | None = None) -> dict[str, pl.DataFrame]:
    """The rows of one file, or of one server start in it."""
    import polars as pl

    here = pl.col("source") == source
    return {name: frame.filter(here if number is None else here & (pl.col("launch") == number)) for name, frame in frames.items()}


def pd_mode(args: Mapping[str, Any]) -> str | None:
    """``prefill`` or ``decode``, None for a server that does both."""
    mode = args.get("disaggregation_mode")
    return mode if mode in ("prefill", "decode") else None


def starts_before(parsed: ParsedLog, launches: Sequence[Launch]) -> Iterator[Start]:
    """The starts of a file before its last one, oldest first."""
    for launch, following in itertools.pairwise(launches):
        up = following.mark.line < launch.mark.line  # an export with the newest line first
        yield Start(parsed, launch, len(launches), following.mark.line + 1 if up else following.mark.line - 1)
