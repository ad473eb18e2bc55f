"""What other programs put in front of every line: compose, Kubernetes, journald, Ray, torchrun, time stamps, quotes, line numbers.

The ones that need more than being cut off are listed; any other is learned from the lines on which SGLang's own bracket follows it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from logforensics import lazy_re
from logforensics.reading.joining import held_back, joined
from logforensics.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import polars as pl

_ISO = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"
_CLOCK = r"\[(?:[0-9]{4}-[0-9]{2}-[0-9]{2} )?[0-9]{2}:[0-9]{2}:[0-9]{2}"
ONLY_BY_BRACKETS = 2.0  # a share that is never reached
_LONGEST = 200
_MOST = 0.9  # of the prefixes must have the learned form
_TOKEN = lazy_re.compile(r"[0-9]+|[A-Za-z]+|[ \t]+|.")
_FIELD = lazy_re.compile(r"[^ \t]+|[ \t]+")
_NO_PREFIX = lazy_re.compile(r"[\"'=(){}]")  # what stands before a quotation, not before a line


@record(frozen=True)
class Prefix:
    """A text in front of every line.

    Attributes:
        name: what wraps.
        expression: matches what stands in front, in the syntax that Python and Rust share.
        share: share of the first lines that must have it, where the lines with SGLang's bracket do not decide.
        keeps: the first group of the match stays.
        tail: matches what the wrapper adds behind the line.
        stream: matches a physical line that may be split over several; its groups are the stream it belongs to and P where it goes on.
        replaced: texts that stand for others in the line.
    """

    name: str
    expression: str
    share: float = 0.6
    keeps: bool = False
    tail: str | None = None
    stream: str | None = None
    replaced: tuple[tuple[str, str], ...] = ()

    def fits(self, line: str) -> bool:
        """Whether this line has the prefix."""
        return re.match(self.expression, line) is not None and (
            self.tail is None or not self.replaced or re.search(self.tail, line) is not None
        )

    def part(self, line: str) -> tuple[str, bool]:
        """The stream this physical line belongs to, and whether it goes on in that stream's next one."""
        found = None if self.stream is None else re.match(self.stream, line)
        return ("", False) if found is None else (found[1], found[2] == "P")

    def held(self, lines: Sequence[str]) -> int:
        """How many of these last lines belong to records that are not over."""
        return 0 if self.stream is None else held_back(map(self.part, lines))

    def bare(self, line: str) -> str:
        """The line without the prefix."""
        found = re.match(self.expression, line)
        if found is None:
            return line
        line = (found[1] if self.keeps else "") + line[found.end() :]
        if self.tail is not None:
            line = re.sub(self.tail, "", line)
        return (
            re.sub("|".join(re.escape(old) for old, _ in self.replaced), lambda old: dict(self.replaced)[old[0]], line)
            if self.replaced
            else line
        )

    def take_off(self, lines: pl.DataFrame) -> pl.DataFrame:
        """Rows ``(n, line)`` without the prefix; a line that has none stays as it is."""
        import polars as pl

        text = pl.col("line")
        bare = text.str.replace(self.expression, "${1}" if self.keeps else "")
        if self.tail is not None:
            bare = bare.str.replace(self.tail, "")
        if self.replaced:
            old, new = zip(*self.replaced, strict=True)
            bare = pl.when(text.str.contains(self.expression)).then(bare.str.replace_many(list(old), list(new))).otherwise(text)
        if self.stream is None:
            return lines.select("n", bare)
        stream, part = text.str.extract(self.stream, 1), text.str.extract(self.stream, 2)
        return joined(lines.select("n", bare, (part == "P").fill_null(value=False).alias("goes_on"), stream.fill_null("").alias("stream")))


KNOWN = (
    Prefix("cri", rf"^{_ISO} (?:stdout|stderr) [FP](?: |$)", stream=rf"^{_ISO} (stdout|stderr) ([FP])(?: |$)"),
    Prefix(
        "journald",
        rf"^(?:[A-Z][a-z]{{2}} [ 0-9][0-9] [0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:\.[0-9]{{1,9}})?|{_ISO}) [A-Za-z0-9._-]+ "
        r"[A-Za-z0-9._/@-]+(?:\[[0-9]+\])?: ?",
    ),
    Prefix("time stamp", rf"^{_ISO} ?"),
    Prefix("kubectl", r"^\[pod/[^\]\s]+\] ?"),
    Prefix("compose", r"^[A-Za-z0-9][A-Za-z0-9._-]* +\| ?"),
    Prefix(
        "ray",
        r"^\((?:[^()\s]{1,100}(?:\([^()]{0,100}\))? )?pid=[0-9]+(?:, ip=[0-9a-f.:]+)?\) ",
        share=0.05,
        tail=r" \[repeated [0-9]+x across[^\]]{0,100}\](?: \(Ray dedup[^()]{0,300}\))?$",
    ),
    Prefix("torchrun", r"^\[(?:rank[0-9]+\]: ?|[a-z]+[0-9]+\]:)"),
    Prefix("srun", r"^ *[0-9]{1,4}: "),
    Prefix("loki", r"^\{(?:[A-Za-z_][A-Za-z0-9_]*=\"[^\"]*\"(?:, ?)?)*\} "),
    Prefix("csv", r"^(?:(?:\"[^\"]{0,80}\"|[^\",\[\]]{0,80}),){1,8}\"", share=ONLY_BY_BRACKETS, tail=r"\"$", replaced=(('""', '"'),)),
    Prefix(
        "json value",
        r"^\s*\"(?:message|@message|msg|log|textPayload|MESSAGE|line)\" ?: ?\"",
        share=ONLY_BY_BRACKETS,
        tail=r"(?:\\n)?\",?$",
        replaced=(
            ("\\\\", "\\"),
            ('\\"', '"'),
            ("\\/", "/"),
            ("\\n", "\n"),
            ("\\r", "\r"),
            ("\\t", "\t"),
            ("\\u003c", "<"),
            ("\\u003e", ">"),
            ("\\u0026", "&"),
            ("\\u001b", "\x1b"),
        ),
    ),
    # whatever else most lines have in front of SGLang's own bracket
    Prefix("unknown", rf"^[^\[\]{{}}\"']{{1,120}}({_CLOCK})", keeps=True),
)
# a bracket like SGLang's own in front of it
STAMPED_TWICE = Prefix("stamp in a bracket", rf"^{_CLOCK}[^\] ]{{0,12}}\] ({_CLOCK})", keeps=True)
ALL_STAMPED = Prefix("stamp in a bracket", rf"^{_CLOCK}[^\] ]{{0,12}}\](?: |$)")


def learn(prefixes: Sequence[str]) -> Prefix | None:
    """The form that these texts, seen in front of SGLang's bracket, share; None where there is none."""
    usable = [prefix for prefix in prefixes if len(prefix) <= _LONGEST and _NO_PREFIX.search(prefix) is None]
    needed = max(2, _MOST * len(prefixes))
    if len(usable) < needed:
        return None
    indent = ""
    if len({len(prefix) - len(prefix.lstrip()) for prefix in usable}) > 1:  # numbers, set flush right
        indent, usable = "[ \\t]*", [prefix.lstrip() for prefix in usable]
    for tokens, kind in ((_TOKEN, _kind), (_FIELD, _is_space)):
        if (expression := _form([tokens.findall(prefix) for prefix in usable], kind, needed)) is not None:
            return Prefix("learned", f"^{indent}{expression}")
    return None


def _form(rows: list[list[str]], kind: Callable[[str], str], needed: float) -> str | None:
    """An expression for token lists of one length whose tokens are of one kind each."""
    by_kinds: dict[tuple[str, ...], list[list[str]]] = {}
    for row in rows:
        by_kinds.setdefault(tuple(map(kind, row)), []).append(row)
    alike = max(by_kinds.values(), key=len)
    if len(alike) < needed or not alike[0]:
        return None
    *most, last = map(_any_of, zip(*alike, strict=True))
    return "".join(most) + (f"(?:{last}|$)" if most and alike[0][-1].isspace() else last)


def _kind(token: str) -> str:
    """Digits, letters, space, or the one other character."""
    if token.isspace():
        return " "
    return "0" if token.isdigit() else "a" if token.isalpha() and token.isascii() else token


def _is_space(token: str) -> str:
    return " " if token.isspace() else "."


def _any_of(tokens: Sequence[str]) -> str:
    """An expression for the tokens of one place."""
    if len(set(tokens)) == 1 and not tokens[0].isdigit():
        return re.escape(tokens[0])
    kinds = set(map(_kind, tokens))
    if kinds == {"0"}:
        return "[0-9]+"
    if kinds == {"a"}:
        return "[A-Za-z]+"
    if kinds == {" "}:
        return r"[ \t]+"
    marks = "".join(sorted({char for token in tokens for char in token if not (char.isalnum() and char.isascii())}))
    return f"[A-Za-z0-9{re.escape(marks)}]+"
