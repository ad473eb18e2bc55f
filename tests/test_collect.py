"""``collect``: what it takes with fake tools on PATH, what it lists as missing, masked secrets, and a bundle that ``diagnose`` reads."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from logforensics import LogforensicsError, cli, diagnose
from logforensics.collecting import collect

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
FOUNDING = FIXTURES / "founding_hicache300" / "server.log"
FREE = "               total        used        free      shared  buff/cache   available\nMem:    449000000000 0 0 0 0 440000000000"
Tool = Callable[[str, str], Path]


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    """Puts a script on PATH, where no other program is."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, body: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    return make


def members(bundle: Path) -> dict[str, str]:
    plain = zstandard.ZstdDecompressor().decompress(bundle.read_bytes(), max_output_size=1 << 26)
    with tarfile.open(fileobj=io.BytesIO(plain)) as archive:
        return {member.name: archive.extractfile(member).read().decode() for member in archive}  # type: ignore[union-attr]


def says(text: str) -> str:
    return f"/bin/cat <<'END'\n{text}\nEND"


def test_a_bundle_is_read_by_diagnose(tool: Tool, tmp_path: Path) -> None:
    tool("free", says(FREE))
    tool("nvidia-smi", says("index, name, memory.total [MiB], memory.used [MiB], driver_version\n0, NVIDIA H100, 97887 MiB, 0 MiB, 570.1"))
    bundle = tmp_path / "bundle.tar.zst"
    found = collect(bundle, logs=[FOUNDING])
    assert {"logs/server.log", "free.txt", "meminfo.txt", "nvidia-smi.csv", "ulimit.txt"} <= {item.member for item in found.taken}
    diagnosis = diagnose(bundle)
    assert diagnosis.findings[0].root_cause == "host_overallocation_per_rank"
    assert diagnosis.sources == (f"{bundle}:bundle/logs/server.log",)
    assert any("free.txt is read as free: host memory 449 GB" in note for note in diagnosis.notes)


def test_the_kernel_log_falls_back_to_dmesg(tool: Tool, tmp_path: Path) -> None:
    tool("journalctl", "echo '-- No entries --'")
    tool("dmesg", 'if [ "$1" = -T ]; then echo "[Tue Jun  2 09:15:04 2026] Linux version 6.8"; else exit 3; fi')
    collect(tmp_path / "b.tar.zst")
    assert members(tmp_path / "b.tar.zst")["bundle/kernel.txt"] == "[Tue Jun  2 09:15:04 2026] Linux version 6.8\n"


def test_what_is_missing_is_listed(tool: Tool, tmp_path: Path) -> None:
    tool("free", "echo 'no: --api-key sk-verysecret123456' >&2; exit 4")
    found = collect(tmp_path / "b.tar.zst", pid=os.getpid())
    why = dict(found.missed)
    assert why["nvidia-smi-q.txt"] == "nvidia-smi is not installed"
    assert why["py-spy.txt"] == "py-spy is not installed"
    assert why["free.txt"] == "free failed with status 4: no: --api-key ***"
    manifest = json.loads(members(tmp_path / "b.tar.zst")["bundle/manifest.json"])
    assert manifest["schema"] == "logforensics.bundle/1"
    assert {item["member"] for item in manifest["missed"]} == set(why)
    assert {item["member"] for item in manifest["taken"]} == {item.member for item in found.taken}


def test_a_tool_that_hangs_is_left(tool: Tool, tmp_path: Path) -> None:
    tool("nvidia-smi", "exec /bin/sleep 60")
    found = collect(tmp_path / "b.tar.zst", seconds=0.2)
    assert dict(found.missed)["nvidia-smi.txt"] == "nvidia-smi did not answer within 0.2 s"


def test_every_text_is_masked(tool: Tool, tmp_path: Path) -> None:
    secret = "hf_AbCdEfGhIjKlMnOp1234"  # noqa: S105 - an invented one
    log = tmp_path / "x.log"
    log.write_text(f"[2026-01-01 00:00:00] HF_TOKEN={secret}\nserver_args=ServerArgs(api_key='{secret}')\n", encoding="utf-8")
    for name in ("journalctl", "free", "nvidia-smi", "docker", "kubectl", "py-spy"):
        tool(name, f"echo 'HF_TOKEN={secret} --api-key {secret}'")
    collect(tmp_path / "b.tar.zst", logs=[log], pid=os.getpid(), containers=["sglang"], pods=["llm/sglang-0"])
    found = members(tmp_path / "b.tar.zst")
    assert {"bundle/docker-sglang.json", "bundle/pod-llm_sglang-0.txt", "bundle/py-spy.txt"} <= found.keys()
    assert not [name for name, text in found.items() if secret in text]


def test_containers_are_asked_only_by_name_and_without_a_shell(tool: Tool, tmp_path: Path) -> None:
    tool("docker", f'echo "$@" >> {tmp_path}/asked')
    collect(tmp_path / "b.tar.zst")
    assert not (tmp_path / "asked").exists()
    collect(tmp_path / "b.tar.zst", containers=[f"x; touch {tmp_path}/hurt", "--format=../../x"])
    assert (tmp_path / "asked").read_text().splitlines() == [f"inspect -- x; touch {tmp_path}/hurt", "inspect -- --format=../../x"]
    assert not (tmp_path / "hurt").exists()


def test_logs_of_one_name_stay_apart(tool: Tool, tmp_path: Path) -> None:
    del tool
    paths = [tmp_path / node / "server.log" for node in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(FOUNDING.read_bytes())
    found = collect(tmp_path / "b.tar.zst", logs=paths)
    assert [item.member for item in found.taken[:2]] == ["logs/server.log", "logs/server-1.log"]


def test_written_whole_or_not_at_all(tool: Tool, tmp_path: Path) -> None:
    del tool
    bundle = tmp_path / "b.tar.zst"
    bundle.write_bytes(b"old")
    with pytest.raises(LogforensicsError):
        collect(bundle, logs=[tmp_path / "absent.log"])
    assert bundle.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    with pytest.raises(LogforensicsError, match="cannot write"):
        collect(tmp_path / "nowhere" / "b.tar.zst")


def test_the_command_says_what_it_took(tool: Tool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool("free", says(FREE))
    bundle = tmp_path / "b.tar.zst"
    assert cli.main(["collect", "--log", str(FOUNDING), "-o", str(bundle)]) == 0
    said = capsys.readouterr().out
    assert "free -b" in said
    assert "could not be had:" in said
    assert f"logforensics diagnose {bundle}" in said
    assert cli.main(["collect", "-o", str(bundle), "-q"]) == 0
    assert capsys.readouterr().out == ""
