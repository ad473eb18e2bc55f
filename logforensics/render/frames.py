"""Frames to files: one file per frame, named after it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal

from logforensics.errors import LogforensicsError
from logforensics.render.files import replacing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import polars as pl

FrameFormat = Literal["parquet", "csv", "json"]

_SIEVE = "(?i)key|secret|passw|passphrase|credential|token|bearer|://|hf_|sk-|gh[pousr]_|github_pat|glpat|xox|nvapi|akia|eyj"


def write_frames(frames: Mapping[str, pl.DataFrame], folder: Path, fmt: FrameFormat) -> list[Path]:
    """Write every frame to ``folder`` as ``<frame>.<fmt>`` and return the paths; the folder is made where it is missing.

    ``json`` is newline-delimited: one object per row, as ``pandas.read_json(lines=True)``, DuckDB and ``jq`` read it. Frames
    without rows are written as well (parquet and csv keep their columns). Secrets are masked.
    All files take their names together at the end.

    Raises:
        LogforensicsError: the folder or a file in it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LogforensicsError(f"cannot make the folder {folder}: {error.strerror or error}; choose another with -o") from error
    paths = {name: folder / f"{name}.{fmt}" for name in sorted(frames)}
    with ExitStack() as together:
        for name, path in paths.items():
            _write(masked(frames[name]), together.enter_context(replacing(path)), fmt)
    return list(paths.values())


def _write(frame: pl.DataFrame, path: Path, fmt: FrameFormat) -> None:
    if fmt == "parquet":
        frame.write_parquet(path)
    elif fmt == "csv":
        frame.write_csv(path)
    else:
        frame.write_ndjson(path)


def masked(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with secrets masked. Every secret has one of the pieces in ``_SIEVE``, so nearly all rows are let through unread."""
    import polars as pl

    from logforensics.secrets import mask

    changed: list[pl.Series] = []
    for texts in frame.select(pl.col(pl.String).exclude("source")).iter_columns():
        suspects = texts.filter(texts.str.contains(_SIEVE)).unique()
        if suspects.len():
            changed.append(texts.replace(suspects, pl.Series([mask(text) for text in suspects], dtype=pl.String)))
    return frame.with_columns(changed)
