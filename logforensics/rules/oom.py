"""GPU out-of-memory errors: the figures their text gives, and the stage they belong to.

The same sentence means different things by where it stands: while weights load, while the pool is built, during graph capture, in a
prefill, in a decode, or in the HTTP process.
"""

from __future__ import annotations

import re

from logforensics import lazy_re
from logforensics.findings import Arithmetic
from logforensics.records import record
from logforensics.rules.case import Case
from logforensics.run import Failure, Run
from logforensics.run.model import Rank

_SIZE = r"(?<![\d.])(?P<{0}>[\d.]+) (?P<{0}_unit>GiB|MiB|KiB|bytes)"
_UNIT_GIB = {"GiB": 1.0, "MiB": 1 / 1024, "KiB": 1 / 1024**2, "bytes": 1 / 1024**3}
_FIGURES = {
    "tried": lazy_re.compile(r"[Tt]ried to allocate " + _SIZE.format("v")),
    "total": lazy_re.compile(r"total capac(?:i)?ty of " + _SIZE.format("v") + "|" + _SIZE.format("w") + r" total capacity"),
    "free": lazy_re.compile(r"of which " + _SIZE.format("v") + r" is free|" + _SIZE.format("w") + r" free"),
    "process": lazy_re.compile(r"(?:[Tt]his process|Process \d+) has " + _SIZE.format("v") + " memory in use"),
    "allocated": lazy_re.compile(_SIZE.format("v") + r" is allocated by PyTorch|" + _SIZE.format("w") + r" already allocated"),
    "private": lazy_re.compile(_SIZE.format("v") + r" allocated in private pools"),
    "reserved": lazy_re.compile(_SIZE.format("v") + r" is reserved by PyTorch but unallocated"),
}
_OTHERS = lazy_re.compile(r"Process (?P<pid>\d+) has " + _SIZE.format("v") + " memory in use")
_GPU = lazy_re.compile(r"GPU (\d+)")
_GPU_OOM = lazy_re.compile(
    r"OutOfMemoryError|(?:CUDA|HIP|NPU|XPU|MUSA)(?: error: | )out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation",
    re.IGNORECASE,
)

_LOAD_FRAMES = (
    "load_model",
    "model_loader",
    "create_weights",
    "initialize_model",
    "process_weights_after_loading",
    "weight_utils",
    "get_model",
)
_POOL_FRAMES = (
    "init_memory_pool",
    "memory_pool.py",
    "_create_buffers",
    "kv_cache_configurator",
    "model_runner_kv_cache_mixin",
    "init_kv_cache",
    "init_attention_backend",  # workspaces of the attention backend: before any capture
)
_GRAPH_FRAMES = ("graph_runner", "capture_one_batch_size", "init_device_graphs", "init_cuda_graphs", "cuda_graph_backend", "warmup_compile")
_HOST_FRAMES = ("memory_pool_host", "pool_host", "hiradix_cache", "hybrid_cache_controller")
_FRONT_FRAMES = (
    "tokenizer_manager",
    "multimodal/processors",
    "http_server",
    "async_dynamic_batch",
    "image_processing",
    "uvicorn",
    "starlette",
)
_DRAFT_FRAMES = (
    "eagle_worker",
    "eagle_draft",
    "draft_worker",
    "multi_layer_eagle",
    "standalone_worker",
    "dflash",
    "ngram_worker",
    "spec_worker",
)
_PREFILL_FRAMES = (
    "forward_extend",
    "get_image_feature",
    "general_mm_embed_routine",
    "prefill",
    "get_input_logprobs",
    "process_input_logprobs",
)
_DECODE_FRAMES = ("forward_decode", "decode")
_VISION_FRAMES = ("get_image_feature", "get_video_feature", "mm_utils", "visual", "vision")


@record(frozen=True)
class OomFigures:
    """Figures of an out-of-memory text, GiB; None where it does not give them."""

    gpu: int | None
    tried: float | None
    total: float | None
    free: float | None
    process: float | None
    allocated: float | None
    private: float | None
    reserved: float | None
    others: float | None

    @property
    def outside_torch(self) -> float | None:
        """Memory of this process that PyTorch does not manage: NCCL buffers, CUDA context, kernels' workspaces."""
        if self.process is None or self.allocated is None:
            return None
        return self.process - self.allocated - (self.reserved or 0.0)

    def steps(self) -> list[Arithmetic]:
        """The figures as lines of arithmetic."""
        lines = []
        for label, value in (
            ("asked for", self.tried),
            ("free", self.free),
            ("card", self.total),
            ("allocated by PyTorch", self.allocated),
        ):
            if value is not None:
                lines.append(Arithmetic(label, "from the error text", round(value, 3), "GiB"))
        if self.tried is not None and self.free is not None:
            lines.append(Arithmetic("missing", f"{self.tried:.3g} - {self.free:.3g}", round(self.tried - self.free, 3), "GiB"))
        if self.outside_torch is not None and self.outside_torch > 0:
            lines.append(Arithmetic("used outside PyTorch", "process - allocated - reserved", round(self.outside_torch, 3), "GiB"))
        return lines


def figures(text: str) -> OomFigures:
    """Read the figures of an out-of-memory text (PyTorch's wordings since 1.13)."""
    values = {name: _gib(pattern.search(text)) for name, pattern in _FIGURES.items()}
    sizes = [float(found["v"]) * _UNIT_GIB[found["v_unit"]] for found in _OTHERS.finditer(text)]
    gpu = _GPU.search(text)
    return OomFigures(gpu=int(gpu[1]) if gpu else None, others=sum(sizes) if len(sizes) > 1 else None, **values)


def _gib(found: re.Match[str] | None) -> float | None:
    if found is None:
        return None
    groups = found.groupdict()
    name = "v" if groups.get("v") is not None else "w"
    return float(groups[name]) * _UNIT_GIB[groups[f"{name}_unit"]]


def is_gpu_oom(failure: Failure) -> bool:
    """Whether this error, or one it was raised from, is the GPU running out of memory."""
    return _GPU_OOM.search(failure.text) is not None


def root_text(failure: Failure) -> str:
    """The text of the chain that holds the out-of-memory figures."""
    return next((text for text in failure.texts if _GPU_OOM.search(text)), failure.text)


def stage_of(case: Case, failure: Failure) -> str:
    """Where an error struck: frontend, hicache, load, draft, pool, graph, prefill, decode, warmup, serving or unknown."""
    if not failure.frames and _headed_by_frontend(case, failure):
        return "frontend"
    by_frames = _by_frames(failure)
    if by_frames is not None:
        return by_frames
    timeline = _by_timeline(case, failure)
    if timeline in ("load", "pool", "graph", "hicache"):
        return timeline
    if failure.has_frame(*_PREFILL_FRAMES):
        return "prefill" if timeline != "warmup" else "warmup"
    if failure.has_frame(*_DECODE_FRAMES):
        return "decode" if timeline != "warmup" else "warmup"
    return timeline


def _headed_by_frontend(case: Case, failure: Failure) -> bool:
    """Whether the line above an error without frames names the HTTP process."""
    return any(item.process == "ASGI" for item in case.run.troubles if item.mark == failure.mark)


def _by_frames(failure: Failure) -> str | None:
    """The stage that the frames or the text prove by themselves."""
    if failure.process in ("ASGI", "TokenizerManager"):
        return "frontend"
    if failure.has_frame(*_HOST_FRAMES):
        return "hicache"
    if re.search(r"[Cc]apture .{0,40}graph failed", failure.text) or failure.has_frame(*_GRAPH_FRAMES):
        return "graph"
    if failure.has_frame(*_POOL_FRAMES):
        return "pool"
    if failure.has_frame(*_LOAD_FRAMES):
        return "draft" if failure.has_frame(*_DRAFT_FRAMES) else "load"
    if failure.frames and failure.process != "Scheduler" and failure.has_frame(*_FRONT_FRAMES) and not failure.has_frame("scheduler.py"):
        return "frontend"
    return None


def _by_timeline(case: Case, failure: Failure) -> str:
    """The stage that the lines before the error leave open on its rank."""
    run, order = case.run, failure.mark.order
    if case.served(failure.mark):
        return "serving"
    reached = _reached(run, failure.rank, order)
    if reached.get("graph_begin", 0) > reached.get("graph_end", 0):
        return "graph"
    if reached.get("load_begin", 0) > reached.get("load_end", 0):
        return "load"
    if reached.keys() & {"capacity", "graph_end", "pool_end"}:
        return "warmup"
    if "load_end" in reached:
        return "pool"
    return "unknown"


def _reached(run: Run, rank: Rank, order: int) -> dict[str, int]:
    """Stage -> place of its last line before ``order`` on this rank (on any rank where the error names none)."""
    anyone = rank not in run.ledgers
    found = {step.stage: step.mark.order for step in run.memory_steps if step.mark.order < order and (anyone or step.rank == rank)}
    capacities = [capacity.mark.order for capacity in run.capacities if capacity.mark.order < order]
    return found | {"capacity": capacities[-1]} if capacities else found


def in_vision(failure: Failure) -> bool:
    """Whether the error struck in a vision encoder."""
    return failure.has_frame(*_VISION_FRAMES)


def gpu_ooms(case: Case) -> list[tuple[Failure, str]]:
    """All GPU out-of-memory errors with their stage, in order."""
    return [(failure, stage_of(case, failure)) for failure in case.failures if is_gpu_oom(failure)]
