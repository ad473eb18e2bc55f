"""Expressions that are compiled late: every one can be compiled, and none is before it is needed."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import logforensics
from logforensics import lazy_re


def _everything() -> Iterator[object]:
    for found in pkgutil.walk_packages(logforensics.__path__, "logforensics."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    import gc  # what modules, tables and records hold

    return (item for item in gc.get_objects() if isinstance(item, lazy_re.LazyPattern))


def test_every_expression_compiles() -> None:
    expressions = list(_everything())
    assert len(expressions) > 100
    for expression in expressions:
        assert getattr(expression, "groups") >= 0, expression  # noqa: B009 - it is no attribute yet


def test_as_re_compile() -> None:
    late, now = lazy_re.compile(r"(?P<a>x)(y)?", re.IGNORECASE), re.compile(r"(?P<a>x)(y)?", re.IGNORECASE)
    assert (late.pattern, late.flags, late.groups, late.groupindex) == (now.pattern, now.flags, now.groups, now.groupindex)
    for text in ("", "X", "aXYx"):
        for method in ("search", "match", "fullmatch"):
            ours, theirs = getattr(late, method)(text), getattr(now, method)(text)
            assert (ours and (ours.span(), ours.groups())) == (theirs and (theirs.span(), theirs.groups()))
        assert (late.findall(text), late.split(text), late.sub("-", text)) == (now.findall(text), now.split(text), now.sub("-", text))
    assert lazy_re.compile(rb"\n").search(b"a\n") is not None
    with pytest.raises(re.error):
        lazy_re.compile("(").search("")


def test_importing_the_rules_compiles_no_expression() -> None:
    code = (
        "import re, polars, shlex, textwrap, tomllib, typer; made = []; compiler = re._compiler.compile\n"
        "def count(*a): made.append(a); return compiler(*a)\n"
        "re._compiler.compile = count\n"
        "import logforensics.engine, logforensics.rules; logforensics.rules.all_rules(); print(made)"
    )
    if sys.version_info < (3, 11):
        pytest.skip("re has no _compiler before 3.11")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
