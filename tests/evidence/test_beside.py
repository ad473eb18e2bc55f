"""Files beside a log: told apart by content, used by the rules, cited with their lines."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from logforensics import Hardware, LogforensicsError, cli, diagnose, parse
from logforensics.diagnosis import Diagnosis
from logforensics.findings import Finding
from tests.evidence.test_readers import DMESG, DOCKER, KILLED, OOM_KILL, STACKS, TABLE

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
FOUNDING = FIXTURES / "founding_hicache300" / "server.log"
KILLED_LOAD = FIXTURES / "killed_load_058" / "server.log"
HEALTHY = FIXTURES / "healthy_hicache_tp4_0516" / "server.log"
FREE = "               total        used        free      shared  buff/cache   available\nMem:    449000000000 0 0 0 0 440000000000\n"
Write = Callable[[str, str], Path]


@pytest.fixture
def beside(tmp_path: Path) -> Write:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def loud(found: Diagnosis) -> Finding:
    return next(finding for finding in found.findings if finding.severity.value in ("critical", "error"))


def cited(finding: Finding, path: Path) -> list[tuple[int, str]]:
    return [(item.line, item.text) for item in finding.evidence if item.source == str(path)]


def stamped(log: Path, record: str) -> str:
    """A kernel record of the second in which a log ends."""
    last = max(line[1:20] for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("[20"))
    return f"{last.replace(' ', 'T')}+0000 host7 kernel: {record}\n"


def test_host_ram_comes_from_free(beside: Write) -> None:
    side = beside("whatever.txt", FREE)
    found = diagnose([FOUNDING, side])
    first = loud(found)
    assert (first.root_cause, first.confidence.value) == ("host_overallocation_per_rank", "certain")
    assert cited(first, side) == [(2, "Mem:    449000000000 0 0 0 0 440000000000")]
    assert any(item.label == "host memory" and item.expression == f"{side}:2" and item.value == 449.0 for item in first.arithmetic)
    assert any(item.flag == "--hicache-size" and item.value == 48 for item in first.recommendations)
    assert found.sources == (str(FOUNDING),)
    assert "host RAM" not in " ".join(found.missing)
    assert any("is read as free: host memory 449 GB" in note for note in found.notes)


def test_what_the_user_says_wins(beside: Write) -> None:
    side = beside("free.txt", FREE)
    first = loud(diagnose([FOUNDING, side], hardware=Hardware(host_ram_bytes=512 * 10**9)))
    assert "the host has 512 GB" in first.title
    assert not cited(first, side)


def test_the_smaller_of_machine_and_container_counts(beside: Write) -> None:
    limit = beside("limit", "/sys/fs/cgroup/memory.max:107374182400\n")
    first = loud(diagnose([FOUNDING, beside("free.txt", FREE), limit]))
    assert "the host has 107.37 GB" in first.title
    assert cited(first, limit)


def test_the_kernel_log_turns_probable_into_certain(beside: Write) -> None:
    before = loud(diagnose(KILLED_LOAD))
    assert before.confidence.value == "probable"
    side = beside("messages", stamped(KILLED_LOAD, OOM_KILL) + stamped(KILLED_LOAD, KILLED))
    after = loud(diagnose([KILLED_LOAD, side]))
    assert (after.root_cause, after.confidence.value) == ("cgroup_or_oom_kill", "certain")
    assert [line for line, _ in cited(after, side)] == [1, 2]
    assert not any("kernel log" in item for item in after.missing)


@pytest.mark.parametrize("record", [KILLED.replace("sglang::schedul", "postgres"), KILLED])
def test_a_kill_that_is_not_ours_does_not_count(beside: Write, record: str) -> None:
    """Another program's, or one of another month."""
    side = beside("dmesg.txt", f"[Mon Jan  6 09:15:04 2025] {record}\n")
    assert loud(diagnose([KILLED_LOAD, side])).confidence.value == "probable"


def test_a_server_that_serves_is_not_accused(beside: Write) -> None:
    side = beside("dmesg.txt", f"[12345.678901] {KILLED}\n[12346.000000] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n")
    assert diagnose([HEALTHY, side, beside("d.json", DOCKER)]).verdict == "healthy"


def test_xid_of_the_kernel_log_is_a_hardware_fault(beside: Write) -> None:
    log = FIXTURES / "illegal_access_tp2_058" / "server.log"
    side = beside("k.txt", stamped(log, "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."))
    first = loud(diagnose([log, side]))
    assert first.root_cause == "gpu_hardware_error"
    assert cited(first, side)


def test_software_xids_are_no_hardware_fault(beside: Write) -> None:
    log = FIXTURES / "illegal_access_tp2_058" / "server.log"
    side = beside("k.txt", stamped(log, "NVRM: Xid (PCI:0000:3b:00): 31, pid=1, MMU Fault"))
    assert loud(diagnose([log, side])).root_cause == "illegal_memory_access"


def test_nvidia_smi_names_the_neighbour(beside: Write) -> None:
    log = FIXTURES / "balance_neighbour_0510" / "server.log"
    side = beside("smi", TABLE)
    found = next(item for item in diagnose([log, side]).findings if item.root_cause == "gpu_occupied_by_other_process")
    assert found.confidence.value == "certain"
    assert cited(found, side)[0][0] == 15
    assert any("process 77123 (/opt/vllm/bin/python3)" in item.label for item in found.arithmetic)


def test_a_stack_beside_the_log_says_where_it_hangs(beside: Write, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    stall = "[2026-06-02 12:00:00 TP0] Watchdog timeout (self.watchdog_timeout=300)\n"
    log.write_text((FIXTURES / "healthy_single_055" / "server.log").read_text(encoding="utf-8") + stall, encoding="utf-8")
    before = next(item for item in diagnose(log).findings if item.root_cause == "watchdog_timeout")
    side = beside("stacks", STACKS)
    after = next(item for item in diagnose([log, side]).findings if item.root_cause == "watchdog_timeout")
    assert (before.confidence.value, after.confidence.value) == ("probable", "certain")
    assert cited(after, side) == [(5, "all_reduce (torch/distributed/distributed_c10d.py:2800)")]
    assert not after.missing


def test_another_nodes_log_stays_a_log(beside: Write) -> None:
    other = beside("node1.log", HEALTHY.read_text(encoding="utf-8"))
    assert parse([HEALTHY, other]).sources == (str(HEALTHY), str(other))


def test_a_folder_and_an_archive(tmp_path: Path, beside: Write) -> None:
    beside("server.log", FOUNDING.read_text(encoding="utf-8"))
    beside("meminfo", "MemTotal:       438476562 kB\nMemFree:        1 kB\n")
    beside("notes.md", "nothing of interest")
    assert "the host has 449 GB" in diagnose(tmp_path).summary
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(tmp_path / "server.log", "x/server.log")
        archive.add(tmp_path / "meminfo", "x/meminfo")
    path = tmp_path / "all.tar.gz"
    path.write_bytes(packed.getvalue())
    first = loud(diagnose(path))
    assert "the host has 449 GB" in first.title
    assert any(item.source.endswith("x/meminfo") and item.text.startswith("MemTotal") for item in first.evidence)


@pytest.mark.parametrize("text", [DMESG, FREE, TABLE, DOCKER])
def test_a_side_file_alone_is_refused_in_one_line(beside: Write, capsys: pytest.CaptureFixture[str], text: str) -> None:
    status = cli.main(["diagnose", str(beside("x.txt", text))])
    said = capsys.readouterr().err
    assert status == 2
    assert said.count("\n") == 1
    assert "no SGLang server log was given" in said


def test_two_side_files_without_a_log_are_refused(beside: Write) -> None:
    with pytest.raises(LogforensicsError, match="no SGLang server log was given"):
        parse([beside("a", FREE), beside("b", DMESG)])


def test_hostile_names_are_shown_and_not_interpreted(beside: Write, capsys: pytest.CaptureFixture[str]) -> None:
    log = FIXTURES / "balance_neighbour_0510" / "server.log"
    hostile = TABLE.replace("/opt/vllm/bin/python3  ", "\x1b[31m[red]<script>x")
    side = beside("smi", hostile)
    cli.main(["diagnose", "--no-color", "-v", str(log), str(side)])
    assert "\x1b" not in capsys.readouterr().out
    cli.main(["diagnose", "--format", "html", str(log), str(side)])
    assert "<script>x" not in capsys.readouterr().out
