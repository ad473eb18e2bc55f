"""JSON objects that hold a line of the log each, as container runtimes, journald and clouds write them; and escaped HTML."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from logforensics import lazy_re
from logforensics.reading.joining import held_back, joined
from logforensics.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl

# keys under which a line is found, by how likely they hold it
_KEYS = (
    "MESSAGE",
    "message",
    "@message",
    "textPayload",
    "log",
    "msg",
    "line",
    "LogMessage",
    "log_message",
    "Message",
    "body",
    "_raw",
    "raw",
)
_DEEPEST = 3
_MOST_READ = 80
_MOST = 0.6  # of the objects must have the key
_BORDER = " \t,[]"  # what an array puts around its objects
_BYTES = r"^\[[0-9, ]*\]$"  # journald gives what is no plain text as numbers
ESCAPES = r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[\]_P^][^\x07\x1b]*(?:\x07|\x1b\\)|[()][0AB]|[=>])|^\x1b[78]"
"""Colours, cursor moves, titles and character sets; an escape followed by a letter of the text is a stray byte, not a sequence; neither is
one in front of a 7 or 8, which would take a digit out of a number."""
_ENTITIES = {"&lt;": "<", "&gt;": ">", "&quot;": '"', "&#34;": '"', "&#39;": "'", "&#x27;": "'", "&apos;": "'", "&nbsp;": " ", "&amp;": "&"}
_ENTITY = lazy_re.compile("|".join(_ENTITIES))


@record(frozen=True)
class Envelope:
    """A JSON object around every line.

    Attributes:
        path: the keys that lead to the line.
        ended: a value that lacks its newline goes on in the next object (Docker splits lines at 16 KiB).
        stream: the key that tells which stream the line belongs to.
    """

    path: tuple[str, ...]
    ended: bool = False
    stream: str | None = None

    def fits(self, line: str) -> bool:
        """Whether this line is such an object."""
        return self._value(line) is not None

    def part(self, line: str) -> tuple[str, bool]:
        """The stream this object belongs to, and whether it holds only a part of a longer line."""
        if not self.ended or (value := self._value(line)) is None:
            return "", False
        return str(_object(line).get(self.stream) or ""), not value.endswith("\n")

    def held(self, lines: Sequence[str]) -> int:
        """How many of these last lines belong to records that are not over."""
        return held_back(map(self.part, lines)) if self.ended else 0

    def bare(self, line: str) -> str:
        """The line in the envelope, or the text as it is where it has none."""
        value = self._value(line)
        return line if value is None else value.removesuffix("\n")

    def _value(self, line: str) -> str | None:
        found = _object(line)
        for key in self.path:
            found = found.get(key) if isinstance(found, dict) else None
        return _as_text(found)

    def take_off(self, lines: pl.DataFrame) -> pl.DataFrame:
        """Rows ``(n, line)`` without the envelope; a line that has none stays as it is."""
        import polars as pl

        text = pl.col("line")
        is_object = text.str.contains(rf'^[\s,\[]*\{{.*"{re.escape(self.path[-1])}"').fill_null(value=False)
        packed = text.str.strip_chars(_BORDER)
        value = pl.when(is_object).then(packed.str.json_path_match("$" + "".join(f"['{key}']" for key in self.path)))
        stream = packed.str.json_path_match(f"$['{self.stream}']") if self.stream else pl.lit("")
        values = lines.select("n", text, value.alias("value"), pl.when(is_object).then(stream).fill_null("").alias("stream"))
        values = _without_escapes(_from_bytes(values))
        goes_on = (~pl.col("value").str.ends_with("\n")).fill_null(value=False) if self.ended else pl.lit(value=False)
        bare = pl.coalesce(pl.col("value").str.strip_suffix("\n"), text).alias("line")
        return joined(values.select("n", bare, goes_on.alias("goes_on"), "stream"))


@record(frozen=True)
class Entities:
    """A log that went through a web page, which shows ``&lt;`` for ``<``."""

    def part(self, _line: str) -> tuple[str, bool]:
        """No line is split."""
        return "", False

    def held(self, _lines: Sequence[str]) -> int:
        """None of the lines."""
        return 0

    def bare(self, line: str) -> str:
        """The line with the characters that were meant."""
        return _ENTITY.sub(lambda found: _ENTITIES[found[0]], line)

    def take_off(self, lines: pl.DataFrame) -> pl.DataFrame:
        """Rows ``(n, line)`` with the characters that were meant."""
        import polars as pl

        text = pl.col("line")
        escaped = text.str.contains("&", literal=True) & ~text.str.contains("[<>]")
        meant = text.str.replace_many(list(_ENTITIES), list(_ENTITIES.values()))
        return lines.select("n", pl.when(escaped).then(meant).otherwise(text).alias("line"))

    @staticmethod
    def seen_in(lines: Sequence[str]) -> bool:
        """Whether several lines have entities, and hardly any of these has what they stand for."""
        escaped = [line for line in lines if _ENTITY.search(line)]
        return len(escaped) > 1 and 10 * sum("<" in line or ">" in line for line in escaped) <= len(escaped)


def find(lines: Sequence[str], is_record: re.Pattern[str]) -> Envelope | None:
    """The envelope of the lines that have one; the key is the one whose values look most like lines of SGLang's."""
    objects = [found for line in lines if line.lstrip(_BORDER).startswith("{") and isinstance(found := _object(line), dict)][:_MOST_READ]
    paths: Counter[tuple[str, ...]] = Counter()
    records: Counter[tuple[str, ...]] = Counter()
    for found in objects:
        for path, value in _texts(found):
            paths[path] += 1
            records[path] += is_record.search(value) is not None
    likely = [path for path, count in paths.items() if count > 1 and count >= _MOST * len(objects)]
    if not likely:
        return None
    path = max(likely, key=lambda path: (records[path], -_KEYS.index(path[-1]), -len(path)))
    values = [value for found in objects for key, value in _texts(found) if key == path]
    ended = path == ("log",) and 2 * sum(value.endswith("\n") for value in values) > len(values)
    return Envelope(path, ended, "stream" if ended and any("stream" in found for found in objects) else None)


def _texts(found: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Paths and values of the keys that may hold a line."""
    for key, value in found.items():
        if isinstance(value, dict):
            if len(above) < _DEEPEST - 1 and "'" not in key:
                yield from _texts(value, (*above, key))
        elif key in _KEYS and (text := _as_text(value)) is not None:
            yield (*above, key), text


def _object(line: str) -> Any:
    text = line.strip(_BORDER)
    if not text.startswith("{"):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _as_text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        return bytes(value).decode("utf-8", "replace")
    return None


def _from_bytes(values: pl.DataFrame) -> pl.DataFrame:
    """With the values that are lists of bytes as text."""
    import polars as pl

    packed = values["value"].str.contains(_BYTES).fill_null(value=False) & ~values["line"].str.contains(r'"\[[0-9, ]*\]"').fill_null(
        value=False
    )
    if not packed.any():
        return values
    texts = [text if (text := _as_text(json.loads(value))) is not None else value for value in values["value"].filter(packed).to_list()]
    return values.with_columns(values["value"].scatter(packed.arg_true(), pl.Series(texts, dtype=pl.String)))


def _without_escapes(values: pl.DataFrame) -> pl.DataFrame:
    """Without terminal escapes, which a JSON text spells out."""
    import polars as pl

    if not values["value"].str.contains("\x1b", literal=True).any():
        return values
    return values.with_columns(pl.col("value").str.replace_all(ESCAPES, ""))
