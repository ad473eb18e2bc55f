"""The bundled models: by name or path, and by class name."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from logforensics.models import names
from logforensics.models.model import Model, model_from_record


@cache
def all_models() -> tuple[Model, ...]:
    """Every bundled model, sorted by id."""
    text = (files("logforensics.models") / "data" / "models.json").read_text(encoding="utf-8")
    return tuple(model_from_record(record) for record in json.loads(text))


def find_model(name_or_path: str) -> Model | None:
    """The model that a name means: a hub id, a quantised copy's name, or a local path such as ``/models/Kimi-K2.5``.

    Exact names are tried before names with their decoration (``-FP8``, ``-w4a8``, ``-0528``, ``-Instruct``) removed. None where nothing
    fits.
    """
    exact, shapes = _by_key(), _by_shape()
    for candidate in names.candidates(name_or_path):
        found = exact.get(candidate) or shapes.get(candidate)
        if found is not None:
            return found
    return None


def models_of_class(class_name: str) -> tuple[Model, ...]:
    """The models whose checkpoint prints this class in ``Load weight end. type=``; a class is shared by many models."""
    return tuple(model for model in all_models() if class_name in model.architectures)


@cache
def _by_key() -> dict[str, Model]:
    """Models by the last part of every id and alias; the id wins over another model's alias."""
    by_alias = {names.key(alias.split("/")[-1]): model for model in all_models() for alias in model.aliases}
    return by_alias | {names.key(model.id.split("/")[-1]): model for model in all_models()}


@cache
def _by_shape() -> dict[str, Model]:
    """Models by their undecorated names, where only one model has that name."""
    owners: dict[str, set[str]] = {}
    models = {model.id: model for model in all_models()}
    for model in all_models():
        for name in (model.id, *model.aliases):
            for candidate in names.candidates(name.split("/")[-1])[1:]:
                owners.setdefault(candidate, set()).add(model.id)
    return {candidate: models[next(iter(ids))] for candidate, ids in owners.items() if len(ids) == 1}
