"""What other programs put in front of every line: compose, Kubernetes, journald, Ray, torchrun, time stamps; and JSON envelopes.

A wrapper is recognised from the beginning of a log, where most lines must have it, and then taken off every line that has it.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from logforensics import lazy_re
from logforensics.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

_MAX_WRAPPERS = 3  # kubectl --timestamps --prefix in front of Ray is the deepest seen
_SAMPLE_LINES = 400
_MIN_BACK = 3
_ISO = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9]{2}:?[0-9]{2})?"


@record(frozen=True)
class Wrapper:
    """One way of wrapping a line.

    Attributes:
        name: what wraps.
        expression: matches what stands in front, in the syntax that Python and Rust share; for JSON, what an envelope begins with.
        share: share of the first lines that must have it.
        field: key of a JSON envelope that holds the line; None for a prefix.
        keeps: what of the match stays, as a replacement text.
        tail: matches what the wrapper adds behind the line.
        whole: matches a line that is complete; the wrapper splits long lines, and one it does not match goes on in the next.
    """

    name: str
    expression: str
    share: float = 0.6
    field: str | None = None
    keeps: str = ""
    tail: str | None = None
    whole: str | None = None

    def goes_on(self, line: bytes) -> bool:
        """Whether this physical line is only the first part of a longer one."""
        if self.whole is None:
            return False
        text = line.decode("utf-8", "replace")
        return re.match(self.expression, text) is not None and re.search(self.whole, text) is None


WRAPPERS = (
    Wrapper("cri", rf"^{_ISO} (?:stdout|stderr) [FP](?: |$)", whole=rf"^{_ISO} (?:stdout|stderr) F(?: |$)"),
    Wrapper(
        "journald",
        rf"^(?:[A-Z][a-z]{{2}} [ 0-9][0-9] [0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}|{_ISO}) [A-Za-z0-9._-]+ [A-Za-z0-9._/@-]+(?:\[[0-9]+\])?: ?",
    ),
    Wrapper("time stamp", rf"^{_ISO} ?"),
    Wrapper("kubectl", r"^\[pod/[^\]\s]+\] ?"),
    Wrapper("compose", r"^[A-Za-z0-9][A-Za-z0-9._-]* +\| ?"),
    Wrapper(
        "ray",
        r"^\((?:[A-Za-z_][A-Za-z0-9_.]*(?:\([^()]*\))? )?pid=[0-9]+(?:, ip=[0-9a-f.:]+)?\) ",
        share=0.05,
        tail=r" \[repeated [0-9]+x across[^\]]*\]$",
    ),
    Wrapper("torchrun", r"^\[(?:rank|default)[0-9]+\]: ?"),
    Wrapper("srun", r"^[0-9]{1,4}: "),
    Wrapper("docker json", r'^\{"log":"', field="log", whole=r'\\n","(?:stream|attrs|time)"'),
    Wrapper("journald json", r'^\{.*"MESSAGE" ?: ?"', field="MESSAGE"),
    Wrapper("cloud json", r'^\{.*"message" ?: ?"', field="message"),
    Wrapper("cloud json", r'^\{.*"textPayload" ?: ?"', field="textPayload"),
    Wrapper("cloud json", r'^\{.*"log" ?: ?"', field="log"),
    Wrapper("cloud json", r'^\{.*"msg" ?: ?"', field="msg"),
    # whatever most lines have in front of SGLang's own bracket
    Wrapper("unknown", r"^[^\[\]{}\"']{1,120}(\[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2})", keeps="${1}"),
)
_COMPILED = {wrapper: lazy_re.compile(wrapper.expression) for wrapper in WRAPPERS}
_STAMP = lazy_re.compile(rb"\[(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d(?:\.\d{3})?(?=[ \]])")
# the router writes JSON itself: its level and module are no wrapper
_ROUTER_JSON = lazy_re.compile(r'"target" ?: ?"(?:smg|sglang_router|sgl_model_gateway)\w*')
_ESCAPES = lazy_re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def detect(head: bytes) -> tuple[Wrapper, ...]:
    """The wrappers of a log's first bytes, outermost first."""
    lines = [_ESCAPES.sub("", line) for line in head.decode("utf-8", "replace").split("\n")[:_SAMPLE_LINES] if line.strip()]
    found: list[Wrapper] = []
    while len(found) < _MAX_WRAPPERS and (wrapper := _outermost(lines)) is not None:
        found.append(wrapper)
        if wrapper.field is not None:
            break
        lines = [stripped for line in lines if (stripped := _COMPILED[wrapper].sub(wrapper.keeps.replace("${1}", r"\1"), line)).strip()]
    return tuple(found)


def is_stamped(head: bytes) -> bool:
    """Whether SGLang's own lines carry its bracket: some line of the beginning does."""
    return _STAMP.search(head) is not None


def is_newest_first(head: bytes) -> bool:
    """Whether time runs backwards from line to line: never forwards in the beginning of the log, and backwards at least a few times."""
    stamps = [match.group() for match in _STAMP.finditer(head)]
    back = sum(later < earlier for earlier, later in pairwise(stamps))
    return back >= _MIN_BACK and not any(later > earlier for earlier, later in pairwise(stamps))


def _outermost(lines: Sequence[str]) -> Wrapper | None:
    for wrapper, expression in _COMPILED.items():
        hits = sum(expression.match(line) is not None and _ROUTER_JSON.search(line) is None for line in lines)
        if hits > 1 and hits >= wrapper.share * len(lines):
            return wrapper
    return None


def unwrap(lines: pl.DataFrame, wrappers: Sequence[Wrapper]) -> pl.DataFrame:
    """Rows ``(n, line)`` without their wrappers; a line that has none stays as it is.

    Parts of a line that a wrapper has split are joined in the row of the first part; the rows of the others are empty.
    """
    import polars as pl

    text = pl.col("line")
    split = [wrapper for wrapper in wrappers if wrapper.whole is not None]
    goes_on = (
        pl.any_horizontal(text.str.contains(w.expression) & ~text.str.contains(str(w.whole)) for w in split)
        if split
        else pl.lit(value=False)
    )
    for wrapper in wrappers:
        if wrapper.field is None:
            text = text.str.replace(wrapper.expression, wrapper.keeps)
        else:
            inner = text.str.json_path_match(f"$.{wrapper.field}").str.strip_suffix("\n")
            text = pl.when(text.str.contains(wrapper.expression)).then(pl.coalesce(inner, text)).otherwise(text)
        if wrapper.tail is not None:
            text = text.str.replace(wrapper.tail, "")
    bare = lines.select("n", text.alias("line"), goes_on.alias("goes_on"))
    return (_joined(bare) if bare["goes_on"].any() else bare).drop("goes_on")


def _joined(lines: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    begins = ~pl.col("goes_on").shift(1, fill_value=False)
    whole = lines.with_columns(begins.alias("begins"), begins.cum_sum().alias("record"))
    return whole.with_columns(
        pl.when("begins").then(pl.col("line").str.join("").over("record")).otherwise(pl.lit("")).alias("line")
    ).select("n", "line", "goes_on")
