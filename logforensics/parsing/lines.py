"""Reading the lines that are neither batch nor access lines: the two per cent that carry the story.

Lines come in order, with their absolute numbers. Each becomes a row of a frame, part of a traceback, known noise, a notice, or damage;
nothing is dropped without being counted. A record that may have lost its end becomes a row only where the log holds a whole record of the
same kind with the same columns.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any

from logforensics import lazy_re
from logforensics.evidence import BenchBlock, block_at
from logforensics.parsing import batch, pieces, progress, tracebacks
from logforensics.parsing.bulk import LEVELS
from logforensics.parsing.dumps import Dump
from logforensics.parsing.packs import load
from logforensics.parsing.patterns import CutRecord, Packs, Pattern
from logforensics.parsing.prefix import NO_PREFIX, NO_RANKS, Prefix, Ranks, read_prefix
from logforensics.parsing.router import read_router
from logforensics.parsing.server_args import read_server_args
from logforensics.parsing.tally import EXAMPLES, NOTICE_CHARS, Outcome, Tally, worst
from logforensics.parsing.torn import Suspect, Suspects, Torn, form, is_exactly
from logforensics.parsing.unfinished import UnfinishedLaunch
from logforensics.reading import MARK
from logforensics.records import record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

Row = tuple[int, datetime | None, Ranks, dict[str, Any]]  # line, time, ranks, the frame's own columns

_LEVEL = lazy_re.compile(r"\b(CRITICAL|FATAL|ERROR|WARNING|WARN|INFO|DEBUG)\b|(\w*Warning):")
_LOGGER = lazy_re.compile(r"(?:WARNING|ERROR|INFO|DEBUG):([\w.]+):|\b(\w+\.py:\d+)[\]:]")
_REQUESTS = ("Receive: ", "Receive OpenAI: ", "Finish: ")
_JSON = lazy_re.compile(r"\s*\{\"")
# what loggers other than SGLang's put before a message: INFO 4242 [scheduler.py:12] …
_OTHER_LOGGER = lazy_re.compile(r"\[?[\w./]{1,80}:\d{1,6}\]?[: ]+|[\w.]{1,60} - |(?:DEBUG|INFO|WARNING|ERROR)[: ]+|\d{1,8} |- ")
_BATCH_REMAINS = ("#queue-req: ", "#running-req: ", "gen throughput (token/s): ", "#cached-token: ", "token usage: ")
_SGLANG_ALONE = frozenset(
    {"launches", "memory", "kv_pool", "capacity", "host_pool", "host_guard", "retractions", "ready", "watchdog", "overrides"}
)
_STAMPED_FRAMES = frozenset({"memory", "kv_pool", "capacity", "host_pool", "retractions"})
_ANY_TEXT = frozenset({"notices", "errors", "requests", "overrides"})
_STRAY = lazy_re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f\\ufffd]")
# what is left of SGLang's bracket when its beginning is missing or a stray byte stands in it
_BROKEN_BRACKET = lazy_re.compile(
    r"\[?[0-9A-Z_ .:\x00-\x1f\ufffd-]{0,60}(?:[0-9]:[0-9]{1,2}|[A-Z]P[0-9]{1,4})[^\[\]]{0,20}\] |[0-9]{1,2}\] "
)
_STAMP_END = lazy_re.compile(r":\d\d(?:\.\d{3})?(?: [A-Z]{2,8}\d+)*\] ")  # of a bracket that lost its beginning
_WHOLE_END = lazy_re.compile(r"(?:\d ?GB\.?|\d m?s\.?|[)\]!%]|[a-z]{3}\.)\s*$")


@record(frozen=True)
class _Doubtful:
    """A record that may have lost its end."""

    kind: str
    frame: str
    number: int
    prefix: Prefix
    row: dict[str, Any]
    ends_well: bool


class LineReader:
    """Reads lines in order; rows collect by frame until they are taken.

    Args:
        stamped: SGLang's own lines carry its bracket in this log, so that one without it is the tail of a torn one.
        examples: how many unknown and damaged lines are kept.
        step: 1, or -1 where a log is read from its last line to its first.
        packs: the patterns; the built-in ones where none are given.
    """

    def __init__(self, *, stamped: bool = False, step: int = 1, examples: int = EXAMPLES, packs: Packs | None = None) -> None:
        self.tally = Tally(limit=examples)
        self._rows: dict[str, list[Row]] = {}
        self._packs = packs or load()
        self._traces = tracebacks.OpenTraces()
        self._dump: Dump | None = None
        self._bench: BenchBlock | None = None
        self._stamped = stamped
        self._whole: set[tuple[str, frozenset[str]]] = set()
        self._doubtful: list[_Doubtful] = []
        self._suspects = Suspects(self._packs)
        self._torn_before: Torn | None = None  # the torn record before this one, on the same line
        self._step = step
        self._next = 1
        self._torn_error: tuple[int, str] | None = None  # where an exception line was cut, and its beginning
        self._recognised = False  # the last record is of a known kind, but not whole
        self._torn = False
        self._ending = False
        self._launch: UnfinishedLaunch | None = None

    def saw(self, kind: str, columns: Collection[str]) -> None:
        """Learn that the log holds whole records of this kind (``prefill``, ``decode`` or a pattern's event) with these columns."""
        self._whole.add((kind, frozenset(columns)))

    def feed(self, number: int, text: str, *, known: bool, unterminated: bool = False) -> None:
        """Read one physical line.

        Args:
            number: its absolute 1-based number.
            text: the line without its newline.
            known: some known literal occurs in it (see :func:`logforensics.parsing.left.literals`).
            unterminated: it is the log's last line and has no newline: its last number may be cut.
        """
        if self._launch is not None:
            if number == self._launch.lines[-1][0] + 1 and not unterminated and self._launch.accepts(text):
                if (whole := self._launch.add(number, text)) is not None:
                    self._end_launch(whole)
                return
            self._end_launch()
        if known and not unterminated and self._step > 0 and UnfinishedLaunch.begins(text):
            self._launch = UnfinishedLaunch(number, text)
            return
        self._read(number, text, known=known, unterminated=unterminated)

    def _end_launch(self, whole: str | None = None) -> None:
        """Read the lines of a ``server_args`` record that was not whole in its first one: as one where they make one."""
        launch, self._launch = self._launch, None
        if launch is None:
            return
        (first, text), *others = launch.lines
        self._read(first, text if whole is None else whole, known=True, unterminated=False)
        for number, text in others:
            self._read(number, text if whole is None else MARK, known=True, unterminated=False)

    def _read(self, number: int, text: str, *, known: bool, unterminated: bool) -> None:
        if self._suspects:
            self._clear(self._suspects.settle(text if number == self._next else None))
        if self._torn_error is not None and self._end_error(number, text):
            return
        if number != self._next:
            self._traces.pause()  # the lines between were records that a worker has read
            self._torn = False
        self._next = number + self._step
        open_end = text[:1] == MARK
        if open_end:
            text = text[1:]
            if not text:  # joined to a line above
                self.tally.parsed += 1
                return
        single = not unterminated and not open_end and pieces.is_single(text)
        if single and not known and self._dump is None and self._traces.take_frame(number, text):
            self._torn = False
            self.tally.parsed += 1
            return
        if single:
            outcome = self._piece(number, text, known=known, cut=False)
        else:
            self.tally.unfinished += unterminated
            self._ending = unterminated
            split = pieces.split(text, unterminated=unterminated or open_end)
            outcome = worst(self._pieces(number, split.pieces, known=known))
            if split.damaged or open_end:
                outcome = "damaged"
        self._torn = outcome == "damaged"
        self.tally.count(outcome, number, text)
        self._emit_closed()

    def _pieces(self, number: int, found: Sequence[pieces.Piece], *, known: bool) -> Iterator[Outcome]:
        for piece in found:
            doubtful, self._recognised = len(self._doubtful), False
            outcome = self._piece(number, piece.text, known=known, cut=piece.cut)
            if piece.cut and outcome == "damaged" and len(self._doubtful) == doubtful:
                self._torn_before = self._suspects.begun(piece.text, known=self._recognised)
            yield outcome
        self._torn_before = None

    def _clear(self, found: Iterable[Suspect]) -> None:
        for one in found:
            self.saw(one.kind, one.row)
            self._emit(one.frame, one.number, one.prefix, one.row)

    def close(self) -> None:
        """Finish what is open at the end of a log."""
        self._end_launch()
        self._clear(self._suspects.settle(None))
        self._clear(self._suspects.close())
        self._end_dump()
        if self._torn_error is not None:
            self._end_error(0, "")
        self._traces.finish()
        self._emit_closed()
        kinds = {kind for kind, _ in self._whole}
        for found in self._doubtful:
            if (found.kind, frozenset(found.row)) in self._whole or (found.ends_well and found.kind not in kinds):
                self._emit(found.frame, found.number, found.prefix, found.row)
        self._doubtful.clear()

    def take(self) -> dict[str, list[Row]]:
        """The rows read so far; the reader forgets them."""
        rows, self._rows = self._rows, {}
        return rows

    # ------------------------------------------------------------------------------------------------ one record

    def _piece(self, number: int, piece: str, *, known: bool, cut: bool) -> Outcome:
        if known and "% Completed |" in piece and (bars := list(progress.BAR.finditer(piece))):
            return self._bars(number, piece, bars)
        if not cut and (found := read_router(piece)) is not None:
            self.tally.sglang = True
            self._emit("router", number, Prefix(found[0], NO_RANKS, 0, own=False), found[1])
            return "parsed"
        prefix = read_prefix(piece)
        message = piece[prefix.end :]
        if not prefix.end and self._in_bench(number, message, cut=cut):
            return "parsed"
        if self._in_dump(prefix, message):
            return "parsed"
        if cut and not self._ending and not prefix.end and self._traces.would_end(message):
            self._torn_error = number, message
            return "damaged"
        if self._in_trace(number, prefix, message, known=known):
            return "parsed"
        if not message.strip():
            return "damaged" if cut else "noise"
        if self._torn and not prefix.end and not known_alone(message):
            return self._notice(number, prefix, message, outcome="damaged")
        if known:
            outcome = self._record(number, prefix, message, cut=cut) or self._matched(number, prefix, message, cut=cut)
            if outcome is not None:
                return outcome
        torn = (cut and not self._ending) or self._is_remains(prefix, message) or "% Completed |" in message
        return self._notice(number, prefix, message, outcome="damaged" if torn else "unknown")

    def _bars(self, number: int, piece: str, bars: list[re.Match[str]]) -> Outcome:
        prefix = read_prefix(piece)
        damaged = prefix.own  # bars are no records of a logger: the bracket is another record's beginning
        end = prefix.end
        for bar in bars:
            own = progress.is_own(bar, piece[end : bar.start()])
            if own:
                self._bar(number, NO_PREFIX if prefix.own else prefix, progress.read_bar(bar))
            damaged |= not own or progress.is_glued(bar)
            end = bar.end()
        self.tally.sglang |= "shards" in piece
        rest = piece[bars[-1].end() :].strip()
        if rest and any(mark in rest for mark in ("] ", ": ")):
            self._piece(number, rest, known=True, cut=False)
        return "damaged" if damaged else "parsed"

    def _bar(self, number: int, prefix: Prefix, row: dict[str, Any]) -> None:
        if self._torn_before is None:
            self._suspects.learn("load_progress", row["kind"])
        self._keep("load_progress", "load_progress", number, prefix, row, cut=False, shape=row["kind"])

    def _record(self, number: int, prefix: Prefix, message: str, *, cut: bool) -> Outcome | None:
        """Batch lines that fell out of the fast path, server_args, and tracebacks."""
        if any(word in message for word in batch.WORDS.values()):
            outcome = self._batch(number, prefix, message, cut=cut)
            if outcome is not None:
                return outcome
        if "server_args=" in message and not message.startswith(_REQUESTS):
            found = read_server_args(message)
            if found is not None and _STRAY.search(message):  # a repr spells such characters out
                whole = {name: value for name, value in found[0].items() if _is_field(name, value)}
                found = whole, found[1] and len(whole) == len(found[0])
            if found is not None:
                return self._launched(number, prefix, *found, form="dict" if "server_args={" in message else "ServerArgs")
        if tracebacks.OPENING in message:
            self._traces.open(number, prefix, message)
            return "parsed"
        return None

    def _batch(self, number: int, prefix: Prefix, message: str, *, cut: bool) -> Outcome | None:
        head = batch.HEAD.search(message)
        before = message[: head.start()] if head else message.partition(" batch")[0]
        if not _is_of_loggers(before):
            return None  # a prompt or another text that imitates a metric line
        if head is None:
            return "damaged" if message.startswith(tuple(batch.WORDS.values())) and "#" in message else None
        found = batch.read_one(message[head.start() :], cut=cut)
        self._recognised = found is None
        if found is None or (self._stamped and not prefix.own):
            return "damaged"
        self.tally.sglang = True
        kind, row = found
        if "extra" in row and self._torn_before is not None:
            return "damaged"  # its unknown label may be made of two known ones
        return self._keep(kind, kind, number, prefix, row, cut=cut, last=batch.last_label(message))

    def _launched(self, number: int, prefix: Prefix, fields: Mapping[str, Any], complete: bool, *, form: str) -> Outcome:  # noqa: FBT001
        from logforensics.sglang.flags import fingerprint

        self.tally.sglang = True
        low, high = fingerprint(fields.keys(), complete=complete)[:2]
        row = {name: fields.get(name) for name in ("model_path", "tp_size", "dp_size", "pp_size", "nnodes", "node_rank")}
        row = {name: value if name == "model_path" or isinstance(value, int) else None for name, value in row.items()}
        text = json.dumps(fields, default=str)
        row |= {"server_args": text, "version_low": low, "version_high": high, "complete": complete, "form": form}
        self._emit("launches", number, prefix, row)
        return "parsed" if complete else "damaged"

    def _matched(self, number: int, prefix: Prefix, message: str, *, cut: bool) -> Outcome | None:
        """Rows from the pattern packs and from exception lines that stand alone."""
        try:
            # a prompt may hold any text: only what stands before it counts
            found = self._packs.match(message, cut=cut, heads_only=message.startswith(_REQUESTS))
        except CutRecord:
            self._recognised = True
            return "damaged"
        outcome = None if found is None else self._fitting(number, prefix, message, *found, cut=cut)
        if not prefix.own and (error := tracebacks.single(number, message)) is not None:
            self._emit("errors", number, prefix, error)
            return "parsed"
        return outcome

    def _fitting(self, number: int, prefix: Prefix, message: str, pattern: Pattern, row: dict[str, Any], *, cut: bool) -> Outcome:
        frame = pattern.frame
        if frame is None or (frame == "requests" and row.get("status") == 200):
            return "noise"
        if message.startswith(_REQUESTS) and not message.rstrip().endswith((")", "}")):
            return "damaged"
        if frame not in _ANY_TEXT and _STRAY.search(message):
            return "damaged"
        if frame in _STAMPED_FRAMES and not pattern.bare and (self._stamped > prefix.own or not _is_clean(message)):
            return "damaged"
        if self._stamped and not prefix.end and _BROKEN_BRACKET.match(message):
            return "damaged"
        if frame == "notices":
            self._notice(number, prefix, message, outcome="parsed", **row)
            return "parsed"
        self.tally.sglang |= frame in _SGLANG_ALONE
        self._traces.name_process(message)
        doubtful = cut and bool(pattern.fields or pattern.texts or pattern.regex)
        ends_well = _WHOLE_END.search(message[-16:]) is not None and all(column in row for column, _, _ in pattern.fields)
        rows = [_completed(frame, number, message, one) for one in pattern.rows(row, message)]
        whole = frame in _ANY_TEXT or is_exactly(pattern, message)
        shape = None if whole else message
        if not cut and not whole and self._torn_before is None:
            self._suspects.learn(pattern.event, message)
        return worst(self._keep(pattern.event, frame, number, prefix, one, cut=doubtful, ends_well=ends_well, shape=shape) for one in rows)

    def _keep(
        self,
        kind: str,
        frame: str,
        number: int,
        prefix: Prefix,
        row: dict[str, Any],
        *,
        cut: bool,
        ends_well: bool = False,
        shape: str | None = None,
        last: str = "",
    ) -> Outcome:
        """Emit a row, or set it aside where its record may have lost its end, or got that of another one."""
        if cut:
            self._doubtful.append(_Doubtful(kind, frame, number, prefix, row, ends_well))
            return "parsed" if ends_well else "damaged"
        if self._torn_before is not None:
            self._suspects.hold(self._torn_before, Suspect(kind, frame, number, prefix, row, form(shape) if shape else None, last))
            return "parsed"
        self.saw(kind, row)
        self._emit(frame, number, prefix, row)
        return "parsed"

    def _notice(self, number: int, prefix: Prefix, message: str, *, outcome: Outcome, **given: Any) -> Outcome:
        head = message[:160]
        level, logger = _LEVEL.search(head), _LOGGER.search(head)
        row = {
            "level": (LEVELS.get(level[1], "warning") if level[1] else "warning") if level else ("info" if prefix.own else "unknown"),
            "logger": (logger[1] or logger[2]) if logger else None,
            "text": message[:NOTICE_CHARS],
        }
        self._emit("notices", number, prefix, row | given)
        return outcome

    def _is_remains(self, prefix: Prefix, message: str) -> bool:
        """The tail of a batch line that another process's write cut in two."""
        return not prefix.own and any(label in message for label in _BATCH_REMAINS) and _JSON.match(message) is None

    # ------------------------------------------------------------------------------------------------ records of many lines

    def _in_trace(self, number: int, prefix: Prefix, message: str, *, known: bool) -> bool:
        trace = self._traces.take_in(number, prefix, message)
        if trace is None:
            return False
        if known and prefix.ranks == NO_RANKS and trace.state == "message" and message[:1] not in " \t":
            self._exception_text(number, message, trace)
        return True

    def _exception_text(self, number: int, message: str, trace: tracebacks.Traceback) -> None:
        """An exception's text may be a record of its own, such as the HiCache guard's refusal."""
        try:
            found = self._packs.match(message, cut=False)
        except CutRecord:
            return
        if found is not None and found[0].frame not in (None, "errors", "notices", "overrides"):
            self._emit(str(found[0].frame), number, Prefix(trace.time, trace.ranks, 0, own=True), found[1])

    def _emit_closed(self) -> None:
        for trace in self._traces.take_closed() if self._traces.closed else ():
            self._emit("errors", trace.line, Prefix(trace.time, trace.ranks, 0, own=True), trace.row())

    def _end_error(self, number: int, text: str) -> bool:
        """Read the exception line that another record cut: with this line where it is the rest, else as it stands."""
        (first, begun), self._torn_error = self._torn_error or (0, ""), None
        rest = text if number == self._next and pieces.is_rest(text) and pieces.is_single(text) else None
        if rest is None and ": " not in begun:
            return False  # not even the exception's name is whole
        self._in_trace(first, NO_PREFIX, begun + (rest or ""), known=True)
        if rest is None:
            return False
        self._next = number + self._step
        self._torn = False
        self.tally.count("damaged", number, text)
        return True

    def _in_dump(self, prefix: Prefix, message: str) -> bool:
        if self._dump is not None:
            if not prefix.end and self._dump.accept(message):
                return True
            self._end_dump()
        if message[:1] in "Pu":
            self._dump = Dump.at(self._next - self._step, prefix, message)
        return self._dump is not None

    def _in_bench(self, number: int, message: str, *, cut: bool) -> bool:
        """Take a line of a benchmark's result table, which a client printed into the same terminal."""
        block = self._bench
        if block is not None and block.open and not cut:
            before = len(block.figures)
            if block.accept(number, message):
                for _, figure in block.figures[before:]:
                    row = {"block": block.line, "title": block.title, "section": figure.section, "name": figure.name}
                    row |= {"unit": figure.unit, "value": figure.value, "text": figure.text}
                    self._emit("benchmark", number, NO_PREFIX, row)
                return bool(message.strip())
        self._bench = block_at(number, message)
        return self._bench is not None

    def _end_dump(self) -> None:
        dump, self._dump = self._dump, None
        if dump is not None:
            self._emit("notices", dump.number, dump.prefix, dump.row())

    def _emit(self, frame: str, number: int, prefix: Prefix, row: dict[str, Any]) -> None:
        self._rows.setdefault(frame, []).append((number, prefix.time, prefix.ranks, row))


def _is_of_loggers(before: str) -> bool:
    """Whether a text is nothing but what other loggers put before a message. Piece by piece: as one expression it could be read in many ways."""
    at = 0
    while at < len(before) and (found := _OTHER_LOGGER.match(before, at)) is not None:
        at = found.end()
    return at == len(before)


def _is_clean(message: str) -> bool:
    """Whether a record of figures is made of what such records are made of: a stray byte or another record may have taken a label's place."""
    return (
        message.isascii()
        and message.replace("\t", " ").isprintable()
        and pieces.is_single(message)
        and ("] " not in message or _STAMP_END.search(message) is None)
    )


def _is_field(name: str, value: Any) -> bool:
    """Whether a field of ``server_args`` is one: a stray byte may have split its name or stand in its text."""
    return name.isidentifier() and (not isinstance(value, str) or _STRAY.search(value) is None)


def known_alone(message: str) -> bool:
    """Whether a line without a bracket is certainly no tail: a traceback, its exception, or a kill message."""
    return tracebacks.OPENING in message or tracebacks.EXCEPTION.match(message) is not None or message.startswith("Killed")


def _completed(frame: str, number: int, message: str, row: dict[str, Any]) -> dict[str, Any]:
    """Columns that follow from where the row stands."""
    if frame == "errors":
        return {"message": message[:NOTICE_CHARS], "message_line": number, "line_end": number, "frames": "[]", "chain": "[]"} | row
    if frame == "overrides":
        row["flag"] = row["flag"].lstrip("-").replace("-", "_")
    if frame in ("watchdog", "shutdown", "overrides", "requests"):
        return {"text": message[:NOTICE_CHARS]} | row
    return row
