"""The ``server_args=`` line: ``ServerArgs(model_path='…', …)`` to 0.5.18, a dict repr from 0.5.19.

A small reader of Python reprs, since values may hold nested objects, quotes and brackets: literals become Python values,
``Name(a=1)`` becomes ``{"a": 1}``, an enum ``<A.B: 'x'>`` becomes its value, and whatever else stays as the text it was.
Nothing is evaluated.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from logforensics import lazy_re

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEAD = lazy_re.compile(r"server_args=(?:ServerArgs\(|(?P<dict>\{))")
_NAME = lazy_re.compile(r"[A-Za-z_][\w.]*")
_NUMBER = lazy_re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|inf|nan)")
_STRING = lazy_re.compile(r"[bru]?'(?:[^'\\]|\\.)*'|[bru]?\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_ENUM = lazy_re.compile(r"<(?P<name>[\w.]+): (?P<value>'[^']*'|\"[^\"]*\"|-?\d+)>")
_QUOTES = ("'", '"')
_LONGEST_INTEGER = 19
_CLOSERS = {"(": ")", "[": "]", "{": "}", "<": ">"}
_WORDS = {"None": None, "True": True, "False": False, "null": None, "true": True, "false": False}
_MAX_DEPTH = 40


class _Cut(Exception):  # noqa: N818 - the text ended inside a value
    pass


def read_server_args(text: str) -> tuple[Mapping[str, Any], bool] | None:
    """Fields of the ``server_args=`` record in ``text`` and whether it was whole; None where there is no such record."""
    head = _HEAD.search(text)
    return None if head is None else _read(text[head.start() :])


@lru_cache(maxsize=2)
def _read(text: str) -> tuple[Mapping[str, Any], bool]:
    """The record at the beginning of ``text``; each is asked for twice, whether it is whole and what it says."""
    head = _HEAD.match(text)
    assert head is not None  # noqa: S101 - the caller has found it there
    reader = _Reader(text, head.end())
    fields: dict[str, Any] = {}
    try:
        if head["dict"]:
            reader.mapping_into(fields)
        else:
            reader.arguments_into(fields)
    except (_Cut, RecursionError):
        return fields, False
    return fields, True


def is_nameless(name: str) -> bool:
    """Whether a field was given without a name: in a record of SGLang's, a sign that its text is damaged."""
    return name[:1] == "_" and name[1:].isdigit()


class _Reader:
    """A cursor over a repr."""

    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at
        self.depth = 0
        self._open: set[str] = set()

    def arguments_into(self, out: dict[str, Any]) -> None:
        """``a=1, b='x')``: keyword arguments up to the closing bracket, each stored as soon as it is whole."""
        while not self._closes(")"):
            name = _NAME.match(self.text, self.at)
            if name is None or self.text[name.end() : name.end() + 1] != "=":
                key, value = f"_{len(out)}", self._value()
            else:
                self.at = name.end() + 1
                key, value = name[0], self._value()
            out[key] = value

    def mapping_into(self, out: dict[str, Any]) -> None:
        """``'a': 1, 'b': 'x'}``: items up to the closing brace, each stored as soon as it is whole."""
        while not self._closes("}"):
            key = self._value()
            self._space()
            if self.text[self.at : self.at + 1] != ":":
                out[str(key)] = None
                continue
            self.at += 1
            out[str(key)] = self._value()

    def _closes(self, bracket: str) -> bool:
        while self.at < len(self.text) and self.text[self.at] in " ,":
            self.at += 1
        if self.at >= len(self.text):
            raise _Cut
        if self.text[self.at] == bracket:
            self.at += 1
            return True
        return False

    def _space(self) -> None:
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1

    def _value(self) -> Any:
        self._space()
        if self.at >= len(self.text) or self.depth > _MAX_DEPTH:
            raise _Cut
        self.depth += 1
        try:
            return self._nested()
        finally:
            self.depth -= 1

    def _nested(self) -> Any:
        begin = self.text[self.at]
        if (string := self._string()) is not None:
            self.at = string.end()
            return _literal(string[0])
        if begin in "'\"":
            raise _Cut
        if begin in "[(":
            self.at += 1
            return self._items(_CLOSERS[begin])
        if begin == "{":
            self.at += 1
            out: dict[str, Any] = {}
            self.mapping_into(out)
            return out
        if (enum := _ENUM.match(self.text, self.at)) is not None:
            self.at = enum.end()
            return _literal(enum["value"])
        return self._word()

    def _items(self, closer: str) -> list[Any]:
        items: list[Any] = []
        while not self._closes(closer):
            items.append(self._value())
        return items

    def _word(self) -> Any:
        number = _NUMBER.match(self.text, self.at)
        name = _NAME.match(self.text, self.at)
        if number and not (name and name.end() > number.end()):
            after = self.text[number.end() : number.end() + 1]
            if not after:
                raise _Cut
            if after in ",)]} ":
                self.at = number.end()
                return _literal(number[0])
        if name:
            after = self.text[name.end() : name.end() + 1]
            if not after:
                raise _Cut
            if after == "(":
                self.at = name.end() + 1
                out: dict[str, Any] = {}
                self.arguments_into(out)
                return out
            if after in ",)]}: ":
                self.at = name.end()
                return _WORDS.get(name[0], name[0])
        return self._opaque()

    def _opaque(self) -> str:
        """Anything else, as text, up to the comma or bracket that ends it at this level."""
        begin = self.at
        open_brackets: list[str] = []
        while self.at < len(self.text):
            if (string := self._string()) is not None:
                self.at = string.end()
                continue
            char = self.text[self.at]
            if open_brackets and char == open_brackets[-1]:
                open_brackets.pop()
            elif char in _CLOSERS:
                open_brackets.append(_CLOSERS[char])
            elif not open_brackets and char in ",)]}":
                if self.at == begin:
                    raise _Cut  # a bracket nobody opened: the line is damaged, and standing still would never end
                return self.text[begin : self.at]
            self.at += 1
        raise _Cut

    def _string(self) -> re.Match[str] | None:
        """The string that begins here. Where one is never closed, no later one with the same quote is: it is not looked for again."""
        quote = self.text[self.at : self.at + 2].lstrip("bru")[:1]
        if quote not in _QUOTES or quote in self._open:
            return None
        if (found := _STRING.match(self.text, self.at)) is None:
            self._open.add(quote)
        return found


def _literal(text: str) -> Any:
    if text.isdecimal() and text.isascii() and len(text) < _LONGEST_INTEGER and (text[0] != "0" or text == "0"):
        return int(text)
    if text[0] in _QUOTES and "\\" not in text and text.isprintable():
        return text[1:-1]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return float(text) if text.lstrip("+-") in ("inf", "nan") else text.strip("'\"")
