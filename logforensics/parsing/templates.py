"""The messages a Python package can log, read from its source with :mod:`ast`; nothing of it is imported or run.

A message is a sequence of literal texts and holes. A text that is put together in a variable (``msg = f"…"``, then ``msg += f"…"``) is followed
through its function, every addition taken as if its condition held.
"""

from __future__ import annotations

import ast
import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from logforensics import lazy_re
from logforensics.errors import InputError
from logforensics.records import record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_LEVELS = frozenset({"debug", "info", "warning", "error", "critical", "exception", "warning_once", "info_once", "warn"})
_MAX_DEPTH = 12
_PERCENT = lazy_re.compile(r"%(?P<spec>[-+ #0]*\d*(?:\.\d+)?[diufgsrxe])|%%")
# what some values look like that are no plain numbers, by the name of the variable
_EXAMPLES = {
    "capture_bs": "[1, 2, 4]",
    "capture_name": "decode CUDA graph",
    "graph_name": "decode CUDA graph",
    "pool_name": "kv",
    "model_path": "/models/x",
    "label": "kv",
}


@record(frozen=True)
class Hole:
    """A value that the message prints: its format specification, and the name it comes from."""

    spec: str
    name: str

    def example(self) -> str:
        """A value as this hole would print it."""
        if self.spec.endswith("f"):
            decimals = int("".join(char for char in self.spec.split(".")[-1] if char.isdigit()) or 6)
            return f"{12.345678:.{decimals}f}"
        return _EXAMPLES.get(self.name.rpartition(".")[2], "7")


@record(frozen=True)
class Template:
    """One message and the place that logs it."""

    parts: tuple[str | Hole, ...]
    where: str
    line: int

    @property
    def shape(self) -> str:
        """The literal text, with a brace pair for each hole: what is compared between releases."""
        return "".join(part if isinstance(part, str) else f"{{{':' + part.spec if part.spec else ''}}}" for part in self.parts)

    def example(self) -> str:
        """A message as it may be printed."""
        return "".join(part if isinstance(part, str) else part.example() for part in self.parts)


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
            if message is not None and (parts := texts.parts(message)):
                if _is_formatted(node):
                    parts = [part for text in parts for part in (_of_percent(text) if isinstance(text, str) else [text])]
                yield Template(tuple(_merged(parts)), name, node.lineno)


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


class _Texts:
    """What is known of the texts in one function."""

    def __init__(self, scope: ast.AST) -> None:
        self._said: dict[str, list[ast.expr]] = {}
        assignments = [node for node in ast.walk(scope) if isinstance(node, (ast.Assign, ast.AugAssign))]
        for node in sorted(assignments, key=lambda node: node.lineno):
            target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
            if isinstance(target, ast.Name):
                self._said.setdefault(target.id, []).append(node.value)

    def parts(self, node: ast.expr, depth: int = 0) -> list[str | Hole]:
        """The parts of a text expression; a single hole where it cannot be followed."""
        if isinstance(node, ast.Constant):
            return [str(node.value)] if isinstance(node.value, str) else [Hole("", "")]
        if isinstance(node, ast.JoinedStr):
            return [part for value in node.values for part in self._of_fstring(value, depth)]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return [*self.parts(node.left, depth), *self.parts(node.right, depth)]
        if isinstance(node, ast.IfExp):
            return self.parts(node.body, depth)
        if isinstance(node, ast.Name) and depth < _MAX_DEPTH and self._is_text(node.id):
            return [part for value in self._said[node.id] for part in self.parts(value, depth + 1)]
        return [Hole("", ast.unparse(node)[:80])]

    def _of_fstring(self, value: ast.expr, depth: int) -> list[str | Hole]:
        if not isinstance(value, ast.FormattedValue):
            return self.parts(value, depth)
        given = value.format_spec.values if isinstance(value.format_spec, ast.JoinedStr) else []
        spec = "".join(str(part.value) for part in given if isinstance(part, ast.Constant))
        if not spec and isinstance(value.value, ast.Name) and depth < _MAX_DEPTH and self._is_text(value.value.id):
            return self.parts(value.value, depth + 1)
        return [Hole(spec, ast.unparse(value.value)[:80])]

    def _is_text(self, name: str) -> bool:
        return any(
            isinstance(value, (ast.JoinedStr, ast.Constant)) and not isinstance(getattr(value, "value", ""), (int, float))
            for value in self._said.get(name, [])
        )


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
