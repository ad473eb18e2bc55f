"""The user's own defaults, and shell completion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from logforensics import cli

ROOT = Path(__file__).parents[1]
FOUNDING = ROOT / "fixtures" / "founding_hicache300" / "server.log"
HICACHE48 = ROOT / "fixtures" / "founding_hicache48" / "server.log"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "logforensics" / "config.toml"
    path.parent.mkdir()
    return path


def diagnose(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = cli.main(["diagnose", *arguments])
    return status, "".join(capsys.readouterr())


def test_the_file_gives_defaults(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text('host_ram = "449GB"\n', encoding="utf-8")
    assert "the host has 449 GB" in diagnose(capsys, str(FOUNDING), "-q")[1]


def test_a_bare_number_is_gb(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("host_ram = 449\n", encoding="utf-8")
    assert "the host has 449 GB" in diagnose(capsys, str(FOUNDING), "-q")[1]


def test_the_command_line_wins(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text('host_ram = "449GB"\nfail_on = "never"\n', encoding="utf-8")
    assert "the host has 512 GB" in diagnose(capsys, str(FOUNDING), "-q", "--host-ram", "512GB")[1]
    assert diagnose(capsys, str(FOUNDING), "-q")[0] == 0
    assert diagnose(capsys, str(FOUNDING), "-q", "--fail-on", "error")[0] == 1


def test_a_table_is_for_one_command(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text('[watch]\nfail_on = "warning"\n', encoding="utf-8")
    assert diagnose(capsys, str(HICACHE48), "-q")[0] == 0
    config.write_text('[diagnose]\nfail_on = "warning"\n', encoding="utf-8")
    assert diagnose(capsys, str(HICACHE48), "-q")[0] == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("host_ram = ", "is not valid TOML"),
        ("hostram = 449", "'hostram' is not a setting; the settings are host_ram"),
        ('host_ram = "lots"', "host_ram: cannot read the size 'lots'"),
        ("gpus = 0", "gpus: must be a number from 1 on"),
        ("gpus = true", "gpus: must be a number from 1 on"),
        ("sglang_version = 5", "sglang_version: must be a text"),
        ('no_color = "yes"', "no_color: must be true or false"),
        ('fail_on = "sometimes"', "fail_on: must be one of critical, error"),
        ("[diagnoze]\ngpus = 8", "there is no command 'diagnoze'"),
    ],
)
def test_a_bad_file_is_said_in_one_line(config: Path, capsys: pytest.CaptureFixture[str], text: str, told: str) -> None:
    config.write_text(text, encoding="utf-8")
    status, said = diagnose(capsys, str(FOUNDING))
    assert status == 2
    assert said.startswith(f"logforensics: {config}: ")
    assert told in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("arguments", [["--help"], ["diagnose", "--help"], ["--version"]])
def test_help_comes_whatever_the_file_says(config: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    config.write_text("nonsense", encoding="utf-8")
    assert cli.main(arguments) == 0
    assert "logforensics" in capsys.readouterr().out


def test_a_command_behind_two_dashes_is_not_ours(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text("nonsense", encoding="utf-8")
    assert cli.main(["diagnose", "x.log", "--", "--help"]) == 2
    assert "is not valid TOML" in capsys.readouterr().err


def test_completion_knows_the_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "logforensics"],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "COMP_WORDS": "logforensics wat", "COMP_CWORD": "1", "_LOGFORENSICS_COMPLETE": "complete_bash"},
    )  # fmt: skip
    assert (done.returncode, done.stdout.split()) == (0, ["watch"])
