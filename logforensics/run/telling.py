"""What several files and several starts are to a run, in sentences and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any

from logforensics.run.model import Clock, Mark, Member, Rank, Run
from logforensics.run.parts import Part

_TOLD = 4
_PLAYING = {"prefill": "prefill server", "decode": "decode server", "server": "server", "router": "router"}


def short_name(source: str) -> str:
    """The file's name without its folder."""
    return PurePath(source).name or source


def names_of(parts: Sequence[Part]) -> list[str]:
    """What runs are called beside each other: ``prefill server``, or with their files ``server (a.log)`` where that is not one alone."""
    roles = [part.role for part in parts]
    return [
        _PLAYING[part.role] if roles.count(part.role) == 1 else f"{_PLAYING[part.role]} ({', '.join(map(short_name, part.sources))})"
        for part in parts
    ]


def notes_of(part: Part, run: Run) -> Iterator[str]:
    """Sentences on earlier starts, on the files that were put together and on their clocks."""
    if part.earlier:
        starts = len(part.earlier) + 1
        one = len({start.launch.mark.source for start in part.earlier} | set(part.sources)) == 1
        begin = run.launch.mark if run.launch else run.first_mark
        where = f"line {begin.line}" if one else f"{short_name(begin.source)}:{begin.line}"
        yield f"the log{' holds' if one else 's hold'} {starts} server starts; this is the last one, from {where} on"
    if not run.merged:
        return
    files = ", ".join(f"{short_name(member.source)} ({_is(member)})" for member in run.members)
    yield f"these files are one run, merged by time: {files}"
    for member in run.members:
        yield from _of_clock(member, run.members[0])
        if member.differs:
            told = ", ".join(f"{name} {here}, not {there}" for name, here, there in member.differs[:_TOLD])
            more = f" and {len(member.differs) - _TOLD} more" if len(member.differs) > _TOLD else ""
            yield f"{short_name(member.source)} was started with other flags than {short_name(run.members[0].source)}: {told}{more}"
    yield from _absent(run)


def _is(member: Member) -> str:
    parts = [f"node {member.node}"] if member.node is not None else []
    parts += [span_of(member.ranks)] if member.ranks else []
    return ", ".join(parts) or _PLAYING[member.role]


def span_of(ranks: Sequence[Rank]) -> str:
    """``TP0``, or ``TP0 … TP7`` for all ranks between; other ranks are counted."""
    numbers = sorted({rank.tp for rank in ranks if rank.tp is not None})
    if not numbers or any(rank.pp for rank in ranks):
        labels = list(dict.fromkeys(rank.label for rank in ranks))
        return labels[0] if len(labels) == 1 else f"{labels[0]}, … {len(labels)} ranks" if labels else ""
    if len(numbers) == 1:
        return f"TP{numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"TP{numbers[0]} … TP{numbers[-1]}"
    return ", ".join(f"TP{number}" for number in numbers[:_TOLD]) + (", …" if len(numbers) > _TOLD else "")


def _of_clock(member: Member, reference: Member) -> Iterator[str]:
    clock, name, first = member.clock, short_name(member.source), short_name(reference.source)
    if clock.basis == "unknown" and (member.ranks or member.launch):
        yield (
            f"the clocks of {name} and {first} cannot be compared: no event that both nodes reach together is in both; "
            "their lines are ordered by the printed times"
        )
    if clock.matters:
        proof = f"; {_place(clock.there)} and {_place(clock.here)}" if clock.here and clock.there else ""
        doubt = f"± {clock.uncertainty_s:.0f} s" if clock.uncertainty_s else "exact"
        yield f"the clock of {name} is {skew_of(clock)} that of {first} ({doubt}{proof}); times are given on the clock of {first}"


def skew_of(clock: Clock) -> str:
    """``37 s ahead of``, ``8 h (a time zone) ahead of``, ``8 h (a time zone) and 37 s ahead of``, ``3 s behind``."""
    offset = clock.offset_s or 0.0
    zone, word = clock.zone_s, "ahead of" if offset > 0 else "behind"
    rest = offset - zone
    if not zone:
        return f"{_seconds(abs(offset))} {word}"
    told = f"{abs(zone) / 3600:g} h (a time zone)"
    if abs(rest) <= max(2.0, clock.uncertainty_s or 0.0):
        return f"{told} {word}"
    return f"{told} {'plus' if (rest > 0) == (zone > 0) else 'less'} {_seconds(abs(rest))} {word}"


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 or value == int(value) else f"{value:.1f} s"


def _place(mark: Mark) -> str:
    return f"{short_name(mark.source)}:{mark.line}"


def _absent(run: Run) -> Iterator[str]:
    nodes = run.launch.args.get("nnodes") if run.launch else None
    if isinstance(nodes, int) and run.nodes and (missing := sorted(set(range(nodes)) - set(run.nodes))):
        yield f"no log of node{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} of {nodes} was given"


# ---------------------------------------------------------------------------------------------------------------- plain data


def members_as_json(run: Run) -> list[dict[str, Any]]:
    """Every file of the run: what wrote it and its clock."""
    return [
        {
            "source": member.source,
            "role": member.role,
            "node": member.node,
            "launch": member.launch.number if member.launch else None,
            "line": member.launch.mark.line if member.launch else None,
            "ranks": [rank.label for rank in (member.ranks or (run.ranks if not run.merged else ()))],
            "clock": _clock_as_json(member.clock),
            "other_flags": [{"flag": name, "value": here, "first": there} for name, here, there in member.differs],
        }
        for member in run.members
    ]


def _clock_as_json(clock: Clock) -> dict[str, Any]:
    return {
        "offset_s": clock.offset_s,
        "uncertainty_s": clock.uncertainty_s,
        "time_zone_s": clock.zone_s,
        "corrected_by_s": clock.correction_s,
        "basis": clock.basis,
        "events": clock.samples,
        "evidence": [{"file": mark.source, "line": mark.line, "time": mark.time} for mark in (clock.there, clock.here) if mark is not None],
    }
