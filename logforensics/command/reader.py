"""From a pasted text, in whatever form, to a launch command. Nothing is ever executed."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from logforensics.command.arguments import read_flags
from logforensics.command.clean import clean, excerpts, repairs, uncommented
from logforensics.command.launch import LAUNCH_INSIDE, env_of_words, inner_scripts, launch_end, launching, merged, place_of_words
from logforensics.command.manifests import read_manifest
from logforensics.command.model import Invocation, LaunchCommand, Place, assignment, steers_a_run
from logforensics.command.python import read_python
from logforensics.command.shell import read_shell
from logforensics.command.slurm import allocation
from logforensics.command.units import read_dockerfile, read_unit
from logforensics.errors import CommandError
from logforensics.sglang.flags import nearest_release

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_CHARS = 1_000_000
_MAX_EXCERPT = 20_000  # characters read from the line of a launch on, where the whole text makes no sense
_MAX_DEPTH = 5  # bash -c "ssh host '…'" and the like


def read_command(text: str, release: str | None = None) -> LaunchCommand:
    """Read the first SGLang launch in a pasted text.

    Understood are shell lines and scripts (prompts, comments, variables, arrays, arithmetic, branches, ``bash -c``, docker, srun and
    other wrappers), Kubernetes, Compose, Helm and recipe YAML, systemd units, Dockerfiles, and Python that builds an Engine or a
    command line. Flags are resolved for ``release``; where it is None or unreadable for the release of the container image, or else
    for the release that the flags suggest.

    Raises:
        CommandError: there is no SGLang launch in the text, or it is longer than any launch command.
    """
    if len(text) > MAX_CHARS:
        raise CommandError(f"a launch command of {len(text):,} characters cannot be: give the command, not a log (at most {MAX_CHARS:,})")
    plain = clean(text)
    found = _find(plain)
    if found is None:
        shown = " ".join(text.split())[:80]
        raise CommandError(
            f"no SGLang launch in {shown!r}: expected `python -m sglang.launch_server --model-path …` or `sglang serve --model-path …`"
        )
    own, words = _own_assignments(found.words)
    end = launch_end(words) or 0
    program = tuple(words[:end])
    env = env_of_words(program, {**found.env, **own})
    place = merged(merged(allocation(plain), found.place or Place()), place_of_words(program))
    bare = LaunchCommand(program, env={n: v for n, v in env.items() if steers_a_run(n)}, repairs=repairs(text), place=place)
    return read_flags(bare, words[end:], nearest_release(release or "") or bare.image_release)


def _find(text: str) -> Invocation | None:
    """The launch in a text: by its form, then in code blocks of a page, at last among commented-out lines."""
    for candidate in (text, *excerpts(text)):
        found = _in_document(candidate)
        if found is not None:
            return found
    return _in_document(uncommented(text)) or _from_launch_line(text)


def _from_launch_line(text: str) -> Invocation | None:
    """The launch read from the first lines that speak of one, where what stands before them is too much or no shell at all."""
    for mention in islice(LAUNCH_INSIDE.finditer(text), 3):
        begin = text.rfind("\n", 0, mention.start()) + 1
        found = _from_shell(text[begin : begin + _MAX_EXCERPT])
        if found is not None:
            return found
    return None


def _in_document(text: str) -> Invocation | None:
    for read in (_from_unit, _from_manifest, _from_python, _from_dockerfile, _from_shell):
        found = read(text)
        if found is not None:
            return found
    return None


def _from_unit(text: str) -> Invocation | None:
    return _first(read_unit(text)) if text.lstrip().startswith(("[", "#", ";")) else None


def _from_manifest(text: str) -> Invocation | None:
    return _first(read_manifest(text))


def _from_python(text: str) -> Invocation | None:
    return _first(read_python(text))


def _from_dockerfile(text: str) -> Invocation | None:
    return _first(read_dockerfile(text))


def _from_shell(text: str, env: Mapping[str, str] | None = None, depth: int = 0) -> Invocation | None:
    for take_unknown in (True, False):
        reading = read_shell(text, env, take_unknown=take_unknown)
        found = _first(reading.invocations, depth) or _in_files(reading.files, depth)
        if found is not None:
            return found
    return None


def _first(invocations: Iterable[Invocation], depth: int = 0) -> Invocation | None:
    """The first launch among the commands, or in a script that is a word of one of them."""
    commands = list(invocations)
    for command in commands:
        if launching([command]):
            return command
        for script in inner_scripts(command) if depth < _MAX_DEPTH else ():
            inner = _from_shell(script.words[0], script.env, depth + 1)
            if inner is not None:
                return replace(inner, env={**script.env, **inner.env}, place=merged(command.place or script.place, inner.place or Place()))
    return None


def _in_files(files: Mapping[str, str], depth: int) -> Invocation | None:
    """The launch in a file that a here-document writes: a unit, a manifest, a script."""
    if depth >= _MAX_DEPTH:
        return None
    for body in files.values():
        if LAUNCH_INSIDE.search(body):
            found = _first(read_unit(body, files)) or _from_manifest(body) or _from_python(body) or _from_shell(body, depth=depth + 1)
            if found is not None:
                return found
    return None


def _own_assignments(words: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Leading ``NAME=value`` words, and the words after them."""
    rest = list(words)
    own: dict[str, str] = {}
    while rest and (pair := assignment(rest[0])):
        own[pair[0]] = pair[1]
        rest.pop(0)
    return own, rest
