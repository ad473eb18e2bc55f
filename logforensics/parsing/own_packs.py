"""Pattern packs of one's own (``--patterns DIR``): checked down to their samples, and tried before the built-in ones."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logforensics.errors import PatternError
from logforensics.parsing import packs
from logforensics.parsing.patterns import INTEGERS, Packs, Pattern, dtypes_of
from logforensics.toml_places import place_in, read_tables

_TYPES: Mapping[str, tuple[type, ...]] = {"Float64": (int, float), "String": (str,), "Boolean": (bool,)}


def with_own(folder: str | os.PathLike[str]) -> Packs:
    """The built-in packs with those of a folder before them.

    Raises:
        PatternError: there is no pack, or a pattern is malformed, or a sample does not give what it says; the message names file and line.
    """
    place = Path(folder)
    files = sorted(place.glob("*.toml"))
    if not files:
        raise PatternError(f"{place}: {'holds no pattern pack (*.toml)' if place.is_dir() else 'is not a folder of pattern packs'}")
    own = [(path, line, _pattern(path, line, raw)) for path in files for line, raw in read_tables(path, "pattern", PatternError)]
    both = packs.combined([*(pattern for _, _, pattern in own), *packs.load().patterns])
    for path, line, pattern in own:
        _check_samples(path, line, pattern, both)
    return both


def _pattern(path: Path, line: int, raw: Mapping[str, Any]) -> Pattern:
    origin = f"{path}:{line}"
    try:
        pattern = packs.compile_pattern(raw, origin)
        expression = re.compile(pattern.regex or "")
        _check_columns(raw, pattern, expression)
    except PatternError as error:
        message = str(error).removeprefix(f"{origin}: ")
        raise PatternError(f"{place_in(path, line, message)}: {message}") from error
    except re.error as error:
        raise PatternError(f"{place_in(path, line, repr('regex'))}: the regex does not compile: {error}") from error
    except KeyError as error:
        raise PatternError(f"{origin}: needs the key {error}") from error
    except (TypeError, AttributeError, ValueError, IndexError) as error:
        raise PatternError(f"{origin}: a value has the wrong form: {error}") from error
    return pattern


def _check_columns(raw: Mapping[str, Any], pattern: Pattern, expression: re.Pattern[str]) -> None:
    """What the built-in packs' tests would find: groups and constants must fit the frame."""
    if "bulk" in raw:
        raise PatternError("'bulk' is for the built-in packs: leave it out")
    dtypes = dtypes_of(pattern.frame) if pattern.frame else {}
    if unknown := expression.groupindex.keys() - dtypes.keys() - {value[1:-1] for _, value in pattern.sets}:
        raise PatternError(f"the 'regex' has the group {min(unknown)!r}, and frame {pattern.frame!r} has no such column")
    for column, value in pattern.constants.items():
        kinds = (int,) if dtypes[column] in INTEGERS else _TYPES.get(dtypes[column], (str,))
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise PatternError(f"'set' gives column {column!r} the value {value!r}, which is no {dtypes[column]}")


def _check_samples(path: Path, line: int, pattern: Pattern, both: Packs) -> None:
    """Read every sample as a log of one line."""
    from logforensics.parsing.lines import LineReader

    for number, sample in enumerate(pattern.samples, 1):
        reader = LineReader(packs=both)
        reader.feed(1, sample.line, known=True)
        reader.close()
        rows = [row[3] | row[2]._asdict() for row in reader.take().get(pattern.frame or "", [])]
        wanted = [dict(columns) for columns in sample.gives]
        given = [{name: row.get(name) for name in columns} for row, columns in zip(rows, wanted, strict=False)]
        if given != wanted:
            told = [" and ".join(str(columns) for columns in found) for found in (given, wanted)]
            raise PatternError(f"{path}:{line}: sample {number} gives {told[0] or 'no row'}, not {told[1]}")
