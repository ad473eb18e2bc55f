"""The packs against the source of real releases, fetched from the package index; skipped where there is none."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from logforensics.errors import InputError
from logforensics.parsing.audit import audit
from logforensics.parsing.templates import read_templates

MODULE = """
import logging
logger = logging.getLogger(__name__)
def load(free, used, name):
    logger.info(f"Load weight begin. avail mem={free:.2f} GB")
    msg = f"Load weight end. type={name}, "
    if used:
        msg += f"avail mem={free:.2f} GB, "
    msg += f"mem usage={used:.2f} GB."
    logger.info(msg)
    logger.warning("Allocating %.2f GB host memory for a thing called %s.", free, name)
    raise ValueError(f"Not enough host memory available. Requesting {used:.2f} GB but only have {free:.2f} GB free.")
def chosen(name, draft, free, sizes, limit):
    if draft:
        msg = f"Memory pool end. avail mem={free:.2f} GB, draft"
        msg += " model"
    else:
        msg = f"Memory pool end. avail mem={free:.2f} GB, target"
    msg += f" {name if sizes else 'none'}"
    logger.info(msg)
    logger.info(f"Memory pool end. avail mem={free:.2f} GB, mem reserved={limit:.2f} GB")
def other(logger):
    log_info_on_rank0(logger, "avail mem= is said in words nobody reads")
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "sglang-9.9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("sglang/srt/model_loader/load.py", MODULE)
        archive.writestr("sglang/srt/models/broken.py", "this is no Python")
        archive.writestr("sglang/lang/unrelated.py", "print('Decode batch')")
    return path


def test_templates_are_read_from_source(wheel: Path) -> None:
    shapes = {template.shape for template in read_templates(wheel)}

    assert shapes == {
        "Load weight begin. avail mem={:.2f} GB",
        "Load weight end. type={}, avail mem={:.2f} GB, mem usage={:.2f} GB.",
        "Allocating {:.2f} GB host memory for a thing called {}.",
        "Not enough host memory available. Requesting {:.2f} GB but only have {:.2f} GB free.",
        "avail mem= is said in words nobody reads",
        "Memory pool end. avail mem={:.2f} GB, draft model {}",
        "Memory pool end. avail mem={:.2f} GB, draft model none",
        "Memory pool end. avail mem={:.2f} GB, target {}",
        "Memory pool end. avail mem={:.2f} GB, target none",
        "Memory pool end. avail mem={:.2f} GB, mem reserved={:.2f} GB",
    }


def test_an_audit_names_what_nobody_reads_and_what_changed(wheel: Path, tmp_path: Path) -> None:
    older = tmp_path / "older" / "sglang" / "srt" / "x.py"
    older.parent.mkdir(parents=True)
    older.write_text(MODULE.replace("mem usage=", "memory used=").replace("Load weight begin.", "Loading begins."))

    found = audit(wheel, since=tmp_path / "older")

    assert [item.template.shape for item in found.gaps] == ["avail mem= is said in words nobody reads"]
    changes = {item.template.shape.split(".")[0]: item.change for item in found.checked if item.change != "same"}
    assert changes == {"Load weight begin": "new", "Load weight end": "changed"}
    assert {template.shape.split(" avail")[0] for template in found.gone} == {"Loading begins.", "Load weight end. type={},"}


def test_an_audit_names_the_figures_that_no_column_holds(wheel: Path) -> None:
    found = audit(wheel)

    assert [(item.template.shape.split(".")[0], item.lost) for item in found.lossy] == [("Memory pool end", ("mem reserved=",))]


def test_what_holds_no_sglang_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no sglang/srt"):
        read_templates(tmp_path)
    (tmp_path / "a.whl").write_text("no zip")
    with pytest.raises(InputError, match="is no wheel and no folder"):
        read_templates(tmp_path / "a.whl")


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    found: dict[str, Path] = {}
    for version in ("0.5.8", "0.5.16", "0.5.23"):
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--timeout",
            "10",
            "--retries",
            "0",
        ]
        done = subprocess.run([*command, f"sglang=={version}", "-d", str(folder)], capture_output=True, timeout=120, check=False)
        wheels = list(folder.glob(f"sglang-{version}-*.whl"))
        if done.returncode or not wheels:
            pytest.skip("the package index cannot be reached")
        found[version] = wheels[0]
    return found


@pytest.mark.parametrize(("version", "since"), [("0.5.8", None), ("0.5.16", "0.5.8"), ("0.5.23", "0.5.16")])
def test_the_packs_read_nearly_all_of_a_release(version: str, since: str | None, releases: dict[str, Path]) -> None:
    found = audit(releases[version], since=releases.get(since or ""))

    assert len(found.checked) > 50
    assert found.gaps == ()
    # figures without a column: what speculation adds to a recurrent state, and times and sizes that other lines have, too
    known = {"GB intermediate_ssm_state_cache size:", "GB intermediate_conv_window_cache size:", "avail mem=", "free memory="}
    known |= {"s (capture overlap window", "startup overlap total"}
    assert {label for item in found.lossy for label in item.lost} <= known
    if since:
        assert any(item.change == "new" for item in found.checked)
        assert found.gone
