"""Recognising what a text is by its content: the first lines decide, never the file's name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from logforensics import lazy_re

if TYPE_CHECKING:
    from logforensics.evidence.kinds import Kind

# What only a server's log has. A text that holds it is a log, whatever else was pasted into it.
_OF_A_LOG = lazy_re.compile(
    r"server_args=|Decode batch|Prefill batch|Traceback \(most recent call last\)|Load weight begin|The server is fired up"
    r"|^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?!.{0,200}NCCL (?:INFO|WARN))[^\]]{0,60}\]",
    re.MULTILINE,
)


def kinds_of(head: str) -> tuple[Kind, ...]:
    """The kinds that a text's beginning shows; none for a server's log and for what is not known. A text may hold several outputs."""
    if _OF_A_LOG.search(head):
        return ()
    from logforensics.evidence.kinds import KINDS  # the readers of every kind: most texts are logs and need none of them

    return tuple(kind for kind in KINDS if kind.recognises(head))
