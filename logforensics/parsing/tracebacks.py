"""Folding a traceback, chained ones too, into one error.

A traceback is one write of many lines, the first of which may carry SGLang's prefix (``[… TP2] Scheduler hit an exception: Traceback …``).
Lines of other processes may stand between its lines; they are left alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from logforensics import lazy_re
from logforensics.parsing.prefix import NO_RANKS, Prefix, Ranks

OPENING = "Traceback (most recent call last):"
_FRAME = lazy_re.compile(r'\s*File "(?P<file>[^"]{1,400})", line (?P<line>\d+)(?:, in (?P<function>.{1,200}))?')
EXCEPTION = lazy_re.compile(
    r"(?P<kind>(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Group|Warning|Disconnect|Aborted|Full|Empty|Refused"
    r"|Iteration|Event|Cut|Fault|Invalid|Violation))(?:: (?P<message>.*)|:?\s*$)",
    re.DOTALL,
)
_ANY_KIND = lazy_re.compile(r"(?P<kind>(?:[A-Za-z_]\w*\.)+[A-Za-z_]\w*|[A-Z]\w+)(?:: (?P<message>.*)|\s*$)", re.DOTALL)
_CHAINS = (
    "During handling of the above exception, another exception occurred",
    "The above exception was the direct cause of the following exception",
)
_GROUP_MARGIN = lazy_re.compile(r"^ {0,12}[|+] ?")
_GROUP_RULE = lazy_re.compile(r"^ {0,12}\+-[+-]+( \d+ -+)?\s*$")  # +-+---------------- 1 ----------------
_NOT_A_MESSAGE = lazy_re.compile(
    r"(?:Killed|Terminated|Process |INFO:|WARNING|ERROR|DEBUG|/|\[|\(|Exception ignored|Fatal Python|terminate called|Loading |Compiling |\d{4}-)"
)
_INDENTED = ('  File "', "    ")
_MARGINS = ("|", "+", "")
_MAX_MESSAGE_LINES = 40
_MAX_FRAMES = 400
_MAX_MESSAGE = 4000


@dataclass(slots=True)
class _Link:
    """One exception of a chain."""

    frames: list[tuple[str, int, str]] = field(default_factory=list)
    kind: str | None = None
    message: list[str] = field(default_factory=list)
    line: int = 0


@dataclass(slots=True)
class Traceback:
    """A traceback while it is being read."""

    line: int
    time: datetime | None
    ranks: Ranks
    process: str | None
    links: list[_Link] = field(default_factory=lambda: [_Link()])
    line_end: int = 0
    state: str = "frames"  # frames, message, gap (after a blank line) or chain (after a chain sentence)

    def accept(self, number: int, text: str) -> bool:
        """Take one unprefixed line if it belongs to this traceback; False where it does not."""
        stripped = text
        if text.lstrip()[:1] in ("|", "+"):
            if _GROUP_RULE.match(text):
                self.state = "frames" if self.state == "frames" else "chain"
                self.line_end = number
                return True
            stripped = _GROUP_MARGIN.sub("", text)
        taken = getattr(self, f"_in_{self.state}")(number, stripped)
        if taken:
            self.line_end = number
        return bool(taken)

    def pause(self) -> None:
        """A record of another process stands here: the exception's text is over, although another exception may be chained to it."""
        if self.state == "message":
            self.state = "gap"

    def finished(self) -> bool:
        """Whether a line that does not belong here ends the traceback; between its frames it may be another rank's."""
        return self.state != "frames"

    def _in_frames(self, number: int, text: str) -> bool:
        link = self.links[-1]
        if not text.strip():
            return bool(link.frames)
        if found := _FRAME.match(text):
            if len(link.frames) < _MAX_FRAMES:
                link.frames.append((found["file"], int(found["line"]), (found["function"] or "").strip()))
            return True
        if text[0] in " \t":
            return True
        found = _exception(text, bool(link.frames))
        if found is None:
            return False
        link.kind, link.line = found["kind"], number
        link.message = [found["message"] or ""]
        self.state = "message"
        return True

    def _in_message(self, _number: int, text: str) -> bool:
        link = self.links[-1]
        if not text.strip():
            self.state = "gap"
            return True
        if any(text.startswith(sentence) for sentence in _CHAINS):
            self.state = "chain"
            return True
        if _NOT_A_MESSAGE.match(text) or len(link.message) > _MAX_MESSAGE_LINES or OPENING in text:
            return False
        link.message.append(text)
        return True

    def _in_gap(self, _number: int, text: str) -> bool:
        if not text.strip():
            return True
        if any(text.startswith(sentence) for sentence in _CHAINS):
            self.state = "chain"
            return True
        link = self.links[-1]
        # a message may hold blank lines before its numbered hints ("Possible solutions:")
        if (
            re.match(r"(?:Possible solutions|\d+\. |Open an issue|Compile with|For debugging|Search for)", text)
            and len(link.message) < _MAX_MESSAGE_LINES
        ):
            link.message.append(text)
            return True
        return False

    def _in_chain(self, _number: int, text: str) -> bool:
        if not text.strip():
            return True
        if OPENING in text:
            self.links.append(_Link())
            self.state = "frames"
            return True
        return False

    def row(self) -> dict[str, Any]:
        """Columns of the ``errors`` frame; the last exception of the chain is the error, the earlier ones are its causes."""
        links = [link for link in self.links if link.kind or link.frames]
        last = links[-1] if links else _Link()
        frame = last.frames[-1] if last.frames else (None, None, None)
        causes = [[link.kind or "unfinished traceback", _message(link), link.line] for link in links[:-1]]
        return {
            "kind": last.kind or "unfinished traceback",
            "message": _message(last),
            "message_line": last.line or self.line,
            "frame_file": frame[0],
            "frame_line": frame[1],
            "frame_function": frame[2],
            "frames": json.dumps([list(f) for link in links for f in link.frames][-_MAX_FRAMES:]),
            "chain": json.dumps(causes) if causes else "[]",
            "line_end": self.line_end or self.line,
            "process": self.process,
        }


def _message(link: _Link) -> str:
    return "\n".join(link.message).strip()[:_MAX_MESSAGE]


def _exception(text: str, framed: bool) -> re.Match[str] | None:  # noqa: FBT001
    """An exception line; below frames, where something must be one, also of a kind whose name does not tell."""
    return EXCEPTION.match(text) or (_ANY_KIND.match(text) if framed and _NOT_A_MESSAGE.match(text) is None else None)


_PROCESS = lazy_re.compile(r"\b(\w+) hit an exception")


def process_of(message: str) -> str | None:
    """Which process a heading names: ``Scheduler hit an exception: `` gives Scheduler."""
    if " hit an exception" in message and (found := _PROCESS.search(message)):
        return found[1]
    if "Exception in ASGI application" in message:
        return "ASGI"
    return None


def single(number: int, text: str) -> dict[str, Any] | None:
    """An ``errors`` row from an exception line that stands alone (a pasted or torn traceback), or None."""
    found = EXCEPTION.match(text)
    if found is None or found["kind"].endswith("Warning"):
        return None
    return {
        "kind": found["kind"],
        "message": (found["message"] or "").strip()[:_MAX_MESSAGE],
        "message_line": number,
        "frames": "[]",
        "chain": "[]",
        "line_end": number,
    }


class OpenTraces:
    """The tracebacks that are being read: one without a rank of its own, and one per ``[rank3]:``."""

    def __init__(self) -> None:
        self._bare: Traceback | None = None
        self._by_rank: dict[Ranks, Traceback] = {}
        self.closed: list[Traceback] = []  # complete, not yet taken
        self._process: str | None = None

    def name_process(self, message: str) -> None:
        """Remember which process a heading names: its traceback follows."""
        self._process = process_of(message) or self._process

    def open(self, number: int, prefix: Prefix, message: str) -> None:
        """Begin a traceback at a line that holds :data:`OPENING`."""
        self.name_process(message)
        trace = Traceback(number, prefix.time, prefix.ranks, self._process)
        self._process = None
        if not prefix.own and prefix.ranks != NO_RANKS:
            self._close(self._by_rank.pop(prefix.ranks, None))
            self._by_rank[prefix.ranks] = trace
        else:
            self._close(self._bare)
            self._bare = trace

    def pause(self) -> None:
        """A record of another process stands here."""
        if self._bare is not None:
            self._bare.pause()

    def would_end(self, text: str) -> bool:
        """Whether a line would be the exception of the traceback without a rank."""
        trace = self._bare
        return (
            trace is not None
            and trace.state == "frames"
            and text[:1].isalpha()
            and _exception(text, bool(trace.links[-1].frames)) is not None
        )

    def take_frame(self, number: int, text: str) -> bool:
        """Take an indented line if frames of the traceback without a rank are being read: by far the most lines of a traceback are such."""
        trace = self._bare
        if trace is None or trace.state != "frames" or not text.startswith(_INDENTED) or text.lstrip()[:1] in _MARGINS:
            return False
        return trace.accept(number, text)

    def take_in(self, number: int, prefix: Prefix, message: str) -> Traceback | None:
        """The traceback that a line belongs to, or None."""
        if prefix.own:
            self.pause()
            return None
        ranked = prefix.ranks != NO_RANKS
        trace = self._by_rank.get(prefix.ranks) if ranked else self._bare
        if trace is None or trace.accept(number, message):
            return trace
        if ranked:
            self._close(self._by_rank.pop(prefix.ranks))
        elif trace.finished():
            self._close(trace)
            self._bare = None
        return None

    def finish(self) -> None:
        """The log is over: close what is open."""
        for trace in (self._bare, *self._by_rank.values()):
            self._close(trace)
        self._bare = None
        self._by_rank.clear()

    def take_closed(self) -> list[Traceback]:
        """The tracebacks that are complete; they are forgotten here."""
        closed, self.closed = self.closed, []
        return closed

    def _close(self, trace: Traceback | None) -> None:
        if trace is not None:
            self.closed.append(trace)
