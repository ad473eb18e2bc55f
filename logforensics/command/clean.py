"""Undoing what word processors, chats, prompts, notebooks and markdown do to a command."""

from __future__ import annotations

import re

from logforensics import lazy_re

# A character that a shell does not understand, what is meant by it, and how to name it.
_TYPOGRAPHY = {
    "\u00a0": (" ", "a non-breaking space"),
    "\u2007": (" ", "a figure space"),
    "\u202f": (" ", "a narrow non-breaking space"),
    "\u200b": ("", "a zero-width space"),
    "\u2018": ("'", "a typographic quote"),
    "\u2019": ("'", "a typographic quote"),
    "\u201c": ('"', "a typographic quote"),
    "\u201d": ('"', "a typographic quote"),
}
_TABLE = str.maketrans({char: meant for char, (meant, _) in _TYPOGRAPHY.items()} | {"\ufeff": "", "\r": "", "\u2028": "\n", "\u2029": "\n"})
_LONG_DASH = lazy_re.compile(r"(?<![^\s'\"])[\u2013\u2014](?=[a-z])")
_PROMPT = lazy_re.compile(
    r"""^ (?<! \\\n ) [ \t]*                                            # not on a continued line
    (?: \([^()\s]+\) [ \t]* )*                                        # (venv)
    (?: (?! - ) [^\s'"=]*[\w~\])/] [$#%>] | [$%❯➜] | \S+ [ \t]+ ➜ | In\ \[\d+\]: )   # user@host:/dir$, $, Singularity>, sgl ➜
    [ \t]+ (?= \S )""",
    re.MULTILINE | re.VERBOSE,
)
_NOTEBOOK = lazy_re.compile(r"^[ \t]*!(?=[\w./~])", re.MULTILINE)
_COMMENT = lazy_re.compile(r"^[ \t]*#+[ \t]+", re.MULTILINE)
_COMMENT_LINE = lazy_re.compile(r"(?:^|(?<=\s))#[^\n]*", re.MULTILINE)
_FENCE = lazy_re.compile(r"^[ \t]*(?:```|~~~)[^\n]*\n(.*?)^[ \t]*(?:```|~~~)", re.MULTILINE | re.DOTALL)
_INLINE = lazy_re.compile(r"`([^`\n]{10,4000})`")
_AROUND = " \t\n*`"  # markdown


def clean(text: str) -> str:
    """The text as it was meant: plain quotes, blanks and dashes, no prompts, no markdown around it."""
    plain = text.translate(_TABLE).strip(_AROUND).rstrip(_AROUND + "\\")  # a last backslash continues into nothing
    return _NOTEBOOK.sub("", _PROMPT.sub("", _LONG_DASH.sub("--", plain)))


def repairs(text: str) -> tuple[str, ...]:
    """Names of the characters outside comments that a shell would not understand and ``clean`` replaced."""
    code = _COMMENT_LINE.sub("", text)
    found = [name for char, (_, name) in _TYPOGRAPHY.items() if char in code]
    if _LONG_DASH.search(code):
        found.append("a long dash instead of two hyphens")
    return tuple(dict.fromkeys(found))


def uncommented(text: str) -> str:
    """The text with the hashes taken off commented-out lines."""
    return _COMMENT.sub("", text)


def excerpts(text: str) -> list[str]:
    """Code blocks and inline code of a markdown text."""
    return [found[1] for found in _FENCE.finditer(text)] + [found[1] for found in _INLINE.finditer(text)]
