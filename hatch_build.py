"""Build hook: an editable install compiles the package, as pip does for any other install.

Where Python may not write bytecode (PYTHONDONTWRITEBYTECODE, a read-only checkout), every command would compile a hundred modules again: more
than half of the time that a small log takes.
"""

from __future__ import annotations

import compileall
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileEditable(BuildHookInterface):  # type: ignore[misc]
    """Named in pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - the hook's interface
        """Called before each build; ``version`` is the kind of wheel."""
        if version == "editable":
            compileall.compile_dir(Path(self.root) / "logforensics", quiet=2)
