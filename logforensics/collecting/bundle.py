"""The bundle: a tar file packed with zstd, written whole or not at all. Everything in it is text with its secrets masked."""

from __future__ import annotations

import io
import json
import os
import platform
import tarfile
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logforensics import progress
from logforensics._version import __version__
from logforensics.collecting import asking, sources
from logforensics.collecting.asking import Answer
from logforensics.errors import InputError
from logforensics.reading import STDIN_NAME, Source, open_sources
from logforensics.records import record
from logforensics.render.files import replacing
from logforensics.secrets import mask

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SCHEMA = "logforensics.bundle/1"
_LEVEL = 6  # of zstd: a log shrinks to a twentieth; more costs time that someone waits for
_PROC = Path("/proc")


@record(frozen=True)
class Taken:
    """One member: its name, where it came from, its size in bytes before packing."""

    member: str
    origin: str
    size_bytes: int


@record(frozen=True)
class Collected:
    """What is in a bundle, and what could not be had (what it would be, and why not)."""

    path: Path
    taken: tuple[Taken, ...]
    missed: tuple[tuple[str, str], ...]


def collect(
    output: str | os.PathLike[str],
    *,
    logs: Sequence[str | os.PathLike[str]] = (),
    pid: int | None = None,
    containers: Sequence[str] = (),
    pods: Sequence[str] = (),
    hours: int = 24,
    seconds: float = asking.SECONDS,
) -> Collected:
    """Gather on the server's machine what a diagnosis may need, as one file that ``diagnose`` reads.

    Args:
        output: the bundle to write (``.tar.zst``).
        logs: logs of the server; what :func:`logforensics.parse` reads.
        pid: number of the server's process, for its stacks (py-spy) and limits.
        containers: names of Docker containers to inspect.
        pods: names of Kubernetes pods to describe, ``pod`` or ``namespace/pod``.
        hours: how far back the kernel log goes, hours.
        seconds: time limit of each program, seconds.

    Raises:
        InputError: a log cannot be read, or zstandard is not installed.
        LogforensicsError: the bundle cannot be written.
    """
    opened = open_sources(logs) if logs else []
    wanted = [*sources.machine(hours), *(sources.process(pid) if pid is not None else ())]
    wanted += [*map(sources.container, containers), *map(sources.pod, pods)]
    answers = [_asked(item, seconds) for item in progress.each(wanted)] + [asking.versions(_PROC)]
    if pid is None:
        answers.append(asking.limits())
    missed = tuple((answer.member, answer.failure) for answer in answers if answer.failure)
    path = Path(output)
    with replacing(path) as temporary:
        taken = _write(temporary, opened, [answer for answer in answers if not answer.failure], missed)
    return Collected(path, taken, missed)


def _asked(wanted: sources.Command | sources.Files, seconds: float) -> Answer:
    progress.now(wanted.member)
    return asking.ask(wanted, seconds)


def _write(path: Path, logs: Sequence[Source], answers: Iterable[Answer], missed: Sequence[tuple[str, str]]) -> tuple[Taken, ...]:
    try:
        import zstandard
    except ImportError as error:
        raise InputError("a bundle is compressed with zstd: `pip install zstandard` to write it") from error
    taken: list[Taken] = []
    with (
        path.open("wb") as raw,
        zstandard.ZstdCompressor(level=_LEVEL).stream_writer(raw) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for log in progress.each(logs, [log.size for log in logs]):
            taken.append(_add_log(archive, log, _member_of(log.name, len(taken), [item.member for item in taken])))
        for answer in answers:
            data = answer.text.encode("utf-8", "replace")
            taken.append(_add(archive, Taken(answer.member, answer.origin, len(data)), io.BytesIO(data)))
        manifest = json.dumps(_manifest(taken, missed), indent=2, ensure_ascii=False).encode()
        _add(archive, Taken("manifest.json", "", len(manifest)), io.BytesIO(manifest))
    return tuple(taken)


def _add_log(archive: tarfile.TarFile, log: Source, member: str) -> Taken:
    """A log, unpacked and masked piece by piece; a tar member must know its size, so it waits in a file without a name."""
    with tempfile.TemporaryFile() as masked:
        for chunk in log.chunks():
            masked.write(mask(chunk.data.decode("utf-8", "replace")).encode())
        size = masked.tell()
        masked.seek(0)
        return _add(archive, Taken(member, mask(log.name), size), masked)


def _add(archive: tarfile.TarFile, taken: Taken, data: Any) -> Taken:
    info = tarfile.TarInfo(f"bundle/{taken.member}")
    info.size = taken.size_bytes
    info.mtime = int(datetime.now(timezone.utc).timestamp())
    info.mode = 0o644
    archive.addfile(info, data)
    return taken


def _member_of(name: str, number: int, used: Sequence[str]) -> str:
    """A name in the bundle that says which log it was and that is taken for a log when it is read."""
    base = "stdin" if name == STDIN_NAME else Path(name.rsplit(":", 1)[-1]).name
    plain = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in base)
    for ending in (".gz", ".zst", ".xz", ".bz2"):
        plain = plain.removesuffix(ending)
    plain = plain.removesuffix(".log")
    member = f"logs/{plain}.log"
    return member if member not in used else f"logs/{plain}-{number}.log"


def _manifest(taken: Sequence[Taken], missed: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "logforensics": __version__,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "taken": [{"member": item.member, "from": item.origin, "bytes": item.size_bytes} for item in taken],
        "missed": [{"member": member, "why": why} for member, why in missed],
    }
