"""One log as a side of a comparison, and several as a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from statistics import median

from logforensics.comparison import settings
from logforensics.comparison.figures import figures, with_context
from logforensics.comparison.model import Measured, Side
from logforensics.comparison.samples import decode_samples, prefill_samples
from logforensics.engine import diagnose, make_case
from logforensics.findings import Severity
from logforensics.parsing import ParsedLog
from logforensics.rules import Case
from logforensics.run import Run, build_run

_WHOLE_STAGES = frozenset({"launch", "load_begin", "load_end", "ready"})


def read_side(parsed: ParsedLog, label: str, context_len: int | None) -> Side:
    """The facts of one run that a comparison uses.

    Args:
        parsed: a log with one server start.
        label: how the run is called.
        context_len: the context length in tokens, for a log that does not print it.
    """
    run = build_run(parsed)
    case = make_case(run)
    diagnosis = diagnose(parsed) if parsed.is_sglang else None  # a few restated figures are no log to diagnose
    fragment = run.launch is None and not run.stages.keys() & _WHOLE_STAGES
    samples, steady = decode_samples(parsed.frames, fragment=fragment)
    chunks = prefill_samples(parsed.frames)
    findings = diagnosis.findings if diagnosis else ()
    loud = next((item for item in findings if item.severity is not Severity.INFO), None)
    known = run.launch is not None or not fragment
    return Side(
        name="",
        label=label,
        sources=parsed.sources,
        release_low=case.release.low if known else None,
        release_high=case.release.high if known else None,
        verdict=diagnosis.verdict if diagnosis else "incomplete",
        finding=None if loud is None else f"{loud.code}: {loud.title}",
        stage=run.stage,
        served=case.served(),
        figures=with_context(figures(run, samples, chunks, fragment=fragment), context_len),
        settings=settings.effective(case),
        complete=run.launch is not None and run.launch.complete,
        steady=steady,
        free_range=_free_range(run),
        architecture_bytes=_architecture_bytes(case),
        samples=samples,
        chunks=chunks,
        notes=tuple(run.notes),
    )


def group(label: str, members: Sequence[Side]) -> Side:
    """Several runs as one: figures are medians over the runs, lines are put together."""
    import polars as pl

    if len(members) == 1:
        return replace(members[0], label=label)
    keys = dict.fromkeys(key for side in members for key in side.figures)
    return Side(
        name="",
        label=label,
        sources=tuple(source for side in members for source in side.sources),
        release_low=_shared([side.release_low for side in members]),
        release_high=_shared([side.release_high for side in members]),
        verdict=_shared([side.verdict for side in members]) or "mixed",
        finding=_shared([side.finding for side in members]),
        stage=_shared([side.stage for side in members]) or "mixed",
        served=any(side.served for side in members),
        figures={key: Measured(median(side.figures[key].value for side in members if key in side.figures)) for key in keys},
        settings=settings.common([side.settings for side in members]),
        complete=all(side.complete for side in members),
        steady=all(side.steady for side in members),
        free_range=members[0].free_range,
        architecture_bytes=members[0].architecture_bytes,
        samples=pl.concat([side.samples for side in members]),
        chunks=pl.concat([side.chunks for side in members]),
        members=len(members),
        notes=tuple(dict.fromkeys(note for side in members for note in side.notes)),
    )


def labels(sources: Sequence[str]) -> list[str]:
    """Short names that tell the sources apart: as few trailing parts of each path as it takes."""
    parts = [PurePath(source).parts or (source,) for source in sources]
    for count in range(1, max((len(part) for part in parts), default=1) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(set(sources)):
            return names
    return list(sources)


def _free_range(run: Run) -> tuple[float, float] | None:
    steps = [ledger.first("load_begin") for ledger in run.ledgers.values()]
    free = [step.avail_gib for step in steps if step is not None and step.avail_gib is not None]
    return (min(free), max(free)) if free else None


def _architecture_bytes(case: Case) -> float | None:
    found = case.kv_prediction
    return None if found is None or found[1].from_log else found[1].bytes_per_token


def _shared(values: Sequence[str | None]) -> str | None:
    return values[0] if len(set(values)) == 1 else None
