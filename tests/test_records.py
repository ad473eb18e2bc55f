"""Records behave as frozen dataclasses do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import pytest

from logforensics.records import record


class _Body:
    """The fields that both forms below have."""

    name: str
    line: int = 7
    found: dict[str, int] = field(default_factory=dict, compare=False)
    seen: tuple[str, ...] = field(default=(), repr=False)


def _form(decorate: Callable[..., Any]) -> Any:
    body = {name: getattr(_Body, name) for name in ("line", "found", "seen")}
    return decorate(frozen=True)(type("Form", (), {**body, "__annotations__": _Body.__annotations__, "__module__": __name__}))


@record(frozen=True)
class Place:
    """A record at module level: pickle looks it up by name."""

    source: str
    line: int = 0

    @cached_property
    def text(self) -> str:
        """Worked out once."""
        return f"{self.source}:{self.line}"


@record(frozen=True)
class Span(Place):
    """A record with more fields."""

    last: int = 0


@record(frozen=True)
class Name:
    """Its own idea of equality."""

    text: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Name) and other.text.lower() == self.text.lower()

    def __hash__(self) -> int:
        return hash(self.text.lower())


@record(frozen=True)
class Nothing:
    """No fields."""


@pytest.mark.parametrize(
    "ask",
    [
        lambda form: repr(form("a")),
        lambda form: repr(form("a", 8, {"x": 1}, seen=("y",))),
        lambda form: form("a") == form("a", 7),
        lambda form: form("a") == form("b"),
        lambda form: form("a", found={"x": 1}) == form("a"),
        lambda form: form("a") == ("a", 7, {}, ()),
        lambda form: hash(form("a")) == hash(form("a", 7, {"x": 1})),
        lambda form: len({form("a"), form("a"), form("b")}),
        lambda form: asdict(replace(form("a"), line=9)),
        lambda form: [item.name for item in fields(form)],
        lambda form: form("a").__match_args__,
        is_dataclass,
        lambda form: form("a").found is form("a").found,
    ],
)
def test_as_a_dataclass(ask: Callable[[Any], Any]) -> None:
    assert ask(_form(record)) == ask(_form(dataclass))


@pytest.mark.parametrize("arguments", [((), {}), (("a", 1, {}, (), 5), {}), (("a",), {"unknown": 1}), (("a",), {"name": "b"})])
def test_wrong_arguments_are_refused_as_a_dataclass_refuses_them(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    given, named = arguments
    for form in (_form(record), _form(dataclass)):
        for _ in range(40):
            with pytest.raises(TypeError, match=r"__init__\(\)"):
                form(*given, **named)


def test_the_first_instances_are_as_the_later_ones() -> None:
    form = _form(record)
    made = [form("a", found={"x": number}, line=number % 2) for number in range(60)]
    assert [(item.name, item.line, item.found, item.seen) for item in made] == [("a", n % 2, {"x": n}, ()) for n in range(60)]
    assert len(set(made)) == 2
    assert form("a").found is not form("a").found


def test_an_instance_that_was_not_made_here() -> None:
    for ask in (repr, hash):
        form = _form(record)
        unpickled = object.__new__(form)
        unpickled.__dict__.update(name="a", line=7, found={}, seen=())
        assert ask(unpickled) == ask(form("a"))


def test_nothing_can_be_changed() -> None:
    place = Place("a.log", 3)
    with pytest.raises(FrozenInstanceError):
        place.line = 4  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del place.line
    with pytest.raises(FrozenInstanceError):
        place.other = 4  # type: ignore[attr-defined]
    assert place.line == 3


def test_inheritance_properties_and_own_methods() -> None:
    assert Span("a.log", 3, 5) == Span("a.log", last=5, line=3)
    assert Span("a.log", 3) != Place("a.log", 3)
    assert repr(Span("a.log", 3, 5)) == "Span(source='a.log', line=3, last=5)"
    assert Place("a.log", 3).text == "a.log:3"
    assert len({Name("A"), Name("a")}) == 1
    assert Nothing() == Nothing()
    assert hash(Nothing()) == hash(Nothing())


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda place: pickle.loads(pickle.dumps(place))])  # noqa: S301 - our own bytes
def test_copies_are_equal(copied: Callable[[Place], Place]) -> None:
    assert copied(Place("a.log", 3)) == Place("a.log", 3)
