"""The command line, as a user meets it: a process with arguments, two streams and an exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from logforensics import cli
from logforensics.cli.diagnose import exit_status
from logforensics.cli.options import FailOn
from logforensics.diagnosis import Coverage, Diagnosis
from logforensics.errors import InputError
from logforensics.findings import Confidence, Finding, Severity

ROOT = Path(__file__).parents[1]
FOUNDING = ROOT / "fixtures" / "founding_hicache300" / "server.log"
HEALTHY = ROOT / "fixtures" / "healthy_hicache_tp4_0516" / "server.log"
COMMANDS = ["diagnose", "demo", "frames", "explain"]


def run(*arguments: str | Path, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    clean = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS"}}
    return subprocess.run(
        [sys.executable, "-m", "logforensics", *map(str, arguments)],
        input=stdin, capture_output=True, cwd=ROOT, env={**clean, "PYTHONUTF8": "1", **environment}, timeout=120, check=False,
    )  # fmt: skip


def refused(done: subprocess.CompletedProcess[bytes]) -> str:
    """The one line of a refusal."""
    message = done.stderr.decode()
    assert done.returncode == 2, message
    assert done.stdout == b""
    assert message.startswith("logforensics: ")
    assert message.endswith("\n")
    assert message.count("\n") == 1
    assert "bug" not in message
    return message


# --- help ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert f"Examples:\n    logforensics {command}" in done.stdout.decode()


def test_help_lists_the_commands() -> None:
    text = run("--help").stdout.decode()
    assert "Examples:" in text
    assert [command for command in COMMANDS if f"\n  {command}  " not in text] == []


@pytest.mark.parametrize("arguments", [["--help"], ["diagnose", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from logforensics.cli import main; status = main(sys.argv[1:])\n"
        "heavy = {name.partition('.')[0] for name in sys.modules} & {'polars', 'rich', 'regex', 'numpy', 'pydantic'}\n"
        "sys.exit(f'imported {heavy}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("fmt", ["text", "json", "md"])
def test_a_diagnosis_without_colour_imports_nothing_it_does_not_use(fmt: str) -> None:
    code = (
        "import sys; from logforensics.cli import main; main(sys.argv[1:])\n"
        "heavy = {name.partition('.')[0] for name in sys.modules} & {'rich', 'numpy', 'pyarrow', 'pandas', 'vl_convert'}\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "diagnose", FOUNDING, "--format", fmt], capture_output=True, cwd=ROOT, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout


def test_a_healthy_log_imports_nothing_that_only_trouble_needs() -> None:
    code = "import sys; from logforensics.cli import main; main(sys.argv[1:]); sys.stderr.write(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code, "diagnose", HEALTHY], capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
    )
    assert done.stdout.startswith("HEALTHY")
    imported = {name.removeprefix("logforensics.") for name in done.stderr.split()}
    assert {"rules", "parsing", "run", "cli.diagnose"} <= imported
    unneeded = {
        "command",
        "evidence.kinds",
        "rules.own",
        "rules.pages",
        "topics",
        "render.json",
        "render.frames",
        "render.colour",
        "reporting",
    }
    assert imported & {*unneeded, "preflight", "cli.watch", "cli.sql", "toml_places", "tomllib", "tomli", "tarfile", "yaml"} == set()


def test_what_is_written_arrives_before_the_process_leaves() -> None:
    done = run("diagnose", FOUNDING, "--format", "json", "--fail-on", "info")
    assert done.returncode == 1
    assert json.loads(done.stdout)["schema"] == "logforensics.diagnosis/1"


def test_version() -> None:
    assert run("--version").stdout.startswith(b"logforensics 0.")


# --- refusals --------------------------------------------------------------------------------------------------------------


def test_without_a_command_help_and_a_refusal() -> None:
    done = run()
    assert done.returncode == 2
    assert b"Commands:" in done.stdout
    assert done.stderr.startswith(b"logforensics: no command was given")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["diagnose"], "Missing argument 'LOG"),
        (["diagnose", "x.log", "--frmat", "json"], "No such option"),
        (["diagnose", "x.log", "--format", "yaml"], "'yaml' is not one of"),
        (["diagnose", "x.log", "--fail-on", "sometimes"], "'sometimes' is not one of"),
        (["diagnose", "x.log", "--gpus", "0"], "Invalid value for '--gpus'"),
        (["diagnose", "x.log", "--host-ram", "lots"], "cannot read the size 'lots'"),
        (["frames", "x.log"], "Missing option"),
    ],
)
def test_usage_errors_are_one_line(arguments: list[str], told: str) -> None:
    assert told in refused(run(*arguments))


def test_a_log_without_a_command_gets_the_command() -> None:
    assert f"try: logforensics diagnose {FOUNDING}" in refused(run(FOUNDING))


@pytest.mark.parametrize("command", ["diagnose", "frames"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("missing.log", None),
        ("empty.log", b""),
        ("binary.log", bytes(range(256)) * 64),
        ("other.log", b"127.0.0.1 - - [10/Oct/2025:13:55:36] GET / 200\nhello\nworld\n"),
    ],
    ids=["missing", "empty", "binary", "other"],
)
def test_unusable_input(tmp_path: Path, command: str, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    out: list[str | Path] = ["-o", tmp_path / "out"] if command == "frames" else []
    assert name in refused(run(command, tmp_path / name, *out))
    assert not (tmp_path / "out").exists()


def test_an_empty_folder_is_unusable(tmp_path: Path) -> None:
    assert str(tmp_path) in refused(run("diagnose", tmp_path))


def test_empty_standard_input_is_unusable() -> None:
    assert "stdin" in refused(run("diagnose", "-"))


def test_a_hostile_file_name_cannot_steer_the_terminal() -> None:
    assert "\\x1b[31m" in refused(run("diagnose", "\x1b[31m\nred.log"))


def test_unknown_code() -> None:
    assert "LF999999" in refused(run("explain", "LF999999"))


# --- failures inside -------------------------------------------------------------------------------------------------------


def failing_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("logforensics.engine.diagnose", fail)
    return cli.main(["diagnose", "x.log"])


def test_our_errors_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing_with(monkeypatch, InputError("x.log:3: no\nsense")) == 2
    assert capsys.readouterr() == ("", "logforensics: x.log:3: no sense\n")


def test_a_bug_is_confessed_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("LOGFORENSICS_DEBUG", raising=False)
    assert failing_with(monkeypatch, ZeroDivisionError("division\nby zero")) == 2
    message = capsys.readouterr().err
    assert message.startswith("logforensics: this is a bug in logforensics: ZeroDivisionError: division by zero; please report")
    assert message.count("\n") == 1


def test_the_traceback_is_there_for_those_who_ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LOGFORENSICS_DEBUG", "1")
    assert failing_with(monkeypatch, ZeroDivisionError("no")) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_ctrl_c_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert failing_with(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr() == ("", "")


# --- exit status -----------------------------------------------------------------------------------------------------------


def diagnosis_with(*severities: Severity) -> Diagnosis:
    findings = tuple(Finding("LF1", "x", severity, Confidence.CERTAIN, "", "", "") for severity in severities)
    return Diagnosis("failed", "", {}, findings, Coverage(), ())


@pytest.mark.parametrize(
    ("severities", "fail_on", "status"),
    [
        ([], FailOn.INFO, 0),
        ([Severity.WARNING, Severity.CRITICAL], FailOn.ERROR, 1),
        ([Severity.ERROR], FailOn.ERROR, 1),
        ([Severity.ERROR], FailOn.CRITICAL, 0),
        ([Severity.WARNING], FailOn.ERROR, 0),
        ([Severity.WARNING], FailOn.WARNING, 1),
        ([Severity.INFO], FailOn.INFO, 1),
        ([Severity.CRITICAL], FailOn.NEVER, 0),
    ],
)
def test_exit_status(severities: list[Severity], fail_on: FailOn, status: int) -> None:
    assert exit_status(diagnosis_with(*severities), fail_on) == status


# --- the whole way ---------------------------------------------------------------------------------------------------------


def test_the_founding_case() -> None:
    done = run("diagnose", FOUNDING, "--host-ram", "449GB")
    text = done.stdout.decode()
    assert done.returncode == 1, done.stderr.decode()
    assert text.startswith("FAILED  ")
    assert "host_overallocation_per_rank" in text
    assert "--hicache-size 48" in text
    assert "\x1b" not in text
    assert run("diagnose", FOUNDING, "--host-ram", "449GB", "--fail-on", "never").returncode == 0


def test_standard_input_is_as_good_as_a_file() -> None:
    by_name = json.loads(run("diagnose", FOUNDING, "--format", "json").stdout)
    by_pipe = json.loads(run("diagnose", "-", "--format", "json", stdin=FOUNDING.read_bytes()).stdout)
    assert [f["code"] for f in by_pipe["findings"]] == [f["code"] for f in by_name["findings"]]


def test_output_file(tmp_path: Path) -> None:
    done = run("diagnose", FOUNDING, "--format", "json", "-o", tmp_path / "d.json")
    assert done.stdout == b""
    assert json.loads((tmp_path / "d.json").read_text(encoding="utf-8"))["schema"] == "logforensics.diagnosis/1"
    assert [path.name for path in tmp_path.iterdir()] == ["d.json"]


def test_output_file_that_cannot_be_written(tmp_path: Path) -> None:
    assert "cannot write" in refused(run("diagnose", FOUNDING, "-o", tmp_path / "no" / "such" / "d.txt"))
    assert "it is a folder" in refused(run("diagnose", FOUNDING, "-o", tmp_path))


def test_colour_follows_the_usual_agreements() -> None:
    assert b"\x1b[" in run("diagnose", FOUNDING, FORCE_COLOR="1").stdout
    assert b"\x1b" not in run("diagnose", FOUNDING, FORCE_COLOR="1", NO_COLOR="1").stdout
    assert b"\x1b" not in run("diagnose", FOUNDING, "--no-color", FORCE_COLOR="1").stdout


def test_a_terminal_without_unicode() -> None:
    done = run("diagnose", FOUNDING, "--host-ram", "449GB", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert done.stdout.isascii()


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m logforensics diagnose {FOUNDING} --host-ram 449GB | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, cwd=ROOT, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_full_disk_is_said_in_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "logforensics", "diagnose", FOUNDING],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, b"logforensics: cannot write to standard output: No space left on device\n")


def test_demo_says_what_it_runs() -> None:
    done = run("demo")
    first, _, rest = done.stdout.decode().partition("\n")
    assert done.returncode == 0, done.stderr.decode()
    assert first == "$ logforensics diagnose fixtures/founding_hicache300/server.log --host-ram 449GB"
    assert "host_overallocation_per_rank" in rest


def test_frames(tmp_path: Path) -> None:
    done = run("frames", FOUNDING, "-o", tmp_path, "--format", "csv")
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "host_pool.csv").read_text(encoding="utf-8").count("\n") == 9
    assert "host_pool.csv  8 rows" in done.stdout.decode()
    assert "not understood" in done.stdout.decode()


def test_explain() -> None:
    by_code, by_slug = run("explain", "LF101"), run("explain", "host_overallocation_per_rank")
    assert by_code.returncode == 0, by_code.stderr.decode()
    assert b"host_overallocation_per_rank" in by_code.stdout
    assert by_code.stdout == by_slug.stdout
