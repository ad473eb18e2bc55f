"""Frames for people and programs: an aligned table on a screen, CSV, JSON lines, Parquet, markdown, HTML. Secrets are masked."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Literal

from logforensics.render.document import Block, Heading, Paragraph, Table, to_html, to_markdown, to_text
from logforensics.render.frames import masked
from logforensics.render.screen import Screen
from logforensics.render.styled import columns_of
from logforensics.render.words import cut, plural

if TYPE_CHECKING:
    import polars as pl

    from logforensics.runs import Runs

DataFormat = Literal["csv", "json", "parquet"]
_RUN_WIDTH, _TEXT_WIDTH = 28, 20
_HEADERS = {
    "source": "run",
    "start": "start",
    "version": "SGLang",
    "kv_tokens": "KV tokens",
    "peak_tok_s": "peak",
    "steady_tok_s": "steady",
    "max_running_requests": "limit",
    "code": "finding",
    "finding": "first finding",
}
# what a screen shows, in this order; with less room those that stand later in _NEED go first
_ORDER = ("source", "start", "model", "version", "", "kv_tokens", "peak_tok_s", "steady_tok_s", "stage", "verdict", "code", "finding")
_NEED = ("source", "verdict", "code", "steady_tok_s", "kv_tokens", "start", "model", "", "peak_tok_s", "stage", "version", "finding")
_FLAGS_SHOWN = 3
_FINDING_WORTH = 24
_WIDEST, _INDENT = 120, 2
_ENDINGS = (".gz", ".zst", ".xz", ".bz2", ".log", ".txt", ".out")


def data(frame: pl.DataFrame, fmt: DataFormat) -> bytes:
    """A frame as a file's content; ``json`` is one object per line. Columns that CSV cannot hold (lists, structs) become JSON text."""
    safe = masked(frame)
    if fmt == "json":
        return safe.write_ndjson().encode()
    if fmt == "csv":
        return _flat(safe).write_csv().encode()
    buffer = io.BytesIO()
    safe.write_parquet(buffer)
    return buffer.getvalue()


def frame_to_text(frame: pl.DataFrame, screen: Screen) -> str:
    """A frame as an aligned table, numbers to the right, all rows; wide frames are split over blocks."""
    if not frame.width:
        return ""
    words = frozenset(name for name, dtype in frame.schema.items() if not dtype.is_numeric())
    rows = tuple(tuple(_shown(value) for value in row) for row in masked(frame).iter_rows())
    footer = Paragraph(plural(frame.height, "row"), quiet=True)
    return to_text([_table(tuple(frame.columns), rows, 1 if frame.columns[0] in words else 0, words), footer], screen)


def render_runs(runs: Runs, fmt: Literal["text", "md", "html"], screen: Screen, columns: tuple[str, ...] = ()) -> str:
    """The table of runs. Text shows the columns there is room for; with ``columns`` it shows those."""
    if fmt == "text":
        return to_text(_screen_blocks(runs, screen, columns), screen)
    names = columns or ("source", "start", "model", "version", *runs.varying, *_ORDER[5:])
    blocks: list[Block] = [Heading(f"{runs.frame.height} runs", 1), _runs_table(runs, names)]
    return to_markdown(blocks) if fmt == "md" else to_html(blocks)


def _screen_blocks(runs: Runs, screen: Screen, columns: tuple[str, ...]) -> list[Block]:
    names = columns or _fitting(runs, min(screen.width, _WIDEST) - _INDENT)
    blocks: list[Block] = [_runs_table(runs, names, wide=min(screen.width, _WIDEST) - _INDENT)]
    told = f"{plural(runs.frame.height, 'run')} in {plural(runs.frame['source'].n_unique(), 'file')}"
    hidden = [name for name in runs.varying if name not in names]
    if hidden and not columns:
        some = ", ".join(hidden[:6]) + (", …" if len(hidden) > 6 else "")
        told += f"; {plural(len(hidden), 'flag')} with several values not shown: {some} (--columns, or --format csv)"
    if runs.skipped:
        told += f"; {plural(len(runs.skipped), 'file')} {'holds' if len(runs.skipped) == 1 else 'hold'} no run (--verbose says why)"
    blocks.append(Paragraph(told, quiet=True))
    return blocks


def _fitting(runs: Runs, width: int) -> tuple[str, ...]:
    """Columns by need as far as the screen reaches, in reading order."""
    chosen: list[str] = []
    room = width + 2
    for need in _NEED:
        for name in runs.varying[:_FLAGS_SHOWN] if need == "" else (need,):
            if name == "start" and runs.frame["starts"].max() == 1:
                continue
            takes = 2 + (
                _FINDING_WORTH if name == "finding" else max(map(columns_of, (_HEADERS.get(name, name), *_column(runs.frame, name))))
            )
            if takes <= room:
                chosen.append(name)
                room -= takes
    flags = [name for name in chosen if name in runs.varying]
    return tuple(name for slot in _ORDER for name in (flags if slot == "" else [slot]) if name in chosen)


def _runs_table(runs: Runs, names: tuple[str, ...], *, wide: int | None = None) -> Table:
    """The named columns; ``wide`` columns of the screen are to be kept, None where there is no limit."""
    cells = [_column(runs.frame, name, cut_texts=wide is not None) for name in names]
    if wide is not None and names[-1] == "finding":
        rest = wide - sum(
            max(map(columns_of, (_HEADERS.get(name, name), *column))) + 2 for name, column in zip(names, cells[:-1], strict=False)
        )
        cells[-1] = [cut(text, max(rest, _FINDING_WORTH)) for text in cells[-1]]
    header = tuple(_HEADERS.get(name, name) for name in names)
    words = frozenset(
        _HEADERS.get(name, name) for name in names if name not in runs.frame.columns or not runs.frame[name].dtype.is_numeric()
    )
    return _table(header, tuple(zip(*cells, strict=True)), 1, words)


def _table(header: tuple[str, ...], rows: tuple[tuple[str, ...], ...], left: int, words: frozenset[str] = frozenset()) -> Table:
    """A table of any width: a row of one cell would be a title, so a single column gets an empty neighbour."""
    if len(header) > 1:
        return Table(header, rows, left, words)
    return Table((*header, ""), tuple((*row, "") for row in rows), 2)


def _column(frame: pl.DataFrame, name: str, *, cut_texts: bool = True) -> list[str]:
    if name == "version":
        pairs = frame.select("version_low", "version_high").rows()
        return ["" if low is None else low if low == high else f"{low}…{high}" for low, high in pairs]
    values = frame[name].to_list()
    if name == "source":
        names = _short(values)
        return [cut(text, _RUN_WIDTH) for text in names] if cut_texts else names
    if name.endswith("tok_s"):
        return ["" if value is None else f"{value:,.0f}" for value in values]
    texts = [_shown(value) for value in values]
    return [cut(text, _TEXT_WIDTH) for text in texts] if cut_texts and name != "finding" else texts


def _short(paths: list[str]) -> list[str]:
    """Paths below their common folder, without the endings they share."""
    folder = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""  # noqa: PTH120 - paths as they were given
    names = [os.path.relpath(path, folder) if folder else path for path in paths]
    for ending in _ENDINGS:
        if names and all(name.endswith(ending) and len(name) > len(ending) for name in names):
            names = [name.removesuffix(ending) for name in names]
    return names


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """Lists and structs as text."""
    import polars as pl

    nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
    return frame.with_columns(
        pl.Series(name, [None if value is None else str(value) for value in frame[name].to_list()]) for name in nested
    )
