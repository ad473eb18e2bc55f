"""The kinds of files that go beside a log, each with what recognises and what reads it."""

from __future__ import annotations

from collections.abc import Callable

from logforensics.evidence import bench, containers, kernel, memory, nvidia, programs
from logforensics.evidence.facts import Fact
from logforensics.records import record

_LINES = 300  # non-empty lines that decide about a kernel or NCCL log


@record(frozen=True)
class Kind:
    """A kind of file: what to call it, how it is recognised (by its text, or its non-empty lines), and how it is read."""

    name: str
    recognises: Callable[[str], bool]
    read: Callable[[str], tuple[Fact, ...]]
    is_log: bool = False  # its lines are also read as those of a server's log


def _by_lines(recognises: Callable[[list[str]], bool]) -> Callable[[str], bool]:
    return lambda text: recognises([line for line in text.split("\n") if line.strip()][:_LINES])


KINDS = (
    Kind("kernel log", _by_lines(kernel.is_kernel_log), kernel.read_kernel_log),
    Kind("free", memory.is_free, memory.read_free),
    Kind("/proc/meminfo", memory.is_meminfo, memory.read_meminfo),
    Kind("control group limits", memory.is_cgroup, memory.read_cgroup),
    Kind("process limits", memory.is_limits, memory.read_limits),
    Kind("nvidia-smi", nvidia.is_table, nvidia.read_table),
    Kind("nvidia-smi -q", nvidia.is_query, nvidia.read_query),
    Kind("nvidia-smi csv", nvidia.is_csv, nvidia.read_csv),
    Kind("nvidia-smi dmon", nvidia.is_dmon, nvidia.read_dmon),
    Kind("nvidia-smi topo", nvidia.is_topo, nvidia.read_topo),
    Kind("docker inspect", containers.is_docker_inspect, containers.read_docker_inspect),
    Kind("kubectl describe", containers.is_kubectl_describe, containers.read_kubectl_describe),
    Kind("py-spy dump", programs.is_stacks, programs.read_stacks),
    Kind("NCCL debug log", _by_lines(programs.is_nccl_log), programs.read_nccl_log, is_log=True),
    Kind("bench_serving result", bench.is_bench, bench.read_bench),
    Kind("versions", programs.is_versions, programs.read_versions),
)
