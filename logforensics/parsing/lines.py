"""Reading the lines that are neither batch nor access lines: the two per cent that carry the story.

Lines come in order, with their absolute numbers. Each becomes a row of a frame, part of a traceback, known noise, a notice, or damage;
nothing is dropped without being counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from logforensics.parsing import batch, packs, progress, tracebacks
from logforensics.parsing.bulk import LEVELS, NOTICE_CHARS
from logforensics.parsing.prefix import EMBEDDED, NO_RANKS, Prefix, Ranks, read_prefix
from logforensics.parsing.server_args import read_server_args

_EXAMPLES = 20
_LEVEL = re.compile(r"\b(CRITICAL|FATAL|ERROR|WARNING|WARN|INFO|DEBUG)\b|(\w*Warning):")
_LOGGER = re.compile(r"(?:WARNING|ERROR|INFO|DEBUG):([\w.]+):|\b(\w+\.py:\d+)[\]:]")
_QUOTES = re.compile(r"^(?:\[[^\]]{8,140}\] )?(?:Receive|Finish)(?: OpenAI)?: |^\s*\{\"|^(?:\[[^\]]{8,140}\] )?\{\"timestamp\"")
# what loggers other than SGLang's put before a message: INFO 4242 [scheduler.py:12] …
_OTHER_LOGGERS = re.compile(r"(?:(?:DEBUG|INFO|WARNING|ERROR)[: ]+|\[?[\w./]{1,80}:\d{1,6}\]?[: ]+|\d{1,8} |[\w.]{1,60} - |- )*")
_INTRODUCES = re.compile(r"[\"'`|>=:(]\s*$")
_TORN_AT_LABEL = re.compile(r"(?:#[\w -]+|usage|mem|size|tokens|elapsed|\(token/s\)|graph|accept \w+)[:=] ?$")
_BATCH_REMAINS = ("#queue-req: ", "#running-req: ", "gen throughput (token/s): ", "#cached-token: ", "token usage: ")


@dataclass(slots=True)
class Tally:
    """Physical lines by what became of them, with examples ``(line, text)`` of the unhappy ones."""

    parsed: int = 0
    noise: int = 0
    unknown: int = 0
    damaged: int = 0
    unfinished: int = 0
    unknown_examples: list[tuple[int, str]] = field(default_factory=list)
    damaged_examples: list[tuple[int, str]] = field(default_factory=list)
    sglang: bool = False  # something only SGLang prints was seen

    def count(self, outcome: str, line: int, text: str) -> None:
        """Count one physical line."""
        if outcome == "parsed":
            self.parsed += 1
        elif outcome == "noise":
            self.noise += 1
        else:
            setattr(self, outcome, getattr(self, outcome) + 1)
            examples = self.unknown_examples if outcome == "unknown" else self.damaged_examples
            if len(examples) < _EXAMPLES:
                examples.append((line, text[:NOTICE_CHARS]))

    def add_unknown(self, count: int, examples: Sequence[tuple[int, str]]) -> None:
        """Count lines that a worker has read as notices."""
        self.unknown += count
        self.unknown_examples += examples[: max(0, _EXAMPLES - len(self.unknown_examples))]


Row = tuple[int, datetime | None, Ranks, dict[str, Any]]  # line, time, ranks, the frame's own columns

_REQUESTS = ("Receive: ", "Receive OpenAI: ", "Finish: ")
_SEVERITY = {"noise": 0, "unknown": 1, "parsed": 2, "damaged": 3}


def _quoted(before: str) -> bool:
    """Whether what follows ``before`` on its line is a quotation, such as a prompt that holds a log; a torn record may end at a label, too."""
    return _INTRODUCES.search(before) is not None and _TORN_AT_LABEL.search(before) is None


class LineReader:
    """Reads lines in order; rows collect in :attr:`rows` by frame until they are taken."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}
        self.tally = Tally()
        self._packs = packs.load()
        self._trace: tracebacks.Traceback | None = None
        self._rank_traces: dict[Ranks, tracebacks.Traceback] = {}
        self._process: str | None = None
        self._next = 1

    def feed(self, number: int, text: str, *, known: bool, unterminated: bool = False) -> None:
        """Read one physical line.

        Args:
            number: its absolute 1-based number.
            text: the line without its newline.
            known: some known literal occurs in it (see :func:`logforensics.parsing.chunk.literals`).
            unterminated: it is the log's last line and has no newline: its last number may be cut.
        """
        if number != self._next and self._trace is not None:
            self._trace.pause()  # the lines between were records that a worker has read
        self._next = number + 1
        if unterminated:
            self.tally.unfinished += 1
        elif "\r" not in text and "\n" not in text and text.find("[20", 1) < 0:
            self.tally.count(self._piece(number, text, known=known, cut=False), number, text)
            return
        outcome = "noise"
        for piece, cut in self._pieces(text, unterminated=unterminated):
            outcome = max(outcome, self._piece(number, piece, known=known, cut=cut), key=_SEVERITY.__getitem__)
        self.tally.count(outcome, number, text)

    def close(self) -> None:
        """Finish what is open at the end of a log."""
        self._finish_trace()
        for trace in self._rank_traces.values():
            self._emit("errors", trace.line, Prefix(trace.time, trace.ranks, 0, own=True), trace.row())
        self._rank_traces.clear()

    def take(self) -> dict[str, list[Row]]:
        """The rows read so far; the reader forgets them."""
        rows, self.rows = self.rows, {}
        return rows

    @staticmethod
    def _pieces(text: str, *, unterminated: bool) -> Iterable[tuple[str, bool]]:
        """The records of a physical line and whether each was cut off by what follows it instead of a newline."""
        segments = [segment for segment in re.split("[\r\n]", text) if segment]  # a JSON envelope may hold several lines
        out: list[tuple[str, bool]] = []
        for place, segment in enumerate(segments):
            closed = place + 1 < len(segments) or not unterminated
            starts = [0]
            if not _QUOTES.match(segment):
                starts += [found.start() for found in EMBEDDED.finditer(segment, 1) if not _quoted(segment[: found.start()])]
            ends = [*starts[1:], len(segment)]
            out += [(segment[begin:end], end != len(segment) or not closed) for begin, end in zip(starts, ends, strict=True)]
        return out or [("", False)]

    def _piece(self, number: int, piece: str, *, known: bool, cut: bool) -> str:
        if known and "% Completed |" in piece and (bars := list(progress.BAR.finditer(piece))):
            return self._bars(number, piece, bars)
        prefix = read_prefix(piece)
        message = piece[prefix.end :]
        if (folded := self._in_trace(number, prefix, message, known=known)) is not None:
            return folded
        if not message.strip():
            return "unknown" if cut and prefix.end else "noise"
        if known:
            outcome = self._record(number, prefix, message, cut=cut) or self._matched(number, prefix, message, cut=cut)
            if outcome is not None:
                return outcome
        return self._notice(number, prefix, message, cut=cut)

    # ------------------------------------------------------------------------------------------------ kinds of records

    def _bars(self, number: int, piece: str, bars: list[re.Match[str]]) -> str:
        for bar in bars:
            self._emit("load_progress", number, read_prefix(piece), progress.read_bar(bar))
        self.tally.sglang |= "shards" in piece
        rest = piece[bars[-1].end() :].strip()
        if rest and any(mark in rest for mark in ("] ", ": ")):
            self._piece(number, rest, known=True, cut=False)
        return "parsed"

    def _record(self, number: int, prefix: Prefix, message: str, *, cut: bool) -> str | None:
        """Batch lines that fell out of the fast path, server_args, and tracebacks."""
        if any(word in message for word in batch.WORDS.values()):
            outcome = self._batch(number, prefix, message, cut=cut)
            if outcome is not None:
                return outcome
        if "server_args=" in message and not message.startswith(_REQUESTS):
            found = read_server_args(message)
            if found is not None:
                return self._launch(number, prefix, *found, form="dict" if "server_args={" in message else "ServerArgs")
        if tracebacks.OPENING in message:
            self._open_trace(number, prefix, message)
            return "parsed"
        return None

    def _batch(self, number: int, prefix: Prefix, message: str, *, cut: bool) -> str | None:
        head = batch.HEAD.search(message)
        before = message[: head.start()] if head else message.partition(" batch")[0]
        if _OTHER_LOGGERS.fullmatch(before) is None:
            return None  # a prompt or another text that imitates a metric line
        if head is None:
            return "damaged" if message.startswith(("Decode batch", "Prefill batch")) and "#" in message else None
        found = batch.read_one(message[head.start() :], cut=cut)
        if found is None:
            return "damaged"
        self.tally.sglang = True
        self._emit(found[0], number, prefix, found[1])
        return "parsed"

    def _launch(self, number: int, prefix: Prefix, fields: dict[str, Any], complete: bool, *, form: str) -> str:  # noqa: FBT001
        from logforensics.sglang.flags import fingerprint

        self.tally.sglang = True
        low, high = fingerprint(fields.keys(), complete=complete)[:2]
        row = {name: fields.get(name) for name in ("model_path", "tp_size", "dp_size", "pp_size", "nnodes", "node_rank")}
        row = {name: value if name == "model_path" or isinstance(value, int) else None for name, value in row.items()}
        row |= {
            "server_args": json.dumps(fields, default=str),
            "version_low": low,
            "version_high": high,
            "complete": complete,
            "form": form,
        }
        self._emit("launches", number, prefix, row)
        return "parsed" if complete else "damaged"

    def _matched(self, number: int, prefix: Prefix, message: str, *, cut: bool) -> str | None:
        """Rows from the pattern packs and from exception lines that stand alone."""
        try:
            # a prompt may hold any text: only what stands before it counts
            found = self._packs.match(message, cut=cut, heads_only=message.startswith(_REQUESTS))
        except packs.CutRecord:
            return "damaged"
        if found is not None:
            pattern, row = found
            if pattern.frame is None:
                return "noise"
            self.tally.sglang |= pattern.frame not in ("errors", "requests", "notices", "shutdown")
            self._process = tracebacks.process_of(message) or self._process
            self._emit(pattern.frame, number, prefix, _completed(pattern.frame, number, message, row))
        if not prefix.own and (error := tracebacks.single(number, message)) is not None:
            self._emit("errors", number, prefix, error)
            return "parsed"
        return None if found is None else "parsed"

    def _notice(self, number: int, prefix: Prefix, message: str, *, cut: bool) -> str:
        if not prefix.own and any(label in message for label in _BATCH_REMAINS) and not _QUOTES.match(message):
            self._emit("notices", number, prefix, {"level": "unknown", "text": message[:NOTICE_CHARS]})
            return "damaged"  # the tail of a record that another process's write cut in two
        head = message[:160]
        level = _LEVEL.search(head)
        logger = _LOGGER.search(head)
        self._emit(
            "notices",
            number,
            prefix,
            {
                "level": (LEVELS.get(level[1], "warning") if level[1] else "warning") if level else ("info" if prefix.own else "unknown"),
                "logger": (logger[1] or logger[2]) if logger else None,
                "text": message[:NOTICE_CHARS],
            },
        )
        return "unknown" if prefix.own or not cut else "damaged"

    # ------------------------------------------------------------------------------------------------ tracebacks

    def _open_trace(self, number: int, prefix: Prefix, message: str) -> None:
        process = tracebacks.process_of(message) or self._process
        trace = tracebacks.Traceback(number, prefix.time, prefix.ranks, process)
        self._process = None
        if not prefix.own and prefix.ranks != NO_RANKS:
            if old := self._rank_traces.pop(prefix.ranks, None):
                self._emit("errors", old.line, Prefix(old.time, old.ranks, 0, own=True), old.row())
            self._rank_traces[prefix.ranks] = trace
        else:
            self._finish_trace()
            self._trace = trace

    def _in_trace(self, number: int, prefix: Prefix, message: str, *, known: bool) -> str | None:
        if not prefix.own and prefix.ranks != NO_RANKS:
            trace = self._rank_traces.get(prefix.ranks)
            if trace is None:
                return None
            if trace.accept(number, message):
                return "parsed"
            del self._rank_traces[prefix.ranks]
            self._emit("errors", trace.line, Prefix(trace.time, trace.ranks, 0, own=True), trace.row())
            return None
        trace = self._trace
        if trace is None:
            return None
        if prefix.own:
            trace.pause()
            return None
        if trace.accept(number, message):
            self._exception_text(number, message, trace, known=known)
            return "parsed"
        if trace.finished():
            self._finish_trace()
        return None

    def _exception_text(self, number: int, message: str, trace: tracebacks.Traceback, *, known: bool) -> None:
        """An exception's text may be a record of its own, such as the HiCache guard's refusal."""
        if not known or trace.state != "message" or message[:1] in " \t":
            return
        try:
            found = self._packs.match(message, cut=False)
        except packs.CutRecord:
            return
        if found is not None and found[0].frame not in (None, "errors", "notices", "overrides"):
            self._emit(str(found[0].frame), number, Prefix(trace.time, trace.ranks, 0, own=True), found[1])

    def _finish_trace(self) -> None:
        trace, self._trace = self._trace, None
        if trace is not None:
            self._emit("errors", trace.line, Prefix(trace.time, trace.ranks, 0, own=True), trace.row())

    def _emit(self, frame: str, number: int, prefix: Prefix, row: dict[str, Any]) -> None:
        self.rows.setdefault(frame, []).append((number, prefix.time, prefix.ranks, row))


def _completed(frame: str, number: int, message: str, row: dict[str, Any]) -> dict[str, Any]:
    """Columns that follow from where the row stands."""
    if frame == "errors":
        return {"message": message[:NOTICE_CHARS], "message_line": number, "line_end": number, "frames": "[]", "chain": "[]"} | row
    if frame == "overrides":
        row["flag"] = row["flag"].lstrip("-").replace("-", "_")
    if frame in ("watchdog", "shutdown", "overrides", "requests", "notices"):
        return {"text": message[:NOTICE_CHARS]} | row
    return row
