"""SQL over the frames of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logforensics.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl


def query_frames(frames: Mapping[str, pl.DataFrame], query: str) -> pl.DataFrame:
    """The answer to an SQL query over frames, each a table by its name.

    Raises:
        InputError: polars does not understand the query, or it names a table or column that does not exist.
    """
    import polars as pl

    try:
        answer = pl.SQLContext(dict(frames), eager=True).execute(query)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"the query cannot be answered: {_reason(error, frames)}") from error
    return answer if isinstance(answer, pl.DataFrame) else answer.collect()


def _reason(error: Exception, frames: Mapping[str, pl.DataFrame]) -> str:
    """The first line of polars' message, and what there is where a name was not found."""
    reason = " ".join(str(error).split("\n\n", 1)[0].split())
    if "relation" in reason and "not found" in reason:
        return f"{reason}; the tables are {', '.join(sorted(frames))}"
    return reason.replace("sql parser error: ", "")
