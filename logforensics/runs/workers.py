"""Reading many logs on all cores.

Each worker is a process of its own that takes paths on standard input and answers with one JSON line per file, so that neither the
caller's main module nor a thread of it matters, and a log that brings a worker down takes only that worker's answers with it.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from logforensics import progress

_FILES_WORTH_A_WORKER = 4
_BYTES_WORTH_A_WORKER = 4 << 20


def examine_all(sizes: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """What each file holds, by path; see :func:`logforensics.runs.rows.examine`.

    Args:
        sizes: bytes of every file, so that the workers get equal shares.
    """
    shares = _shares(sizes, _worker_count(sizes))
    if len(shares) == 1:
        from logforensics.runs.rows import examine

        return {path: _guarded(examine, path) for path in progress.each(shares[0], [sizes[path] for path in shares[0]])}
    workers = [(_start(), share) for share in shares]
    for worker, share in workers:
        assert worker.stdin is not None  # noqa: S101 - asked for
        worker.stdin.write("".join(json.dumps(path) + "\n" for path in share).encode())
        worker.stdin.close()
    found: dict[str, dict[str, Any]] = {}
    done, total = 0, sum(sizes.values())
    progress.tell(progress.Progress("starting", 0, total, 0, len(sizes)))
    for path, content in _answers([worker for worker, _ in workers]):
        found[path] = content
        done += sizes[path]
        progress.tell(progress.Progress(path, done, total, len(found), len(sizes)))
    for worker, share in workers:
        lost = {"problem": f"the process that read it ended with status {worker.wait()}", "bug": True}
        found |= {path: lost for path in share if path not in found}
    return found


def main() -> None:
    """A worker: one JSON string per line in, one ``[path, content]`` per line out."""
    from logforensics.runs.rows import examine

    for line in sys.stdin:
        path = json.loads(line)
        sys.stdout.write(json.dumps([path, _guarded(examine, path)]) + "\n")
        sys.stdout.flush()


def _guarded(examine: Any, path: str) -> dict[str, Any]:
    """One log must not spoil the table: a bug of ours becomes its problem, and is not remembered."""
    try:
        content: dict[str, Any] = examine(path)
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        return {"problem": f"{path}: a bug in logforensics: {type(error).__name__}: {error}", "bug": True}
    return content


def _worker_count(sizes: Mapping[str, int]) -> int:
    """As many as there are cores and work for them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    work = max(len(sizes) // _FILES_WORTH_A_WORKER, sum(sizes.values()) // _BYTES_WORTH_A_WORKER)
    return max(1, min(cores, work, len(sizes)))


def _shares(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Paths in ``count`` lists of about the same number of bytes: the largest first, always to the list with least."""
    shares: list[list[str]] = [[] for _ in range(count)]
    loads = [0] * count
    for path in sorted(sizes, key=lambda path: (-sizes[path], path)):
        place = loads.index(min(loads))
        shares[place].append(path)
        loads[place] += sizes[path] + 1000  # a small file costs more than its bytes
    return shares


def _start() -> subprocess.Popen[bytes]:
    environment = {**os.environ, "POLARS_MAX_THREADS": "1", "PYTHONUTF8": "1"}  # the cores are taken by the other workers
    command = [sys.executable, "-c", "from logforensics.runs.workers import main; main()"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)  # noqa: S603


def _answers(workers: Sequence[subprocess.Popen[bytes]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and content, as soon as one of the workers has an answer; an answer that breaks off is none."""
    with selectors.DefaultSelector() as selector:
        rests = dict.fromkeys(workers, b"")
        for worker in workers:
            selector.register(_output(worker), selectors.EVENT_READ, worker)
        while selector.get_map():
            for key, _ in selector.select():
                block = os.read(key.fd, 1 << 20)
                *whole, rests[key.data] = (rests[key.data] + block).split(b"\n")
                yield from (json.loads(line) for line in whole)
                if not block:
                    selector.unregister(key.fileobj)
                    _output(key.data).close()


def _output(worker: subprocess.Popen[bytes]) -> IO[bytes]:
    assert worker.stdout is not None  # noqa: S101 - asked for
    return worker.stdout
