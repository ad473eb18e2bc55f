"""How far reading has come: what a listener hears, and the bar that a person at a terminal sees."""

from __future__ import annotations

import fcntl
import gzip
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import tarfile
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import TextIO

import pytest

from logforensics import Progress, cli, parse
from logforensics.cli import waiting as waiting_module
from logforensics.cli.waiting import waiting
from logforensics.comparison import compare
from logforensics.parsing import stream
from logforensics.progress import each, tell, telling
from logforensics.runs import find_runs

ROOT = Path(__file__).parents[1]
FOUNDING = ROOT / "fixtures" / "founding_hicache300" / "server.log"
HICACHE48 = ROOT / "fixtures" / "founding_hicache48" / "server.log"
PROGRAM = (sys.executable, "-m", "logforensics")
SIZE = FOUNDING.stat().st_size


# --- what a listener hears -------------------------------------------------------------------------------------------------


def heard_while(work: Callable[[], object]) -> list[Progress]:
    heard: list[Progress] = []
    with telling(heard.append):
        work()
    return heard


def test_a_plain_file_is_counted_in_its_bytes() -> None:
    heard: list[Progress] = []
    parse(FOUNDING, chunk_bytes=4096, progress=heard.append)
    assert len(heard) > 3
    assert [item.done_bytes for item in heard] == sorted({item.done_bytes for item in heard})
    assert heard[-1] == Progress(str(FOUNDING), SIZE, SIZE, 1, 1)


def test_a_compressed_file_is_counted_in_its_compressed_bytes(tmp_path: Path) -> None:
    packed = tmp_path / "server.log.gz"
    packed.write_bytes(gzip.compress(FOUNDING.read_bytes()))
    heard: list[Progress] = []
    parse(packed, progress=heard.append)
    assert heard[-1] == Progress(str(packed), packed.stat().st_size, packed.stat().st_size, 1, 1)


def test_several_files_are_counted_together() -> None:
    heard: list[Progress] = []
    parse([FOUNDING, HICACHE48], chunk_bytes=4096, progress=heard.append)
    total = SIZE + HICACHE48.stat().st_size
    assert {item.total_bytes for item in heard} == {total}
    assert [item.done_bytes for item in heard] == sorted(item.done_bytes for item in heard)
    assert {(item.what, item.number, item.count) for item in heard} == {(str(FOUNDING), 1, 2), (str(HICACHE48), 2, 2)}
    assert heard[-1].done_bytes == total


def test_members_of_an_archive_are_counted_unpacked(tmp_path: Path) -> None:
    archive = tmp_path / "logs.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(FOUNDING, "a.log")
        file.add(HICACHE48, "b.log")
    heard: list[Progress] = []
    parse(archive, progress=heard.append)
    assert heard[-1] == Progress(f"{archive}:b.log", *[SIZE + HICACHE48.stat().st_size] * 2, 2, 2)


def test_other_encodings_are_counted_as_they_are_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(FOUNDING.read_text(encoding="utf-8"), encoding="utf-16")
    heard: list[Progress] = []
    parse(path, progress=heard.append)
    assert (heard[-1].done_bytes, heard[-1].total_bytes) == (path.stat().st_size, path.stat().st_size)


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[Path]:
    """A pipe with a name, into which another thread writes the founding log."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(FOUNDING.read_bytes()), daemon=True)
    writer.start()
    yield path
    writer.join(60)


def test_the_size_of_a_pipe_is_unknown_and_nothing_of_it_is_lost(fifo: Path) -> None:
    heard: list[Progress] = []
    parsed = parse(fifo, progress=heard.append)
    assert parsed.coverage.lines == parse(FOUNDING).coverage.lines
    assert (heard[-1].done_bytes, heard[-1].total_bytes) == (SIZE, None)


def test_streams_tell_too() -> None:
    heard = heard_while(lambda: list(stream(FOUNDING)))
    assert heard[-1].done_bytes == SIZE


def test_a_comparison_counts_its_logs_and_says_what_comes_after_reading() -> None:
    heard = heard_while(lambda: compare(FOUNDING, HICACHE48))
    assert {(item.what, item.number, item.count) for item in heard if item.total_bytes} == {(str(FOUNDING), 1, 2), (str(HICACHE48), 2, 2)}
    assert heard[-1].what == "comparing"


@pytest.mark.parametrize("copies", [2, 12])  # by this process, and by several
def test_runs_count_their_files(tmp_path: Path, copies: int) -> None:
    for number in range(copies):
        (tmp_path / f"{number}.log").write_bytes(HICACHE48.read_bytes())
    heard = heard_while(lambda: find_runs(tmp_path, use_cache=False))
    total = copies * HICACHE48.stat().st_size
    assert {item.total_bytes for item in heard} == {total}
    assert {item.number for item in heard} >= set(range(1, copies + 1))
    assert (heard[-1].done_bytes, heard[-1].count) == (total, copies)


def test_one_file_within_another_count_keeps_its_place() -> None:
    places = [(outer, inner) for outer in each("ab", [1, 2]) for inner in each([outer])]
    assert places == [("a", "a"), ("b", "b")]


def test_without_a_listener_nothing_is_counted() -> None:
    heard: list[Progress] = []
    parse(FOUNDING, progress=heard.append)
    count = len(heard)
    parse(FOUNDING)
    assert len(heard) == count


# --- the bar on a terminal -------------------------------------------------------------------------------------------------


class Terminal:
    """What a terminal shows: enough of one for lines, erasing and moving up."""

    _TOKEN = re.compile(rb"\x1b\[(?P<private>\??)(?P<number>[0-9;]*)(?P<final>[A-Za-z])|\r|\n|[^\x1b\r\n]+|\x1b")

    def __init__(self, columns: int = 100) -> None:
        self.ours, self.theirs = pty.openpty()
        self.file: TextIO
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.raw = b""

    def read(self) -> bool:
        """Take what was written since; False when everybody has closed the other end."""
        try:
            data = os.read(self.ours, 1 << 16)
        except OSError:  # how Linux says the end
            return False
        self.raw += data
        return bool(data)

    def read_to_the_end(self) -> None:
        while self.read():
            pass

    @property
    def rows(self) -> list[str]:
        rows, row, column = [""], 0, 0
        for token in self._TOKEN.finditer(self.raw):
            if token[0] == b"\r":
                column = 0
            elif token[0] == b"\n":
                row += 1
                rows += [""] * (row + 1 - len(rows))
            elif token["final"] == b"A":
                row = max(0, row - int(token["number"] or 1))
            elif token["final"] == b"K":
                rows[row] = "" if token["number"] == b"2" else rows[row][:column]
            elif token["final"] is None and token[0] != b"\x1b":
                text = token[0].decode()
                rows[row] = rows[row].ljust(column)[:column] + text + rows[row][column + len(text) :]
                column += len(text)
        return [line.rstrip() for line in rows if line.strip()]

    @property
    def cursor_is_shown(self) -> bool:
        return self.raw.rfind(b"\x1b[?25h") >= self.raw.rfind(b"\x1b[?25l")


class Started:
    """A command of ours whose standard error is a terminal and whose standard input we write."""

    def __init__(self, *arguments: str, columns: int = 100, **environment: str) -> None:
        self.screen = Terminal(columns)
        clean = {key: value for key, value in os.environ.items() if key not in {"CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS"}}
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.screen.theirs,
            cwd=ROOT, env={**clean, "PYTHONUTF8": "1", "TERM": "xterm-256color", **environment},
        )  # fmt: skip
        os.close(self.screen.theirs)

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def until(self, wanted: bytes) -> str:
        """Wait until this was drawn; the last row then."""
        while wanted not in self.screen.raw:
            assert self.screen.read(), self.screen.raw
        return self.screen.rows[-1]

    def end(self) -> tuple[int, str]:
        """Close its input; its status and what it printed."""
        drain = threading.Thread(target=self.screen.read_to_the_end)
        drain.start()
        out, _ = self.process.communicate(timeout=120)
        drain.join(60)
        os.close(self.screen.ours)
        return self.process.returncode, out.decode()


def test_a_slow_pipe_shows_a_bar_that_vanishes() -> None:
    started = Started("diagnose", "-")
    text = FOUNDING.read_bytes()
    started.write(text[:20_000])
    assert re.fullmatch(r"<stdin> .* 0\.0 MB", started.until(b" MB"))
    started.write(text[20_000:])
    status, out = started.end()
    assert (status, out) == (
        0,
        subprocess.run([*PROGRAM, "diagnose", "-"], input=text, stdout=subprocess.PIPE, cwd=ROOT, check=True).stdout.decode(),
    )
    assert started.screen.rows == []
    assert started.screen.cursor_is_shown


def test_an_interrupt_takes_the_bar_away(tmp_path: Path) -> None:
    started = Started("frames", "-", "-o", str(tmp_path))
    started.write(FOUNDING.read_bytes())
    started.until(b" MB")
    started.process.send_signal(signal.SIGINT)
    assert started.end() == (130, "")
    assert started.screen.rows == []
    assert started.screen.cursor_is_shown


def test_a_refusal_takes_the_bar_away_and_stands_alone() -> None:
    started = Started("sql", "select 1", "-", columns=50)
    started.write(b"nothing that SGLang says\n")
    assert started.until(b" MB").startswith("<stdin> ")
    status, out = started.end()
    assert (status, out) == (2, "")
    assert "".join(started.screen.rows) == "logforensics: <stdin>: does not look like an SGLang server log: none of 1 lines was recognised"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A terminal before which nobody waits for anything."""
    screen = Terminal()
    monkeypatch.setattr(waiting_module, "PATIENCE_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    with os.fdopen(screen.theirs, "w", encoding="utf-8") as screen.file:
        yield screen
    os.close(screen.ours)


def last_row(screen: Terminal, heard: Progress, wanted: bytes) -> str:
    with redirect_stderr(screen.file), waiting():
        tell(heard)
        while re.search(wanted, screen.raw) is None:
            screen.read()
        return screen.rows[-1]


def test_the_bar_says_name_count_bytes(terminal: Terminal) -> None:
    row = last_row(terminal, Progress("logs/a/\x1b[31m[b]server.log", 412_300_000, 1_000_000_000, 2, 5), b" MB")
    assert re.fullmatch(r"\\x1b\[31m\[b\]server.log +2 of 5 \S+ 412\.3 of 1,000\.0 MB.*", row)


def test_work_that_is_not_counted_says_how_long_it_takes(terminal: Terminal) -> None:
    assert re.fullmatch(r"diagnosing .* 0:0\d", last_row(terminal, Progress("diagnosing"), rb"diagnosing.*0:0"))


def starts_a_thread(screen: Terminal, *, wanted: bool = True) -> bool:
    before = set(threading.enumerate())  # those of an earlier test may end meanwhile
    with redirect_stderr(screen.file), patience(1e6), waiting(wanted=wanted):
        return bool(set(threading.enumerate()) - before)


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    before, waiting_module.PATIENCE_S = waiting_module.PATIENCE_S, seconds
    yield
    waiting_module.PATIENCE_S = before


@pytest.mark.parametrize(
    ("name", "value"), [("TERM", "dumb"), ("TERM", ""), ("CI", "true")], ids=["dumb terminal", "no terminal type", "build server"]
)
def test_no_bar_where_nobody_could_use_it(terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    assert starts_a_thread(terminal)
    monkeypatch.setenv(name, value)
    assert not starts_a_thread(terminal)


def test_no_bar_for_who_wants_none(terminal: Terminal) -> None:
    assert not starts_a_thread(terminal, wanted=False)


def test_no_bar_where_standard_error_is_no_terminal(terminal: Terminal, tmp_path: Path) -> None:
    with (tmp_path / "err").open("w") as terminal.file:
        assert not starts_a_thread(terminal)


@pytest.mark.parametrize("option", ["--no-progress", "--quiet"])
def test_the_options_reach_the_bar(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(waiting_module, "_is_watched", lambda: asked.append(True))
    cli.main(["diagnose", str(FOUNDING), option])
    assert not asked
    cli.main(["diagnose", str(FOUNDING)])
    assert asked


def test_nothing_is_drawn_or_imported_for_what_is_quick() -> None:
    code = (
        "import sys; from logforensics.cli import main, waiting; waiting.PATIENCE_S = 1e6\n"
        "main(sys.argv[1:]); sys.exit('rich.progress' in sys.modules)"
    )
    screen = Terminal()
    done = subprocess.run(
        [sys.executable, "-c", code, "diagnose", str(FOUNDING)], stdout=subprocess.DEVNULL, stderr=screen.theirs, cwd=ROOT,
        env={**{key: value for key, value in os.environ.items() if key != "CI"}, "TERM": "xterm"}, timeout=120, check=False,
    )  # fmt: skip
    os.close(screen.theirs)
    screen.read_to_the_end()
    os.close(screen.ours)
    assert (done.returncode, screen.raw) == (0, b"")


@pytest.mark.parametrize(
    "command", ["diagnose", "frames", "export", "sql", "report", "compare", "runs", "collect", "whatif", "patterns unknown"]
)
def test_every_command_that_reads_logs_can_do_without(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*command.split(), "--help"]) == 0
    assert "--no-progress" in capsys.readouterr().out
