"""Which of a text's commands starts a server, and where its own flags begin."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from logforensics import lazy_re
from logforensics.command.model import Invocation, Place, assignment
from logforensics.errors import SizeError
from logforensics.units import GIB, parse_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_MODULES = frozenset(
    {"sglang.launch_server", "sglang.srt.server", "sglang_router.launch_server", "dynamo.sglang", "sglang.launch_server_http"}
)
_SCRIPT = lazy_re.compile(r"(?:^|.*/)sglang/(?:srt/server|launch_server)\.py|(?:.*/)?launch_server\.py")
LAUNCH_INSIDE = lazy_re.compile(r"sglang\.launch_server|sglang\.srt\.server|sglang\s+serve\b|dynamo\.sglang|sglang/launch_server\.py")
_MEMORY_OPTIONS = frozenset({"--memory", "-m", "--mem"})
_CONTAINER_RUNNERS = frozenset({"docker", "podman", "nerdctl"})
_DEVICES = lazy_re.compile(r"device=([\w,-]+)")
_BINARY = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": GIB, "t": 1 << 40}


def launch_end(words: Sequence[str]) -> int | None:
    """How many words lead up to the server's own flags; None where the words start no server."""
    for position, word in enumerate(words):
        following = words[position + 1] if position + 1 < len(words) else ""
        if word == "-m" and following in _MODULES:
            return position + 2
        if (word == "sglang" or word.endswith("/sglang")) and following == "serve":
            return position + 2
        if _SCRIPT.fullmatch(word):
            # a process manager keeps its own options before the double dash
            return list(words).index("--", position) + 1 if "--" in words[position:] else position + 1
    return None


def launching(invocations: Iterable[Invocation]) -> Invocation | None:
    """The first invocation that starts a server itself."""
    return next((item for item in invocations if launch_end(item.words)), None)


def inner_scripts(invocation: Invocation) -> list[Invocation]:
    """Words that are scripts themselves and hold a launch (``bash -c "…"``), each with the environment it would see."""
    env = env_of_words(invocation.words, invocation.env)
    return [Invocation((word,), env, place_of_words(invocation.words)) for word in invocation.words if LAUNCH_INSIDE.search(word)]


def env_of_words(program: Sequence[str], outer: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables a program gets: those of ``outer``, and those a wrapper sets (``env NAME=value``, ``docker run -e NAME=value``).

    A container gets nothing of the outer environment but what ``-e NAME`` passes on.
    """
    around = dict(outer or {})
    exported = [pair for word in program if word.startswith("--export=") for pair in word.removeprefix("--export=").split(",")]  # srun
    found = (assignment(re.sub(r"^(?:--env=|-e(?=[A-Za-z_]\w*=))", "", word)) for word in (*program, *exported))
    own = dict(item for item in found if item)
    if not runs_container(program):
        return {**around, **own}
    passed = [value for option, value in _options(program) if option in ("-e", "--env") and value in around]
    return {**{name: around[name] for name in passed}, **own}


def runs_container(program: Sequence[str]) -> bool:
    """Whether the words run a container."""
    return any(word.rpartition("/")[2] in _CONTAINER_RUNNERS for word in program)


def place_of_words(program: Sequence[str]) -> Place:
    """What a container runner or a batch scheduler is told about the machine."""
    container = runs_container(program)
    image = next((word for word in program if container and re.fullmatch(r"[\w./-]+(?::[\w.-]+)?", word) and "sglang" in word), None)
    return Place(
        image=image, gpus=_docker_gpus(program) if container else None, memory_bytes=_docker_memory(program) if container else None
    )


def merged(first: Place | None, second: Place) -> Place:
    """Two places: what the nearer one says counts."""
    if first is None:
        return second
    return replace(
        first,
        image=second.image or first.image,
        gpus=first.gpus if second.gpus is None else second.gpus,
        memory_bytes=first.memory_bytes if second.memory_bytes is None else second.memory_bytes,
        nodes=second.nodes or first.nodes,
    )


def binary_size(text: str) -> int | None:
    """Bytes of a limit as container runners and schedulers read it: ``64g``, ``512Gi``, ``96G`` (both GiB); None where it is no size."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgtb])?\s*", text, re.IGNORECASE)
    if found:
        return int(float(found[1]) * _BINARY[(found[2] or "b").lower()])
    try:
        return parse_size(text.strip() + ("B" if text.strip().endswith("i") else ""))
    except SizeError:
        return None


def _docker_gpus(program: Sequence[str]) -> int | None:
    for word, value in _options(program):
        if word == "--gpus":
            devices = _DEVICES.search(value)
            if devices:
                return len(devices[1].split(","))
            return int(value) if value.isdigit() and int(value) < 1000 else None
    return None


def _docker_memory(program: Sequence[str]) -> int | None:
    return next((size for word, value in _options(program) if word in _MEMORY_OPTIONS and (size := binary_size(value))), None)


def _options(program: Sequence[str]) -> list[tuple[str, str]]:
    """Each option with its value, in both forms, up to the image."""
    pairs = []
    for position, word in enumerate(program):
        name, equals, value = word.partition("=")
        if name.startswith("-"):
            pairs.append((name, value if equals else program[position + 1] if position + 1 < len(program) else ""))
    return pairs
