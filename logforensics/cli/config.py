"""The user's own defaults: ``logforensics/config.toml`` in the XDG configuration folder. What stands on the command line wins.

host_ram = "449GB"        # of the machine this is usually run for
[watch]                   # for one command only
fail_on = "warning"
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from logforensics.errors import InputError, LogforensicsError

_LEAVE = ("-h", "--help", "--version", "--show-completion", "--install-completion")


def path() -> Path:
    """Where the file is looked for."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()) / "logforensics" / "config.toml"


def defaults(arguments: Sequence[str], commands: Sequence[str]) -> dict[str, Any]:
    """Defaults in the form click takes: by command, then by option.

    Raises:
        InputError: the file cannot be read, or says something it cannot say.
    """
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if not own or any(argument in _LEAVE for argument in own) or "_LOGFORENSICS_COMPLETE" in os.environ:
        return {}  # who asks for help or completes a word must get it, whatever the file says
    place = path()
    table = _read(place)
    shared = {key: _checked(place, key, value) for key, value in table.items() if not isinstance(value, Mapping)}
    found: dict[str, Any] = {command: dict(shared) for command in commands}
    for command, entries in table.items():
        if isinstance(entries, Mapping):
            if command not in commands:
                raise InputError(f"{place}: there is no command {command!r} to set defaults for")
            found[command] |= {key: _checked(place, key, value) for key, value in entries.items()}
    return found


def _read(place: Path) -> dict[str, Any]:
    try:
        text = place.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{place}: {error.strerror or error}") from error
    from logforensics import toml

    try:
        table: dict[str, Any] = toml.loads(text.decode())
    except (toml.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{place}: is not valid TOML: {error}") from error
    return table


def _checked(place: Path, key: str, value: Any) -> Any:
    check = _KEYS.get(key)
    if check is None:
        raise InputError(f"{place}: {key!r} is not a setting; the settings are {', '.join(_KEYS)}")
    try:
        return check(value)
    except LogforensicsError as error:
        raise InputError(f"{place}: {key}: {error}") from error


def _size(value: Any) -> str:
    from logforensics.units import parse_size

    parse_size(str(value))
    return str(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"must be a number from 1 on, not {value!r}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"must be a text, not {value!r}")
    return value


def _switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"must be true or false, not {value!r}")
    return value


def _severity(value: Any) -> str:
    from logforensics.cli.options import FailOn

    known = [severity.value for severity in FailOn]
    if value not in known:
        raise InputError(f"must be one of {', '.join(known)}, not {value!r}")
    return str(value)


def _path(value: Any) -> str:
    return str(Path(_text(value)).expanduser())


_KEYS: Mapping[str, Callable[[Any], Any]] = {
    "host_ram": _size,
    "gpu_memory": _size,
    "gpus": _count,
    "sglang_version": _text,
    "model_config": _path,
    "rules": _path,
    "patterns": _path,
    "fail_on": _severity,
    "no_color": _switch,
    "no_progress": _switch,
}
