"""The rows do not depend on how the log is cut, on threads, on direction, or on whether it is streamed."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import polars as pl
import pytest

from logforensics import ParsedLog, parse
from logforensics.parsing import stream

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
LOGS = [
    FIXTURES / name / "server.log"
    for name in ("founding_baseline_085", "damage_torn_glued", "damage_imitation", "graph_fail_not_memory_059")
]


def _rows(parsed: ParsedLog) -> dict[str, list[dict[str, object]]]:
    return {name: frame.to_dicts() for name, frame in parsed.frames.items()}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several kinds of log after each other, so that chunks meet all kinds of lines at their edges."""
    path = tmp_path_factory.mktemp("mixed") / "mixed.log"
    path.write_bytes(b"".join(log.read_bytes() for log in LOGS) * 3)
    return path


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("chunk", [700, 4096, 50_000])
def test_chunks_and_threads_change_nothing(mixed: Path, chunk: int, threads: int) -> None:
    whole, cut = parse(mixed), parse(mixed, chunk_bytes=chunk, threads=threads)

    assert _rows(cut) == _rows(whole)
    assert cut.coverage == whole.coverage


def test_random_cuts_change_nothing(mixed: Path) -> None:
    chance = random.Random(5)
    expected = _rows(parse(mixed))

    for size in (chance.randrange(200, 20_000) for _ in range(6)):
        assert _rows(parse(mixed, chunk_bytes=size)) == expected, size


def test_streamed_pieces_are_the_frames(mixed: Path) -> None:
    whole = parse(mixed)
    streamed = stream(mixed, chunk_bytes=4096)
    pieces: dict[str, list[pl.DataFrame]] = {}
    for name, piece in streamed:
        assert piece.columns == whole.frames[name].columns
        pieces.setdefault(name, []).append(piece)

    assert pieces.keys() == {name for name, frame in whole.frames.items() if frame.height}
    for name, found in pieces.items():
        assert len(found) > 1 or whole.frames[name].height < 40
        rows = pl.concat(found).sort("line", maintain_order=True)
        assert rows.to_dicts() == whole.frames[name].to_dicts()
    assert streamed.coverage == whole.coverage


def test_a_log_exported_newest_first_is_read_in_the_order_it_was_written(tmp_path: Path) -> None:
    log = FIXTURES / "graph_fail_not_memory_059" / "server.log"
    lines = log.read_bytes().decode().split("\n")[:-1]
    backwards = tmp_path / "export.log"
    backwards.write_text("\n".join(reversed(lines)) + "\n", encoding="utf-8")

    found, expected = parse(backwards), parse(log)

    for name, frame in expected.frames.items():
        placed = [column for column in ("source", "line", "message_line", "line_end", "chain", "version_basis") if column in frame.columns]
        assert found.frames[name].drop(placed).to_dicts() == frame.drop(placed).to_dicts(), name
        assert found.frames[name]["line"].to_list() == [len(lines) + 1 - line for line in frame["line"].to_list()]


def test_following_reads_what_is_appended_and_what_replaces_the_file(tmp_path: Path) -> None:
    data = LOGS[0].read_bytes()
    path = tmp_path / "server.log"
    half = data.index(b"\n", len(data) // 2) - 7  # inside a line
    path.write_bytes(data[:half])

    def write_on() -> None:
        time.sleep(0.4)
        with path.open("ab") as log:
            log.write(data[half:])
        time.sleep(0.5)
        path.rename(tmp_path / "server.log.1")
        path.write_bytes(LOGS[3].read_bytes())

    writer = threading.Thread(target=write_on)
    writer.start()
    followed = parse(path, follow=True)
    writer.join()

    both = tmp_path / "both.log"
    both.write_bytes(data + LOGS[3].read_bytes())
    expected = parse(both)
    for name, frame in expected.frames.items():
        assert followed.frames[name].drop("source").to_dicts() == frame.drop("source").to_dicts(), name
    last = expected.coverage.lines
    assert followed.quote({str(path): [last]})[str(path), last] == LOGS[3].read_bytes().decode().split("\n")[-2]


def test_several_logs_keep_their_names_and_lines() -> None:
    both = parse([LOGS[0], LOGS[3]])

    for log in (LOGS[0], LOGS[3]):
        alone = parse(log)
        for name, frame in alone.frames.items():
            assert both.frames[name].filter(pl.col("source") == str(log)).to_dicts() == frame.to_dicts()
    assert both.coverage.lines == sum(parse(log).coverage.lines for log in (LOGS[0], LOGS[3]))
