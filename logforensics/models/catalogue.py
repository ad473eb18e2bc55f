"""The bundled models: by name or path, and by class name.

A log needs one of them: records stay what JSON gives until a model is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from logforensics.models import names
from logforensics.models.model import Model, model_from_record

_TELLING = 3  # letters and digits: a shorter name, such as that of a folder, begins many names and means none


@cache
def all_models() -> tuple[Model, ...]:
    """Every bundled model, sorted by id."""
    return tuple(map(_model, range(len(_records()))))


def find_model(name_or_path: str) -> Model | None:
    """The model that a name means: a hub id, a quantised copy's name, or a local path such as ``/models/Kimi-K2.5``.

    Exact names are tried before names with their decoration (``-FP8``, ``-w4a8``, ``-0528``, ``-Instruct``) removed. None where nothing
    fits.
    """
    for candidate in names.candidates(name_or_path):
        place = _by_key().get(candidate)
        if place is None:
            place = _of_shape(candidate)
        if place is not None:
            return _model(place)
    return None


def models_of_class(class_name: str) -> tuple[Model, ...]:
    """The models whose checkpoint prints this class in ``Load weight end. type=``; a class is shared by many models."""
    return tuple(_model(place) for place, record in enumerate(_records()) if class_name in record["architectures"])


@cache
def _records() -> list[Mapping[str, Any]]:
    """``data/models.json``, sorted by id."""
    text = (files("logforensics.models") / "data" / "models.json").read_text(encoding="utf-8")
    records: list[Mapping[str, Any]] = json.loads(text)
    return records


@cache
def _model(place: int) -> Model:
    return model_from_record(_records()[place])


@cache
def _names() -> list[tuple[str, str, int]]:
    """The last part of every alias and id, its key, and where the record stands; ids come last."""
    aliases = [(alias, place) for place, record in enumerate(_records()) for alias in record.get("aliases", ())]
    ids = [(record["id"], place) for place, record in enumerate(_records())]
    last = ((name.split("/")[-1], place) for name, place in (*aliases, *ids))
    return [(name, names.key(name), place) for name, place in last]


@cache
def _by_key() -> dict[str, int]:
    """Records by the key of every id and alias; the id wins over another model's alias."""
    return {key: place for _, key, place in _names()}


def _of_shape(candidate: str) -> int | None:
    """The record that has this name when decoration is removed from its own, where only one has."""
    if len(candidate) < _TELLING:
        return None
    longer = ((name, place) for name, key, place in _names() if key.startswith(candidate))
    owners = {place for name, place in longer if candidate in names.candidates(name)[1:]}
    return owners.pop() if len(owners) == 1 else None
