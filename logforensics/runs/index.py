"""What is already known of log files: one small SQLite file in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from logforensics._version import __version__

_TABLE = "CREATE TABLE IF NOT EXISTS logs (path TEXT PRIMARY KEY, size INTEGER, mtime_ns INTEGER, code TEXT, content TEXT) WITHOUT ROWID"
_WAIT_SECONDS = 10.0


class Stamp(NamedTuple):
    """A file as it is now; another size or time means that it must be read again."""

    path: str
    size: int
    mtime_ns: int


def stamp_of(path: Path) -> Stamp:
    """Absolute path, size in bytes and time of the last change in nanoseconds.

    Raises:
        OSError: the file is gone.
    """
    stat = path.stat()
    return Stamp(os.fspath(path.resolve()), stat.st_size, stat.st_mtime_ns)


class Index:
    """Contents by file. A cache that cannot be read or written is no error: everything is read anew then."""

    def __init__(self, place: Path | None = None) -> None:
        self._place = place or default_place()

    def known(self, stamps: Iterable[Stamp]) -> dict[str, dict[str, Any]]:
        """The contents of files that have not changed since they were read by this code, by path."""
        wanted = {stamp.path: stamp for stamp in stamps}
        try:
            with closing(self._open()) as store:
                rows = store.execute("SELECT path, size, mtime_ns, content FROM logs WHERE code = ?", (code_version(),)).fetchall()
        except (OSError, sqlite3.Error):
            return {}
        return {path: json.loads(content) for path, size, mtime_ns, content in rows if wanted.get(path) == (path, size, mtime_ns)}

    def keep(self, found: Mapping[Stamp, Mapping[str, Any]]) -> None:
        """Remember contents, all of them or none."""
        rows = [(stamp.path, stamp.size, stamp.mtime_ns, code_version(), json.dumps(content)) for stamp, content in found.items()]
        try:
            with closing(self._open()) as store, store:
                store.execute("DELETE FROM logs WHERE code <> ?", (code_version(),))
                store.executemany("INSERT OR REPLACE INTO logs VALUES (?, ?, ?, ?, ?)", rows)
        except (OSError, sqlite3.Error):
            return

    def _open(self) -> sqlite3.Connection:
        self._place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        store = sqlite3.connect(self._place, timeout=_WAIT_SECONDS)
        store.execute(_TABLE)
        return store


def default_place() -> Path:
    """``$XDG_CACHE_HOME/logforensics/runs.sqlite``, ``~/.cache`` where the variable is not set."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - a missing home folder is no error here
    return Path(root) / "logforensics" / "runs.sqlite"


@cache
def code_version() -> str:
    """The release and the state of the code that reads logs: a checkout changes without a new release."""
    package = Path(__file__).resolve().parents[1]
    patterns = package / "_patterns" if (package / "_patterns").is_dir() else package.parent / "patterns"
    files = [
        path
        for root, kinds in ((package, ("*.py", "*.json", "*.toml")), (patterns, ("*.toml",)))
        for kind in kinds
        for path in root.rglob(kind)
    ]
    state = hashlib.sha256()
    for path in sorted(files):
        stat = path.stat()
        state.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return f"{__version__} {state.hexdigest()[:16]}"
