"""The labelled cases: first cause right, healthy logs quiet, and a verdict that survives losing a fifth of the log."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from logforensics import Hardware, diagnose
from logforensics.diagnosis import Diagnosis
from logforensics.errors import InputError
from logforensics.units import GB, GIB

SHARED = Path(__file__).resolve().parents[3] / "shared"
LABELS = sorted(path for folder in ("incidents", "labels") for path in (SHARED / folder).glob("*.json") if "root_cause" in path.read_text())
pytestmark = [pytest.mark.skipif(not LABELS, reason="../shared is not here"), pytest.mark.usefixtures("defects_are_raised")]
LOUD = {"critical", "error", "warning"}


def _log(label_file: Path, label: dict[str, Any]) -> bytes:
    if label.get("log"):
        return gzip.decompress((SHARED / "real" / label["log"]).read_bytes())
    return label_file.with_suffix(".log").read_bytes()


def _diagnose(data: bytes, label: dict[str, Any], folder: Path) -> Diagnosis:
    log = folder / "server.log"
    log.write_bytes(data)
    known = label.get("hardware") or {}
    hardware = Hardware(
        host_ram_bytes=int(known["host_ram_gb"] * GB) if known.get("host_ram_gb") else None,
        gpu_memory_bytes=int(known["gpu_mem_gib"] * GIB) if known.get("gpu_mem_gib") else None,
    )
    stated = label.get("version_basis", "stated") == "stated"
    version = str(label["sglang_version"]) if label.get("sglang_version") and stated else None
    return diagnose(log, hardware=hardware, launch_command=label.get("launch_command"), version=version)


def _first(found: Diagnosis) -> tuple[str, str]:
    loud = [finding for finding in found.findings if finding.severity.value in LOUD]
    return (loud[0].root_cause, loud[0].confidence.value) if loud else ("healthy", "certain")


@pytest.mark.parametrize("path", LABELS, ids=lambda path: path.stem)
def test_verdict_survives_a_lost_fifth(path: Path, tmp_path: Path) -> None:
    label = json.loads(path.read_text())
    data = _log(path, label)
    whole = _diagnose(data, label, tmp_path)
    right = {label["root_cause"], *label.get("also", [])}
    if label["root_cause"] == "healthy":
        assert not [finding for finding in whole.findings if finding.severity.value in ("critical", "error")]
        return
    assert _first(whole)[0] in right
    cited = {item.line for finding in whole.findings for item in finding.evidence}
    lines = data.split(b"\n")
    fifth = len(lines) // 5
    for lost in (range(1, fifth + 1), range(len(lines) - fifth, len(lines) + 1)):
        kept = [line for number, line in enumerate(lines, 1) if number in cited or number not in lost]
        try:
            cause, confidence = _first(_diagnose(b"\n".join(kept), label, tmp_path))
        except InputError:
            continue  # of an excerpt of a few lines nothing that SGLang prints may be left
        assert cause in right or cause == "healthy" or confidence != "certain", (cause, confidence)
