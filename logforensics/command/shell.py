"""A shell script read for the commands it would run: variables, arrays, arithmetic, tests and branches are followed, nothing is executed.

What the text does not decide stays as it is written: a variable without a value is ``$NAME``, ``$(command)`` is itself. A branch that
depends on such a thing is taken. Work is bounded: a text that asks for more ends early.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from logforensics import lazy_re
from logforensics.command import arithmetic
from logforensics.command.conditions import truth
from logforensics.command.model import Invocation, assignment
from logforensics.command.tokens import ArrayAssignment, Condition, Kind, Operator, Piece, Redirection, Word, tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_Part = Word | ArrayAssignment | Redirection | Condition
_MAX_COMMANDS = 20_000
_MAX_CHARS = 400_000  # of all values together, so that A="$A$A" in a row comes to an end
_MAX_DEPTH = 8
_MAX_PATTERN_TEXT = 2_000  # characters that ${NAME##pattern} is applied to
_DECLARE = frozenset({"export", "declare", "typeset", "local", "readonly"})
_SILENT = frozenset({":", "true", "set", "shopt", "trap", "ulimit", "cd", "umask", "alias", "wait", "sleep", "mkdir", "source", "."})
_PARAMETER = lazy_re.compile(
    r"""(?P<length>\#)? (?P<name>[A-Za-z_]\w*|[0-9@*\#?$!-]) (?:\[(?P<index>[^\]]*)\])?
        (?: (?P<op>:?[-=?+]|\#\#?|%%?|//?|\^\^?|,,?|:) (?P<rest>.*) )?""",
    re.DOTALL | re.VERBOSE,
)


@dataclass
class Reading:
    """What a shell text contains: the commands it would run, in order, and the files that here-documents write."""

    invocations: list[Invocation] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)


def read_shell(text: str, env: Mapping[str, str] | None = None, *, take_unknown: bool = True) -> Reading:
    """Follow a shell text.

    Args:
        text: the script, or one command line.
        env: variables that exist before it begins.
        take_unknown: whether a branch is taken whose condition the text does not decide; False takes the other one.
    """
    shell = _Shell(dict(env or {}), take_unknown=take_unknown)
    shell.run(text)
    return shell.reading


class _TooMuchError(Exception):
    """The text asks for more work than a launch command can need."""


@dataclass
class _Branch:
    """An ``if`` or ``case`` that is open: whether its commands run now, and whether one of its branches already did."""

    runs: bool
    done: bool
    outer: bool
    word: str | None = None  # of a case
    patterns: bool = False  # reading the patterns of a case


class _Shell:
    def __init__(self, variables: dict[str, str], *, take_unknown: bool) -> None:
        self.reading = Reading()
        self.variables = variables
        self.arrays: dict[str, list[str]] = {"@": []}
        self.exported = set(variables)
        self.take_unknown = take_unknown
        self.status: bool | None = True
        self.branches: list[_Branch] = []
        self.captured: list[str] | None = None  # output of echo, inside $(…)
        self.depth = 0
        self.commands_left = _MAX_COMMANDS
        self.chars_left = _MAX_CHARS

    # ------------------------------------------------------------------------------------------------ following the text

    def run(self, text: str) -> None:
        """Follow a text to its end, or as far as the bounds allow."""
        try:
            self._run(text)
        except _TooMuchError:
            return

    def _run(self, text: str) -> None:
        command: list[_Part] = []
        skip = False
        for token in tokens(text):
            if not isinstance(token, Operator):
                command.append(token)
                continue
            if self.branches and self.branches[-1].patterns and token.text in ("|", ")"):
                self._pattern(command, last=token.text == ")")
                command = []
                continue
            if command and not skip:
                self._command(command)
            command = []
            skip = (token.text == "&&" and self.status is False) or (token.text == "||" and self.status is True)
            if token.text.startswith(";;") and self.branches and self.branches[-1].word is not None:
                self.branches[-1].runs, self.branches[-1].patterns = False, True

    def _command(self, parts: Sequence[_Part]) -> None:
        self.commands_left -= 1
        if self.commands_left < 0:
            raise _TooMuchError
        parts, negated = self._keywords(list(parts))
        if not parts or (self.branches and not self.branches[-1].runs):
            return
        self._execute(parts)
        if negated and self.status is not None:
            self.status = not self.status

    def _execute(self, parts: Sequence[_Part]) -> None:
        if isinstance(parts[0], Condition):
            value = arithmetic.evaluate(parts[0].text, self._number)
            self.status = None if value is None else bool(value)
            return
        self._simple(parts)

    def _keywords(self, parts: list[_Part]) -> tuple[list[_Part], bool]:
        """Take keywords off the front of a command; what is left is a simple command, and whether its status is turned round."""
        negated = False
        while parts and isinstance(parts[0], Word) and (keyword := parts[0].bare) in _KEYWORDS:
            parts = parts[1:]
            if keyword in ("for", "case", "select"):
                self._loop_or_case(str(keyword), [part for part in parts if isinstance(part, Word)])
                return [], False
            if keyword == "function":
                return [], False
            negated = negated != (keyword == "!")
            self._branch(str(keyword))
        return parts, negated

    def _branch(self, keyword: str) -> None:
        running = not self.branches or self.branches[-1].runs
        if keyword == "if":
            self.branches.append(_Branch(runs=running, done=False, outer=running))
            return
        if not self.branches or keyword not in ("then", "elif", "else", "fi", "esac"):
            return
        branch = self.branches[-1]
        if keyword in ("fi", "esac"):
            self.branches.pop()
        elif keyword == "then":
            taken = self.take_unknown if self.status is None else self.status
            branch.runs = branch.outer and not branch.done and taken
            branch.done = branch.done or branch.runs
        else:
            branch.runs = branch.outer and not branch.done

    def _loop_or_case(self, keyword: str, words: Sequence[Word]) -> None:
        running = not self.branches or self.branches[-1].runs
        if keyword == "case":
            value = "".join(self._expand(words[0])) if words else ""
            self.branches.append(_Branch(runs=False, done=False, outer=running, word=value, patterns=True))
            rest = [word for word in words[1:] if word.bare != "in"]
            if rest:  # case $X in a) stands on one line: the first pattern was read along with it
                self._pattern(rest, last=True)
        elif running and len(words) > 2 and words[1].bare == "in":
            values = [text for word in words[2:] for text in self._expand(word)]
            if values and (name := words[0].bare):
                self._set(name, values[0])

    def _pattern(self, parts: Sequence[object], *, last: bool) -> None:
        branch = self.branches[-1]
        words = [part for part in parts if isinstance(part, Word)]
        value = branch.word or ""
        matches = any(fnmatchcase(value, "".join(self._expand(word))) for word in words)
        branch.runs = branch.runs or (branch.outer and not branch.done and matches)
        if last:
            branch.done = branch.done or branch.runs
            branch.patterns = False

    # ------------------------------------------------------------------------------------------------ simple commands

    def _simple(self, parts: Sequence[_Part]) -> None:
        assigned, words = self._assignments(parts)
        self._redirections(parts, words)
        if not words:
            self.variables.update(assigned)
            self.status = True
            return
        name = words[0]
        if name in _DECLARE:
            self._declare(name, words[1:])
        elif name in ("[[", "[", "test"):
            self.status = truth(words[1:] if name == "test" else words[1:-1])
        elif name in ("echo", "printf") and self.captured is not None:
            self.captured.append(_printed(words))
            self.status = True
        elif name == "eval" and self.depth < _MAX_DEPTH:
            self.depth += 1
            self._run(" ".join(words[1:]))
            self.depth -= 1
        elif name == "unset":
            for gone in words[1:]:
                self.variables.pop(gone, None)
                self.arrays.pop(gone, None)
        elif name == "set" and "--" in words:
            self.arrays["@"] = words[words.index("--") + 1 :]
        else:
            self._other(words, assigned)

    def _other(self, words: list[str], assigned: Mapping[str, str]) -> None:
        """A program: it would run with the exported variables and those set in front of it."""
        self.status = True if words[0] in _SILENT else False if words[0] == "false" else None
        if self.captured is not None and self.status is None:
            self.captured.append("\0")  # its output is not known
        env = {name: self.variables[name] for name in self.variables if name in self.exported}
        self.reading.invocations.append(Invocation(tuple(words), {**env, **assigned}))

    def _assignments(self, parts: Sequence[object]) -> tuple[dict[str, str], list[str]]:
        """Leading ``NAME=value`` words, which are variables, and the words after them, expanded."""
        assigned: dict[str, str] = {}
        words: list[str] = []
        for part in parts:
            if isinstance(part, ArrayAssignment) and (not words or words[0] in _DECLARE):
                self._set_array(part)
            elif isinstance(part, Word):
                own = self._assigned(part) if not words or words[0] in _DECLARE else None
                if own is None:
                    words += self._expand(part)
                elif words:
                    words.append(f"{own[0]}={own[1]}")
                else:
                    self._assign(assigned, *own)
        return {name: value for name, value in assigned.items() if value is not None}, words

    def _assign(self, assigned: dict[str, str], name: str, value: str) -> None:
        """``A=1 B=$A`` sees A; a value that only a command could give leaves the variable without one."""
        if value.startswith(("$(", "`")) and value.endswith((")", "`")) and "\n" not in value:
            self.variables.pop(name, None)
            return
        assigned[name] = value
        self._set(name, value)

    def _assigned(self, word: Word) -> tuple[str, str] | None:
        """Name and value of an assignment word. The value is never split at blanks."""
        first = word.pieces[0] if word.pieces else None
        if first is None or first.kind is not Kind.TEXT or first.quoted:
            return None
        found = re.match(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=", first.text)
        if found is None:
            return None
        rest = Word((Piece(Kind.TEXT, first.text[found.end() :], quoted=True), *(_as_quoted(piece) for piece in word.pieces[1:])))
        value = "".join(self._expand(rest))
        return found[1], (self.variables.get(found[1], "") if found[3] else "") + value

    def _declare(self, command: str, words: Sequence[str]) -> None:
        exports = command == "export" or any(word.startswith("-") and "x" in word for word in words)
        for word in words:
            own = assignment(word)
            if own:
                self._assign({}, *own)
            name = own[0] if own else word
            if exports and name.isidentifier():
                self.exported.add(name)
                if own and name not in self.variables:  # a command gives its value
                    self.variables[name] = own[1]
        self.status = True

    def _redirections(self, parts: Sequence[object], words: Sequence[str]) -> None:
        """Files that ``cat > file <<EOF`` or ``tee file <<EOF`` writes; without a file the text itself is a script for a shell."""
        here = next((part for part in parts if isinstance(part, Redirection) and part.operator == "<<"), None)
        if here is None or here.body is None:
            return
        body = self._expand_text(here.body) if here.expands else here.body
        to = next((part for part in parts if isinstance(part, Redirection) and part.operator in (">", ">>", ">|")), None)
        names = self._expand(to.target) if to else [word for word in words[1:] if not word.startswith("-")]
        self.reading.files["".join(names[:1]) or f"here-document {len(self.reading.files) + 1}"] = body

    def _set(self, name: str, value: str) -> None:
        self._spend(len(value))
        self.variables[name] = value
        self.arrays.pop(name, None)

    def _set_array(self, array: ArrayAssignment) -> None:
        values = [text for word in array.words for text in self._expand(word)]
        self._spend(sum(map(len, values)))
        before = self.arrays.get(array.name, []) if array.append else []
        self.arrays[array.name] = [*before, *values]
        self.variables.pop(array.name, None)
        self.status = True

    def _spend(self, chars: int) -> None:
        self.chars_left -= chars + 1
        if self.chars_left < 0:
            raise _TooMuchError

    # ------------------------------------------------------------------------------------------------ expansion

    def _expand(self, word: Word) -> list[str]:
        """The words that one word of the text becomes."""
        found: list[str] = []
        open_word: str | None = None
        vanishes = False  # "${EMPTY[@]}" is no word, quotes or not
        for piece in word.pieces:
            if piece.kind is Kind.TEXT:
                open_word = (open_word or "") + piece.text
                continue
            values, splits = self._value(piece)
            self._spend(sum(map(len, values)))
            parts = [part for value in values for part in value.split()] if splits else values
            if not parts:
                vanishes = True
                continue
            found += [] if len(parts) == 1 else [(open_word or "") + parts[0], *parts[1:-1]]
            open_word = (open_word or "") + parts[0] if len(parts) == 1 else parts[-1]
        if open_word is None or (vanishes and not open_word and not found):
            return found
        return [*found, open_word]

    def _expand_text(self, text: str) -> str:
        """The text of a here-document with its variables put in."""
        return re.sub(
            r"\\([$`\\])|\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))",
            lambda m: m[1] or self.variables.get(m[2] or m[3], m[0]),
            text,
        )

    def _value(self, piece: Piece) -> tuple[list[str], bool]:
        """The values of an expansion, and whether they are split at blanks."""
        if piece.kind is Kind.ARITHMETIC:
            value = arithmetic.evaluate(piece.text, self._number)
            return [piece.source if value is None else str(value)], False
        if piece.kind is Kind.COMMAND:
            output = self._output(piece.text)
            return ([piece.source], False) if output is None else ([output] if output else [], not piece.quoted)
        return self._parameter(piece)

    def _parameter(self, piece: Piece) -> tuple[list[str], bool]:
        """``$NAME``, ``${NAME}``, ``${NAME:-default}``, ``${ARRAY[@]}`` and their kin."""
        found = _PARAMETER.fullmatch(piece.text)
        if found is None:
            return [piece.source], False
        name, index = found["name"], found["index"]
        if index in ("@", "*") or name in ("@", "*"):
            return self._array(found, quoted=piece.quoted)
        known = self._element(name, index or "0") if index is not None or name in self.arrays else self.variables.get(name)
        if found["length"]:
            return [str(len(known))] if known is not None else [piece.source], False
        if not found["op"]:
            if known is None:
                return [f"${name}" if index is None else piece.source], False
            return [known], not piece.quoted
        value = self._operated(known, found["op"], found["rest"] or "")
        if found["op"] in ("=", ":=") and value is not None and value != known:
            self._set(name, value)
        return (
            ([piece.source if known is None and found["op"] not in _DEFAULTS else f"${name}"], False)
            if value is None
            else (
                [value],
                not piece.quoted,
            )
        )

    def _array(self, found: re.Match[str], *, quoted: bool) -> tuple[list[str], bool]:
        name = "@" if found["name"] in ("@", "*") else found["name"]
        values = self.arrays.get(name, [self.variables[name]] if name in self.variables else [])
        if found["length"]:
            return [str(len(values))], False
        if found["op"] in (":+", "+"):  # ${A[@]+"${A[@]}"}, which old shells need under set -u
            values = values if '"${' in (found["rest"] or "") else values and [found["rest"]]
        if "*" in (found["index"], found["name"]) and quoted:
            return [" ".join(values)], False
        return list(values), not quoted

    def _element(self, name: str, index: str) -> str | None:
        values = self.arrays.get(name, [])
        place = arithmetic.evaluate(index, self._number)
        return values[place] if place is not None and -len(values) <= place < len(values) else None

    def _operated(self, value: str | None, operator: str, rest: str) -> str | None:
        """The value of ``${NAME<operator>rest}``; None where it cannot be known."""
        if operator in _DEFAULTS:
            missing = value is None or (operator.startswith(":") and not value)
            if operator.endswith("+"):
                return "" if missing else self._expand_word(rest)
            return (None if operator.endswith("?") else self._expand_word(rest)) if missing else value
        if value is None:
            return None
        if operator in ("#", "##", "%", "%%"):
            return _trimmed(value, operator, self._expand_word(rest))
        if operator in ("/", "//"):
            old, _, new = rest.partition("/")
            return value.replace(old, self._expand_word(new), -1 if operator == "//" else 1) if old else value
        if operator == ":":
            return _sliced(value, [arithmetic.evaluate(part, self._number) for part in rest.split(":")])
        changed = value.upper() if operator.startswith("^") else value.lower()
        return changed if len(operator) == 2 else changed[:1] + value[1:]

    def _expand_word(self, text: str) -> str:
        """The text of a default value, with its own expansions."""
        if self.depth >= _MAX_DEPTH or not re.search(r"[$`\"'\\]", text):
            return text
        self.depth += 1
        words = [token for token in tokens(text) if isinstance(token, Word)]
        value = " ".join(part for word in words for part in self._expand(word))
        self.depth -= 1
        return value

    def _number(self, name: str) -> str | None:
        return self.variables.get(name)

    def _output(self, text: str) -> str | None:
        """What ``$(…)`` prints, where only echo and tests are at work; None where a program would have to run."""
        if self.depth >= _MAX_DEPTH:
            return None
        outer, branches, status, variables = self.captured, self.branches, self.status, dict(self.variables)
        commands = len(self.reading.invocations)
        self.captured, self.branches = [], []
        self.depth += 1
        try:
            self._run(text)
            printed = self.captured
        finally:
            self.depth -= 1
            self.captured, self.branches, self.status, self.variables = outer, branches, status, variables
            del self.reading.invocations[commands:]
        return None if "\0" in printed or not printed else "\n".join(printed).rstrip("\n")


_KEYWORDS = frozenset(
    {"if", "then", "elif", "else", "fi", "for", "select", "while", "until", "do", "done", "case", "esac", "{", "}", "!", "time", "function"}
)
_DEFAULTS = frozenset({":-", "-", ":=", "=", ":?", "?", ":+", "+"})


def _as_quoted(piece: Piece) -> Piece:
    return Piece(piece.kind, piece.text, quoted=True, source=piece.source)


def _printed(words: Sequence[str]) -> str:
    """The output of ``echo`` or of ``printf`` with %s and %d."""
    if words[0] == "echo":
        return " ".join(word for word in words[1:] if word not in ("-n", "-e"))
    values: Iterator[str] = iter(words[2:])
    return re.sub(r"%[sd]", lambda _: next(values, ""), words[1] if len(words) > 1 else "").replace("\\n", "\n")


def _trimmed(value: str, operator: str, pattern: str) -> str:
    """``${NAME#pattern}`` and ``${NAME%pattern}``: the shortest or longest match taken off the front or the end."""
    if len(value) > _MAX_PATTERN_TEXT:
        return value
    ends = range(len(value) + 1)
    if operator.startswith("#"):
        cuts = (cut for cut in (ends if operator == "#" else reversed(ends)) if fnmatchcase(value[:cut], pattern))
        return value[next(cuts, 0) :]
    cuts = (cut for cut in (reversed(ends) if operator == "%" else ends) if fnmatchcase(value[cut:], pattern))
    return value[: next(cuts, len(value))]


def _sliced(value: str, bounds: Sequence[int | None]) -> str | None:
    if not bounds or any(bound is None for bound in bounds):
        return None
    start = bounds[0] or 0
    rest = value[start:] if start >= 0 else value[max(start, -len(value)) :]
    return rest if len(bounds) == 1 else rest[: bounds[1]]
