"""YAML and JSON documents that start a server: Kubernetes, Compose, Helm values, srt-slurm recipes, SGLang's own ``--config`` file.

Every scalar is read as text (YAML's BaseLoader builds no objects), anchors that multiply are bounded, and templates (``{{ … }}``) stand as
variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from logforensics import lazy_re
from logforensics.command.launch import binary_size
from logforensics.command.model import DEFAULT_PROGRAM, Invocation, Place
from logforensics.command.shell import read_shell
from logforensics.sglang.flags import find_flag

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_CHARS = 200_000
_MAX_NODES = 50_000
_MAX_DEPTH = 40
_LOOKS_LIKE = lazy_re.compile(r"^[ \t]*(?:- )?[\w.\"'/-]{1,100}[ \t]*:(?:\s|$)|^[ \t]*[\[{]\s{0,100}[\"\[{]", re.MULTILINE)
_TEMPLATE_LINE = lazy_re.compile(r"^[ \t]*\{\{-?\s*(?:if|else|end|with|range|define|include|template|/\*|toYaml).*$", re.MULTILINE)
_TEMPLATE = lazy_re.compile(r"\{\{-?\s*([^{}]*?)\s*-?\}\}")
_COMPOSE_VARIABLE = lazy_re.compile(r"\$\$|\$\{([A-Za-z_]\w*)(?:(:?[-?+])([^{}]*))?\}|\$([A-Za-z_]\w*)")
_GPU_LIMITS = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "huawei.com/Ascend910")
_ROLES = ("aggregated", "prefill", "decode")
_TRUE, _FALSE = frozenset({"true", "yes", "on"}), frozenset({"false", "no", "off"})


def read_manifest(text: str) -> list[Invocation]:
    """The commands that a YAML or JSON document would start; empty where it is no such document."""
    if len(text) > _MAX_CHARS or not _LOOKS_LIKE.search(text):
        return []
    found: list[Invocation] = []
    for document in _documents(text):
        found += _recipe(document) or _containers(document) or _flag_mapping(document)
    if not found and "sglang" in text.lower():
        for document in _documents(text):
            found += _values(document)
    return found


def _documents(text: str) -> list[Any]:
    import yaml

    plain = _TEMPLATE.sub(lambda m: "$" + (re.findall(r"[A-Za-z_]\w*", m[1]) or ["VALUE"])[-1], _TEMPLATE_LINE.sub("", text))
    try:
        return [document for document in yaml.load_all(plain, Loader=yaml.BaseLoader) if isinstance(document, (dict, list))]
    except (yaml.YAMLError, RecursionError, ValueError):
        return []


def _mappings(document: Any) -> Iterator[Mapping[str, Any]]:
    """Every mapping of a document, outer ones first; bounded, because anchors may multiply or go in circles."""
    waiting, seen = [(document, 0)], 0
    while waiting and seen < _MAX_NODES:
        node, depth = waiting.pop(0)
        seen += 1
        if depth > _MAX_DEPTH:
            continue
        if isinstance(node, Mapping):
            merge = node.get("<<")
            flat = {**merge, **node} if isinstance(merge, Mapping) else node
            yield flat
            waiting += [(value, depth + 1) for value in flat.values() if isinstance(value, (Mapping, list))]
        elif isinstance(node, list):
            waiting += [(value, depth + 1) for value in node if isinstance(value, (Mapping, list))]


# ---------------------------------------------------------------------------------------------------------------- containers


def _containers(document: Any) -> list[Invocation]:
    """The command lines of every container or service of a document."""
    is_compose = isinstance(document, Mapping) and isinstance(document.get("services"), Mapping)
    found = []
    for node in _mappings(document):
        words = _command_line(node, is_compose=is_compose)
        if words:
            env = _environment(node.get("environment", node.get("env")), is_compose=is_compose)
            words = words if is_compose else [_filled(word, env) for word in words]
            found.append(Invocation(tuple(words), env, _place(node)))
    return found


def _command_line(node: Mapping[str, Any], *, is_compose: bool) -> list[str]:
    """Entry point, command and arguments of a container, as words."""
    keys = ("entrypoint", "command") if is_compose else ("command", "entrypoint", "args", "extraArgs", "extra_args")
    words: list[str] = []
    for key in keys:
        words += _as_words(node.get(key), is_compose=is_compose)
    image = node.get("image")
    if words and words[0].startswith("-") and isinstance(image, str) and "sglang" in image:
        return [*DEFAULT_PROGRAM, *words]  # the image's own entry point
    return words if any("sglang" in word for word in words) else []


def _as_words(value: Any, *, is_compose: bool) -> list[str]:
    if isinstance(value, str):
        return _shell_words(_interpolated(value) if is_compose else value)
    if isinstance(value, list):
        texts = [str(item) for item in value if not isinstance(item, (Mapping, list))]
        return [_interpolated(text) for text in texts] if is_compose else texts
    return []


def _filled(text: str, env: Mapping[str, str]) -> str:
    """Kubernetes puts the container's own variables in for ``$(NAME)``; a name it does not know stays, ``$$`` is a dollar."""
    return re.sub(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)", lambda m: "$" if m[0] == "$$" else env.get(m[1], m[0]), text)


def _interpolated(text: str) -> str:
    """Compose puts its variables in before anything else: a default where there is one, else ``$NAME`` stays."""

    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        name = found[1] or found[4]
        return found[3] if found[2] in ("-", ":-") and found[3] is not None else f"${name}"

    return _COMPOSE_VARIABLE.sub(value, text)


def _shell_words(text: str) -> list[str]:
    """A command given as one text. Several lines or commands stay one word, which is then read as a script."""
    invocations = read_shell(text).invocations
    lone = invocations[0] if len(invocations) == 1 else None
    if lone and not lone.env:
        return list(lone.words)
    return [text]


def _environment(value: Any, *, is_compose: bool) -> dict[str, str]:
    """``NAME: value``, ``- NAME=value`` and ``- {name: NAME, value: …}``; values from elsewhere are left out."""
    if isinstance(value, Mapping):
        pairs = [(str(name), text) for name, text in value.items() if isinstance(text, str)]
    elif isinstance(value, list):
        pairs = [tuple(item.split("=", 1)) for item in value if isinstance(item, str) and "=" in item]  # type: ignore[misc]
        pairs += [(item["name"], item["value"]) for item in value if isinstance(item, Mapping) and {"name", "value"} <= set(item)]
    else:
        return {}
    return {str(name): _interpolated(text) if is_compose else str(text) for name, text in pairs}


def _place(node: Mapping[str, Any]) -> Place:
    image = node.get("image")
    limits = _below(node, "resources", "limits") or _below(node, "resources", "requests") or {}
    gpus = next((int(limits[name]) for name in _GPU_LIMITS if str(limits.get(name, "")).isdigit()), None)
    memory = limits.get("memory") or node.get("mem_limit") or (_below(node, "deploy", "resources", "limits") or {}).get("memory")
    devices = (_below(node, "deploy", "resources", "reservations") or {}).get("devices")
    if gpus is None and isinstance(devices, list) and devices and isinstance(devices[0], Mapping):
        count = str(devices[0].get("count", ""))
        gpus = int(count) if count.isdigit() else len(devices[0].get("device_ids") or ()) or None
    return Place(str(image) if image else None, gpus, binary_size(memory) if isinstance(memory, str) else None)


def _below(node: Mapping[str, Any], *keys: str) -> Mapping[str, Any] | None:
    value: Any = node
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else None


# ---------------------------------------------------------------------------------------------------------------- flags by name


def _recipe(document: Any) -> list[Invocation]:
    """An srt-slurm recipe: ``backend.sglang_config.<role>`` holds the flags of a role, ``<role>_environment`` its variables."""
    backend = document.get("backend") if isinstance(document, Mapping) else None
    roles = _below(backend, "sglang_config") if isinstance(backend, Mapping) else None
    if not isinstance(backend, Mapping) or roles is None:
        return []
    resources = document.get("resources") if isinstance(document.get("resources"), Mapping) else {}
    gpus = str(resources.get("gpus_per_node", ""))
    image = _below(document, "model")
    place = Place(image=str((image or {}).get("container") or "") or None, gpus=int(gpus) if gpus.isdigit() else None)
    found = []
    for role in [role for role in _ROLES if role in roles] or list(roles):
        flags = roles[role]
        if isinstance(flags, Mapping):
            env = _environment(backend.get(f"{role}_environment"), is_compose=False)
            nodes = _nodes_of_worker(resources, role)
            found.append(Invocation((*DEFAULT_PROGRAM, *flag_words(flags)), env, replace(place, nodes=nodes)))
    return found


def _nodes_of_worker(resources: Mapping[str, Any], role: str) -> int | None:
    """Machines that one worker of a role spans."""
    short = "agg" if role == "aggregated" else role
    nodes, workers = (str(resources.get(f"{short}_{what}", "")) for what in ("nodes", "workers"))
    return max(int(nodes) // max(int(workers), 1), 1) if nodes.isdigit() and workers.isdigit() else None


def _flag_mapping(document: Any) -> list[Invocation]:
    """A mapping whose keys are SGLang's flags, as ``--config`` takes it."""
    for node in _mappings(document):
        names = [f"--{str(key).replace('_', '-')}" for key in node]
        if "--model-path" in names and sum(find_flag(name) is not None for name in names) >= max(2, len(names) * 3 // 4):
            return [Invocation((*DEFAULT_PROGRAM, *flag_words(node)), {}, None)]
    return []


def flag_words(flags: Mapping[str, Any]) -> list[str]:
    """``key: value`` as ``--key value``; true is a bare flag, false is nothing."""
    words: list[str] = []
    for key, value in flags.items():
        name = f"--{str(key).lstrip('-').replace('_', '-')}"
        lowered = str(value).strip().lower()
        if lowered in _TRUE:
            words.append(name)
        elif isinstance(value, list):
            words += [name, *map(str, value)]
        elif lowered not in _FALSE and lowered not in ("null", "none", "~", "") and not isinstance(value, Mapping):
            words += [name, str(value)]
    return words


def _values(document: Any) -> list[Invocation]:
    """Helm values whose leaves are named after flags (``model.path``, ``server.enableMetrics``); the charts themselves are not seen."""
    flags: dict[str, Any] = {}
    more: list[str] = []
    image = ""
    for parent, node in _named_mappings(document):
        for key, value in node.items():
            if isinstance(value, list) and value and all(isinstance(item, str) for item in value) and str(value[0]).startswith("--"):
                more += value
            elif not isinstance(value, (Mapping, list)) and (name := _flag_called(parent, str(key))):
                flags[name] = value
        if "repository" in node and "tag" in node:
            image = f"{node['repository']}:{node['tag']}"
    if "--model-path" not in flags and not more:
        return []
    return [Invocation((*DEFAULT_PROGRAM, *flag_words(flags), *more), {}, Place(image=image or None))]


def _flag_called(parent: str, key: str) -> str | None:
    """The flag whose whole name a key has, alone or behind its parent's name (``model: {path: …}``)."""
    names = (f"--{_kebab(parent)}-{_kebab(key)}", f"--{_kebab(key)}")
    return next((name for name in names if (flag := find_flag(name)) is not None and flag.name == name), None)


def _named_mappings(document: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    waiting, seen = [("", document)], 0
    while waiting and seen < _MAX_NODES:
        name, node = waiting.pop(0)
        seen += 1
        if isinstance(node, Mapping):
            yield name, node
            waiting += [(str(key), value) for key, value in node.items() if isinstance(value, Mapping)]


def _kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", str(name)).replace("_", "-").lower()
