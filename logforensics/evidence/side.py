"""Files beside a log: told apart from logs, read, and asked for what they know of the machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from logforensics.errors import InputError
from logforensics.evidence.facts import Fact, Gpu, PackageVersion, Size
from logforensics.evidence.recognise import kinds_of
from logforensics.findings import Evidence
from logforensics.hardware import Hardware
from logforensics.records import record
from logforensics.units import MIB

if TYPE_CHECKING:
    from logforensics.evidence.kinds import Kind
    from logforensics.reading import Source

_HEAD_BYTES = 1 << 16
_MOST_BYTES = 64 << 20  # of one file; a longer kernel log is read as far as this
F = TypeVar("F", bound=Fact)


class Found(NamedTuple):
    """A value with the line that says it."""

    value: int | str
    evidence: Evidence


@record(frozen=True)
class SideFile:
    """One file that was recognised."""

    source: str
    kinds: tuple[str, ...]
    facts: tuple[Fact, ...]

    @property
    def note(self) -> str:
        """What it was taken for and what it says, in one sentence."""
        said = list(dict.fromkeys(fact.text for fact in self.facts))
        more = f" and {len(said) - 3} more" if len(said) > 3 else ""
        return f"{self.source} is read as {' and '.join(self.kinds)}: {'; '.join(said[:3]) or 'nothing in it bears on a server'}{more}"


@record(frozen=True)
class Side:
    """All files beside the logs; ``unread`` says of logs of a folder or archive why they were passed over."""

    files: tuple[SideFile, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the files were taken for, and what was not read."""
        return (*(file.note for file in self.files), *self.passed_over)

    @property
    def passed_over(self) -> tuple[str, ...]:
        """What was not read, a sentence each."""
        return tuple(f"{reason}; it was passed over" for reason in self.unread)

    def all(self, kind: type[F]) -> Iterator[tuple[str, F]]:
        """The facts of one type with the file each comes from."""
        for file in self.files:
            for fact in file.facts:
                if isinstance(fact, kind):
                    yield file.source, fact

    def least(self, *what: str) -> Found | None:
        """The smallest of the sizes called so, bytes: a container's limit counts where it is below the machine's memory."""
        sizes = [(fact.size_bytes, Evidence(source, fact.line, needle=fact.needle)) for source, fact in self.all(Size) if fact.what in what]
        return Found(*min(sizes, key=lambda item: item[0])) if sizes else None

    @property
    def host_ram(self) -> Found | None:
        """What the server may have of the host's memory, bytes."""
        return self.least("host_total", "memory_limit")

    @property
    def gpu_memory(self) -> Found | None:
        """Memory of the smallest card, bytes."""
        cards = [
            (card.memory_mib * MIB, Evidence(source, card.line, needle=card.needle)) for source, card in self.all(Gpu) if card.memory_mib
        ]
        return Found(*min(cards, key=lambda item: item[0])) if cards else None

    @property
    def gpus(self) -> Found | None:
        """Number of cards of the file that lists most; the last one's line is cited."""
        by_file: dict[str, list[Gpu]] = {}
        for source, card in self.all(Gpu):
            by_file.setdefault(source, []).append(card)
        if not by_file:
            return None
        source, cards = max(by_file.items(), key=lambda item: len({card.index for card in item[1]}))
        return Found(len({card.index for card in cards}), Evidence(source, cards[-1].line, needle=cards[-1].needle))

    @property
    def gpu_name(self) -> str | None:
        """The cards' name."""
        return next((card.name for _, card in self.all(Gpu) if card.name), None)

    def version(self, package: str) -> Found | None:
        """The version of a package, where a file says it."""
        rows = ((source, fact) for source, fact in self.all(PackageVersion) if fact.package == package)
        return next((Found(fact.version, Evidence(source, fact.line, needle=fact.version)) for source, fact in rows), None)

    def completed(self, given: Hardware) -> tuple[Hardware, dict[str, Evidence]]:
        """The hardware as given, with what the user did not say taken from the files; and the line of each field that was."""
        known = {"host_ram_bytes": self.host_ram, "gpu_memory_bytes": self.gpu_memory, "gpus": self.gpus}
        taken = {name: found for name, found in known.items() if found is not None and getattr(given, name) is None}
        values = {name: int(found.value) for name, found in taken.items()}
        return replace(given, gpu=given.gpu or self.gpu_name, **values), {name: found.evidence for name, found in taken.items()}


def separate(sources: Iterable[Source], unread: Iterable[str] = ()) -> tuple[list[Source], Side, list[Source]]:
    """Logs, what the files beside them say, and those files, which stay readable so that their lines can be quoted.

    Raises:
        InputError: there is no log among the sources.
    """
    logs: list[Source] = []
    files: list[SideFile] = []
    beside: list[Source] = []
    for source in sources:
        kinds = () if source.live else kinds_of(_head(source))
        if kinds:
            files.append(_read(source, kinds))
            beside.append(source)
        if not kinds or any(kind.is_log for kind in kinds):
            logs.append(source)
    if files and all(source in beside for source in logs):
        names = ", ".join(f"{file.source} ({' and '.join(file.kinds)})" for file in files)
        raise InputError(f"{names}: no SGLang server log was given; name the server's log as well")
    return logs, Side(tuple(files), tuple(unread)), beside


def is_side(head: bytes) -> bool:
    """Whether a file of a folder or archive that is not named like a log is worth reading."""
    return bool(kinds_of(head[:_HEAD_BYTES].decode("utf-8", "replace")))


def _head(source: Source) -> str:
    return source.head(_HEAD_BYTES).decode("utf-8", "replace").replace("\r\n", "\n")


def _read(source: Source, kinds: tuple[Kind, ...]) -> SideFile:
    parts: list[bytes] = []
    size = 0
    for chunk in source.chunks():
        if size < _MOST_BYTES:
            parts.append(chunk.data[: _MOST_BYTES - size])
        size += len(chunk.data)
    text = b"".join(parts).decode("utf-8", "replace").replace("\r\n", "\n")
    return SideFile(source.name, tuple(kind.name for kind in kinds), tuple(fact for kind in kinds for fact in kind.read(text)))
