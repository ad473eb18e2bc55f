"""Paths as they are given to sources: files, folders, globs, archives and standard input."""

from __future__ import annotations

import glob
import os
import stat
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logforensics import lazy_re
from logforensics.errors import EmptyError, InputError
from logforensics.reading.sources import STDIN_NAME, Source, describe, growing, piped, standard_input
from logforensics.reading.streams import Layered, packing_of, read_errors, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from logforensics.reading.cutting import Readable

    Also = Callable[[bytes], bool]

# in a folder or an archive: server.log, server.log.1, server.log.2.gz, stdout, rank0.err, slurm-17.out
_LOG_NAME = lazy_re.compile(
    r"(?i)(?:^|.*[/\\])(?!\.)[^/\\]*?(?:\.(?:log|txt|out|err)|(?:^|[/\\])(?:stdout|stderr|log))(?:[.-]\d+)*(?:\.(?:gz|zst|xz|bz2))?$"
)
_LOOK_BYTES = 1 << 16  # enough to know what a file holds
_TAR_NAME = lazy_re.compile(r"(?i)\.(?:tar|tgz|tbz2|txz)(?:\.\w+)?$")


def open_sources(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    follow: bool = False,
    also: Also | None = None,
    passed_over: list[str] | None = None,
) -> list[Source]:
    """Check each path and say how to read it; ``-`` is standard input.

    A folder stands for the logs in it, a glob for the files it matches, a tar or zip file for the logs among its members. With ``follow``,
    plain files are read on while they grow. ``also`` looks at the first bytes of files in a folder or archive that are not named like a log,
    and says which of them are wanted all the same. What a folder, glob or archive holds that cannot be read is passed over as long as there is
    another log; why is added to ``passed_over``, but for empty files.

    Raises:
        InputError: a path does not exist, holds no log, is empty, or holds binary data.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    unread = [] if passed_over is None else passed_over
    sources = [source for path in paths for source in _opened(os.fspath(path), also, unread)]
    if follow:
        sources = [growing(source.name, source.path) if source.path and source.name != STDIN_NAME else source for source in sources]
    if not sources:
        raise InputError("no log was given: name a file, or - for standard input")
    return sources


def _opened(given: str, also: Also | None, unread: list[str]) -> Iterator[Source]:
    if given == "-":
        yield standard_input()
        return
    path = Path(given)
    if _is(Path.is_dir, path):
        yield from _of_folder(given, path, also, unread)
    elif not _is(Path.exists, path) and any(sign in given for sign in "*?["):
        yield from _of_glob(given, also, unread)
    else:
        yield from _of_file(given, path, also, unread)


def _is(question: Callable[[Path], bool], path: Path) -> bool:
    try:
        return question(path)
    except OSError:  # a name that no file can have, before Python 3.12
        return False


def _of_folder(given: str, folder: Path, also: Also | None, unread: list[str]) -> Iterator[Source]:
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise InputError(f"{given}: {error.strerror or error}") from error
    names = [str(path) for path in paths if _is_wanted(path, also)]
    yield from _readable(given, names, "is a folder without a log in it: name the file", also, unread)


def _is_wanted(path: Path, also: Also | None) -> bool:
    """Whether an entry of a folder is a log or an archive by its name, readable or not, or a file that is wanted for what it holds."""
    try:
        mode = path.stat().st_mode
    except OSError:
        mode = stat.S_IFREG  # such as a link to nothing: reading it says what is wrong
    if not stat.S_ISREG(mode):
        return False
    if _LOG_NAME.match(path.name) or _TAR_NAME.search(path.name):
        return True
    try:
        with path.open("rb") as stream:
            return also is not None and also(stream.read(_LOOK_BYTES))
    except OSError:
        return False


def _of_glob(given: str, also: Also | None, unread: list[str]) -> Iterator[Source]:
    names = sorted(name for name in glob.glob(given, recursive=True) if not os.path.isdir(name))  # noqa: PTH207, PTH112 - may be absolute
    yield from _readable(given, names, "matches no log", also, unread)


def _readable(given: str, names: list[str], complaint: str, also: Also | None, unread: list[str]) -> Iterator[Source]:
    """The sources among ``names``; what cannot be read is passed over as long as there is another, and a second name of a file always."""
    found, last, seen = False, None, set()
    for name in names:
        if (file := os.path.realpath(name)) in seen:
            continue
        seen.add(file)
        try:
            sources = list(_of_file(name, Path(name), also, unread))
        except InputError as error:
            last = error
            if not isinstance(error, EmptyError):
                unread.append(str(error))
            continue
        found = True
        yield from sources
    if not found:
        raise last or InputError(f"{given}: {complaint}")


def _of_file(given: str, path: Path, also: Also | None, unread: list[str]) -> Iterator[Source]:
    try:
        if stat.S_ISSOCK(path.stat().st_mode):
            raise InputError(f"{given}: is a socket, not a file")
        if path.is_fifo():  # such as <(ssh host cat server.log): what was read once is gone
            yield piped(given, path.open("rb"), owned=True)
            return
        with path.open("rb") as stream:
            head = stream.read(512)
            size = os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise InputError(f"{given}: {error.strerror or error}") from error
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        yield from _of_archive(given, _zip_members(path), also, unread)
    elif _is_tar(head) or (packing_of(head) and _TAR_NAME.search(path.name)):
        yield from _of_archive(given, _tar_members(path), also, unread)
    else:
        yield describe(given, path, lambda: path.open("rb"), size)


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def _of_archive(given: str, members: Iterator[tuple[str, int, Any]], also: Also | None, unread: list[str]) -> Iterator[Source]:
    found = False
    try:
        for name, size, reopen in members:
            if not _LOG_NAME.match(name) and not (also is not None and also(_head_of(reopen))):
                continue
            try:
                source = describe(f"{given}:{name}", None, reopen, size)
            except EmptyError:
                continue
            except InputError as error:
                unread.append(str(error))  # the archive may hold others
                continue
            found = True
            yield source
    except read_errors() as error:
        raise InputError(f"{given}: cannot be read: {error}") from error
    if not found:
        raise InputError(f"{given}: holds no log (*.log, *.txt, *.out, *.err)")


def _head_of(reopen: Callable[[], Readable]) -> bytes:
    """The first bytes of a member."""
    with closing(reopen()) as stream:  # type: ignore[type-var]
        return stream.read(_LOOK_BYTES)


def _zip_members(path: Path) -> Iterator[tuple[str, int, Any]]:
    import zipfile

    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise InputError(f"{path}: is a broken zip file: {error}") from error
    for info in archive.infolist():
        if not info.is_dir():
            yield info.filename, info.file_size, partial(archive.open, info.filename)


def _tar_members(path: Path) -> Iterator[tuple[str, int, Any]]:
    """Members of a tar file, packed or not; nothing is written to disk."""
    import tarfile

    try:
        with closing(_TarFile(path)) as opened:
            found = [(member.name, member.size) for member in opened.archive if member.isfile()]
    except tarfile.TarError as error:
        raise InputError(f"{path}: is a broken tar file: {error}") from error
    for name, size in found:
        yield name, size, partial(_tar_member, path, name)


class _TarFile:
    """A tar file as a stream that is read from front to back, with the streams beneath it."""

    def __init__(self, path: Path) -> None:
        import tarfile

        raw = path.open("rb")
        packing = packing_of(raw.read(16))
        raw.seek(0)
        self._stream: Any = raw
        if packing:
            self._stream = unpacked(raw, packing)
        self.archive: tarfile.TarFile = tarfile.open(fileobj=self._stream, mode="r|")  # noqa: SIM115 - closed by close()

    def close(self) -> None:
        """Close the archive and what it was read from."""
        self.archive.close()
        self._stream.close()


def _tar_member(path: Path, name: str) -> Readable:
    opened = _TarFile(path)
    found = next(opened.archive.extractfile(member) for member in opened.archive if member.name == name)
    assert found is not None  # noqa: S101 - only names of regular files are asked for
    return Layered(found, opened)
