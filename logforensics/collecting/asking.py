"""Running programs and reading files without being hurt by them: no shell, a time limit, a limit of size, every secret masked."""

from __future__ import annotations

import resource
import shutil
import subprocess
import tempfile
from importlib import metadata
from typing import IO, TYPE_CHECKING

from logforensics.collecting.sources import Command, Files
from logforensics.evidence.programs import VERSIONS_HEADER
from logforensics.records import record
from logforensics.secrets import mask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECONDS = 20.0  # for one program; nvidia-smi on a hung driver would wait for ever
_MOST_BYTES = 32 << 20  # of one program's output: its end is what counts in a kernel log
_NOTHING = ("", "-- No entries --")  # what journalctl prints where it has no kernel log
_PACKAGES = ("sglang", "torch", "sgl-kernel", "flashinfer-python", "transformers", "triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13")


@record(frozen=True)
class Answer:
    """A text with the command or path it came from, or why there is none."""

    member: str
    origin: str
    text: str = ""
    failure: str = ""


def ask(wanted: Command | Files, seconds: float = SECONDS) -> Answer:
    """The masked answer of one source."""
    return _run_first(wanted, seconds) if isinstance(wanted, Command) else _read(wanted)


def _run_first(wanted: Command, seconds: float) -> Answer:
    """The first way that gives something; otherwise what the first installed one said."""
    failures: list[str] = []
    for words in wanted.ways:
        text, failure = _run(words, seconds)
        if text.strip() not in _NOTHING and not failure:
            return Answer(wanted.member, " ".join(words), mask(text))
        failures.append(failure or f"{words[0]} printed nothing")
    told = next((failure for failure in failures if "not installed" not in failure), failures[0])
    return Answer(wanted.member, " ".join(wanted.ways[0]), failure=told)


def _run(words: tuple[str, ...], seconds: float) -> tuple[str, str]:
    """What a program printed (the end of it, where it is long) and what went wrong."""
    program = shutil.which(words[0])
    if program is None:
        return "", f"{words[0]} is not installed"
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            done = subprocess.run([program, *words[1:]], stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=seconds, check=False)  # noqa: S603 (words, no shell)
        except subprocess.TimeoutExpired:
            return "", f"{words[0]} did not answer within {seconds:g} s"
        except OSError as error:
            return "", f"{words[0]} cannot be run: {error.strerror or error}"
        if done.returncode:
            said = _tail(err, 400).strip().split("\n")[-1]
            return "", f"{words[0]} failed with status {done.returncode}{f': {mask(said)}' if said else ''}"
        return _tail(out, _MOST_BYTES), ""


def _tail(stream: IO[bytes], size: int) -> str:
    end = stream.seek(0, 2)
    stream.seek(max(0, end - size))
    text = stream.read().decode("utf-8", "replace")
    return text if end <= size else text.partition("\n")[2]


def _read(wanted: Files) -> Answer:
    parts, failure = list[str](), ""
    for path in wanted.paths:
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            failure = failure or f"{path}: {error.strerror or error}"
            continue
        parts += [f"{path}:{line}" if wanted.named else line for line in text.splitlines()]
    origin = ", ".join(map(str, wanted.paths))
    return Answer(wanted.member, origin, mask("\n".join(parts) + "\n"), "") if parts else Answer(wanted.member, origin, failure=failure)


# ---------------------------------------------------------------------------------------------------------------- without a program


def limits() -> Answer:
    """The limits of this process in the form of ``ulimit -a`` (a shell's word, not a program): a server started from here has the same."""
    rows = [
        ("core file size          (blocks, -c)", resource.RLIMIT_CORE, 512),
        ("file size               (blocks, -f)", resource.RLIMIT_FSIZE, 512),
        ("max locked memory       (kbytes, -l)", resource.RLIMIT_MEMLOCK, 1024),
        ("open files                      (-n)", resource.RLIMIT_NOFILE, 1),
        ("stack size              (kbytes, -s)", resource.RLIMIT_STACK, 1024),
        ("max user processes              (-u)", resource.RLIMIT_NPROC, 1),
        ("virtual memory          (kbytes, -v)", resource.RLIMIT_AS, 1024),
    ]
    return Answer("ulimit.txt", "ulimit -a", "".join(f"{label} {_limit(which, unit)}\n" for label, which, unit in rows))


def _limit(which: int, unit: int) -> str:
    soft, _ = resource.getrlimit(which)
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft // unit)


def versions(proc: Path) -> Answer:
    """Versions of the packages that this Python has, and of the driver."""
    rows = [f"{name} {version}" for name, version in _installed()]
    try:
        first = (proc / "driver/nvidia/version").read_text(encoding="utf-8", errors="replace").split("\n", 1)[0]
        found = next((word for word in first.split() if word[0].isdigit() and "." in word), None)
        rows += [f"nvidia driver {found}"] if found else []
    except OSError:
        pass  # no NVIDIA driver here: nvidia-smi is missing too and is named in the manifest
    if not rows:
        return Answer(
            "versions.txt",
            "installed packages",
            failure="this Python has neither sglang nor torch: run collect in the server's environment",
        )
    return Answer("versions.txt", "installed packages", "\n".join([VERSIONS_HEADER, *rows, ""]))


def _installed() -> Iterator[tuple[str, str]]:
    present = {(found.metadata["Name"] or "").lower().replace("_", "-"): found.version for found in metadata.distributions()}
    yield from ((name, present[name]) for name in _PACKAGES if name in present)
