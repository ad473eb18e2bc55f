"""Do the packs still read what a SGLang release logs? And what does a log say that they do not know?

Tools for the maintainers of the packs: :func:`audit` compares them with the source of a release, :func:`unknown_templates` sums up the
lines of a log that nothing recognised.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from logforensics.errors import LogforensicsError
from logforensics.parsing import batch, packs
from logforensics.parsing.lines import LineReader
from logforensics.parsing.prefix import read_prefix
from logforensics.parsing.source_log import SourceLog
from logforensics.parsing.templates import Template, read_templates
from logforensics.progress import each
from logforensics.reading import open_sources
from logforensics.records import record
from logforensics.schema import FRAMES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from logforensics.parsing.log import Paths

Change = Literal["same", "new", "changed"]
_STAMP = "[2026-01-01 00:00:00 TP0] "
_TRACEBACK = ("Traceback (most recent call last):", '  File "/sglang/srt/x.py", line 1, in f')
_ALL = 10**9


@record(frozen=True)
class Checked:
    """A message of a family that the packs are meant to read.

    Attributes:
        family: which one (``patterns/families.toml``).
        template: the message.
        frame: the frame its example gave a row of; None where nothing read it.
        lost: the labels of printed figures that no column of that row holds.
        change: ``new`` or ``changed`` against the earlier release, where one was given.
    """

    family: str
    template: Template
    frame: str | None
    change: Change
    lost: tuple[str, ...] = ()

    @property
    def is_read(self) -> bool:
        """Whether the packs read it."""
        return self.frame is not None


@record(frozen=True)
class Audit:
    """The messages of all families in one release, and those of the earlier release that are gone."""

    checked: tuple[Checked, ...]
    gone: tuple[Template, ...]

    @property
    def gaps(self) -> tuple[Checked, ...]:
        """What the packs are meant to read and do not."""
        return tuple(item for item in self.checked if not item.is_read)

    @property
    def lossy(self) -> tuple[Checked, ...]:
        """What the packs read without all its figures: a label may have got another name."""
        return tuple(item for item in self.checked if item.lost)


def audit(package: Path, *, since: Path | None = None) -> Audit:
    """Compare the packs with the messages in a wheel or source folder of SGLang.

    Args:
        package: the release to look at.
        since: an earlier release; with it each message says whether it is new or changed.

    Raises:
        InputError: a path holds no SGLang.
    """
    fragments = [fragment for group in packs.tables("families.toml")["family"].values() for fragment in group]
    templates = read_templates(package, fragments)
    before = {} if since is None else dict(_of_families(read_templates(since, fragments)))
    old_heads = {_head(shape) for shape in before}
    checked: list[Checked] = []
    now = dict(_of_families(templates))
    for shape, (family, template) in now.items():
        change: Change = "same"
        if since is not None and shape not in before:
            change = "changed" if _head(shape) in old_heads else "new"
        frame, lost = (_batch_frame(template), ()) if family == "batch" else _read_by(template)
        checked.append(Checked(family, template, frame, change, lost))
    gone = tuple(template for shape, (_, template) in before.items() if shape not in now)
    return Audit(tuple(sorted(checked, key=lambda item: (item.family, item.template.shape))), gone)


def _of_families(templates: Iterable[Template]) -> Iterable[tuple[str, tuple[str, Template]]]:
    """``shape, (family, template)`` of the messages that the packs are meant to read."""
    families = packs.tables("families.toml")["family"]
    for template in templates:
        shape = template.shape
        for family, fragments in families.items():
            if any(fragment in shape for fragment in fragments):
                yield shape, (family, template)
                break


def _head(shape: str) -> str:
    """What stays of a message when its values and its tail change: its first three words."""
    return " ".join(re.sub(r"\{[^}]*\}", "{}", shape).split()[:3])


def _read_by(template: Template) -> tuple[str | None, tuple[str, ...]]:
    """The frame that gets a row from an example of the message as a log holds it, and the labels of the figures that the row lacks."""
    reader = LineReader()
    first = template.example().split("\n")[0]
    lines = [*_TRACEBACK, f"ValueError: {first}"] if template.raised else [_STAMP + first]
    for number, line in enumerate(lines, 1):
        reader.feed(number, line, known=True)
    reader.close()
    rows = reader.take()
    if not rows or reader.tally.unknown or reader.tally.damaged:
        return None, ()
    frame = next((name for name in rows if name != "errors"), "errors")
    if not any(column.unit and column.dtype in ("Float64", "Int64", "Int32") for column in FRAMES[frame]):
        return frame, ()  # a frame of texts
    held = {float(value) for row in rows[frame] for value in row[3].values() if isinstance(value, (int, float))}
    texts = " ".join(value for row in rows[frame] for value in row[3].values() if isinstance(value, str))
    return frame, tuple(label for label, value in template.figures().items() if float(value) not in held and value not in texts)


def _batch_frame(template: Template) -> str | None:
    """The frame of a batch line, if it still has the labels no row can be without; its text is put together in too many places to print one."""
    kind = next(kind for kind, words in batch.WORDS.items() if words in template.shape)
    table = batch.labels(kind)
    printed = {table.columns.get(label) for label in re.findall(r"(?:[,.)] |^|\})(#?[a-z][\w .()/+-]*): (?=\{)", template.shape)}
    return kind if table.essential <= printed else None


@record(frozen=True)
class Unknown:
    """A kind of line that nothing recognised: how often, its text with ``<*>`` for what varies, and where it is first."""

    count: int
    template: str
    source: str
    line: int
    example: str


def unknown_templates(paths: Paths) -> list[Unknown]:
    """The unknown lines of logs, grouped by what they have in common, most frequent first.

    Raises:
        InputError: a log cannot be read.
        LogforensicsError: drain3, which finds the groups, is not installed.
    """
    try:
        from drain3 import TemplateMiner
        from drain3.template_miner_config import TemplateMinerConfig
    except ImportError as error:
        raise LogforensicsError("grouping unknown lines needs drain3: pip install 'logforensics[patterns]'") from error
    miner = TemplateMiner(config=TemplateMinerConfig())
    first: dict[int, tuple[str, int, str]] = {}
    sources = open_sources(paths)
    for source in each(sources, [source.size for source in sources]):
        log = SourceLog(source, examples=_ALL)
        for _ in log.pieces():
            pass
        for line, text in log.assembled.tally.unknown_examples:
            message = re.sub(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?", "<*>", text[read_prefix(text).end :])
            found = miner.add_log_message(message)
            first.setdefault(found["cluster_id"], (source.name, line, text))
    groups = [Unknown(cluster.size, cluster.get_template(), *first[cluster.cluster_id]) for cluster in miner.drain.clusters]
    return sorted(groups, key=lambda group: (-group.count, group.source, group.line))
