"""Shell text as tokens: words made of pieces, operators, array assignments, redirections with their here-documents.

Nothing is expanded here, and nothing is ever executed. Unfinished quotes and brackets are taken as plain characters, because people
paste prose and half commands. The scanner goes over the text once; nesting is left to whoever reads a piece's inner text.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING

from logforensics import lazy_re
from logforensics.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator


class Kind(Enum):
    """What a piece of a word is."""

    TEXT = "text"
    VARIABLE = "variable"  # text is what stands between the braces, or the bare name
    COMMAND = "command"  # text is what stands in $(…) or `…`
    ARITHMETIC = "arithmetic"  # text is what stands in $((…))


@record(frozen=True)
class Piece:
    """A part of a word. ``quoted`` pieces are never split at blanks; ``source`` is the piece as written."""

    kind: Kind
    text: str
    quoted: bool
    source: str = ""


@record(frozen=True)
class Word:
    """One word; no pieces is the empty word that quotes leave."""

    pieces: tuple[Piece, ...]

    @property
    def plain(self) -> str | None:
        """The text of a word without expansions; None where there are any."""
        if any(piece.kind is not Kind.TEXT for piece in self.pieces):
            return None
        return "".join(piece.text for piece in self.pieces)

    @property
    def bare(self) -> str | None:
        """The text of a word without quotes or expansions, such as a keyword; else None."""
        return None if any(piece.quoted for piece in self.pieces) else self.plain


@record(frozen=True)
class ArrayAssignment:
    """``NAME=(…)`` or ``NAME+=(…)``."""

    name: str
    append: bool
    words: tuple[Word, ...]


@record(frozen=True)
class Redirection:
    """``> file``, ``2>&1``, ``<<EOF``. ``body`` is a here-document's text, ``expands`` whether variables in it count."""

    operator: str
    target: Word
    body: str | None = None
    expands: bool = True


@record(frozen=True)
class Operator:
    """``;`` (also the end of a line), ``&``, ``&&``, ``||``, ``|``, ``;;``, ``(``, ``)``."""

    text: str


@record(frozen=True)
class Condition:
    """``(( … ))`` as a command."""

    text: str


Token = Word | ArrayAssignment | Redirection | Operator | Condition

_PLAIN = lazy_re.compile(r"[^\s\\'\"$`|&;<>()#\[]+")
_NAME = lazy_re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_BLANK = lazy_re.compile(r"(?:[ \t]|\\\n)+")
_REDIRECTION = lazy_re.compile(r"\d*(?:<<<|<<-|<<|<>|<&|<|>>|>\||>&|>)|&>>?")
_OPERATOR = lazy_re.compile(r"&&|\|\||\|&|;;&?|[;&|()]|\n")
_ARRAY = lazy_re.compile(r"([A-Za-z_]\w*)(\+?)=")
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b"}
_MAX_NESTED = 64
_EFFORT_PER_CHAR = 3


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a shell text."""
    return _Scanner(text).run()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.in_test = False  # between [[ and ]], where operators are words
        self.at_start = True  # a command may begin here
        self.effort = _EFFORT_PER_CHAR * len(text) + 10_000  # characters that the search for closing brackets may look at
        self.waiting: list[tuple[Word, str, bool]] = []  # here-documents whose text begins after this line

    def run(self) -> Iterator[Token]:
        while self.at < len(self.text):
            yield from self._next()
        yield from self._heredocs()
        yield Operator(";")

    def _next(self) -> Iterator[Token]:
        blank = _BLANK.match(self.text, self.at)
        if blank:
            self.at = blank.end()
            return
        char = self.text[self.at]
        if char == "#":
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
            return
        if self.in_test and char in "&|<>()":
            yield self._test_operator()
            return
        after = self._closing(self.at, "((", "))") if self.at_start and self.text.startswith("((", self.at) else None
        if after:
            inner = self.text[self.at + 2 : after - 2]
            self.at, self.at_start = after, False
            yield Condition(inner)
            return
        redirection = None if self.text.startswith(("<(", ">("), self.at) else _REDIRECTION.match(self.text, self.at)
        if redirection and not self.in_test:
            yield from self._redirection(redirection[0])
            return
        operator = _OPERATOR.match(self.text, self.at)
        if operator:
            yield from self._operator(operator[0])
            return
        yield from self._word_or_array()

    def _test_operator(self) -> Word:
        found = _OPERATOR.match(self.text, self.at) or _REDIRECTION.match(self.text, self.at)
        text = found[0] if found else self.text[self.at]
        self.at += len(text)
        return Word((Piece(Kind.TEXT, text, quoted=False),))

    def _operator(self, text: str) -> Iterator[Token]:
        self.at += len(text)
        self.at_start = True
        if text == "\n":
            yield from self._heredocs()
            if not self.in_test:
                yield Operator(";")
        else:
            yield Operator("|" if text == "|&" else text[:2])

    def _redirection(self, operator: str) -> Iterator[Token]:
        self.at += len(operator)
        kind = operator.lstrip("0123456789")
        blank = _BLANK.match(self.text, self.at)
        self.at = blank.end() if blank else self.at
        target = self._word() or Word(())
        if kind in ("<<", "<<-"):
            quoted = any(piece.quoted for piece in target.pieces)
            self.waiting.append((target, target.plain or "", not quoted))
        else:
            yield Redirection(kind, target)

    def _heredocs(self) -> Iterator[Token]:
        """The here-documents announced on the line that has just ended."""
        waiting, self.waiting = self.waiting, []
        for target, mark, expands in waiting:
            end = re.compile(rf"^[ \t]*{re.escape(mark)}[ \t]*$", re.MULTILINE).search(self.text, self.at)
            stop, after = (end.start(), end.end()) if end else (len(self.text), len(self.text))
            body = self.text[self.at : stop]
            self.at = after
            yield Redirection("<<", target, body, expands)

    def _word_or_array(self) -> Iterator[Token]:
        array = _ARRAY.match(self.text, self.at)
        if array and self.text.startswith("(", array.end()):
            end = self._closing(array.end(), "(", ")")
            if end:
                inner = self.text[array.end() + 1 : end - 1]
                self.at = end
                yield ArrayAssignment(array[1], bool(array[2]), tuple(t for t in tokens(inner) if isinstance(t, Word)))
                return
        word = self._word()
        if word is None:  # a lone character that begins nothing
            word = Word((Piece(Kind.TEXT, self.text[self.at], quoted=False),))
            self.at += 1
        bare = word.bare
        self.in_test = (self.in_test or (self.at_start and bare == "[[")) and bare != "]]"
        self.at_start = bare in _KEEPS_START
        yield word

    def _word(self) -> Word | None:
        """The word that begins here; None where none does."""
        pieces: list[Piece] = []
        begin = self.at
        while self.at < len(self.text):
            read = self._piece(first=self.at == begin)
            if read is None:
                break
            pieces += read
        if self.at == begin:
            return None
        return Word(tuple(pieces))

    def _piece(self, *, first: bool) -> list[Piece] | None:
        """The next pieces of a word; None where the word ends."""
        plain = _PLAIN.match(self.text, self.at)
        if plain:
            self.at = plain.end()
            return [Piece(Kind.TEXT, plain[0], quoted=False)]
        char = self.text[self.at]
        if char == "\\":
            return self._escaped()
        if char == "'":
            return self._single()
        if char == '"':
            return self._double()
        if char in "$`":
            return self._expansion(quoted=False)
        if char == "[" or (char == "#" and not first):
            self.at += 1
            return [Piece(Kind.TEXT, char, quoted=False)]
        if char in "<>" and self.text.startswith("(", self.at + 1) and (end := self._closing(self.at + 1, "(", ")")):
            source = self.text[self.at : end]  # process substitution: a file nobody will see
            self.at = end
            return [Piece(Kind.TEXT, source, quoted=True)]
        return None

    def _escaped(self) -> list[Piece]:
        following = self.text[self.at + 1 : self.at + 2]
        self.at += 2
        if following in ("", "\n"):
            return []
        return [Piece(Kind.TEXT, following, quoted=True)]

    def _single(self) -> list[Piece]:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            return self._literal("'")
        inner = self.text[self.at + 1 : end]
        self.at = end + 1
        return [Piece(Kind.TEXT, inner, quoted=True)]

    def _double(self) -> list[Piece]:
        end = self._end_of_double(self.at + 1)
        if end is None:
            return self._literal('"')
        pieces: list[Piece] = [Piece(Kind.TEXT, "", quoted=True)]
        self.at += 1
        text: list[str] = []
        while self.at < end:
            char = self.text[self.at]
            if char == "\\":
                following = self.text[self.at + 1]
                text.append("" if following == "\n" else following if following in '$`"\\' else "\\" + following)
                self.at += 2
            elif char in "$`":
                pieces += [Piece(Kind.TEXT, "".join(text), quoted=True), *self._expansion(quoted=True)]
                text = []
            else:
                text.append(char)
                self.at += 1
        self.at = end + 1
        return [*pieces, Piece(Kind.TEXT, "".join(text), quoted=True)]

    def _end_of_double(self, at: int) -> int | None:
        """The place of the quote that closes a double-quoted text; None where there is none."""
        while at < len(self.text):
            char = self.text[at]
            if char == '"':
                return at
            if char == "\\":
                at += 2
            elif char == "$" and self.text.startswith(("$(", "${"), at):
                opening, closing = ("(", ")") if self.text[at + 1] == "(" else ("{", "}")
                at = self._closing(at + 1, opening, closing) or at + 1
            else:
                at += 1
        return None

    def _literal(self, char: str) -> list[Piece]:
        self.at += 1
        return [Piece(Kind.TEXT, char, quoted=False)]

    def _expansion(self, *, quoted: bool) -> list[Piece]:
        """``$NAME``, ``${…}``, ``$(…)``, ``$((…))``, ``$'…'`` or a back-quoted command; a dollar that begins nothing is a dollar."""
        begin = self.at
        for opening, closing, kind, skip in _BRACKETED:
            if self.text.startswith(opening, begin):
                end = self._closing(begin + skip, opening[skip:], closing)
                if end is None:
                    return self._literal(self.text[begin])
                self.at = end
                inner = self.text[begin + len(opening) : end - len(closing)]
                return [Piece(kind, inner, quoted, self.text[begin:end])]
        if self.text[begin] == "`":
            end = self.text.find("`", begin + 1)
            if end < 0:
                return self._literal("`")
            self.at = end + 1
            return [Piece(Kind.COMMAND, self.text[begin + 1 : end], quoted, self.text[begin : end + 1])]
        if self.text.startswith("$'", begin) and not quoted:
            return self._ansi()
        name = _NAME.match(self.text, begin + 1)
        if name is None:
            return self._literal("$")
        self.at = name.end()
        return [Piece(Kind.VARIABLE, name[0], quoted, self.text[begin : self.at])]

    def _ansi(self) -> list[Piece]:
        found = re.compile(r"\$'((?:[^'\\]|\\.)*)'", re.DOTALL).match(self.text, self.at)
        if found is None:
            return self._literal("$")
        self.at = found.end()
        return [Piece(Kind.TEXT, re.sub(r"\\(.)", lambda m: _ANSI.get(m[1], m[1]), found[1]), quoted=True)]

    def _closing(self, at: int, opening: str, closing: str) -> int | None:
        """Where the bracket that stands at ``at`` is closed (behind it), quotes respected; None where it is not."""
        depth, begin = 0, at
        while at < len(self.text) and self.effort > 0:
            self.effort -= 1
            char = self.text[at]
            if char == "\\":
                at += 2
            elif char in "'\"" and depth and (end := self._quote_end(at)):
                at = end
            elif char == "#" and opening == "(" and at > begin and self.text[at - 1] in " \t\n":
                at = max(self.text.find("\n", at), at + 1)
            elif self.text.startswith(opening, at):
                depth += 1
                at += len(opening)
                if depth > _MAX_NESTED:
                    return None
            elif self.text.startswith(closing, at):
                depth -= 1
                at += len(closing)
                if depth == 0:
                    return at
            else:
                at += 1
        return None

    def _quote_end(self, at: int) -> int | None:
        """Behind the quoted text that begins here; None where it has no end."""
        quote = self.text[at]
        if quote == "'":
            end = self.text.find("'", at + 1)
            return end + 1 if end >= 0 else None
        found = _DOUBLE.match(self.text, at)
        return found.end() if found else None


_DOUBLE = lazy_re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETED = (("$((", "))", Kind.ARITHMETIC, 1), ("$(", ")", Kind.COMMAND, 1), ("${", "}", Kind.VARIABLE, 1))
_KEEPS_START = frozenset({"if", "then", "elif", "else", "while", "until", "do", "{", "!", "time"})
