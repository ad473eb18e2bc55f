"""Each reader: text to facts with their lines; what each text is taken for."""

from __future__ import annotations

from datetime import datetime

import pytest

from logforensics.evidence import (
    ContainerEnd,
    Fact,
    Figure,
    Gpu,
    GpuLink,
    GpuLoad,
    GpuProcess,
    KernelKill,
    NcclWarning,
    PackageVersion,
    Size,
    ThreadStack,
    Xid,
    kinds_of,
)
from logforensics.evidence.kinds import KINDS

GIB = 1 << 30
OOM_KILL = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/docker/ab,task_memcg=/docker/ab,task=sglang::schedul,pid=5232,uid=0"
)
KILLED = "Memory cgroup out of memory: Killed process 5232 (sglang::schedul) total-vm:9kB, anon-rss:9437184kB, shmem-rss:35022438kB"
DMESG = f"""\
[Tue Jun  2 09:15:03 2026] memory: usage 104857600kB, limit 104857600kB, failcnt 7
[Tue Jun  2 09:15:04 2026] {OOM_KILL}
[Tue Jun  2 09:15:04 2026] {KILLED}
[Tue Jun  2 09:15:04 2026] oom_reaper: reaped process 5232 (sglang::schedul), now anon-rss:0kB
[Tue Jun  2 09:20:00 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.
"""
TABLE = """\
Tue Jun  2 09:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.86.10              Driver Version: 570.86.10      CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   31C    P0             72W /  700W |   20001MiB /  81559MiB |      0%      Default |
|   1  NVIDIA H100 80GB HBM3          On  |   00000000:43:00.0 Off |                    0 |
| N/A   31C    P0             72W /  700W |       4MiB /  81559MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+
| Processes:                                                                              |
|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |
|    0   N/A  N/A          77123      C   /opt/vllm/bin/python3                   19990MiB |
+-----------------------------------------------------------------------------------------+
"""
QUERY = """\

==============NVSMI LOG==============

Driver Version                            : 570.86.10
CUDA Version                              : 12.8
GPU 00000000:1B:00.0
    Product Name                          : NVIDIA H200
    FB Memory Usage
        Total                             : 143771 MiB
        Reserved                          : 500 MiB
        Used                              : 12 MiB
    BAR1 Memory Usage
        Total                             : 262144 MiB
        Used                              : 1 MiB
    Processes
        GPU instance ID                   : N/A
        Process ID                        : 991
            Type                          : C
            Name                          : python3
            Used GPU Memory               : 1024 MiB
"""
DOCKER = """\
[
    {
        "Id": "ab12",
        "State": {
            "Status": "exited",
            "Running": false,
            "OOMKilled": true,
            "ExitCode": 137
        },
        "HostConfig": {
            "Memory": 107374182400,
            "ShmSize": 34359738368
        },
        "Config": {
            "Image": "lmsysorg/sglang:v0.5.8-cu129"
        }
    }
]
"""
KUBE = """\
Name:             sglang-0
Namespace:        llm
Containers:
  sglang:
    Image:          lmsysorg/sglang:v0.5.10
    Last State:     Terminated
      Reason:       OOMKilled
      Exit Code:    137
    Limits:
      memory:          256Gi
      nvidia.com/gpu:  8
    Requests:
      memory:          64Gi
"""
STACKS = """\
Process 4711: sglang::scheduler_TP3
Python v3.12.3 (/usr/bin/python3.12)

Thread 4711 (active): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2800)
    event_loop_overlap (sglang/srt/managers/scheduler.py:900)
Thread 4800 (idle): "Thread-1"
    wait (threading.py:331)
"""
NCCL = """\
node1:100:100 [0] NCCL INFO NCCL version 2.27.3+cuda12.8
node1:100:200 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
node1:100:200 [0] misc/socket.cc:64 NCCL WARN socketProgress: Connection closed by remote peer 10.0.0.2<40000>
"""
BENCH = """\
============ Serving Benchmark Result ============
Backend:                                 sglang
Successful requests:                     100
Mean TTFT (ms):                          123.45
==================================================
"""


def facts(text: str, kind: str) -> tuple[Fact, ...]:
    assert [found.name for found in kinds_of(text)] == [kind]
    return next(found for found in KINDS if found.name == kind).read(text)


def test_dmesg() -> None:
    when = datetime(2026, 6, 2, 9, 15, 4)
    limit, first, second, xid = facts(DMESG, "kernel log")
    assert limit == Size(1, "memory_limit", 100 * GIB, "memory: usage 104857600kB, limit 104857600kB")
    assert first == KernelKill(2, "sglang::schedul", 5232, "/docker/ab", limited=True, time=when, year_known=True, record=OOM_KILL)
    assert second == KernelKill(3, "sglang::schedul", 5232, "/docker/ab", limited=True, time=when, year_known=True, record=KILLED)
    assert isinstance(xid, Xid)
    assert (xid.line, xid.code, xid.bus) == (5, 79, "PCI:0000:3b:00")


@pytest.mark.parametrize(
    ("stamp", "time", "year_known"),
    [
        ("[123456.789012] ", None, True),
        ("Jun 02 09:15:04 host7 kernel: ", datetime(2000, 6, 2, 9, 15, 4), False),
        ("2026-06-02T09:15:04+0000 host7 kernel: ", datetime(2026, 6, 2, 9, 15, 4), True),
        ("2026-06-02T09:15:04,123456+00:00 ", datetime(2026, 6, 2, 9, 15, 4), True),
        ("", None, True),
    ],
)
def test_stamps_of_a_kernel_log(stamp: str, time: datetime | None, *, year_known: bool) -> None:
    (kill,) = facts(f"{stamp}{KILLED}\n", "kernel log")
    assert isinstance(kill, KernelKill)
    assert (kill.time, kill.year_known, kill.victim) == (time, year_known, "sglang::schedul")


@pytest.mark.parametrize(
    ("cells", "total"),
    [
        ("540868984832 1024 2048 0 4096 527766454272", 540868984832),  # -b
        ("25276096512 1024 2048 0 4096 24411897856", 25276096512),  # -b on a small machine
        ("528192368 12345 2345 1 234 515392046", 528192368 << 10),  # as it is
        ("515812 12 23 0 4 503312", 515812 << 20),  # -m
        ("503 1 2 0 4 491", 503 << 30),  # -g
        ("503Gi 12Gi 10Gi 1.0Mi 480Gi 491Gi", 503 << 30),  # -h
        ("1.0Ti 12Gi 10Gi 1.0Mi 480Gi 491Gi", 1 << 40),
    ],
)
def test_free(cells: str, total: int) -> None:
    found = facts(f"               total        used        free      shared  buff/cache   available\nMem: {cells}\nSwap: 0 0 0\n", "free")
    assert [(fact.line, fact.what) for fact in found if isinstance(fact, Size)] == [(2, "host_total"), (2, "host_available")]
    assert isinstance(found[0], Size)
    assert found[0].size_bytes == total


def test_meminfo() -> None:
    found = facts("MemTotal:       528192368 kB\nMemFree:        1 kB\nMemAvailable:   515392046 kB\n", "/proc/meminfo")
    assert found == (
        Size(1, "host_total", 528192368 << 10, "MemTotal:       528192368 kB"),
        Size(3, "host_available", 515392046 << 10, "MemAvailable:   515392046 kB"),
    )


def test_control_groups() -> None:
    text = "/sys/fs/cgroup/memory.max:107374182400\n/sys/fs/cgroup/memory/memory.limit_in_bytes:9223372036854771712\n"
    assert facts(text, "control group limits") == (Size(1, "memory_limit", 100 * GIB, "memory.max"),)
    assert facts("/sys/fs/cgroup/memory.max:max\n", "control group limits") == ()


def test_limits() -> None:
    text = "core file size          (blocks, -c) 0\nmax locked memory       (kbytes, -l) 65536\n"
    (locked,) = facts(text, "process limits")
    assert isinstance(locked, Size)
    assert (locked.line, locked.size_bytes) == (2, 64 << 20)
    text = "Limit                     Soft Limit           Hard Limit           Units     \nMax locked memory         8388608              8388608              bytes     \n"
    assert [fact.size_bytes for fact in facts(text, "process limits") if isinstance(fact, Size)] == [8 << 20]
    assert facts("max locked memory       (kbytes, -l) unlimited\n", "process limits") == ()


def test_nvidia_table() -> None:
    driver, first, second, process = facts(TABLE, "nvidia-smi")
    assert driver == PackageVersion(3, "nvidia driver", "570.86.10")
    assert first == Gpu(9, 0, "NVIDIA H100 80GB HBM3", 81559, 20001, "81559MiB")
    assert second == Gpu(11, 1, "NVIDIA H100 80GB HBM3", 81559, 4, "81559MiB")
    assert process == GpuProcess(15, 0, 77123, "/opt/vllm/bin/python3", 19990)


def test_nvidia_query() -> None:
    driver, card, process = facts(QUERY, "nvidia-smi -q")
    assert driver == PackageVersion(4, "nvidia driver", "570.86.10")
    assert card == Gpu(9, 0, "NVIDIA H200", 143771, 12, "143771 MiB")
    assert process == GpuProcess(20, 0, 991, "python3", 1024)


def test_nvidia_csv() -> None:
    text = "index, name, memory.total [MiB], memory.used [MiB], driver_version\n0, NVIDIA B200, 183359 MiB, 0 MiB, 570.1\n1, NVIDIA B200, 183359 MiB, 0 MiB, 570.1\n"
    driver, *cards = facts(text, "nvidia-smi csv")
    assert driver == PackageVersion(2, "nvidia driver", "570.1")
    assert cards == [Gpu(line, line - 2, "NVIDIA B200", 183359, 0, "183359 MiB") for line in (2, 3)]
    text = "pid, process_name, used_gpu_memory [MiB]\n77, python3, 512 MiB\n"
    assert facts(text, "nvidia-smi csv") == (GpuProcess(2, None, 77, "python3", 512),)


def test_nvidia_dmon() -> None:
    head = "# gpu    pwr  gtemp  mtemp     sm    mem\n# Idx      W      C      C      %      %\n"
    text = f"{head}    0    100     30     40     90     50\n    1    100     30     40     10      -\n    0    100     30     40     70     50\n"
    assert facts(text, "nvidia-smi dmon") == (GpuLoad(3, 0, 80.0, 2), GpuLoad(4, 1, 10.0, 1))


def test_nvidia_topo() -> None:
    text = "\tGPU0\tGPU1\tNIC0\tCPU Affinity\nGPU0\t X \tNV18\tPIX\t0-47\nGPU1\tNV18\t X \tSYS\t0-47\n"
    assert facts(text, "nvidia-smi topo") == (GpuLink(2, 0, 1, "NV18"),)


def test_docker_inspect() -> None:
    assert facts(DOCKER, "docker inspect") == (
        ContainerEnd(7, None, oom_killed=True, record='"OOMKilled": true,'),
        ContainerEnd(8, 137, oom_killed=False, record='"ExitCode": 137'),
        Size(11, "memory_limit", 100 * GIB, '"Memory": 107374182400'),
        Size(12, "shm_total", 32 * GIB, '"ShmSize": 34359738368'),
        PackageVersion(15, "sglang", "0.5.8"),
    )


def test_kubectl_describe() -> None:
    assert facts(KUBE, "kubectl describe") == (
        PackageVersion(5, "sglang", "0.5.10"),
        ContainerEnd(7, None, oom_killed=True, record="Reason:       OOMKilled"),
        ContainerEnd(8, 137, oom_killed=False, record="Exit Code:    137"),
        Size(10, "memory_limit", 256 * GIB, "256Gi"),
    )


def test_py_spy() -> None:
    frames = ("all_reduce (torch/distributed/distributed_c10d.py:2800)", "event_loop_overlap (sglang/srt/managers/scheduler.py:900)")
    assert facts(STACKS, "py-spy dump") == (
        ThreadStack(4, 4711, "sglang::scheduler_TP3", "MainThread", active=True, frames=frames),
        ThreadStack(7, 4711, "sglang::scheduler_TP3", "Thread-1", active=False, frames=("wait (threading.py:331)",)),
    )


def test_nccl() -> None:
    version, warning = facts(NCCL, "NCCL debug log")
    assert version == PackageVersion(1, "nccl", "2.27.3+cuda12.8")
    assert isinstance(warning, NcclWarning)
    assert warning.line == 3


def test_bench() -> None:
    assert facts(BENCH, "bench_serving result") == (Figure(3, "Successful requests", 100.0), Figure(4, "Mean TTFT (ms)", 123.45))


def test_versions() -> None:
    text = "# versions on the server's machine\nsglang 0.5.8\nnvidia driver 570.86.10\n"
    assert facts(text, "versions") == (PackageVersion(2, "sglang", "0.5.8"), PackageVersion(3, "nvidia driver", "570.86.10"))


def test_several_outputs_in_one_file() -> None:
    text = f"$ cat /proc/meminfo\nMemTotal:       528192368 kB\nMemFree:        1 kB\n$ nvidia-smi\n{TABLE}"
    assert [kind.name for kind in kinds_of(text)] == ["/proc/meminfo", "nvidia-smi"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello\nworld\n",
        f"[2026-06-02 09:14:12 TP0] Init torch distributed begin.\n{DMESG}",  # a log into which a kernel log was pasted
        f"Traceback (most recent call last):\n  File 'x'\n{TABLE}",
        '{"text": "MemTotal is what /proc/meminfo says"}',
        "name, age\nx, 3\n",
    ],
)
def test_what_is_no_side_file(text: str) -> None:
    assert kinds_of(text) == ()


@pytest.mark.parametrize("piece", ["[", "a", "1", " ", "GPU0 ", "| ", "Thread ", "memory.max:", "oom-kill:", "NCCL WARN ", "\n", "Mem: 1 "])
def test_hostile_text_costs_linear_time(piece: str) -> None:
    text = piece * (400_000 // len(piece))
    kinds_of(text[: 1 << 16])
    for kind in KINDS:
        kind.read(text)
