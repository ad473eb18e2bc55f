"""The bundled accelerators: by name and by memory."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from logforensics import lazy_re
from logforensics.records import record

_COUNT = lazy_re.compile(r"^\s*[0-9]+\s*[x×*]\s*(?=[A-Za-z])")  # 8x H100
_GLUED = lazy_re.compile(r"\b(rtx|gtx)(?=[0-9])", re.IGNORECASE)  # RTX3090
_WORDS = lazy_re.compile(r"[a-z]+[0-9]+[a-z]*|[a-z]+|[0-9]+[a-z]*")
_NOISE = frozenset({"nvidia", "geforce", "amd", "instinct", "tesla", "intel", "radeon", "graphics", "gpu", "x", "the", "generation"})
_MEMORY_TOLERANCE = 0.005  # drivers round differently; two sizes of cards differ by more


@record(frozen=True)
class Gpu:
    """One accelerator.

    Attributes:
        id: short name with the nominal size.
        vendor: nvidia, amd, intel or huawei.
        names: names as nvidia-smi, amd-smi, hl-smi or npu-smi print them.
        memory_mib: total memory these tools print, MiB; None where there is none (unified memory) or it was not seen.
        other_mib: totals that the same card shows with ECC switched, MiB.
        nominal_gb: size in its name.
        compute_capability: CUDA compute capability.
        unified: host and device share one memory.
        fp8: has FP8 arithmetic.
        fp4: has FP4 arithmetic.
        free_gib: free memory before loading as real logs printed it, (GiB, circumstances).
        torch_total_gib: totals PyTorch prints, GiB.
        confidence: log, secondary or memory, from sure to unsure.
        sources: where the facts were read.
        notes: what to mind.
    """

    id: str
    vendor: str
    names: tuple[str, ...]
    memory_mib: int | None = None
    other_mib: tuple[int, ...] = ()
    nominal_gb: int | None = None
    compute_capability: str | None = None
    unified: bool = False
    fp8: bool = False
    fp4: bool = False
    free_gib: tuple[tuple[float, str], ...] = ()
    torch_total_gib: tuple[float, ...] = ()
    confidence: str = "memory"
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@cache
def all_gpus() -> tuple[Gpu, ...]:
    """Every bundled accelerator, sorted by id."""
    text = (files("logforensics.models") / "data" / "gpus.json").read_text(encoding="utf-8")
    return tuple(Gpu(**{name: _tuple(value) for name, value in record.items()}) for record in json.loads(text))


def gpus_named(name: str) -> tuple[Gpu, ...]:
    """Every accelerator that a name may mean, such as ``H100`` or ``RTX PRO 6000``; an exact name means one only."""
    name = _GLUED.sub(r"\1 ", _COUNT.sub("", name))
    wanted = name.strip().lower()
    exact = [gpu for gpu in all_gpus() if wanted == gpu.id or wanted in (printed.lower() for printed in gpu.names)]
    if exact:
        return tuple(exact)
    words = _significant(name)
    return tuple(gpu for gpu in all_gpus() if words and any(words <= _significant(f"{gpu.id} {printed}") for printed in gpu.names))


def find_gpu(name: str) -> Gpu | None:
    """The accelerator that a name means; where it fits several, the one with the least memory, so that nothing is promised too much."""
    return min(gpus_named(name), key=lambda gpu: (gpu.memory_mib or 1 << 30, gpu.id), default=None)


def gpus_with_memory(mib: int) -> tuple[Gpu, ...]:
    """Accelerators whose driver prints this total in MiB; where none prints it exactly, those within half a per cent, nearest first."""
    distances = {gpu.id: min((abs(size - mib) for size in _sizes(gpu)), default=mib) for gpu in all_gpus()}
    near = sorted((gpu for gpu in all_gpus() if distances[gpu.id] <= mib * _MEMORY_TOLERANCE), key=lambda gpu: (distances[gpu.id], gpu.id))
    exact = tuple(gpu for gpu in near if distances[gpu.id] == 0)
    return exact or tuple(near)


def _sizes(gpu: Gpu) -> list[int]:
    return [size for size in (gpu.memory_mib, *gpu.other_mib) if size is not None]


def _significant(name: str) -> frozenset[str]:
    words = (word.removesuffix("gb") if word[0].isdigit() else word for word in _WORDS.findall(name.lower()))
    return frozenset(word for word in words if word not in _NOISE)


def _tuple(value: Any) -> Any:
    return tuple(_tuple(item) for item in value) if isinstance(value, list) else value
