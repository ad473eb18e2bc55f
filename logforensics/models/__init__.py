"""Model architectures and accelerators: bundled facts with their sources, and reading a Hugging Face ``config.json``."""

from __future__ import annotations

from logforensics.models.catalogue import all_models, find_model, models_of_class
from logforensics.models.config import cached_config, model_from_config
from logforensics.models.gpus import Gpu, all_gpus, find_gpu, gpus_named, gpus_with_memory
from logforensics.models.model import Layers, LoggedWeights, Model, Recurrent

__all__ = [
    "Gpu",
    "Layers",
    "LoggedWeights",
    "Model",
    "Recurrent",
    "all_gpus",
    "all_models",
    "cached_config",
    "find_gpu",
    "find_model",
    "gpus_named",
    "gpus_with_memory",
    "model_from_config",
    "models_of_class",
]
