"""The messages a Python package can log, read from its source with :mod:`ast`; nothing of it is imported or run.

A message is a sequence of literal texts and holes. A text that is put together in a variable (``msg = f"…"``, then ``msg += f"…"``) is followed
through its function, every addition taken as if its condition held; where a condition chooses between texts, each is a message.
"""

from __future__ import annotations

import ast
import warnings
import zipfile
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING

from logforensics import lazy_re
from logforensics.errors import InputError
from logforensics.records import record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_LEVELS = frozenset({"debug", "info", "warning", "error", "critical", "exception", "warning_once", "info_once", "warn"})
_MAX_DEPTH = 12
_MOST = 24  # messages that one statement may give
_PERCENT = lazy_re.compile(r"%(?P<spec>[-+ #0]*\d*(?:\.\d+)?[diufgsrxe])|%%")
# what some values look like that are no plain numbers, by the name of the variable
_EXAMPLES = {
    "capture_bs": "[1, 2, 4]",
    "capture_name": "decode CUDA graph",
    "graph_name": "decode CUDA graph",
    "pool_name": "kv",
    "model_path": "/models/x",
    "label": "kv",
    "graph_backend": "CUDA graph",
    "obj": "GenerateReqInput(rid='r1')",
    "out": "{'text': 'x'}",
}
_CALLED = lazy_re.compile(r"[\w.]+\((\w+)[,)]")


@record(frozen=True)
class Hole:
    """A value that the message prints: its format specification, and the name it comes from."""

    spec: str
    name: str

    @property
    def is_figure(self) -> bool:
        """Whether it is printed as a number: what a frame's columns are for."""
        return self.spec.endswith(("f", "d"))

    def example(self, number: int = 12) -> str:
        """A value as this hole would print it; ``number`` tells the figures of one message apart."""
        if self.spec.endswith("f"):
            decimals = int("".join(char for char in self.spec.split(".")[-1] if char.isdigit()) or 6)
            return f"{number + 0.345678:.{decimals}f}"
        if self.spec.endswith("d"):
            return str(number)
        called = _CALLED.match(self.name)  # a value that a function cuts for the log
        name = (called[1] if called else self.name).partition("[")[0]
        return _EXAMPLES.get(name.rpartition(".")[2], "7")


_Parts = list["str | Hole"]


@record(frozen=True)
class Template:
    """One message and the place that logs it."""

    parts: tuple[str | Hole, ...]
    where: str
    line: int
    raised: bool = False  # the text of an exception, which a log shows at the end of a traceback

    @property
    def shape(self) -> str:
        """The literal text, with a brace pair for each hole: what is compared between releases."""
        return "".join(part if isinstance(part, str) else f"{{{':' + part.spec if part.spec else ''}}}" for part in self.parts)

    def example(self) -> str:
        """A message as it may be printed, each hole with a figure of its own."""
        return "".join(self.values())

    def figures(self) -> dict[str, str]:
        """The figures of the example by the label before each: its last words."""
        values, found, before = self.values(), {}, ""
        for part, value in zip(self.parts, values, strict=True):
            if isinstance(part, Hole) and part.is_figure:
                found[before.rsplit(",", 1)[-1].strip()[-40:] or part.name] = value
            before = value
        return found

    def values(self) -> list[str]:
        """The parts of the example."""
        return [part if isinstance(part, str) else part.example(12 + place) for place, part in enumerate(self.parts)]


def read_templates(package: Path, fragments: Collection[str] = ()) -> list[Template]:
    """The messages of the serving code in a wheel, or in a folder that holds the package ``sglang``.

    Args:
        package: the wheel or folder.
        fragments: only files in which one of these texts stands are looked at; all files if there are none.

    Raises:
        InputError: the path is neither, or holds no SGLang.
    """
    found: list[Template] = []
    wanted = [fragment.encode() for fragment in fragments]
    files = 0
    for name, source in _sources(package):
        files += 1
        if wanted and not any(fragment in source for fragment in wanted):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the compiler thinks of their escapes is not our business
            try:
                tree = ast.parse(source)
            except SyntaxError:
                continue  # one file of 0.4.5 to 0.5.19 is no Python
        found += _of_module(tree, name)
    if not files:
        raise InputError(f"{package}: holds no sglang/srt: give a wheel of SGLang or the folder it was unpacked to")
    return found


def _sources(package: Path) -> Iterator[tuple[str, bytes]]:
    if package.is_dir():
        for path in sorted(package.rglob("*.py")):
            name = path.relative_to(package).as_posix()
            if "sglang/srt/" in f"/{name}":
                yield name, path.read_bytes()
        return
    try:
        with zipfile.ZipFile(package) as wheel:
            for name in sorted(wheel.namelist()):
                if name.endswith(".py") and "sglang/srt/" in name:
                    yield name, wheel.read(name)
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(f"{package}: is no wheel and no folder: {error}") from error


def _of_module(tree: ast.Module, name: str) -> Iterator[Template]:
    scopes = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for scope in (tree, *scopes):
        texts = _Texts(scope)
        for node in _own_nodes(scope):
            message = _message_of(node)
            for parts in texts.alternatives(message) if message is not None else []:
                filled = [part for text in parts for part in (_of_percent(text) if isinstance(text, str) else [text])]
                yield Template(tuple(_merged(filled if _is_formatted(node) else parts)), name, node.lineno, isinstance(node, ast.Raise))


def _own_nodes(scope: ast.AST) -> Iterator[ast.Call | ast.Raise]:
    """Calls and raises of a scope, without those of the functions defined in it, which are scopes of their own."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, (ast.Call, ast.Raise)):
            yield node
        waiting += ast.iter_child_nodes(node)


def _message_of(node: ast.Call | ast.Raise) -> ast.expr | None:
    """The expression that is logged, printed or raised, if this node does one of these."""
    if isinstance(node, ast.Raise):
        raised = node.exc
        return raised.args[0] if isinstance(raised, ast.Call) and raised.args else None
    if not node.args:
        return None
    called = node.func
    if isinstance(called, ast.Attribute) and called.attr in _LEVELS:
        return node.args[0]
    name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    if "rank0" in name or "log_once" in name:  # log_info_on_rank0(logger, message)
        return node.args[-1]
    return node.args[0] if name == "print" else None


@record(frozen=True)
class _Said:
    """One text that a variable gets, with what is added to it; ``column`` is the indentation of the assignment."""

    column: int
    values: list[ast.expr]


class _Texts:
    """What is known of the texts in one function."""

    def __init__(self, scope: ast.AST) -> None:
        self._said: dict[str, list[_Said]] = {}
        assignments = [node for node in ast.walk(scope) if isinstance(node, (ast.Assign, ast.AugAssign))]
        for node in sorted(assignments, key=lambda node: node.lineno):
            target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
            if isinstance(target, ast.Name):
                self._learn(target.id, node)

    def _learn(self, name: str, node: ast.Assign | ast.AugAssign) -> None:
        """An assignment begins another text; an addition belongs to the latest one, and to those of deeper branches before it."""
        said = self._said.setdefault(name, [])
        if isinstance(node, ast.Assign) or not said:
            said.append(_Said(node.col_offset, [node.value]))
            return
        for text in said:
            if text is said[-1] or text.column > node.col_offset:
                text.values.append(node.value)

    def alternatives(self, node: ast.expr, depth: int = 0) -> list[_Parts]:
        """The parts of a text expression, for each way its conditions may go; a single hole where it cannot be followed."""
        if isinstance(node, ast.Constant):
            return [[str(node.value)] if isinstance(node.value, str) else [Hole("", "")]]
        if isinstance(node, ast.JoinedStr):
            return _joined(self._of_fstring(value, depth) for value in node.values)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return _joined(self.alternatives(side, depth) for side in (node.left, node.right))
        if isinstance(node, ast.IfExp):
            return [*self.alternatives(node.body, depth), *self.alternatives(node.orelse, depth)][:_MOST]
        if isinstance(node, ast.Name) and depth < _MAX_DEPTH and self._is_text(node.id):
            said = [_joined(self.alternatives(value, depth + 1) for value in text.values) for text in self._said[node.id]]
            return [parts for texts in said for parts in texts][:_MOST]
        return [[Hole("", ast.unparse(node)[:80])]]

    def _of_fstring(self, value: ast.expr, depth: int) -> list[_Parts]:
        if not isinstance(value, ast.FormattedValue):
            return self.alternatives(value, depth)
        given = value.format_spec.values if isinstance(value.format_spec, ast.JoinedStr) else []
        spec = "".join(str(part.value) for part in given if isinstance(part, ast.Constant))
        inner = value.value
        if not spec and depth < _MAX_DEPTH and (isinstance(inner, ast.IfExp) or (isinstance(inner, ast.Name) and self._is_text(inner.id))):
            return self.alternatives(inner, depth + 1)
        return [[Hole(spec, ast.unparse(inner)[:80])]]

    def _is_text(self, name: str) -> bool:
        return any(
            isinstance(value, (ast.JoinedStr, ast.Constant, ast.IfExp)) and not isinstance(getattr(value, "value", ""), (int, float))
            for text in self._said.get(name, [])
            for value in text.values
        )


def _joined(pieces: Iterable[list[_Parts]]) -> list[_Parts]:
    """One after the other, every choice of each with every choice of the others."""
    return [[part for parts in chosen for part in parts] for chosen in islice(product(*pieces), _MOST)]


def _is_formatted(node: ast.Call | ast.Raise) -> bool:
    """Whether a logging call leaves its values to be filled into ``%d`` and the like."""
    return isinstance(node, ast.Call) and len(node.args) > 1


def _of_percent(text: str) -> Iterator[str | Hole]:
    end = 0
    for found in _PERCENT.finditer(text):
        yield text[end : found.start()]
        yield Hole(found["spec"].replace("d", "").replace("s", ""), "") if found["spec"] else "%"
        end = found.end()
    yield text[end:]


def _merged(parts: list[str | Hole]) -> Iterator[str | Hole]:
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        if text:
            yield text
        text = ""
        yield part
    if text:
        yield text
