"""Pastes whose long lines were wrapped at a column: records are read whole or not at all."""

from __future__ import annotations

import tempfile
import textwrap
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logforensics import ParsedLog, parse

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
STORIES = ("healthy_single_055", "watchdog_collective_058", "founding_hicache300", "perf_dp_uneven_0512")
FRAMES = ("launches", "memory", "kv_pool", "capacity", "host_pool", "prefill", "decode", "ready", "watchdog", "retractions")
PLACED = {"source", "line", "text", "version_basis"}


def _lines(story: str) -> list[str]:
    return (FIXTURES / story / "server.log").read_text(encoding="utf-8").replace("\r", "").split("\n")[:-1]


def _hard(line: str, width: int) -> list[str]:
    """What a terminal does."""
    return [line[at : at + width] for at in range(0, len(line), width)] or [""]


def _trimmed(line: str, width: int) -> list[str]:
    """What is left of that where spaces at the edge are not copied."""
    return [part.rstrip() for part in _hard(line, width)]


def _at_words(line: str, width: int) -> list[str]:
    """What a text box does."""
    return textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False, drop_whitespace=True) if len(line) > width else [line]


WAYS = {"hard": _hard, "trimmed": _trimmed, "words": _at_words}


def _parse(lines: list[str], **options: int) -> ParsedLog:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "paste.log"
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return parse(path, **options)


def _rows(parsed: ParsedLog, *, placed: bool = False) -> Counter[tuple[object, ...]]:
    dropped = {"source"} if placed else PLACED
    return Counter(
        (name, *row)
        for name in FRAMES
        for row in parsed.frames[name].drop([column for column in parsed.frames[name].columns if column in dropped]).iter_rows()
    )


WHOLE = {story: _rows(_parse(_lines(story))) for story in STORIES}


@pytest.mark.parametrize("margin", ["", "> ", "    ", "  12\t"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("story", STORIES)
def test_a_wrapped_paste_is_read_whole(story: str, way: str, margin: str) -> None:
    for width in (100, 137):
        found = _parse([margin + part for line in _lines(story) for part in WAYS[way](line, width)])

        assert _rows(found) == WHOLE[story], width
        assert found.coverage.damaged == 0


@pytest.mark.parametrize("way", ["hard", "trimmed"])
def test_a_terminal_wraps_what_compose_wrote(way: str) -> None:
    found = _parse([part for line in _lines("founding_hicache300") for part in WAYS[way](f"sglang-1  | {line}", 120)])

    assert _rows(found) == WHOLE["founding_hicache300"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(STORIES),
    st.sampled_from(sorted(WAYS)),
    st.integers(min_value=64, max_value=260),
    st.integers(min_value=64, max_value=9000),
)
def test_no_width_and_no_chunk_gives_a_row_that_never_was(story: str, way: str, width: int, chunk: int) -> None:
    paste = [part for line in _lines(story) for part in WAYS[way](line, width)]
    found, cut = _parse(paste), _parse(paste, chunk_bytes=chunk)

    assert not _rows(found) - WHOLE[story]
    assert _rows(cut, placed=True) == _rows(found, placed=True)
    assert cut.coverage == found.coverage or cut.sources != found.sources
    assert found.coverage.lines == len(paste)


@pytest.mark.parametrize("width", [80, 500, 3000])
@pytest.mark.parametrize("way", [*WAYS, "by hand", "indented"])
def test_server_args_alone_may_be_wrapped(way: str, width: int) -> None:
    def fold(line: str) -> list[str]:
        if way == "by hand":
            return line.replace(", ", ",\n").split("\n")
        if way == "indented":
            first, *others = _at_words(line, width)
            return [first, *("    " + part for part in others)]
        return WAYS[way](line, width)

    lines = [part for line in _lines("healthy_single_055") for part in (fold(line) if "server_args=" in line else [line])]
    found = _parse(lines)

    assert _rows(found) == WHOLE["healthy_single_055"]
    assert found.coverage.damaged == 0
    assert "server_args=" in lines[found.frames["launches"]["line"][0] - 1]


def test_server_args_that_another_record_cuts_short_stay_cut() -> None:
    lines = _lines("healthy_single_055")
    place = next(number for number, line in enumerate(lines) if "server_args=" in line)
    torn = [*lines[:place], lines[place][:700], lines[place + 1], lines[place][700:], *lines[place + 2 :]]

    found = _parse(torn)

    assert found.frames["launches"]["complete"].to_list() == [False]
    assert found.coverage.damaged >= 1


def test_lines_of_one_width_that_nothing_continues_are_no_paste() -> None:
    """Decode lines are often all as long as each other; what other programs print between them is not their end."""
    decode = "[2026-02-18 14:10:{:02d} TP0] Decode batch, #running-req: 5, #token: 100, token usage: 0.10, gen throughput (token/s): 50.00, #queue-req: {}"
    lines = [text for n in range(10, 60) for text in (decode.format(n, n), f'127.0.0.1:40{n} - "GET /metrics HTTP/1.1" 200')]

    found = _parse(lines)

    assert found.frames["decode"]["queue_req"].to_list() == list(range(10, 60))
