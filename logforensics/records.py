"""Frozen dataclasses that cost little to define.

``dataclass(frozen=True)`` compiles six methods for every class: 0.3 ms each, and a diagnosis defines over a hundred classes before it reads
a line. A record has the same methods as closures, its fields are looked at when the first instance is made, and its ``__init__`` is compiled
when it has proved worth it. To ``dataclasses.replace``, ``fields``, ``asdict`` and type checkers it is a dataclass.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from threading import RLock
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

_WORTH_COMPILING = 25  # instances; compiling ``__init__`` takes as long as filling so many without
_COMPLETING = RLock()

_T = TypeVar("_T", bound="type[Any]")


class _Fields:
    """What is known of a record's fields, from when somebody asks; until then it stands for the class's ``__dataclass_fields__``."""

    def __init__(self, cls: type[Any]) -> None:
        self._cls = cls
        self._all: tuple[dataclasses.Field[Any], ...] | None = None
        self.values: Callable[[Any], Any]  # of the fields that count for equality
        self.shown: list[str]  # names for repr

    def __get__(self, instance: object, owner: object) -> dict[str, dataclasses.Field[Any]]:
        self.all()
        found: dict[str, dataclasses.Field[Any]] = self._cls.__dict__["__dataclass_fields__"]
        return found

    def __getattr__(self, name: str) -> Any:
        """``values`` and ``shown`` of an instance that was not made here but unpickled."""
        if name not in ("values", "shown"):
            raise AttributeError(name)
        self.all()
        return getattr(self, name)

    def all(self) -> tuple[dataclasses.Field[Any], ...]:
        """The fields, in order."""
        if self._all is None:
            with _COMPLETING:  # two threads may make the first two instances
                if self._all is None:
                    dataclasses.dataclass(init=False, repr=False, eq=False)(self._cls)
                    found = dataclasses.fields(self._cls)
                    self.values = _getter([field.name for field in found if field.compare])
                    self.shown = [field.name for field in found if field.repr]
                    self._all = found
        return self._all


def _frozen(cls: _T) -> _T:
    fields = _Fields(cls)
    made: Any = cls
    for name, method in _methods(cls, fields).items():
        if cls.__dict__.get(name) is None:  # a class with __eq__ of its own has None for __hash__
            setattr(made, name, method)
    made.__dataclass_fields__ = fields
    return cls


def _methods(cls: Any, fields: _Fields) -> dict[str, Callable[..., Any]]:
    """What a frozen dataclass with these fields can do."""
    made = 0

    def initialise(self: Any, *args: Any, **named: Any) -> None:
        nonlocal made
        made += 1
        if made > _WORTH_COMPILING or not _filled(self, fields.all(), args, named):
            cls.__init__ = _initialiser(fields.all())
            cls.__init__(self, *args, **named)

    def equals(self: Any, other: object) -> bool:
        return fields.values(self) == fields.values(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(fields.values(self))

    def described(self: Any) -> str:
        return f"{self.__class__.__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in fields.shown)})"

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


def _filled(instance: Any, fields: tuple[dataclasses.Field[Any], ...], args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Set the fields as ``__init__`` would; False, and nothing done, where the arguments do not fit: the compiled one says why."""
    values = {field.name: value for field, value in zip(fields, args, strict=False)}
    rest = dict(named)
    for field in fields[len(args) :]:
        name = field.name
        if name in rest:
            values[name] = rest.pop(name)
        elif field.default is not dataclasses.MISSING:
            values[name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            values[name] = field.default_factory()
        else:
            return False
    if rest or len(args) > len(fields):
        return False
    instance.__dict__.update(values)
    return True


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
