"""What a printed figure means in which release, and old figures brought to the newest meaning (``patterns/meanings.toml``)."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from logforensics.parsing import packs
from logforensics.records import record
from logforensics.sglang.flags import release_at_least

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import polars as pl


@record(frozen=True)
class Meaning:
    """One meaning of a column; ``since`` and ``until`` are releases, both included, None where there is no bound."""

    frame: str
    column: str
    means: str
    since: str | None = None
    until: str | None = None
    convert: str | None = None

    def holds_for(self, low: str | None, high: str | None) -> bool:
        """Whether every release of a range has this meaning; a range without an end reaches all releases."""
        after = self.since is None or (low is not None and release_at_least(low, self.since))
        before = self.until is None or (high is not None and release_at_least(self.until, high))
        return after and before


@cache
def meanings() -> tuple[Meaning, ...]:
    """All entries, oldest first for each column."""
    return tuple(Meaning(**raw) for raw in packs.tables("meanings.toml")["meaning"])


def meaning(frame: str, column: str, low: str | None, high: str | None) -> Meaning | None:
    """What a column means in a range of releases; None where it never changed, or where the range reaches over a change."""
    return next((entry for entry in meanings() if (entry.frame, entry.column) == (frame, column) and entry.holds_for(low, high)), None)


def in_newest_meaning(frames: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The frames with old figures brought to the newest meaning, so that runs of different releases can be compared.

    A figure becomes null where the log does not hold what the conversion needs. Where a server start may be of a release before or after
    a change, its figures stay as printed.
    """
    import polars as pl

    found = dict(frames)
    for launch in frames["launches"].iter_rows(named=True):
        here = (pl.col("source") == launch["source"]) & (pl.col("launch") == launch["launch"])
        for entry in meanings():
            if entry.convert is not None and entry.holds_for(launch["version_low"], launch["version_high"]):
                column = pl.when(here).then(_CONVERSIONS[entry.convert](json.loads(launch["server_args"]))).otherwise(pl.col(entry.column))
                found[entry.frame] = found[entry.frame].with_columns(column.alias(entry.column))
    return found


def _without_bonus_token(flags: Mapping[str, Any]) -> pl.Expr:
    """(L - 1) / (N - 1), from the mean accepted length L and the N tokens that a verify step covers."""
    import polars as pl

    covered = flags.get("speculative_num_draft_tokens") or (flags.get("speculative_num_steps") or 0) + 1
    if not isinstance(covered, int) or covered < 2:
        return pl.lit(None, dtype=pl.Float64)
    return (pl.col("accept_len") - 1) / (covered - 1)


def _tokens_of_this_batch(_flags: Mapping[str, Any]) -> pl.Expr:
    """The time between the batches is the tokens of the batch before over the printed figure; this batch's tokens go over it."""
    import polars as pl

    before = pl.col("new_token").shift(1).over("source", "launch", "dp", "pp", "tp")
    return pl.when((before > 0) & (pl.col("input_throughput") > 0)).then(pl.col("new_token") * pl.col("input_throughput") / before)


_CONVERSIONS: dict[str, Callable[[Mapping[str, Any]], pl.Expr]] = {
    "without_bonus_token": _without_bonus_token,
    "tokens_of_this_batch": _tokens_of_this_batch,
}
