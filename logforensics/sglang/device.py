"""What must fit beside the static share, into ``P·(1 − f)``: request table, graphs, activations (MEMORY_MODEL §1.3), and concurrency (§5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logforensics.records import record
from logforensics.sglang.sharding import positive
from logforensics.sglang.terms import Term
from logforensics.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logforensics.sglang.fraction import GpuBudget

_ROWS_FLOOR, _ROWS_CEILING, _ROWS_PER_CONTEXT = 2048, 4096, 512
_EXTRA_COLUMNS = 4
_BYTES_PER_ENTRY = 4  # int32
_ACTIVATION_MIB_PER_TOKEN = 1.5  # SGLang's own estimate, handle_gpu_memory_settings
_GRAPH_MIB_PER_REQUEST = 2.0  # likewise


def request_table_rows(device_tokens: int, context_len: int, max_running_requests: int | None) -> int:
    """Rows of the request table: the given limit, or ``max(2048, min(4096, T/context·512))`` (kv_cache_configurator.py)."""
    if max_running_requests:
        return max_running_requests
    return min(max(int(device_tokens / context_len * _ROWS_PER_CONTEXT), _ROWS_FLOOR), _ROWS_CEILING)


def request_table_bytes(rows: int, context_len: int, draft_tokens: int = 0) -> int:
    """Bytes of the request table on each GPU: int32, one row per request and one spare, one column per position.

    Args:
        rows: requests (``request_table_rows``).
        context_len: longest request, tokens.
        draft_tokens: ``speculative_num_draft_tokens``.
    """
    return (rows + 1) * (context_len + _EXTRA_COLUMNS + draft_tokens) * _BYTES_PER_ENTRY


@record(frozen=True)
class Outside:
    """What stays outside the static share of one GPU, in GiB.

    Attributes:
        room_gib: ``P·(1 − f)``.
        needed_gib: what is known to want a place there.
        terms: room, then each demand.
    """

    room_gib: float
    needed_gib: float
    terms: tuple[Term, ...]

    @property
    def left_gib(self) -> float:
        """What remains; negative where the demands do not fit."""
        return self.room_gib - self.needed_gib


def outside_static_share(
    budget: GpuBudget, args: Mapping[str, Any], *, device_tokens: int, context_len: int, graph_gib: float | None = None
) -> Outside:
    """What must fit into ``P·(1 − f)``.

    Args:
        budget: free memory around loading, and the fraction.
        args: server_args of the launch.
        device_tokens: KV tokens.
        context_len: longest request, tokens.
        graph_gib: what graph capture took by the log; None estimates 2 MiB for each request of the largest captured batch.
    """
    room = Term("outside the static share", f"{budget.pre_gib:g} GiB × (1 − {budget.fraction:g})", budget.outside_gib, "GiB", "log")
    demands = (
        _table_term(args, device_tokens, context_len),
        _graph_term(args, graph_gib),
        _activation_term(args),
    )
    return Outside(budget.outside_gib, sum(float(term.value) for term in demands), (room, *demands))


def requests_that_fit(device_tokens: int, mean_tokens: float, limit: int | None = None) -> int:
    """Requests of ``mean_tokens`` (prompt and generated so far) that run at once: device tokens only, whatever the host tier holds.

    Source: managers/schedule_policy.py:PrefillAdder (0.4.6, 0.5.9) admits by device tokens that are free or evictable.
    """
    fitting = int(device_tokens / mean_tokens)
    return min(fitting, limit) if limit else fitting


def _table_term(args: Mapping[str, Any], device_tokens: int, context_len: int) -> Term:
    rows = request_table_rows(device_tokens, context_len, positive(args, "max_running_requests", 0) or None)
    size = request_table_bytes(rows, context_len, positive(args, "speculative_num_draft_tokens", 0))
    return Term("request table", f"({rows} + 1) rows × {context_len:,} positions × 4 B", size / GIB, "GiB", "memory_pool.py:ReqToTokenPool")


def _graph_term(args: Mapping[str, Any], graph_gib: float | None) -> Term:
    if graph_gib is not None:
        return Term("graphs", "as the log prints it", graph_gib, "GiB", "log")
    batch = 0 if args.get("disable_cuda_graph") else positive(args, "cuda_graph_max_bs", 0)
    return Term("graphs", f"batch {batch} × 2 MiB", batch * _GRAPH_MIB_PER_REQUEST / 1024, "GiB", "SGLang's own reserve")


def _activation_term(args: Mapping[str, Any]) -> Term:
    chunk = positive(args, "chunked_prefill_size", positive(args, "max_prefill_tokens", 16384))
    return Term("prefill activations", f"{chunk} tokens × 1.5 MiB", chunk * _ACTIVATION_MIB_PER_TOKEN / 1024, "GiB", "SGLang's own reserve")
