"""What other programs say of a server: py-spy's stacks, NCCL's debug log, versions that ``collect`` noted."""

from __future__ import annotations

import re
from collections.abc import Iterator

from logforensics import lazy_re
from logforensics.evidence.facts import Fact, NcclWarning, PackageVersion, ThreadStack

# ---------------------------------------------------------------------------------------------------------------- py-spy dump

_PROCESS = lazy_re.compile(r"^Process (?P<pid>\d{1,10}): (?P<name>.{0,300})$")
_THREAD = lazy_re.compile(r"^Thread (?:0x)?[0-9A-Fa-f]{1,20} \((?P<state>[^)]{1,40})\)(?:: \"(?P<name>[^\"]{0,100})\")?")
_FRAME = lazy_re.compile(r"^ {2,8}(?P<frame>\S.{0,300}\))\s*$")
_MOST_FRAMES = 64


def is_stacks(text: str) -> bool:
    """``py-spy dump``."""
    return _find(r"^Process \d+: ", text) and _find(r"^Thread (?:0x)?[0-9A-Fa-f]+ \(", text)


def read_stacks(text: str) -> tuple[Fact, ...]:
    """Where every thread stood."""
    return tuple(_stacks(text.split("\n")))


def _stacks(lines: list[str]) -> Iterator[Fact]:
    pid, process = 0, ""
    thread: re.Match[str] | None = None
    begin, frames, whole = 0, list[str](), True
    for number, line in enumerate([*lines, "Process 0: "], 1):
        head, opened, frame = _PROCESS.match(line), _THREAD.match(line), _FRAME.match(line)
        if (head or opened) and thread is not None:
            active = thread["state"].startswith("active")
            yield ThreadStack(begin, pid, process, thread["name"] or "a thread", active, tuple(frames[:_MOST_FRAMES]))
            thread = None
        if head:
            pid, process = int(head["pid"]), head["name"][:80].strip()
        elif opened:
            thread, begin, frames, whole = opened, number, [], True
        elif frame and whole:
            frames.append(frame["frame"])
        else:
            whole = False  # frames stand line by line behind the thread's own line, so that each can be cited


# ---------------------------------------------------------------------------------------------------------------- NCCL

_NCCL_LINE = lazy_re.compile(r"\bNCCL (?:INFO|WARN|TRACE|VERSION)\b|^NCCL version ")
_NCCL_WARN = lazy_re.compile(r"NCCL WARN (?P<text>.{1,400})")
_NCCL_VERSION = lazy_re.compile(r"\bNCCL version (?P<version>\d[\w.+-]{1,40})")


def is_nccl_log(lines: list[str]) -> bool:
    """A file of NCCL_DEBUG_FILE: nearly every line is NCCL's."""
    return len(lines) > 2 and sum(_NCCL_LINE.search(line) is not None for line in lines) >= 0.8 * len(lines)


def read_nccl_log(text: str) -> tuple[Fact, ...]:
    """Warnings and NCCL's version."""
    found: list[Fact] = []
    for number, line in enumerate(text.split("\n"), 1):
        if warning := _NCCL_WARN.search(line):
            found.append(NcclWarning(number, warning["text"].strip()))
        elif version := _NCCL_VERSION.search(line):
            found.append(PackageVersion(number, "nccl", version["version"]))
    return tuple(found)


# ---------------------------------------------------------------------------------------------------------------- versions

VERSIONS_HEADER = "# versions on the server's machine"
_VERSION = lazy_re.compile(r"^(?P<package>[\w.-]{1,60}(?: \w{1,20})?) (?P<version>\d[\w.+-]{0,60})\s*$")


def is_versions(text: str) -> bool:
    """The list that ``logforensics collect`` writes."""
    return text.startswith(VERSIONS_HEADER)


def read_versions(text: str) -> tuple[Fact, ...]:
    """Packages and their versions."""
    rows = ((number, _VERSION.match(line)) for number, line in enumerate(text.split("\n"), 1))
    return tuple(PackageVersion(number, row["package"], row["version"]) for number, row in rows if row)


def _find(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.MULTILINE) is not None
