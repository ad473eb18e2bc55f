"""Frames to files: one file per frame, named after it."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from logforensics.errors import LogforensicsError
from logforensics.render.files import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import polars as pl

FrameFormat = Literal["parquet", "csv", "json"]

_ROWS_AT_ONCE = 200_000
_SIEVE = "(?i)key|secret|passw|passphrase|credential|token|bearer|://|hf_|sk-|gh[pousr]_|github_pat|glpat|xox|nvapi|akia|eyj"


def write_frames(frames: Mapping[str, pl.DataFrame], folder: Path, fmt: FrameFormat) -> list[Path]:
    """Write every frame to ``folder`` as ``<frame>.<fmt>`` and return the paths; the folder is made where it is missing.

    ``json`` is newline-delimited: one object per row, as ``pandas.read_json(lines=True)``, DuckDB and ``jq`` read it. Frames
    without rows are written as well (parquet and csv keep their columns). Secrets are masked.
    All files take their names together at the end.

    Raises:
        LogforensicsError: the folder or a file in it cannot be written.
    """
    with FrameFiles(folder, fmt) as files:
        for name, frame in frames.items():
            files.write(name, frame)
    return files.paths


class FrameFiles:
    """Files of frames that come piece by piece, so that a log of any size is written in bounded memory.

    Used as a context manager: the files take their names together when it ends well, and nothing is left behind when it does not.

    Attributes:
        rows: rows written, by frame.
        paths: the files, after the end.
    """

    def __init__(self, folder: Path, fmt: FrameFormat) -> None:
        self.rows: dict[str, int] = {}
        self.paths: list[Path] = []
        self._folder = folder
        self._format = fmt
        self._is_new = False
        self._waiting: dict[str, list[pl.DataFrame]] = {}
        self._parts: dict[str, list[Path]] = {}
        self._work: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> FrameFiles:  # noqa: PYI034 (typing.Self came with Python 3.11)
        try:
            self._is_new = not self._folder.exists()
            self._folder.mkdir(parents=True, exist_ok=True)
            self._work = tempfile.TemporaryDirectory(prefix=".frames.", dir=self._folder)
        except OSError as error:
            raise LogforensicsError(f"cannot make the folder {self._folder}: {error.strerror or error}; choose another with -o") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._work is not None  # noqa: S101 - set on entering
        try:
            with self._work:
                if kind is None:
                    self._finish()
        finally:
            if self._is_new and not any(self._folder.iterdir()):
                self._folder.rmdir()

    def write(self, name: str, piece: pl.DataFrame) -> None:
        """Add rows to a frame; every piece of it has the same columns.

        Raises:
            LogforensicsError: the disk is full, or the folder went away.
        """
        self.rows[name] = self.rows.get(name, 0) + piece.height
        waiting = self._waiting.setdefault(name, [])
        waiting.append(piece)
        if sum(frame.height for frame in waiting) >= _ROWS_AT_ONCE:
            self._flush(name)

    def _flush(self, name: str) -> None:
        import polars as pl

        waiting = self._waiting.pop(name, [])
        if not waiting or self._work is None:
            return
        parts = self._parts.setdefault(name, [])
        part = Path(self._work.name) / f"{name}.{len(parts)}"
        try:
            _write(masked(pl.concat(waiting)), part, self._format, header=not parts)
        except OSError as error:
            path = self._folder / f"{name}.{self._format}"
            raise LogforensicsError(f"cannot write {path}: {error.strerror or error}; choose another place with -o") from error
        parts.append(part)

    def _finish(self) -> None:
        for name in list(self._waiting):
            self._flush(name)
        paths = {name: self._folder / f"{name}.{self._format}" for name in sorted(self._parts)}
        with ExitStack() as together:
            for name, path in paths.items():
                _join(self._parts[name], together.enter_context(replacing(path)), self._format)
        self.paths = list(paths.values())


def _join(parts: list[Path], target: Path, fmt: FrameFormat) -> None:
    """One file of all parts, read and written in a stream."""
    import polars as pl

    if len(parts) == 1:
        shutil.copyfile(parts[0], target)
    elif fmt == "parquet":
        with _full_disk_said():
            pl.scan_parquet(parts).sink_parquet(target)
    else:
        with target.open("wb") as whole:
            for part in parts:
                with part.open("rb") as stream:
                    shutil.copyfileobj(stream, whole)


def _write(frame: pl.DataFrame, path: Path, fmt: FrameFormat, *, header: bool) -> None:
    if fmt == "parquet":
        with _full_disk_said():
            frame.write_parquet(path)
    elif fmt == "csv":
        frame.write_csv(path, include_header=header)
    else:
        frame.write_ndjson(path)


@contextmanager
def _full_disk_said() -> Iterator[None]:
    """Of a full disk, polars says that the parquet file is out of specification."""
    import polars as pl

    try:
        yield
    except pl.exceptions.ComputeError as error:
        raise OSError(str(error).rpartition("IO error: ")[2]) from error


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
