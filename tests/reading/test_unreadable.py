"""What cannot be read is named in one line, or beside what could be read; what changes while it is read is not taken for what it was."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logforensics
from logforensics.cli import main
from logforensics.errors import InputError
from logforensics.parsing import stream
from logforensics.runs import find_runs

LOG = next(path for path in sorted((Path(__file__).resolve().parents[2] / "fixtures").glob("*/server.log")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one good log."""
    shutil.copy(LOG, tmp_path / "good.log")
    return tmp_path


def _forbid(monkeypatch: pytest.MonkeyPatch, name: str, *methods: str) -> None:
    """Files and folders of this name may not be read, as far as these methods of paths go: tests may run as root."""
    for method in methods:
        original = getattr(Path, method)

        def forbidden(self: Path, *args: Any, _original: Any = original, **named: Any) -> Any:
            if self.name == name:
                raise PermissionError(13, "Permission denied", str(self))
            return _original(self, *args, **named)

        monkeypatch.setattr(Path, method, forbidden)


def _refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    return told.err


@pytest.mark.parametrize("command", ["diagnose", "frames", "watch"])
def test_a_file_without_permission(command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _forbid(monkeypatch, "good.log", "open")
    more = {"frames": ["-o", str(folder / "out")], "watch": ["--timeout", "5s"]}.get(command, [])
    assert "good.log: Permission denied" in _refused(capsys, command, str(folder / "good.log"), *more)
    assert not (folder / "out").exists()


def test_a_folder_without_permission(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _forbid(monkeypatch, folder.name, "iterdir")
    assert f"{folder}: Permission denied" in _refused(capsys, "diagnose", str(folder))


def test_a_path_behind_a_folder_that_may_not_be_entered(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _forbid(monkeypatch, "good.log", "stat", "open")
    for command in ("diagnose", "watch"):
        assert "good.log: Permission denied" in _refused(capsys, command, str(folder / "good.log"))


def test_an_unreadable_file_of_a_folder_is_named_beside_the_rest(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(LOG, folder / "secret.log")
    (folder / "empty.log").touch()
    (folder / "gone.log").symlink_to("nowhere")
    (folder / "loop.log").symlink_to("loop.log")
    (folder / "latest.log").symlink_to("good.log")
    _forbid(monkeypatch, "secret.log", "open")
    for given in (folder, folder / "*.log"):
        found = logforensics.diagnose(given)
        assert found.sources == (str(folder / "good.log"),)
        reasons = [note for note in found.notes if note.endswith("it was passed over")]
        assert [Path(note.split(": ")[0]).name for note in reasons] == ["gone.log", "loop.log", "secret.log"]
    assert stream(folder).side.unread == logforensics.parse(folder).side.unread
    assert main(["frames", str(folder), "-o", str(folder / "out")]) == 0
    told = f"{folder / 'secret.log'}: Permission denied; it was passed over"
    assert told in capsys.readouterr().out
    for arguments in (["sql", "select 1"], ["export", "trace"]):
        assert main([*arguments, str(folder)]) == 0
        assert f"logforensics: {told}\n" in capsys.readouterr().err
    assert told in logforensics.compare(folder, LOG).notes


def test_a_folder_that_holds_itself(folder: Path) -> None:
    (folder / "self").symlink_to(".")
    assert logforensics.parse(folder / "**" / "*.log").sources == (str(folder / "good.log"),)
    assert find_runs(folder, use_cache=False).frame["source"].n_unique() == 1


def test_a_folder_below_that_may_not_be_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "below").mkdir()
    scandir = os.scandir

    def forbidden(path: Any) -> Any:
        if Path(path).name == "below":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    assert (str(folder / "below"), f"{folder / 'below'}: Permission denied") in find_runs(folder, use_cache=False).skipped
    with pytest.raises(InputError, match="below: Permission denied"):
        find_runs(folder / "below", use_cache=False)


@pytest.mark.parametrize(
    ("name", "told"), [("gone", "No such file"), ("loop", "symbolic links"), ("socket", "is a socket"), ("null", "empty")]
)
def test_no_files(name: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    Path("gone").symlink_to("nowhere")
    Path("loop").symlink_to("loop")
    Path("null").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        assert told in _refused(capsys, "diagnose", name)


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(LOG.read_bytes() * 40)
    whole = logforensics.parse(log, chunk_bytes=1 << 12).coverage
    cut: list[int] = []

    def cut_once(_: object) -> None:
        if not cut:
            cut.append(log.stat().st_size // 2)
            os.truncate(log, cut[0])

    found = logforensics.parse(log, chunk_bytes=1 << 12, progress=cut_once)
    assert cut
    assert 0 < found.coverage.lines < whole.lines
    assert found.coverage.unfinished
    assert logforensics.diagnose(found).sources == (str(log),)


@pytest.mark.parametrize("what", ["deleted", "replaced", "cut"])
def test_a_file_that_changes_before_its_lines_are_quoted(what: str, folder: Path) -> None:
    log = folder / "good.log"
    parsed = logforensics.parse(log)
    if what == "cut":
        os.truncate(log, 100)
    else:
        log.rename(folder / "good.log.1")
    if what == "replaced":
        log.write_bytes(b"another line\n" * 10_000)
    with pytest.raises(InputError, match="cannot be read again" if what == "deleted" else "was replaced or cut"):
        parsed.quote({str(log): [2]})


@pytest.mark.parametrize("arguments", [["frames", "{log}"], ["export", "trace", "{log}"], ["report", "{log}"], ["diagnose", "{log}"]])
def test_a_place_that_cannot_be_written(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "file").touch()
    target = folder / "file" / "out.html"  # no folder: whoever runs the test, nothing can be written there
    given = [argument.format(log=folder / "good.log") for argument in arguments]
    assert "cannot" in _refused(capsys, *given, "-o", str(target))
    assert sorted(path.name for path in folder.iterdir()) == ["file", "good.log"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("arguments", [["export", "trace"], ["diagnose", "--format", "html"]])
def test_a_full_device(arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No space left on device" in _refused(capsys, *arguments, str(folder / "good.log"), "-o", "/dev/full")


@pytest.mark.parametrize("fmt", ["parquet", "csv", "json"])
def test_a_disk_that_is_full_in_the_middle_leaves_nothing(fmt: str, folder: Path) -> None:
    code = (
        "import resource, signal, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from logforensics.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    given = ["frames", str(folder / "good.log"), "-o", str(folder / "out"), "--format", fmt]
    done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert "File too large" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (folder / "out").exists()


def _followed(log: Path, then: Callable[[], object]) -> int:
    """How many lines a log has for who follows it while this happens to it."""
    later = threading.Timer(1.0, then)
    later.start()
    lines = logforensics.parse(log, follow=True).coverage.lines
    later.join()
    return lines


def test_a_followed_file_that_is_cut_replaced_or_deleted(folder: Path) -> None:
    data, log = LOG.read_bytes() + b"a line without an end", folder / "good.log"
    lines = data.count(b"\n") + 1
    changes: dict[str, Callable[[], object]] = {
        "cut": lambda: log.write_bytes(data[:-40]),
        "cut and grown past the place": lambda: log.write_bytes(b"[2026-01-01 10:00:00] x\n" + data),
        "replaced": lambda: (log.rename(folder / "old"), log.write_bytes(data[:-40])),
        "deleted": log.unlink,
    }
    for what, change in changes.items():
        log.write_bytes(data)
        more = {"cut": data[:-40].count(b"\n") + 1, "cut and grown past the place": lines + 1, "replaced": data[:-40].count(b"\n") + 1}
        assert _followed(log, change) == lines + more.get(what, 0), what


def test_a_pipe_cannot_be_watched_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "standard input" in _refused(capsys, "watch", str(tmp_path / "pipe"))
