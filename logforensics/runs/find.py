"""Logs under a folder to a table of runs."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logforensics import lazy_re
from logforensics.comparison import settings
from logforensics.errors import InputError
from logforensics.records import record
from logforensics.runs.index import Index, Stamp, stamp_of
from logforensics.runs.workers import examine_all

if TYPE_CHECKING:
    import polars as pl

# server.log, server.log.1, server.log.2.gz, stdout, rank0.err, slurm-17.out, logs.tar.gz
_LOG_NAME = lazy_re.compile(
    r"(?i)^(?!\.).*(?:\.(?:log|txt|out|err)|^(?:stdout|stderr|log))(?:[.-]\d+)*(?:\.(?:gz|zst|xz|bz2))?$ | ^(?!\.).*\.(?:tar(?:\.\w+)?|tgz|tbz2|txz|zip)$",
    re.VERBOSE,
)
_QUOTED = lazy_re.compile(r'"([^"]*)"')
COLUMNS = {
    "source": "String",
    "start": "Int64",
    "starts": "Int64",
    "model": "String",
    "version_low": "String",
    "version_high": "String",
    "kv_tokens": "Int64",
    "max_running_requests": "Int64",
    "context_len": "Int64",
    "peak_tok_s": "Float64",
    "steady_tok_s": "Float64",
    "running_max": "Int64",
    "queue_max": "Int64",
    "stage": "String",
    "verdict": "String",
    "code": "String",
    "root_cause": "String",
    "finding": "String",
    "line": "Int64",
    "errors": "Int64",
    "begin": "String",
    "end": "String",
}
_ALWAYS = ("tp_size", "dp_size")


@record(frozen=True)
class Runs:
    """The table: a row per server start, the facts first, then every field of server_args.

    ``varying`` are the fields of server_args that differ between runs and may bear on speed or capacity. ``skipped`` are files that
    look like logs by name but hold no SGLang run, and folders that cannot be read, with the reason. ``read`` counts the files that had to be read, the rest was known.
    """

    frame: pl.DataFrame
    varying: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    read: int = field(default=0, compare=False)

    def table(self) -> pl.DataFrame:
        """The facts and the flags that vary."""
        return self.frame.select([*COLUMNS, *self.varying])


def find_runs(
    *folders: str | os.PathLike[str],
    where: str | None = None,
    sort: str | None = None,
    use_cache: bool = True,
    cache_file: Path | None = None,
) -> Runs:
    """Every run under the folders; files that have not changed since the last call are not read again.

    Args:
        folders: folders (searched to any depth) or single logs.
        where: an SQL condition over the columns, such as ``tp_size == 8 and verdict == 'failed'``.
        sort: columns separated by commas, ``-`` before one for descending order; runs without a value come last.
        use_cache: False reads every file and remembers nothing.
        cache_file: where to remember; default: ``runs.sqlite`` in the user's cache folder.

    Raises:
        InputError: a folder does not exist or holds no log; the condition or the order cannot be used.
    """
    unread: list[tuple[str, str]] = []
    paths = _paths(folders, unread)
    contents, read = _contents(paths, Index(cache_file) if use_cache else None)
    rows = [row for path in paths for row in contents[path].get("rows", ())]
    skipped = (*((path, contents[path]["problem"]) for path in paths if "problem" in contents[path]), *unread)
    if not rows:
        raise InputError(f"{_named(folders)}: none of {len(paths)} files holds an SGLang run; the first: {skipped[0][1]}")
    frame = _frame(rows)
    if where is not None:
        frame = _filtered(frame, where)
    if sort is not None:
        frame = _sorted(frame, sort)
    return Runs(frame, _varying(frame), skipped, read)


# ------------------------------------------------------------------------------------------------------- files


def _paths(folders: Sequence[str | os.PathLike[str]], unread: list[tuple[str, str]]) -> list[str]:
    found = list(dict.fromkeys(path for folder in folders for path in _below(os.fspath(folder), unread)))
    if not found and unread:
        raise InputError(unread[0][1])
    if not found:
        raise InputError(f"{_named(folders)}: holds no log (*.log, *.txt, *.out, *.err, packed or not): name the folder that does")
    return found


def _below(given: str, unread: list[tuple[str, str]]) -> Iterator[str]:
    def note(error: OSError) -> None:
        unread.append((str(error.filename), f"{error.filename}: {error.strerror or error}"))

    if os.path.isfile(given):  # noqa: PTH113 - Path.is_file raises where a folder above may not be entered
        yield given
        return
    if not os.path.isdir(given):  # noqa: PTH112
        raise InputError(f"{given}: no such folder: runs takes a folder with logs in it")
    for root, inner, names in os.walk(given, onerror=note):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        yield from (os.path.join(root, name) for name in sorted(names) if _LOG_NAME.match(name))  # noqa: PTH118 - ./ stays in front


def _named(folders: Sequence[str | os.PathLike[str]]) -> str:
    return ", ".join(os.fspath(folder) for folder in folders) or "no folder"


def _contents(paths: Sequence[str], index: Index | None) -> tuple[dict[str, dict[str, Any]], int]:
    """What every path holds, from the index or read now, and how many were read."""
    stamps = {path: stamp for path in paths if (stamp := _stamp(path)) is not None}
    known = index.known(stamps.values()) if index else {}
    contents = {path: _renamed(known[stamp.path], path) for path, stamp in stamps.items() if stamp.path in known}
    contents |= {path: {"problem": f"{path}: cannot be read"} for path in paths if path not in stamps}
    fresh = examine_all({path: stamps[path].size for path in paths if path not in contents}) if len(contents) < len(paths) else {}
    if index and fresh:
        index.keep({stamps[path]: content for path, content in fresh.items() if "bug" not in content})
    return contents | fresh, len(fresh)


def _stamp(path: str) -> Stamp | None:
    try:
        return stamp_of(Path(path))
    except OSError:
        return None


def _renamed(content: dict[str, Any], path: str) -> dict[str, Any]:
    """The rows under the name the file is given by now; a member of an archive keeps its own part."""
    for row in content.get("rows", ()):
        member = row["source"].rpartition(":")[2] if row["source"].rpartition(":")[0].endswith(Path(path).name) else ""
        row["source"] = f"{path}:{member}" if member else path
    return content


# ------------------------------------------------------------------------------------------------------- table


def _frame(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """A frame of the facts and of every server_args field that is not the name of a fact."""
    import polars as pl

    facts = [pl.Series(name, [row.get(name) for row in rows], dtype=getattr(pl, dtype), strict=False) for name, dtype in COLUMNS.items()]
    fields = dict.fromkeys(field for row in rows for field in row["args"] if field not in COLUMNS)
    return pl.DataFrame([*facts, *(_series(field, [row["args"].get(field) for row in rows]) for field in fields)])


def _series(name: str, values: Sequence[Any]) -> pl.Series:
    """The values in the narrowest type that holds them all; lists and mixtures as text."""
    import polars as pl

    kinds = {type(value) for value in values if value is not None}
    for kind, dtype in ((bool, pl.Boolean), (int, pl.Int64), (float, pl.Float64), (str, pl.String)):
        if kinds <= ({int, float} if kind is float else {kind}):
            return pl.Series(name, values, dtype=dtype, strict=False)
    return pl.Series(name, [value if value is None or isinstance(value, str) else json.dumps(value) for value in values], dtype=pl.String)


def _varying(frame: pl.DataFrame) -> tuple[str, ...]:
    """Fields of server_args with more than one value that may bear on speed or capacity; the parallel sizes first."""
    fields = [name for name in frame.columns if name not in COLUMNS and settings.matters(name) and name != "model_path"]
    several = [name for name in fields if frame[name].drop_nulls().n_unique() > 1]
    return tuple(sorted(several, key=lambda name: (_ALWAYS.index(name) if name in _ALWAYS else len(_ALWAYS), fields.index(name))))


def _filtered(frame: pl.DataFrame, where: str) -> pl.DataFrame:
    """Rows that meet the condition. It is read by polars as an SQL expression: nothing in it is executed."""
    import polars as pl

    # SQL takes "failed" for a column; where there is none of that name a text is meant
    condition = _QUOTED.sub(lambda found: found[0] if found[1] in frame.columns else f"'{found[1]}'", where)
    try:
        return frame.filter(pl.sql_expr(condition))
    except pl.exceptions.ColumnNotFoundError as error:
        name = str(error).partition('"')[2].partition('"')[0]
        raise InputError(f"--where: no column {name!r}; {_suggestion(name, frame.columns)}") from error
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"--where {where!r} is no condition: {reason}; write it like: tp_size == 8 and verdict == 'failed'") from error


def _sorted(frame: pl.DataFrame, order: str) -> pl.DataFrame:
    keys = [key.strip() for key in order.split(",") if key.strip()]
    names = [key.removeprefix("-") for key in keys]
    if unknown := [name for name in names if name not in frame.columns]:
        raise InputError(f"--sort: no column {unknown[0]!r}; {_suggestion(unknown[0], frame.columns)}")
    if not names:
        return frame
    return frame.sort(names, descending=[key.startswith("-") for key in keys], nulls_last=True, maintain_order=True)


def _suggestion(name: str, columns: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, list(columns), 3)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(COLUMNS)} and the fields of server_args"
