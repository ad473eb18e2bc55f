"""Every way a log can be handed over gives the same rows, and what cannot be read says so."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from logforensics import LogforensicsError, ParsedLog, parse
from logforensics.reading import open_sources

ROOT = Path(__file__).resolve().parents[2]
FOUNDING = ROOT / "fixtures" / "founding_hicache300" / "server.log"
BYTES = FOUNDING.read_bytes()


def _tar(mode: str) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        for name, data in (("notes.md", b"# not a log\n"), ("run/server.log", BYTES)):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def _zip() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("run/server.log", BYTES)
        archive.writestr("run/core.bin", bytes(range(256)) * 20)
    return packed.getvalue()


PACKED: dict[str, Callable[[], bytes]] = {
    "server.log.gz": lambda: gzip.compress(BYTES),
    "two-members.log.gz": lambda: gzip.compress(BYTES[:5000]) + gzip.compress(BYTES[5000:]),
    "server.log.zst": lambda: zstandard.compress(BYTES),
    "two-frames.log.zst": lambda: zstandard.compress(BYTES[:5000]) + zstandard.compress(BYTES[5000:]),
    "server.log.xz": lambda: lzma.compress(BYTES),
    "server.log.bz2": lambda: bz2.compress(BYTES),
    "twice.log.gz": lambda: gzip.compress(gzip.compress(BYTES)),
    "no-suffix": lambda: gzip.compress(BYTES),
    "run.tar": lambda: _tar("w"),
    "run.tar.gz": lambda: _tar("w:gz"),
    "run.tgz": lambda: _tar("w:gz"),
    "run.tar.xz": lambda: _tar("w:xz"),
    "run.zip": _zip,
    "utf-16.log": lambda: b"\xff\xfe" + BYTES.decode().encode("utf-16-le"),
    "utf-16-big.log": lambda: b"\xfe\xff" + BYTES.decode().encode("utf-16-be"),
    "utf-16-unmarked.log": lambda: BYTES.decode().encode("utf-16-le"),
    "windows.log": lambda: BYTES.replace(b"\n", b"\r\n"),
    "utf-8-marked.log": lambda: b"\xef\xbb\xbf" + BYTES,
}


def _rows(parsed: ParsedLog) -> dict[str, list[dict[str, object]]]:
    return {name: frame.drop("source").to_dicts() for name, frame in parsed.frames.items()}


EXPECTED = _rows(parse(FOUNDING))


@pytest.mark.parametrize("name", PACKED)
def test_packed_or_recoded_it_is_the_same_log(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(PACKED[name]())

    parsed = parse(path)

    assert _rows(parsed) == EXPECTED
    quoted = parsed.quote({parsed.sources[0]: [1, 130, 131]})
    assert [quoted[parsed.sources[0], line].encode() for line in (1, 130, 131)] == [BYTES.split(b"\n")[n - 1] for n in (1, 130, 131)]


@pytest.mark.parametrize("way", ["file", "pipe", "gz in a pipe", "zst in a pipe", "xz in a pipe", "bz2 in a pipe"])
def test_standard_input(way: str) -> None:
    script = (
        "import logforensics as lf\nparsed = lf.parse('-')\nfor name, frame in sorted(parsed.frames.items()): print(name, frame.height)\n"
        "print(parsed.quote({'<stdin>': [132]}))"
    )
    with FOUNDING.open("rb") as log:
        packed = PACKED[f"server.log.{way.split(maxsplit=1)[0]}"]() if " in a " in way else BYTES
        feed = {"stdin": log} if way == "file" else {"input": packed}
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True, **feed)  # type: ignore[call-overload]

    lines = done.stdout.decode().splitlines()
    assert lines[:-1] == [f"{name} {len(rows)}" for name, rows in sorted(EXPECTED.items())]
    assert BYTES.split(b"\n")[131].decode()[:40] in lines[-1]


def test_a_folder_and_a_glob_stand_for_their_logs(tmp_path: Path) -> None:
    for name, data in {"rank0.log": BYTES, "rank1.log.1": BYTES, "stdout": BYTES, "empty.log": b"", "config.json": b"{}"}.items():
        (tmp_path / name).write_bytes(data)

    by_folder = [source.name for source in open_sources(tmp_path)]

    assert by_folder == [str(tmp_path / name) for name in ("rank0.log", "rank1.log.1", "stdout")]
    assert [source.name for source in open_sources(f"{tmp_path}/rank*")] == by_folder[:2]
    assert parse(tmp_path).frames["launches"]["source"].to_list() == by_folder


def test_a_truncated_gzip_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "copied-too-early.log.gz"
    path.write_bytes(gzip.compress(BYTES * 200, 1)[:-2000])

    parsed = parse(path)

    assert parsed.coverage.unfinished == 1
    assert 150 <= parsed.frames["launches"].height <= 200


def _encrypted() -> bytes:
    """The archive with the flag of encryption set on its members."""
    packed = bytearray(_zip())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := packed.find(mark, at + 1)) >= 0:
            packed[at + place] |= 1
    return bytes(packed)


def _no_log(folder: Path) -> Path:
    (folder / "notes.md").write_text("# nothing\n")
    return folder


UNUSABLE: dict[str, Callable[[Path], Path | str]] = {
    "does not exist": lambda folder: folder / "absent.log",
    "without a log in it": _no_log,
    "matches no log": lambda folder: f"{folder}/*.log",
    "is empty": lambda folder: _written(folder / "e.log", b" \n"),
    "binary": lambda folder: _written(folder / "b.log", bytes(range(256)) * 64),
    "cannot be read": lambda folder: _written(folder / "b.log.gz", b"\x1f\x8b" + b"\x00" * 60),
    "holds no log": lambda folder: _written(folder / "b.tar", _tar("w").replace(b"server.log", b"server.bin")),
    "encrypted": lambda folder: _written(folder / "e.zip", _encrypted()),
    "method is not supported": lambda folder: _written(folder / "m.zip", _zip().replace(b"\x08\x00", b"\x61\x00")),
    "zip: holds no log": lambda folder: _written(folder / "none.zip", b"PK\x05\x06" + bytes(18)),
    "File name too long": lambda folder: folder / ("x" * 300),
    "broken zip": lambda folder: _written(folder / "b.zip", b"PK\x03\x04" + b"\x01" * 99),
}


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("complaint", UNUSABLE)
def test_what_cannot_be_read_says_so(complaint: str, tmp_path: Path) -> None:
    path = UNUSABLE[complaint](tmp_path)
    expected = {"does not exist": "No such file"}.get(complaint, complaint)

    with pytest.raises(LogforensicsError, match=expected) as caught:
        parse(path)

    assert os.fspath(path) in str(caught.value) or Path(path).name in str(caught.value)
    assert "\n" not in str(caught.value)
