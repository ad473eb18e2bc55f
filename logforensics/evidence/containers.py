"""``docker inspect`` and ``kubectl describe pod``: limits, exit codes, OOMKilled."""

from __future__ import annotations

import re
from collections.abc import Iterator

from logforensics import lazy_re
from logforensics.evidence.facts import ContainerEnd, Fact, PackageVersion, Size
from logforensics.evidence.quantity import quantity_bytes

# ---------------------------------------------------------------------------------------------------------------- docker inspect

_DOCKER_FIELD = lazy_re.compile(r'^\s*"(?P<key>Memory|ShmSize|OOMKilled|ExitCode|Image)": (?P<value>\S(?:.*[^\s,])?),?\s*$')
_DOCKER_SIZES = {"Memory": "memory_limit", "ShmSize": "shm_total"}


def is_docker_inspect(text: str) -> bool:
    """``docker inspect CONTAINER``."""
    return text.lstrip().startswith("[") and '"State": {' in text and '"HostConfig": {' in text


def read_docker_inspect(text: str) -> tuple[Fact, ...]:
    """Memory limit, shared memory, and how the container ended. It is read line by line, so that each fact has its line."""
    return tuple(_docker_facts(text.split("\n")))


def _docker_facts(lines: list[str]) -> Iterator[Fact]:
    running = any(re.match(r'\s*"Running": true', line) for line in lines)
    for number, line in enumerate(lines, 1):
        field = _DOCKER_FIELD.match(line)
        if field is None:
            continue
        key, value = field["key"], field["value"]
        if key in _DOCKER_SIZES and value.isdigit() and 0 < int(value) < 1 << 60:
            yield Size(number, _DOCKER_SIZES[key], int(value), f'"{key}": {value}')
        elif key == "OOMKilled" and value == "true":
            yield ContainerEnd(number, None, oom_killed=True, record=line.strip())
        elif key == "ExitCode" and value.isdigit() and not running:
            yield ContainerEnd(number, int(value), oom_killed=False, record=line.strip())
        elif key == "Image" and (version := _image_version(value)):
            yield PackageVersion(number, "sglang", version)


def _image_version(value: str) -> str | None:
    """The release in an image's tag (``lmsysorg/sglang:v0.5.8-cu129``)."""
    found = re.search(r"sglang[\w./-]{0,60}:v?(\d+\.\d+\.\d+(?:\.post\d+)?)(?![\d.])", value)
    return found[1] if found else None


# ---------------------------------------------------------------------------------------------------------------- kubectl describe pod

_KUBE_FIELD = lazy_re.compile(r"^(?P<indent>\s*)(?P<key>[\w./ -]{1,60}?):\s*(?P<value>(?:\S(?:.{0,298}\S)?)?)\s*$")


def is_kubectl_describe(text: str) -> bool:
    """``kubectl describe pod NAME``."""
    return re.search(r"^Name:\s+\S", text, re.MULTILINE) is not None and re.search(r"^Containers:\s*$", text, re.MULTILINE) is not None


def read_kubectl_describe(text: str) -> tuple[Fact, ...]:
    """Memory limits and how containers ended."""
    return tuple(_kube_facts(text.split("\n")))


def _kube_facts(lines: list[str]) -> Iterator[Fact]:
    section, depth = "", 0
    for number, line in enumerate(lines, 1):
        field = _KUBE_FIELD.match(line)
        if field is None:
            continue
        key, value, indent = field["key"].strip(), field["value"], len(field["indent"])
        if key in ("Limits", "Requests") and not value:
            section, depth = key, indent
        elif section and indent <= depth:
            section = ""
        if section == "Limits" and key == "memory" and (size := quantity_bytes(value)):
            yield Size(number, "memory_limit", size, f"memory: {value}" if f"memory: {value}" in line else value)
        elif key == "Reason" and value == "OOMKilled":
            yield ContainerEnd(number, None, oom_killed=True, record=line.strip())
        elif key == "Exit Code" and value.isdigit():
            yield ContainerEnd(number, int(value), oom_killed=False, record=line.strip())
        elif key == "Image" and (version := _image_version(line)):
            yield PackageVersion(number, "sglang", version)
