"""Frozen dataclasses that cost little to define.

``dataclass(frozen=True)`` compiles six methods for every class: 0.3 ms each, and a diagnosis defines over a hundred classes before it reads
a line. A record has the same methods (equality, hash, repr, refusing assignment) as closures, and its ``__init__`` is compiled when the first
instance is made. To ``dataclasses.replace``, ``fields``, ``asdict`` and type checkers it is a dataclass.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as record
else:

    def record(*, frozen: bool) -> Callable[[type], type]:
        """Make a frozen dataclass. ``frozen`` must be True: it is there to be read, by people and by type checkers."""
        assert frozen  # noqa: S101 - what changes is no record
        return _frozen


__all__ = ["record"]

_T = TypeVar("_T", bound="type[Any]")


def _frozen(cls: _T) -> _T:
    made: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
    for name, method in _methods(made, dataclasses.fields(made)).items():
        if cls.__dict__.get(name) is None:  # a class with __eq__ of its own has None for __hash__
            setattr(made, name, method)
    return made  # type: ignore[no-any-return]


def _methods(made: Any, fields: tuple[dataclasses.Field[Any], ...]) -> dict[str, Callable[..., Any]]:
    """What a frozen dataclass with these fields can do."""
    values = _getter([field.name for field in fields if field.compare])
    shown = [field.name for field in fields if field.repr]

    def initialise(self: Any, *args: Any, **named: Any) -> None:
        made.__init__ = _initialiser(fields)
        made.__init__(self, *args, **named)

    def equals(self: Any, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(values(self))

    def described(self: Any) -> str:
        return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    return {
        "__init__": initialise,
        "__eq__": equals,
        "__hash__": hashed,
        "__repr__": described,
        "__setattr__": _refuse,
        "__delattr__": _refuse,
    }


def _refuse(_: Any, name: str, *__: object) -> NoReturn:
    raise dataclasses.FrozenInstanceError(f"cannot change field {name!r}")


def _getter(names: list[str]) -> Callable[[Any], Any]:
    """What gives the values of these attributes, as something to compare and to hash."""
    return attrgetter(*names) if names else lambda _: ()


def _initialiser(fields: tuple[dataclasses.Field[Any], ...]) -> Callable[..., None]:
    """``__init__`` with one parameter for every field, as ``dataclass`` would write it."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_MISSING": dataclasses.MISSING}
    parameters, lines = ["self"], ["    pass"]
    for field in fields:
        name = value = field.name
        if field.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"] = field.default_factory
            parameters.append(f"{name}=_MISSING")
            value = f"_make_{name}() if {name} is _MISSING else {name}"
        elif field.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = field.default
            parameters.append(f"{name}=_default_{name}")
        else:
            parameters.append(name)
        lines.append(f"    _set(self, {name!r}, {value})")
    exec(f"def __init__({', '.join(parameters)}):\n" + "\n".join(lines), known)  # noqa: S102 - names of fields, as dataclasses does it
    made: Callable[..., None] = known["__init__"]
    return made
