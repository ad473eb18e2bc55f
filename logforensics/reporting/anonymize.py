"""Replacing what tells who and where: hosts, users, paths and model names, each always by the same word."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from logforensics import lazy_re

_MODEL_FIELDS = (
    "model_path",
    "served_model_name",
    "tokenizer_path",
    "speculative_draft_model_path",
    "lora_paths",
    "reward_model_path",
    "vision_model_path",
)
_HOST_FIELDS = ("host", "dist_init_addr", "nccl_init_addr", "disaggregation_bootstrap_host", "node_ip")
_SHORTEST_NAME = 4
_COMMON_NAMES = frozenset({"model", "models", "default", "checkpoint", "hf", "main", "snapshots", "weights", "auto", "none", "data"})
_LOCAL_HOSTS = frozenset({"0.0.0.0", "127.0.0.1", "localhost", "::", "::1"})  # noqa: S104 - they name no machine
# what stands behind one of these is the same on every machine, and says where an error came from
_PUBLIC_TAILS = ("site-packages/", "dist-packages/", "/sglang/", "/python/sglang/", "/lib/python")

_ARCHITECTURE = lazy_re.compile(r"\b[A-Z]\w*For(?:CausalLM|ConditionalGeneration|SequenceClassification|RewardModel)\w*\b")
_PATTERN = lazy_re.compile(
    r"""
    (?P<url>  \b[a-z][a-z0-9+.-]{0,40}://(?P<login>[^\s/@'"]+@)?(?P<urlhost>[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\]) )
  | (?P<mail> (?<![A-Za-z0-9._%+-]) [A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+ \b )
  | (?P<path> (?<![\w.:/~<-]) (?:~|[A-Za-z]:)? (?:/[\w.@+=,%-]+){2,}/? )
  | (?P<host> (?<![A-Za-z0-9-])(?<![A-Za-z0-9-]\.) (?:[A-Za-z0-9-]+\.)+(?:local|internal|lan|corp|intra|cluster|svc|com|net|org|io|ai|cn|cloud|edu)\b (?!/) )
  | (?P<ip>   (?<![\w.]) (?:[0-9]{1,3}\.){3}[0-9]{1,3} (?![\w.]) )
  | (?P<ip6>  (?<![\w:]) (?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4} (?![\w:]) )
  | (?P<user> (?<=\b(?:user|USER)[=:]) [\w.-]+ )
    """,
    re.VERBOSE,
)


class Anonymizer:
    """Call it with a text. Names it has replaced once are replaced the same way ever after."""

    def __init__(self, server_args: Mapping[str, Any], sources: Iterable[str]) -> None:
        self._words: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._known: dict[str, tuple[re.Pattern[str], str]] = {}
        for source in sources:
            self._add_source(source)
        for field in _MODEL_FIELDS:
            for value in _texts(server_args.get(field)):
                self._add_model(value)
        for field in _HOST_FIELDS:
            for value in _texts(server_args.get(field)):
                self._add_host(value)
        # the longest first: a name within a longer one must not break it
        self._names = [self._known[name] for name in sorted(self._known, key=len, reverse=True)]

    def __call__(self, text: str) -> str:
        """The text without names."""
        text = _ARCHITECTURE.sub(lambda found: self._word("architecture", found[0]), text)
        for pattern, word in self._names:
            text = pattern.sub(word, text)
        return _PATTERN.sub(self._replaced, text)

    # ------------------------------------------------------------------------------------------------ what is known

    def _add_source(self, source: str) -> None:
        """A log keeps its extension, so that it still reads as a file."""
        if source.startswith("<"):
            return
        path = PurePosixPath(source)
        word = self._word("log", source) + (path.suffix if path.suffix in (".log", ".txt", ".out", ".gz") else "")
        for name in (source, path.name):
            self._know(name, rf"(?<![\w/.-]){re.escape(name)}(?![\w/-])", word)

    def _add_model(self, value: str) -> None:
        """The path as a whole, its last part in every spelling (``Kimi-K2.5``, ``kimi_k2.5``, ``KimiK25`` of a class), and its family."""
        name = value.rstrip("/").rsplit("/", 1)[-1]
        pieces = re.findall(r"[A-Za-z]+|[0-9]+", name)
        plain = "".join(pieces).lower()
        word = self._word("model", plain or value)
        if "/" in value:
            self._know(value, re.escape(value), word)
        if len(plain) >= _SHORTEST_NAME and plain not in _COMMON_NAMES:
            loose = r"[-_. ]?".join(re.escape(piece) for piece in pieces)
            self._know(name, rf"(?i)(?<![A-Za-z0-9]){loose}(?![0-9])", word)
            if len(pieces[0]) >= _SHORTEST_NAME and pieces[0].lower() not in _COMMON_NAMES:
                self._know(pieces[0], rf"(?i)(?<![A-Za-z0-9]){re.escape(pieces[0])}(?![a-z])[0-9]*", word)

    def _add_host(self, value: str) -> None:
        host = value.rsplit(":", 1)[0] if value.count(":") == 1 else value
        if host and host not in _LOCAL_HOSTS and not host.isdigit():
            self._know(host, rf"(?<![\w.-]){re.escape(host)}(?![\w-])", self._word("host", host.lower()))

    def _know(self, name: str, pattern: str, word: str) -> None:
        self._known.setdefault(name, (re.compile(pattern), word))

    # ------------------------------------------------------------------------------------------------ what is found

    def _replaced(self, found: re.Match[str]) -> str:
        kind = found.lastgroup
        if found["url"]:
            login = f"{self._word('user', found['login'])}@" if found["login"] else ""
            return f"{found['url'].split('://', 1)[0]}://{login}{self._host(found['urlhost'])}"
        if found["path"]:
            return self._path(found["path"])
        if found["mail"]:
            return self._word("user", found["mail"].lower())
        if kind == "user":
            return self._word("user", found[0].lower())
        return self._host(found[0])

    def _host(self, host: str) -> str:
        return host if host in _LOCAL_HOSTS or re.fullmatch(r"(?:host|model)-[0-9]+", host) else self._word("host", host.lower())

    def _path(self, path: str) -> str:
        if path.startswith(("/dev/", "/proc/", "/sys/", "/v1/")):
            return path
        for mark in _PUBLIC_TAILS:
            head, found, tail = path.partition(mark)
            if found:
                return f"{self._word('path', head)}/{found.strip('/')}/{tail}"
        return self._word("path", path.rstrip("/"))

    def _word(self, kind: str, name: str) -> str:
        key = (kind, name)
        if key not in self._words:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._words[key] = f"{kind}-{self._counts[kind]}"
        return self._words[key]


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if value and value != "None" else []
    if isinstance(value, Mapping):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, (list, tuple)):
        return [text for item in value for text in _texts(item)]
    return []


def map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Apply ``change`` to every plain string inside dataclasses, mappings and sequences; everything else stays as it is."""
    if type(value) is str:  # an Enum that is also a str is one of our own words
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: map_strings(getattr(value, f.name), change) for f in fields(value)})
    if isinstance(value, Mapping):
        return {key: map_strings(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map_strings(item, change) for item in value)
    return value
