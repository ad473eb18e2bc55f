"""Shell arithmetic, ``$(( … ))``: integers, the operators of C, variables by name. Bounded, and never an assignment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logforensics import lazy_re

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TOKEN = lazy_re.compile(r"\s*(?:(0[xX][0-9a-fA-F]+|\d+)|\$?\{?([A-Za-z_]\w*)\}?|(\*\*|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>!~&|^?:()]))")
_LARGEST = 1 << 63
_MAX_DEPTH = 40
_MAX_TOKENS = 400

_BINDING: Mapping[str, int] = {
    "||": 2, "&&": 3, "|": 4, "^": 5, "&": 6, "==": 7, "!=": 7, "<": 8, ">": 8, "<=": 8, ">=": 8, "<<": 9, ">>": 9,
    "+": 10, "-": 10, "*": 11, "/": 11, "%": 11, "**": 12,
}  # fmt: skip

_APPLY: Mapping[str, Callable[[int, int], int]] = {
    "||": lambda a, b: int(bool(a or b)),
    "&&": lambda a, b: int(bool(a and b)),
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "<<": lambda a, b: a << b if 0 <= b < 63 else 0,
    ">>": lambda a, b: a >> b if 0 <= b < 63 else 0,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: a - b * (abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
    "**": lambda a, b: a**b if 0 <= b < 64 and abs(a) < 1 << 32 else 0,
}


class _UnknownError(Exception):
    """The expression has a variable without a value, or is none."""


def evaluate(expression: str, variable: Callable[[str], str | None]) -> int | None:
    """The value of an arithmetic expression; None where it cannot be known.

    Args:
        expression: what stands between the double brackets.
        variable: gives the text of a variable, None where it has none.
    """
    try:
        return _Expression(expression, variable, 0).value()
    except (_UnknownError, ZeroDivisionError, RecursionError):
        return None


class _Expression:
    def __init__(self, text: str, variable: Callable[[str], str | None], depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise _UnknownError
        self.variable = variable
        self.depth = depth
        self.tokens = self._split(text.strip())
        self.at = 0

    def value(self) -> int:
        if not self.tokens:
            return 0
        result = self._ternary(0)
        if self.at != len(self.tokens):
            raise _UnknownError
        return result

    def _split(self, text: str) -> list[str]:
        found: list[str] = []
        at = 0
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None or len(found) > _MAX_TOKENS:
                raise _UnknownError
            found.append(token[1] or token[2] or token[3])
            at = token.end()
        return found

    def _peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def _take(self, expected: str = "") -> str:
        token = self._peek()
        if not token or (expected and token != expected):
            raise _UnknownError
        self.at += 1
        return token

    def _ternary(self, depth: int) -> int:
        if depth > _MAX_DEPTH:
            raise _UnknownError
        condition = self._binary(0, depth)
        if self._peek() != "?":
            return condition
        self._take("?")
        yes = self._ternary(depth + 1)
        self._take(":")
        no = self._ternary(depth + 1)
        return yes if condition else no

    def _binary(self, least: int, depth: int) -> int:
        left = self._unary(depth)
        while _BINDING.get(self._peek(), 0) > least:
            operator = self._take()
            right = self._binary(_BINDING[operator] - (operator == "**"), depth + 1)
            left = _APPLY[operator](left, right)
            if abs(left) >= _LARGEST:
                raise _UnknownError
        return left

    def _unary(self, depth: int) -> int:
        if depth > _MAX_DEPTH:
            raise _UnknownError
        read = self._take()
        if read in ("-", "+", "!", "~"):
            inner = self._unary(depth + 1)
            return {"-": -inner, "+": inner, "!": int(not inner), "~": ~inner}[read]
        if read == "(":
            inner = self._ternary(depth + 1)
            self._take(")")
            return inner
        return self._operand(read)

    def _operand(self, token: str) -> int:
        if token[0].isdigit():
            octal = token.isdigit() and len(token) > 1 and token[0] == "0"
            try:
                return int(token, 8 if octal else 0)
            except ValueError:
                raise _UnknownError from None
        text = self.variable(token) if token[0].isalpha() or token[0] == "_" else None
        if text is None:
            raise _UnknownError
        return _Expression(text, self.variable, self.depth + 1).value()
