"""Writing files so that a reader never meets half of one."""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from logforensics.errors import LogforensicsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; it takes the place of ``path`` when the block ends well.

    Something that is no regular file (``/dev/stdout``, a named pipe) is written directly: a rename would replace the device.

    Raises:
        LogforensicsError: the file cannot be written; the message says why.
    """
    try:
        if path.is_dir():
            raise LogforensicsError(f"cannot write {path}: it is a folder; name a file in it")
        if path.exists() and not path.is_file():
            yield path
            return
        target = path.resolve()  # a symbolic link stays a link
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            yield temporary
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise LogforensicsError(f"cannot write {path}: {error.strerror or error}; choose another place with -o") from error


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` in UTF-8, whole or not at all."""
    write_texts({path: text})


def write_texts(texts: Mapping[Path, str]) -> None:
    """Write several files in UTF-8, all of them or none."""
    with ExitStack() as together:
        for path, text in texts.items():
            together.enter_context(replacing(path)).write_bytes(text.encode("utf-8", "backslashreplace"))
