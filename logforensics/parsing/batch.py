"""Batch lines: ``Prefill batch, #new-seq: 1, …`` and ``Decode batch, #running-req: 5, …``.

The fast path learns the order of the labels from the first row of each shape and reads every row of that shape in one vectorised pass;
a row whose labels differ, or whose numbers are not numbers, falls out as null and goes to the next shape, at last to :func:`read_one`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from logforensics import lazy_re
from logforensics.parsing import packs
from logforensics.parsing.inline import column, rows
from logforensics.parsing.prefix import Ranks, ranks_of
from logforensics.records import record
from logforensics.schema import FRAMES

if TYPE_CHECKING:
    import polars as pl

KINDS = ("prefill", "decode")
MARKS = (" batch, #", " batch. #", " batch [", " batch(mixed #")
WORDS = {"prefill": "Prefill batch", "decode": "Decode batch"}
HEAD = lazy_re.compile(r"(?P<kind>Prefill|Decode) batch(?:\((?P<mixed>mixed #running-req: \d+)\))?(?: \[(?P<iteration>\d+)\])?[.,] (?=#)")
_STAMP = lazy_re.compile(r"\[((?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(\.\d{3})?)(?=[ \]])")
_TAIL = lazy_re.compile(r"(?: [A-Z_]{2,8}\d+)*\] (?:Decode|Prefill) batch(?: \[)?")
_LABEL = lazy_re.compile(r"(?:mixed )?#?[A-Za-z][\w .+/()-]{0,60}", re.ASCII)
_WHOLE_VALUE = lazy_re.compile(r": (?:True|False|-?\d+\.\d\d%?)$")
_EXTRA_VALUE = r"[^ ,\[\]](?:[^,\[\]]{0,38}[^ ,\[\]])?"  # what an unknown label may have: a number, a word or a few
_UNKNOWN_VALUE = lazy_re.compile(_EXTRA_VALUE + r"(?: \[[-\d., ]+\])?")
_MAX_SHAPES = 24
_BOOLEANS = {"True": True, "False": False}


class Field(NamedTuple):
    """One field of a learned shape: its place after splitting at commas, the text around the value, and the column it goes to."""

    place: int
    lead: str
    column: str | None  # None: a label the tables do not know, kept in `extra`
    label: str
    tail: str  # a percent sign


@record(frozen=True)
class Labels:
    """The label table of one kind of line."""

    columns: Mapping[str, str]
    dtypes: Mapping[str, str]
    essential: frozenset[str]


@cache
def labels(kind: str) -> Labels:
    """Label table of ``prefill`` or ``decode`` from patterns/batch.toml."""
    table = packs.tables("batch.toml")[kind]
    return Labels(table["labels"], {c.name: c.dtype for c in FRAMES[kind]}, frozenset(table["essential"]))


def is_torn(label: str, kind: str) -> bool:
    """Whether an unknown label is made of pieces of known ones, as lost, overwritten or foreign bytes leave them: ``gecuda graph``, ``ken``."""
    if label.count("(") != label.count(")") or label in _of_the_other_kind(kind):
        return True
    for known in labels(kind).columns:
        before, found, after = label.partition(known)
        if found and " " in known and (before[-1:].isalnum() or after[:1].isalnum()):
            return True
        if known.endswith(label) and known[: -len(label)][-1:].isalnum():
            return True
    return False


@cache
def _of_the_other_kind(kind: str) -> frozenset[str]:
    """Labels that say that a line is of the other kind."""
    own, other = (labels(name) for name in (kind, *(name for name in KINDS if name != kind)))
    telling = {column for column in other.columns.values() if column in other.essential or column.endswith("_throughput")}
    return frozenset(label for label, column in other.columns.items() if column in telling and label not in own.columns)


# ---------------------------------------------------------------------------------------------------------------- one line


def read_one(message: str, *, cut: bool) -> tuple[str, dict[str, Any]] | None:
    """Kind and columns of one message that begins with a batch head, or None if it is no complete batch record.

    ``cut`` says that another record follows on the same line: then the last value counts only if ", " closes it, or if it is a word or
    has its two decimals.
    """
    head = HEAD.match(message)
    if head is None:
        return None
    kind = "prefill" if head["kind"] == "Prefill" else "decode"
    table = labels(kind)
    row: dict[str, Any] = {}
    extra: dict[str, str] = {}
    body = message[head.end() :]
    closed = body.endswith((", ", ","))
    pieces = _outside_brackets(body.rstrip(", "))
    if head["mixed"]:
        pieces.insert(0, head["mixed"])
    named: set[str] = set()
    for label, text in _labelled(pieces):
        if label is None or label in named:  # no release prints a label twice: the second is another record's
            return None
        named.add(label)
        column = table.columns.get(label)
        if column is None:
            if _UNKNOWN_VALUE.fullmatch(text) is None or is_torn(label, kind):
                return None
            extra[label] = text
            continue
        value = _value(text, table.dtypes[column])
        if value is None:
            return None
        row.setdefault(column, value)
    if not table.essential <= row.keys() or (cut and not closed and _WHOLE_VALUE.search(pieces[-1]) is None):
        return None
    if head["iteration"]:
        row["iteration"] = int(head["iteration"])
    if extra:
        row["extra"] = json.dumps(extra, ensure_ascii=False)
    return kind, row


def last_label(message: str) -> str:
    """The label of a batch record's last value, with the colon."""
    label, colon, _ = message.rstrip(", ").rpartition(", ")[2].partition(": ")
    return label + colon


def _outside_brackets(body: str) -> list[str]:
    """The pieces between ", ", except where it stands in square brackets."""
    pieces = body.split(", ")
    if "[" not in body:
        return pieces
    whole: list[str] = []
    inside: list[str] = []
    for piece in pieces:
        inside.append(piece)
        if piece.rfind("[") <= piece.rfind("]") and ("]" in piece or len(inside) == 1):
            whole.append(", ".join(inside))
            inside = []
    return whole + inside  # a bracket that nobody closes holds nothing together


def _labelled(pieces: Sequence[str]) -> Iterator[tuple[str | None, str]]:
    """``label, value`` of each piece; a label None marks a piece that is neither.

    0.4.9 prints two values under one label (``#token: full=5, swa=6``): both get the label before them.
    """
    before = ""
    for piece in pieces:
        label, colon, value = piece.partition(": ")
        if colon and _LABEL.fullmatch(label):
            part, equals, inner = value.partition("=")
            if equals and part in ("full", "swa"):
                before = label
                yield f"{label}: {part}", inner
            else:
                yield label, value
        elif before and piece.startswith("swa="):
            yield f"{before}: swa", piece[4:]
        else:
            yield None, piece


def _value(text: str, dtype: str) -> int | float | bool | None:
    text = text.rstrip("% ")
    if dtype == "Boolean":
        return _BOOLEANS.get(text)
    try:
        return float(text) if dtype == "Float64" else int(text)
    except ValueError:
        return None


# ---------------------------------------------------------------------------------------------------------------- many lines


def read_many(lines: pl.DataFrame, kind: str) -> tuple[list[pl.DataFrame], list[pl.DataFrame]]:
    """Read rows ``(n, line)`` of one kind: frames of what was read, and frames ``(n, line)`` of what was not."""
    read: list[pl.DataFrame] = []
    left: list[pl.DataFrame] = []
    for _ in range(_MAX_SHAPES):
        if lines.is_empty():
            return read, left
        shape = _learn(lines["line"][0], kind)
        good, others = (None, lines) if shape is None else _apply(lines, shape, kind)
        if good is None or good.is_empty():
            left.append(lines[:1])
            lines = lines[1:]
            continue
        read.append(good)
        lines = others
    left.append(lines)
    return read, left


class Shape(NamedTuple):
    """A learned line: its bracket and time stamp, what follows them, and the fields in their order."""

    stamp_len: int  # with the opening bracket
    stamp_format: str
    iteration: bool
    fields: tuple[Field, ...]
    closing: str
    old_head: bool

    @property
    def behind(self) -> int:
        """Place of the piece that no line of this shape has."""
        return max(field.place for field in self.fields) + (2 if self.closing else 1)


def _learn(line: str, kind: str) -> Shape | None:
    old_head = " batch. #" in line
    line = line.replace(" batch. #", " batch, #", 1)
    closing = ", " if line.endswith(", ") else "," if line.endswith(",") else ""
    pieces = line.removesuffix(closing).split(", ")
    stamp = _STAMP.match(pieces[0])
    if stamp is None or WORDS[kind] not in pieces[0] or any("," in piece for piece in pieces):
        return None
    table = labels(kind)
    fields: list[Field] = []
    seen: set[str] = set()
    for place, (label, value) in enumerate(_labelled(pieces[1:]), 1):
        if label is None:
            return None
        column = table.columns.get(label)
        if column in seen:
            continue
        if column is not None:
            seen.add(column)
        if column is None and (_UNKNOWN_VALUE.fullmatch(value) is None or is_torn(label, kind)):
            return None
        lead = " " + pieces[place][: len(pieces[place]) - len(value)]
        fields.append(Field(place, lead, column, label, "%" if value.endswith("%") else ""))
    if not table.essential <= seen:
        return None
    date = "[%Y-%m-%d %H:%M:%S" if stamp[1][4:5] == "-" else "[%H:%M:%S"
    return Shape(len(stamp[1]) + 1, date + ("%.3f" if stamp[2] else ""), " batch [" in pieces[0], tuple(fields), closing, old_head)


def _apply(lines: pl.DataFrame, shape: Shape, kind: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows that fit ``shape`` as a frame with columns line, time, tags and the values; and the rows that do not, unchanged."""
    import polars as pl

    text = pl.col("line")
    if shape.old_head:
        text = text.str.replace(" batch. #", " batch, #", literal=True)
    # at the comma alone: the piece behind the last field shows what closed the line, and whether anything follows
    pieces = text.str.split_exact(",", shape.behind)
    out = lines.select_seq("n", pieces.alias("pieces")).unnest("pieces").select_seq(_columns_of(shape, kind))
    odd = [tag for tag in out["tags"].value_counts()["tags"].to_list() if tag is None or not _TAIL.fullmatch(tag)]
    if not odd and out["closed"].all() and not any(column.null_count() for column in out.iter_columns()):
        out.drop_in_place("closed")
        return out, lines.clear()
    wrong = pl.Series(odd, dtype=pl.String).drop_nulls().implode()
    bad = ~pl.col("closed") | pl.any_horizontal(pl.exclude("line", "extra").is_null()) | pl.col("tags").cast(pl.String).is_in(wrong)
    unfit = column(out, bad.fill_null(value=True))
    return rows(out.drop("closed"), ~unfit), rows(lines, unfit)


@lru_cache(maxsize=4 * _MAX_SHAPES)
def _columns_of(shape: Shape, kind: str) -> list[pl.Expr]:
    """Expressions over the pieces ``field_0`` … of a line; a null means that the line does not have this shape."""
    import polars as pl

    dtypes = labels(kind).dtypes
    first = pl.col("field_0")
    after = first.str.slice(shape.stamp_len)
    columns = [pl.col("n").cast(pl.UInt64).alias("line"), time_of(first.str.slice(0, shape.stamp_len), shape.stamp_format)]
    if shape.iteration:
        halves = after.str.split_exact(" [", 1).struct
        columns += [
            halves.field("field_0").cast(pl.Categorical).alias("tags"),
            halves.field("field_1").str.strip_suffix("]").cast(pl.Int64, strict=False).alias("iteration"),
        ]
    else:
        columns.append(after.cast(pl.Categorical).alias("tags"))
    columns += [_value_of(field, dtypes) for field in shape.fields if field.column]
    closed = pl.col(f"field_{shape.behind}").is_null()
    if shape.closing:
        closed &= pl.col(f"field_{shape.behind - 1}").eq_missing(pl.lit(shape.closing[1:]))
    if extra := list({field.label: field for field in shape.fields if field.column is None}.values()):
        texts = [(pl.col(f"field_{field.place}"), field) for field in extra]
        closed &= pl.all_horizontal(text.str.contains(f"^{re.escape(field.lead)}{_EXTRA_VALUE}$") for text, field in texts)
        values = pl.struct(text.str.strip_prefix(field.lead).alias(field.label) for text, field in texts)
        columns.append(values.struct.json_encode().alias("extra"))
    return [*columns, closed.alias("closed")]


def _value_of(field: Field, dtypes: Mapping[str, str]) -> pl.Expr:
    import polars as pl

    assert field.column is not None  # noqa: S101 - narrowed by the caller
    piece = pl.col(f"field_{field.place}")
    dtype = dtypes[field.column]
    if dtype == "Boolean":
        yes, no = (piece == f"{field.lead}{word}{field.tail}" for word in _BOOLEANS)
        return pl.when(yes | no).then(yes).alias(field.column)
    bare = piece.str.strip_prefix(field.lead)
    if field.tail:
        bare = bare.str.strip_suffix(field.tail)
    return bare.cast(getattr(pl, dtype), strict=False).alias(field.column)


def time_of(stamp: pl.Expr | str, form: str) -> pl.Expr:
    """A column ``time`` from printed stamps; null where one is no time; a stamp without a date falls on 1970-01-01."""
    import polars as pl

    text = pl.col(stamp) if isinstance(stamp, str) else stamp
    if form.startswith("[%H"):
        text = pl.lit("1970-01-01 ") + text
        form = "%Y-%m-%d " + form
    return text.str.to_datetime(form, time_unit="us", strict=False).alias("time")


def with_ranks(frame: pl.DataFrame) -> pl.DataFrame:
    """Replace the ``tags`` column (no nulls, at least one row) by ``tp, dp, pp, ep``; columns of absent tags are left out."""
    import polars as pl

    kinds = pl.col("tags").unique()
    known = sorted(frame.select_seq(kinds.to_physical().alias("code"), kinds.cast(pl.String).alias("name")).iter_rows())
    ranks = [ranks_of(name) for _, name in known]
    varying = [place for place in range(len(Ranks._fields)) if len({rank[place] for rank in ranks}) > 1]
    columns: list[pl.Expr | pl.Series] = [
        pl.lit(number, dtype=pl.UInt16).alias(Ranks._fields[place])
        for place, number in enumerate(ranks[0])
        if number is not None and place not in varying
    ]
    if varying:
        kind = pl.Series([code for code, _ in known], dtype=pl.UInt32).search_sorted(frame["tags"].to_physical())
        for place in varying:
            numbers = pl.Series(Ranks._fields[place], [rank[place] for rank in ranks], dtype=pl.UInt16)
            columns.append(cut_like(numbers.gather(kind), frame["line"]))
    return frame.select_seq(pl.exclude("tags"), *columns)


def cut_like(values: pl.Series, pattern: pl.Series) -> pl.Series:
    """``values`` in pieces as long as those of ``pattern``: a column in other pieces than its frame's makes polars copy the whole frame."""
    import polars as pl

    lengths = pattern.chunk_lengths()
    if len(lengths) < 2:
        return values
    return pl.concat([values.slice(end - length, length) for end, length in zip(accumulate(lengths), lengths, strict=True)])
