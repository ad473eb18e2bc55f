"""Line-based files that start a server: systemd units (also supervisor sections) and Dockerfiles."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

from logforensics import lazy_re
from logforensics.command.model import Invocation, Place, assignment
from logforensics.command.shell import read_shell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_UNIT = lazy_re.compile(r"^[ \t]*\[(?:Unit|Service|Install|program:[^\]\n]*)\][ \t]*$|^[ \t]*(?:ExecStart|command)[ \t]*=", re.MULTILINE)
_CONTINUED = lazy_re.compile(r"\\\n[ \t]*")
_EXEC_MARKS = "-@:+!|"
_VARIABLE = lazy_re.compile(r"\$\$|\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)")
_DOCKERFILE = lazy_re.compile(r"^[ \t]*FROM[ \t]+(\S+)", re.MULTILINE | re.IGNORECASE)


def read_unit(text: str, files: Mapping[str, str] | None = None) -> list[Invocation]:
    """The commands of a systemd unit (``ExecStart=``) or supervisor section (``command=``); empty where the text is none.

    ``$NAME`` that is a word of its own is split at blanks and vanishes when it is empty, ``${NAME}`` never, as systemd.service(5) says.

    Args:
        text: the unit.
        files: environment files whose text is known, by path.
    """
    if not _UNIT.search(text):
        return []
    env: dict[str, str] = {}
    found = []
    for key, value in _settings(text):
        if key.lower() == "environment":
            pairs = (assignment(word.rstrip(",")) for word in _split(value.replace(",", " ") if key == "environment" else value))
            env.update(pair for pair in pairs if pair)
        elif key == "EnvironmentFile":
            env.update(_environment_file((files or {}).get(value.lstrip("-"), "")))
        elif key in ("ExecStart", "command"):
            words = tuple(_expanded(value.lstrip(_EXEC_MARKS), env))
            found.append(Invocation(words, dict(env)))
    return found


def read_dockerfile(text: str) -> list[Invocation]:
    """``ENTRYPOINT`` and ``CMD`` of a Dockerfile with its ``ENV``; empty where the text is none."""
    base = _DOCKERFILE.search(text)
    if base is None:
        return []
    env: dict[str, str] = {}
    lines: dict[str, str] = {}
    for line in _CONTINUED.sub(" ", text).splitlines():
        keyword, _, rest = line.strip().partition(" ")
        if keyword.upper() == "ENV":
            pairs = [pair for word in _split(rest) if (pair := assignment(word))]
            name, _, value = rest.strip().partition(" ")
            env.update(pairs or [(name, value)])
        elif keyword.upper() in ("ENTRYPOINT", "CMD"):
            lines[keyword.upper()] = rest.strip()
    words = [word for keyword in ("ENTRYPOINT", "CMD") for word in _exec_or_shell(lines.get(keyword, ""))]
    return [Invocation(tuple(words), env, Place(image=base[1]))] if words else []


def _settings(text: str) -> Iterator[tuple[str, str]]:
    """``Key=value`` lines, continued lines joined, comments left out."""
    for line in _CONTINUED.sub(" ", text).splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith(("#", ";")):
            yield key.strip(), value.strip()


def _environment_file(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and name.isidentifier():
            stripped = value.strip()
            yield name, stripped[1:-1] if len(stripped) > 1 and stripped[0] == stripped[-1] and stripped[0] in "'\"" else stripped


def _expanded(line: str, env: Mapping[str, str]) -> Iterator[str]:
    for word in _split(line):
        alone = re.fullmatch(r"\$([A-Za-z_]\w*)", word)
        if alone and alone[1] in env:
            yield from env[alone[1]].split()
        else:
            yield _VARIABLE.sub(lambda m: "$" if m[0] == "$$" else env.get(m[1] or m[2], f"${m[1] or m[2]}"), word)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is never closed
        return text.split()


def _exec_or_shell(text: str) -> list[str]:
    """The words of ``CMD ["a", "b"]`` or ``CMD a b``."""
    if text.startswith("["):
        try:
            return [str(word) for word in json.loads(text)]
        except (ValueError, RecursionError):
            return []
    invocations = read_shell(text).invocations
    return list(invocations[0].words) if len(invocations) == 1 else [text] if text else []
