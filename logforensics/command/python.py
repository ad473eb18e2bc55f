"""Python that starts a server: ``sgl.Engine(…)``, ``ServerArgs(…)``, or a command line given to subprocess, os.system and their kin.

The text is parsed, never executed. Values that only a run can give stay unknown.
"""

from __future__ import annotations

import ast
import json
import re
from typing import TYPE_CHECKING, Any

from logforensics import lazy_re
from logforensics.command.launch import LAUNCH_INSIDE
from logforensics.command.model import DEFAULT_PROGRAM, Invocation
from logforensics.sglang.flags import find_flag, flag_by_field

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LOOKS_LIKE = lazy_re.compile(
    r"\b(?:Engine|Runtime|ServerArgs|Popen|run|call|check_call|check_output|system|execute_shell_command)\s*\(|^[ \t]*import\s",
    re.MULTILINE,
)
_ENGINES = frozenset({"Engine", "Runtime", "ServerArgs", "VerlEngine", "EngineBase", "AsyncEngine"})
_MAX_CHARS = 200_000
_MAX_DEPTH = 30
_MAX_TEXT = 20_000
_DEEP = lazy_re.compile(r"[\[({]{60}|[-+~(\[{ ]{400}|(?:\bnot\s+){60}|(?:\blambda\b[^:\n]*:){60}")


class Unknown:
    """A value that only a run can give."""

    def __repr__(self) -> str:
        return "a value that only a run can give"


UNKNOWN = Unknown()


def read_python(text: str) -> list[Invocation]:
    """The servers that a piece of Python would start; empty where it is no Python or starts none."""
    if len(text) > _MAX_CHARS or not _LOOKS_LIKE.search(text) or _DEEP.search(text):
        return []
    tree = _parsed(text)
    if tree is None:
        return []
    names, env = _assignments(tree)
    found = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        words = _engine_words(call, names) or _command_words(call, names)
        if words:
            found.append(Invocation(tuple(words), dict(env)))
    return found


def placeholder(spelling: str) -> str:
    """What stands for a flag's value that only a run can give: a variable named as people call the flag, ``$TP`` for ``--tp-size``."""
    flag = find_flag(spelling)
    words = (flag.name if flag else spelling).lstrip("-").split("-")
    short = next((words[:n] for n in range(1, len(words)) if flag and find_flag("--" + "-".join(words[:n])) is flag), words)
    return "$" + "_".join(short).upper()


def _parsed(text: str) -> ast.AST | None:
    import textwrap

    try:
        return ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _assignments(tree: ast.AST) -> tuple[dict[str, Any], dict[str, str]]:
    """Variables whose values the text gives, and the environment it sets (``os.environ["X"] = "1"``)."""
    names: dict[str, Any] = {}
    env: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = node.targets[0]
        if isinstance(target, ast.Name):
            names[target.id] = _value(node.value, names)
        elif isinstance(target, ast.Subscript) and _dotted(target.value).endswith("environ"):
            name, value = _value(target.slice, names), _value(node.value, names)
            if isinstance(name, str) and isinstance(value, str):
                env[name] = value
    return names, env


def _engine_words(call: ast.Call, names: Mapping[str, Any]) -> list[str]:
    """The command line that ``Engine(keyword=value, **more)`` stands for."""
    if _dotted(call.func).rpartition(".")[2] not in _ENGINES:
        return []
    given: dict[str, Any] = {}
    for keyword in call.keywords:
        value = _value(keyword.value, names)
        if keyword.arg is not None:
            given[keyword.arg] = value
        elif isinstance(value, dict):
            given.update({str(name): item for name, item in value.items()})
    if not any(flag_by_field(name) for name in given):
        return []
    return [*DEFAULT_PROGRAM, *(word for name, value in given.items() for word in _flag_words(name, value))]


def _flag_words(field: str, value: Any) -> Iterator[str]:
    """One keyword as command-line words; False and None are absent."""
    flag = flag_by_field(field)
    name = flag.name if flag and flag.name else f"--{field.replace('_', '-')}"
    if value is False or value is None:
        return
    yield name
    if value is True:
        return
    if isinstance(value, (list, tuple)):
        yield from (placeholder(name) if isinstance(item, Unknown) else str(item) for item in value)
    elif isinstance(value, dict):
        yield json.dumps(value, default=str)
    else:
        yield placeholder(name) if isinstance(value, Unknown) else str(value)


def _command_words(call: ast.Call, names: Mapping[str, Any]) -> list[str]:
    """The words of a command line that is an argument of any call: a list of words, or a text with a launch in it."""
    for argument in [*call.args[:2], *(keyword.value for keyword in call.keywords if keyword.arg in ("args", "cmd", "command"))]:
        value = _value(argument, names)
        if isinstance(value, (list, tuple)) and "sglang" in str(value):
            return _named(value)
        if isinstance(value, str) and LAUNCH_INSIDE.search(value):
            return [value]
    return []


def _named(words: list[Any] | tuple[Any, ...]) -> list[str]:
    """Words with placeholders for values that are unknown, named after the flag before them."""
    named: list[str] = []
    for word in words:
        before = named[-1] if named else ""
        named.append((placeholder(before) if before.startswith("--") else "$VALUE") if isinstance(word, Unknown) else str(word))
    return named


def _dotted(node: ast.AST) -> str:
    """``sgl.Engine`` of a name or attribute; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""


def _value(node: ast.AST, names: Mapping[str, Any], depth: int = 0) -> Any:
    """The value of an expression, as far as the text gives it."""
    if depth > _MAX_DEPTH:
        return UNKNOWN
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names.get(node.id, UNKNOWN)
    reader = _READERS.get(type(node))
    return reader(node, names, depth + 1) if reader else UNKNOWN


def _sequence(node: Any, names: Mapping[str, Any], depth: int) -> Any:
    items: list[Any] = []
    for element in node.elts:
        if isinstance(element, ast.Starred):
            inner = _value(element.value, names, depth)
            items += inner if isinstance(inner, (list, tuple)) else []
        else:
            items.append(_value(element, names, depth))
    return items


def _mapping(node: Any, names: Mapping[str, Any], depth: int) -> Any:
    found: dict[Any, Any] = {}
    for key, item in zip(node.keys, node.values, strict=True):
        value = _value(item, names, depth)
        if key is None:
            found.update(value if isinstance(value, dict) else {})
        elif isinstance(name := _value(key, names, depth), (str, int, float, bool)):
            found[name] = value
    return found


def _joined(node: Any, names: Mapping[str, Any], depth: int) -> Any:
    """An f-string; a part that is unknown stands as a variable named after its expression."""
    parts: list[str] = []
    for part in node.values:
        inner = part.value if isinstance(part, ast.FormattedValue) else part
        value = _value(inner, names, depth)
        parts.append(f"${_dotted(inner).rpartition('.')[2] or 'VALUE'}" if isinstance(value, Unknown) else str(value))
    return "".join(parts)[:_MAX_TEXT]


def _call(node: Any, names: Mapping[str, Any], depth: int) -> Any:
    """The few calls whose result the text gives: str, int, float, dict, and the default of an environment variable."""
    name = _dotted(node.func)
    arguments = [_value(argument, names, depth) for argument in node.args]
    if name.endswith(("environ.get", "getenv")) or name == "getenv":
        return arguments[1] if len(arguments) > 1 else UNKNOWN
    if name == "dict":
        known = {keyword.arg: _value(keyword.value, names, depth) for keyword in node.keywords if keyword.arg}
        return {**(arguments[0] if arguments and isinstance(arguments[0], dict) else {}), **known}
    if isinstance(node.func, ast.Attribute) and node.func.attr == "split" and not arguments:
        text = _value(node.func.value, names, depth)
        return text.split() if isinstance(text, str) else UNKNOWN
    if name.endswith("shlex.split") and arguments:
        return arguments[0]
    if name in _CONVERSIONS and len(arguments) == 1 and not isinstance(arguments[0], Unknown):
        try:
            return _CONVERSIONS[name](arguments[0])
        except (TypeError, ValueError, OverflowError):
            return UNKNOWN
    return UNKNOWN


def _operation(node: Any, names: Mapping[str, Any], depth: int) -> Any:
    left, right = _value(node.left, names, depth), _value(node.right, names, depth)
    if isinstance(node.op, ast.Add) and isinstance(left, str) and isinstance(right, str):
        return (left + right)[:_MAX_TEXT]
    if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
        return (left + right)[:_MAX_TEXT]
    if not all(isinstance(side, (int, float)) for side in (left, right)):
        return UNKNOWN
    operator = _ARITHMETIC.get(type(node.op))
    try:
        return operator(left, right) if operator else UNKNOWN
    except (ArithmeticError, ValueError):
        return UNKNOWN


def _choice(node: Any, names: Mapping[str, Any], depth: int) -> Any:
    test = _value(node.test, names, depth)
    return UNKNOWN if isinstance(test, Unknown) else _value(node.body if test else node.orelse, names, depth)


def _negative(node: Any, names: Mapping[str, Any], depth: int) -> Any:
    inner = _value(node.operand, names, depth)
    return -inner if isinstance(node.op, ast.USub) and isinstance(inner, (int, float)) else UNKNOWN


_CONVERSIONS: Mapping[str, Any] = {"str": str, "int": int, "float": float, "bool": bool}
_ARITHMETIC: Mapping[type, Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b if abs(a) < 1 << 40 and abs(b) < 1 << 40 else UNKNOWN,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
}
_READERS: Mapping[type, Any] = {
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Dict: _mapping,
    ast.JoinedStr: _joined,
    ast.Call: _call,
    ast.BinOp: _operation,
    ast.IfExp: _choice,
    ast.UnaryOp: _negative,
}
