"""Rules and pattern packs of one's own: the how-to's example, what is refused and where, and rules that fail."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from logforensics import LogforensicsError, cli, diagnose, parse
from logforensics.reporting.build import build_report
from logforensics.rules import all_rules

ROOT = Path(__file__).resolve().parents[1]
HOWTO = ROOT / "docs" / "howto"
HEALTHY = ROOT / "fixtures" / "healthy_single_055" / "server.log"
FOUNDING = ROOT / "fixtures" / "founding_hicache300" / "server.log"
SIGNATURE = '[[signature]]\ncode = "OWN001"\ncause = "gateway_quota"\nfind = "quota of tenant"\ntitle = "quota"\n'
PATTERN = '[[pattern]]\nevent = "x"\nframe = "notices"\nfind = "gateway says"\nset = { level = "warning" }\n'
QUOTA = "[{stamp}] gateway: quota of tenant blue is used up (5000 of 5000 tokens)\n"


def folder(tmp_path: Path, **files: str) -> Path:
    place = tmp_path / "own"
    place.mkdir()
    for name, text in files.items():
        (place / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return place


def with_quota_line(tmp_path: Path) -> tuple[Path, int]:
    lines = HEALTHY.read_text(encoding="utf-8").splitlines(keepends=True)
    stamp = next(line[1:20] for line in reversed(lines) if re.match(r"\[\d{4}-", line))
    path = tmp_path / "server.log"
    path.write_text("".join([*lines, QUOTA.format(stamp=stamp)]), encoding="utf-8")
    return path, len(lines) + 1


def test_the_how_to_shows_the_files_that_are_tested() -> None:
    shown = re.findall(r"```(?:toml|python)\n# (own_\w+/\S+)\n(.*?)```", (HOWTO / "own_rules.md").read_text(encoding="utf-8"), re.DOTALL)
    assert {name for name, _ in shown} == {"own_rules/gateway.toml", "own_rules/small_batches.py", "own_patterns/gateway.toml"}
    for name, text in shown:
        assert (HOWTO / name).read_text(encoding="utf-8") == text


def test_a_table_is_a_rule(tmp_path: Path) -> None:
    log, line = with_quota_line(tmp_path)
    found = {item.code: item for item in diagnose(log, rules=HOWTO / "own_rules").findings}["OWN001"]
    assert (found.root_cause, found.severity.value) == ("gateway_quota", "warning")
    assert found.title == "tenant blue has used up its quota of 5000 tokens"
    assert [(item.line, item.source) for item in found.evidence] == [(line, str(log))]
    assert "quota of tenant blue" in found.evidence[0].text
    assert found.recommendations[0].rationale == "raise the quota of blue, or wait"


def test_a_function_is_a_rule(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(re.sub(r"max_running_requests=\d+,", "max_running_requests=16,", HEALTHY.read_text(encoding="utf-8")), encoding="utf-8")
    found = {item.code: item for item in diagnose(log, rules=HOWTO / "own_rules").findings}["OWN002"]
    assert found.title == "the server takes 16 requests at once, we need 64"
    assert "max_running_requests=16" in found.evidence[0].text


def test_own_rules_stay_with_the_call_that_named_them(tmp_path: Path) -> None:
    log, _ = with_quota_line(tmp_path)
    before = all_rules()
    diagnose(log, rules=HOWTO / "own_rules")
    diagnose(log, rules=HOWTO / "own_rules")
    assert all_rules() == before
    assert not [item for item in diagnose(log).findings if item.code.startswith("OWN")]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a_toml", SIGNATURE + "colour = 1\n", "a.toml:6: unknown key 'colour'"),
        ("a_toml", SIGNATURE.replace('cause = "gateway_quota"\n', ""), "a.toml:1: needs the key 'cause'"),
        ("a_toml", SIGNATURE.replace('code = "OWN001"\n', ""), "a.toml:1: needs the key 'code'"),
        ("a_toml", SIGNATURE.replace("OWN001", "LF101"), "a.toml:1: the code 'LF101' is taken by logforensics"),
        ("a_toml", SIGNATURE.replace("OWN001", "LF999"), "a.toml:1: the code 'LF999' must be"),
        ("a_toml", SIGNATURE.replace("gateway_quota", "Not a slug"), "a.toml:1: the root cause 'Not a slug' must be"),
        ("a_toml", "\n\n" + SIGNATURE + "says = '('\n", "a.toml:3: "),
        ("a_toml", SIGNATURE + 'severity = "loud"\n', "a.toml:6: 'loud' is not a valid Severity"),
        ("a_toml", SIGNATURE + "find2 =\n", "a.toml:6: is not valid TOML"),
        ("a_toml", SIGNATURE + '[[signature.sample]]\ntext = "nothing"\n', "a.toml:1: sample 1 is not recognised"),
        ("a_toml", "[[rule]]\nx = 1\n", "a.toml:1: 'rule' is not known here"),
        ("a_toml", SIGNATURE.replace('"quota of tenant"', "5"), "a.toml:1: a value has the wrong form"),
        ("a_py", "x = 1\n\n\nraise ValueError('no')\n", "a.py:4: cannot be loaded: ValueError: no"),
        ("a_py", "x = 1\ndef (\n", "a.py:2: cannot be loaded: SyntaxError"),
        ("a_py", "x = 1\n", "holds no rule"),
    ],
)
def test_a_malformed_rule_is_refused_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, told: str
) -> None:
    place = folder(tmp_path, **{name: text})
    assert cli.main(["diagnose", str(HEALTHY), "--rules", str(place)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert told in said


def test_two_own_rules_with_one_code_are_refused(tmp_path: Path) -> None:
    header = "from logforensics.rules.registry import rule\n\n\n"
    text = f"{header}@rule('OWN001', 'x_y', 't')\ndef f(case):\n    return None\n"
    place = folder(tmp_path, a_toml=SIGNATURE, b_py=text)
    with pytest.raises(LogforensicsError, match=r"b\.py:4: the code 'OWN001' is taken by .*a\.toml:1"):
        diagnose(HEALTHY, rules=place)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("'a text'", "AttributeError"),
        ("Verdict('loud', Confidence.CERTAIN, '', '', '')", "TypeError: severity holds 'loud'"),
        ("Verdict(Severity.INFO, Confidence.CERTAIN, '', '', '', evidence=['line 3'])", "TypeError: evidence holds 'line 3'"),
    ],
)
def test_a_rule_that_fails_is_a_note(tmp_path: Path, body: str, told: str) -> None:
    text = (
        "from logforensics.findings import Confidence, Severity\nfrom logforensics.rules.registry import Verdict, rule\n\n\n"
        f"@rule('OWN009', 'own_thing', 'a title')\ndef own_thing(case):\n    return {body}\n"
    )
    found = diagnose(FOUNDING, rules=folder(tmp_path, a_py=text))
    assert found.findings[0].root_cause == "host_overallocation_per_rank"
    (note,) = (note for note in found.notes if "OWN009" in note)
    assert "a.py:5: the rule OWN009 failed and is left out: " in note
    assert told in note


def test_evidence_that_does_not_exist_and_unknown_flags_do_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "from logforensics.findings import Confidence, Evidence, Severity\n"
        "from logforensics.rules.registry import Verdict, rule, set_to\n\n\n"
        "@rule('OWN009', 'own_thing', 'a title')\ndef own_thing(case):\n"
        "    return Verdict(Severity.ERROR, Confidence.CERTAIN, 's', '[red]t', 'w', [Evidence('nowhere', 10**9)], [],"
        " [set_to('--own-flag', 1, '', 'why')])\n"
    )
    place = folder(tmp_path, a_py=text)
    for form in ("text", "json", "md", "html"):
        assert cli.main(["diagnose", str(FOUNDING), "--rules", str(place), "--format", form]) == 1
        assert "OWN009" in capsys.readouterr().out


def test_an_own_pattern_reads_lines(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(HEALTHY.read_text(encoding="utf-8") + "[2026-06-02 09:14:01] gateway attached to 10.0.0.1\n", encoding="utf-8")
    before, after = parse(log), parse(log, patterns=HOWTO / "own_patterns")
    assert after.frames["ready"].height == before.frames["ready"].height + 1
    assert after.frames["notices"].height == before.frames["notices"].height - 1
    assert diagnose(log, patterns=HOWTO / "own_patterns").verdict == "healthy"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (PATTERN + "colour = 1\n", "a.toml:6: unknown key 'colour'"),
        (PATTERN.replace("notices", "weather"), "a.toml:1: there is no frame 'weather'"),
        (PATTERN + "regex = '('\n", "a.toml:6: the regex does not compile"),
        (PATTERN + "regex = '(?P<speed>x)'\n", "a.toml:6: the 'regex' has the group 'speed'"),
        (PATTERN.replace('"warning"', "5"), "a.toml:5: 'set' gives column 'level' the value 5, which is no String"),
        (PATTERN + "bulk = '.*'\n", "a.toml:6: 'bulk' is for the built-in packs"),
        (PATTERN.replace('event = "x"\n', ""), "a.toml:1: needs the key 'event'"),
        (PATTERN + "fields = 5\n", "a.toml:1: a value has the wrong form"),
        (PATTERN + '[[pattern.sample]]\nline = "gateway says no"\ngives = { level = "error" }\n', "a.toml:1: sample 1 gives"),
        ("", "a.toml:1: holds no [[pattern]] table"),
    ],
)
def test_a_malformed_pack_is_refused_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str) -> None:
    place = folder(tmp_path, a_toml=text)
    assert cli.main(["diagnose", str(HEALTHY), "--patterns", str(place)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert told in said


def test_folders_that_are_none(tmp_path: Path) -> None:
    for wanted in ({"rules": tmp_path / "absent"}, {"patterns": tmp_path / "absent"}, {"rules": tmp_path}, {"patterns": tmp_path}):
        with pytest.raises(LogforensicsError, match=r"is not a folder|holds no"):
            diagnose(HEALTHY, **wanted)  # type: ignore[arg-type]


def test_config_toml_names_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "logforensics").mkdir()
    (tmp_path / "logforensics" / "config.toml").write_text(f'rules = "{HOWTO / "own_rules"}"\n', encoding="utf-8")
    log, _ = with_quota_line(tmp_path)
    cli.main(["diagnose", str(log)])
    assert "OWN001" in capsys.readouterr().out


# --- in the other commands -------------------------------------------------------------------------------------------------


def test_a_report_has_the_findings_of_own_rules_and_how_early_they_were_seen(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(re.sub(r"max_running_requests=\d+,", "max_running_requests=16,", HEALTHY.read_text(encoding="utf-8")), encoding="utf-8")
    told = build_report(log, rules=HOWTO / "own_rules")
    assert "OWN002" in {finding.code for finding in told.diagnosis.findings}
    assert "OWN002" in {item.code for item in told.foresight}


def test_a_watch_applies_own_rules_and_reads_own_patterns(tmp_path: Path) -> None:
    log, line = with_quota_line(tmp_path)
    text = log.read_bytes() + b"[2026-06-02 09:14:01] gateway attached to 10.0.0.1\n"
    own = ["--rules", str(HOWTO / "own_rules"), "--patterns", str(HOWTO / "own_patterns")]
    command = [sys.executable, "-m", "logforensics", "watch", "-", "--format", "json", *own]
    done = subprocess.run(command, input=re.sub(rb".*fired up.*\n", b"", text), capture_output=True, cwd=ROOT, timeout=120, check=True)
    events = [json.loads(row) for row in done.stdout.splitlines()]
    assert "OWN001" in {event["code"] for event in events if event["event"] == "finding"}
    assert {event["line"] for event in events if event["event"] == "ready"} == {line}  # one line was taken out before it


def test_frames_reads_own_patterns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "server.log"
    log.write_text(f"{FOUNDING.read_text(encoding='utf-8')}[2026-06-02 09:14:01] gateway attached to 10.0.0.1\n", encoding="utf-8")
    assert cli.main(["frames", str(log), "-o", str(tmp_path / "frames"), "--format", "csv", "--patterns", str(HOWTO / "own_patterns")]) == 0
    assert len((tmp_path / "frames" / "ready.csv").read_text().splitlines()) == 2
    assert "ready.csv  1 row" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("OWN001", "The log says `quota of tenant`"),
        ("gateway_quota", "refuses its requests until midnight"),
        ("own002", "64 requests at once"),
    ],
)
def test_own_rules_can_be_explained(capsys: pytest.CaptureFixture[str], code: str, said: str) -> None:
    assert cli.main(["explain", code, "--rules", str(HOWTO / "own_rules")]) == 0
    assert said in capsys.readouterr().out
    assert cli.main(["explain", code]) == 2


def test_everything_that_can_be_explained_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "--list", "--rules", str(HOWTO / "own_rules")]) == 0
    listed = capsys.readouterr().out
    assert [rule.code for rule in all_rules() if f"{rule.code} " not in listed] == []
    assert "OWN001  gateway_quota: " in listed
    names = listed[listed.index("\n\n") :].split()
    assert names
    assert {cli.main(["explain", name]) for name in names} == {0}


def test_explain_needs_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain"]) == 2
    assert "--list names everything" in capsys.readouterr().err
