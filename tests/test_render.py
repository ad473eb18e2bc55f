"""Rendering: hand-made diagnoses, hostile log text, narrow screens, the JSON contract."""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jsonschema
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from logforensics.diagnosis import CorrectedCommand, Coverage, Diagnosis, FlagChange
from logforensics.errors import LogforensicsError
from logforensics.findings import Action, Arithmetic, Confidence, Evidence, Finding, Recommendation, Severity
from logforensics.render import Detail, Format, FrameFiles, Screen, diagnosis_to_dict, dumps, render, write_frames
from logforensics.render.runs import run_rows
from logforensics.render.styled import _OWN_SYMBOLS, Styled, columns_of
from logforensics.render.untrusted import ascii_form, visible
from logforensics.render.words import change, cut, flag_value, line_numbers, number, recommendation

SCHEMA = json.loads((Path(__file__).parents[1] / "docs" / "diagnosis.schema.json").read_text(encoding="utf-8"))
FORMATS: tuple[Format, ...] = ("text", "json", "md", "html")
LONG_COMMAND = (
    "python -m sglang.launch_server \\\n  --model-path /models/Kimi-K2.5 " + "--some-flag value " * 12 + "\\\n  --hicache-size 48"
)
HOSTILE = (
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \r overwrite \x08\x00\x9b31m [bold]markup[/bold] [/] [link=http://evil]x[/link] "
    "<script>alert(1)</script> &amp; \u202eesrever\u2066 ```fence``` | [a](javascript:x) \ud800 \u2028end"
)


def finding(**changes: Any) -> Finding:
    """A finding with every part."""
    base = Finding(
        code="LF101",
        root_cause="host_overallocation_per_rank",
        severity=Severity.CRITICAL,
        confidence=Confidence.CERTAIN,
        stage="host_pool",
        title="8 ranks × 300 GB = 2,400 GB, the host has 449 GB",
        explanation="--hicache-size is GB per rank, so every one of the eight ranks pins its own 300 GB pool.\nThe host has 449 GB.",
        evidence=tuple(
            Evidence("logs/server.log", line, f"[2026-02-18 14:03:52 TP{line - 123}] Allocating 300.00 GB") for line in range(123, 131)
        ),
        arithmetic=(
            Arithmetic("asked", "8 × 300 GB", 2400.0, "GB"),
            Arithmetic("available", "449 − 4 − 40 − 10", 395, "GB"),
            Arithmetic("per rank", "395 GB ÷ 8", 49.375, "GB"),
        ),
        recommendations=(Recommendation("--hicache-size", Action.SET, 48, "GB per rank", "8 × 48 = 384 GB fits"),),
    )
    return replace(base, **changes)


def diagnosis(*findings: Finding, **changes: Any) -> Diagnosis:
    """A diagnosis with every part."""
    base = Diagnosis(
        verdict="failed",
        summary="Every rank pinned its own 300 GB HiCache pool: 2,400 GB asked of a host with 449 GB.",
        run={"model": "/models/Kimi-K2.5", "ranks": {"tp": 8}, "started": dt.datetime(2026, 2, 18, 14, 2, 41)},
        findings=findings or (finding(),),
        coverage=Coverage(4213, 4180, 30, 3, unknown_examples=tuple(("logs/server.log", n, f"odd {n}") for n in (17, 80, 91))),
        sources=("logs/server.log",),
        recommended_command=CorrectedCommand(LONG_COMMAND, (FlagChange("--hicache-size", 300, 48, "GB per rank"),), ("from the log",)),
        missing=("free GPU memory before start",),
        notes=("the log ends without a traceback",),
    )
    return replace(base, **changes)


def hostile_diagnosis() -> Diagnosis:
    """Hostile text in every place where text from a log can end up."""
    bad = finding(
        title=HOSTILE,
        explanation=HOSTILE,
        evidence=(Evidence("x.log", 1, HOSTILE, needle="[bold]"),),
        arithmetic=(Arithmetic(HOSTILE, HOSTILE, HOSTILE, HOSTILE),),
        recommendations=(Recommendation("--flag", Action.SET, HOSTILE, HOSTILE, HOSTILE),),
    )
    return diagnosis(
        bad,
        replace(bad, severity=Severity.INFO),
        summary=HOSTILE,
        run={"model": HOSTILE, HOSTILE: [HOSTILE], "stages": [{"name": HOSTILE}]},
        coverage=Coverage(2, 0, 0, 1, 1, 0, (("x.log", 1, HOSTILE),), (("x.log", 2, HOSTILE),)),
        sources=("x.log",),
        recommended_command=CorrectedCommand(HOSTILE, (FlagChange("--flag", HOSTILE, HOSTILE, HOSTILE),), (HOSTILE,)),
        missing=(HOSTILE,),
        notes=(HOSTILE,),
    )


# --- text ------------------------------------------------------------------------------------------------------------------


def test_first_line_is_verdict_and_cause() -> None:
    first = render(diagnosis(), screen=Screen(width=120)).splitlines()[0]
    assert first == "FAILED  Every rank pinned its own 300 GB HiCache pool: 2,400 GB asked of a host with 449 GB."


def test_quiet_is_the_verdict_alone() -> None:
    assert len(render(diagnosis(), screen=Screen(width=120, detail=Detail.QUIET)).splitlines()) == 1


def test_a_finding_shows_code_cause_evidence_arithmetic_and_remedy() -> None:
    text = render(diagnosis())
    assert "CRITICAL  8 ranks × 300 GB = 2,400 GB, the host has 449 GB" in text
    assert "LF101 host_overallocation_per_rank · certain" in text
    assert "server.log:123  [2026-02-18 14:03:52 TP0] Allocating 300.00 GB" in text
    assert "… and 4 more lines: 127–130" in text
    assert re.search(r"asked +8 × 300 GB +\= 2,400 GB", text)
    assert "→ set --hicache-size 48 (GB per rank)  8 × 48 = 384 GB fits" in text
    assert re.search(r"--hicache-size +300 → 48  GB per rank", text)
    assert "4,213 lines: 4,180 understood, 30 known noise, 3 not understood" in text
    assert "server.log:17  odd 17" in text


def test_arithmetic_is_aligned() -> None:
    steps = [line for line in render(diagnosis()).splitlines() if "  = " in line]
    assert len(steps) == 3
    assert len({line.index("  = ") for line in steps}) == 1


def test_five_cited_lines_are_shown_rather_than_one_of_them_counted() -> None:
    text = render(diagnosis(finding(evidence=finding().evidence[:5])))
    assert "server.log:127" in text
    assert "more line" not in text


def test_verbose_shows_every_cited_line() -> None:
    text = render(diagnosis(), screen=Screen(detail=Detail.VERBOSE))
    assert all(f"server.log:{n}  " in text for n in range(123, 131))


def test_info_findings_are_one_line_unless_verbose() -> None:
    info = finding(code="LF901", severity=Severity.INFO, title="attention backend chosen: flashinfer", explanation="EXPLAINED")
    assert "INFO  attention backend chosen: flashinfer  (LF901 server.log:123)" in render(diagnosis(info))
    assert "EXPLAINED" not in render(diagnosis(info))
    assert "EXPLAINED" in render(diagnosis(info), screen=Screen(detail=Detail.VERBOSE))


def test_long_evidence_is_cut_around_what_matters() -> None:
    line = "server_args=ServerArgs(" + "a=1, " * 500 + "hicache_size=300, " + "b=2, " * 500
    text = render(diagnosis(finding(evidence=(Evidence("server.log", 1, line, needle="hicache_size=300"),))))
    assert "hicache_size=300" in text
    assert text.count("a=1") < 40


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_nothing_but_the_command_is_wider_than_the_screen(width: int) -> None:
    lines = render(diagnosis(), screen=Screen(width=width)).splitlines()
    assert [line for line in lines if len(line) > width and line not in LONG_COMMAND.splitlines()] == []
    assert [line for line in lines if line != line.rstrip() and line not in LONG_COMMAND.splitlines()] == []


def test_the_command_can_be_pasted_from_any_screen() -> None:
    assert f"\n{LONG_COMMAND}\n" in render(diagnosis(), screen=Screen(width=60))


def test_no_escape_without_colour_and_the_same_words_with_it() -> None:
    plain = render(diagnosis(), screen=Screen(color=False))
    coloured = render(diagnosis(), screen=Screen(color=True))
    assert "\x1b" not in plain
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_ascii_only_for_terminals_that_know_nothing_else() -> None:
    text = render(diagnosis(), screen=Screen(ascii_only=True))
    assert text.isascii()
    assert "8 x 300 GB" in text
    assert "-> set --hicache-size 48" in text


def test_a_diagnosis_without_anything_renders_in_every_format() -> None:
    bare = Diagnosis("healthy", "Nothing wrong was found.", {}, (), Coverage(), ())
    assert render(bare).startswith("HEALTHY  Nothing wrong was found.")
    for fmt in FORMATS:
        assert "Nothing wrong was found" in render(bare, fmt)


def test_files_of_one_name_are_told_apart() -> None:
    both = finding(evidence=(Evidence("a/server.log", 1, "one"), Evidence("b/server.log", 2, "two")))
    text = render(diagnosis(both, sources=("a/server.log", "b/server.log")))
    assert "a/server.log:1  one" in text
    assert "b/server.log:2  two" in text


def test_facts_of_the_run() -> None:
    def ledger(rank: str, left: float) -> dict[str, Any]:
        return {"rank": rank, "free_before_load_gib": 93.4, "weights_gib": 71.8, "kv_gib": None, "left_gib": left}

    run = {
        "model": "m",
        "model_path": "/m",
        "version_low": "0.5.8",
        "version_high": "0.5.9",
        "layout": {"tp_size": 8, "dp_size": 1, "nnodes": 1},
        "stages": [
            {"stage": "load_end", "line": 91, "last_line": 98, "time": dt.datetime(2026, 2, 18, 14, 3, 25), "ranks": 8},
            {"stage": "some_new_stage", "line": 99, "last_line": 99, "time": None, "ranks": 1},
        ],
        "memory": {"gpu": [ledger("TP0", 0.82), ledger("TP1", 0.87), ledger("TP2", 0.87), ledger("TP3", 0.87)], "host": None},
        "unheard_of": 1,
    }
    assert run_rows(run) == [
        ("SGLang", "0.5.8 to 0.5.9"),
        ("model", "/m"),
        ("layout", "TP 8"),
        ("stages", "14:03:25  weights loaded on 8 ranks (lines 91–98)"),
        ("", "some new stage (line 99)"),
        ("GPU memory", "TP0: 93.40 GiB free − 71.80 weights → 0.82 GiB left"),
        ("", "TP1 … TP3: 93.40 GiB free − 71.80 weights → 0.87 GiB left"),
    ]


def test_what_went_wrong_on_each_rank() -> None:
    def rank(name: str, role: str, line: int | None = None) -> dict[str, Any]:
        error = {"error": "RuntimeError: gone", "error_line": line, "error_time": None} if line else {"error": None, "error_line": None}
        return {"rank": name, "stage": "graph_begin", "role": role, **error}

    ranks = [rank(f"TP{number}", "no error") for number in (0, 1, 2, 4)]
    ranks += [rank("TP3", "first", 46), rank("TP5", "same error", 48), rank("TP7", "same error", 50), rank("TP9", "silent")]
    assert run_rows({"timeline": ranks}) == [
        ("ranks", "TP3: first error, reached: graph capture begins: RuntimeError: gone (line 46)"),
        ("", "TP5, TP7: same error, reached: graph capture begins: RuntimeError: gone (lines 48, 50)"),
        ("", "TP0 … TP2, TP4: no error, reached: graph capture begins"),
        ("", "TP9: silent: expected, but not in this log"),
    ]


# --- hostile text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", FORMATS)
def test_no_control_character_survives(fmt: Any) -> None:
    text = render(hostile_diagnosis(), fmt, Screen(detail=Detail.VERBOSE))
    assert [c for c in text if not c.isprintable() and c not in "\n\u00a0"] == []
    text.encode("utf-8")


def test_markup_is_shown_and_not_interpreted() -> None:
    text = render(hostile_diagnosis(), screen=Screen(width=120, color=True))
    assert "[bold]" in re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "evil" in text
    assert "\x1b]8" not in text  # no hyperlink was made of [link=...]


def test_html_has_no_tag_from_the_log() -> None:
    tags: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            tags.append(tag)
            assert not any(name.startswith("on") or name in {"src", "href"} for name, _ in attrs)

    page = render(hostile_diagnosis(), "html")
    Tags().feed(page)
    assert "script" not in tags
    assert "&lt;script&gt;" in page


def test_markdown_fences_hold() -> None:
    text = render(hostile_diagnosis(), "md")
    fences = re.findall(r"^(`{3,})\w*$", text, re.MULTILINE)
    assert fences
    assert all(len(fence) > 3 for fence in fences)  # longer than the run inside
    outside = re.sub(r"^(`{4,})\w+\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "<script" not in outside
    assert "[a](" not in outside


def test_visible_spells_out_what_steers_a_terminal() -> None:
    assert visible("a\x1b[0m\x07\r\u202e\u00e9\u6f22 \u00a0") == "a\\x1b[0m\\x07\\r\\u202e\u00e9\u6f22 \u00a0"
    assert visible("a\nb", keep="\n") == "a\nb"
    assert ascii_form("×…→é") == "x...->\\xe9"


def test_secrets_are_masked_in_every_format() -> None:
    line = "server_args=ServerArgs(model_path='/m', api_key='sk-verysecret1234567890', port=30000)"
    command = CorrectedCommand("python -m sglang.launch_server --model-path /m --api-key sk-verysecret1234567890")
    leaky = diagnosis(finding(evidence=(Evidence("server.log", 1, line),)), recommended_command=command)
    for fmt in FORMATS:
        assert "verysecret" not in render(leaky, fmt)


# --- json ------------------------------------------------------------------------------------------------------------------


def test_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("made", [diagnosis(), hostile_diagnosis(), Diagnosis("healthy", "fine", {}, (), Coverage(), ())])
def test_json_fits_the_schema(made: Diagnosis) -> None:
    jsonschema.validate(json.loads(dumps(made)), SCHEMA, cls=jsonschema.Draft202012Validator)


def test_json_shape() -> None:
    form = diagnosis_to_dict(diagnosis())
    assert list(form) == [
        "schema", "verdict", "summary", "run", "recommended_command", "command_changes",
        "missing", "coverage", "notes", "sources", "findings",
    ]  # fmt: skip
    assert form["schema"] == "logforensics.diagnosis/1"
    assert form["recommended_command"] == LONG_COMMAND
    assert form["command_changes"] == [{"flag": "--hicache-size", "old": 300, "new": 48, "why": "GB per rank"}]
    assert form["run"]["started"] == "2026-02-18T14:02:41"
    assert form["coverage"]["unknown_examples"][0] == {"file": "logs/server.log", "line": 17, "text": "odd 17"}
    first = form["findings"][0]
    assert first["severity"] == "critical"
    assert first["caused_by"] is None
    assert first["evidence"][0] == {"file": "logs/server.log", "line": 123, "text": "[2026-02-18 14:03:52 TP0] Allocating 300.00 GB"}
    assert first["arithmetic"][0] == {"label": "asked", "expression": "8 × 300 GB", "value": 2400.0, "unit": "GB"}
    assert first["recommendations"][0]["action"] == "set"


def test_json_has_no_nan_and_only_plain_values() -> None:
    odd = {
        "nan": float("nan"),
        "list": (float("inf"), 1),
        "day": dt.date(2026, 1, 2),
        "span": dt.timedelta(minutes=1),
        "severity": Severity.INFO,
        "path": Path("x"),
        1: {"set"},
    }
    steps = (Arithmetic("quotient", "0 ÷ 0", float("nan"), "GB"),)
    form = json.loads(dumps(diagnosis(finding(arithmetic=steps), run=odd)))
    assert form["run"] == {
        "nan": None, "list": [None, 1], "day": "2026-01-02", "span": 60.0, "severity": "info", "path": "x", "1": ["set"],
    }  # fmt: skip
    assert form["findings"][0]["arithmetic"][0]["value"] is None


def test_evidence_text_is_the_same_after_a_round_trip() -> None:
    form = json.loads(dumps(hostile_diagnosis()))
    assert form["findings"][0]["evidence"][0]["text"] == HOSTILE


# --- words -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (2400.0, "2,400"),
        (0.82, "0.82"),
        (70272, "70,272"),
        (49.375, "49.38"),
        (0.00123, "0.0012"),
        (0.0, "0"),
        ("text", "text"),
        (True, "True"),
    ],
)
def test_number(value: Any, shown: str) -> None:
    assert number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(48.0, "48"), (0.88, "0.88"), (None, ""), (True, ""), (False, "false"), ("auto", "auto"), (131072, "131072")]
)
def test_flag_value(value: Any, shown: str) -> None:
    assert flag_value(value) == shown


@pytest.mark.parametrize(
    ("lines", "shown"), [([124, 125, 130, 131, 132, 133], "124, 125, 130–133"), ([5], "5"), ([3, 1, 2, 2], "1–3"), ([], "")]
)
def test_line_numbers(lines: list[int], shown: str) -> None:
    assert line_numbers(lines) == shown


@pytest.mark.parametrize(
    ("advice", "shown"),
    [
        (Recommendation("--hicache-size", Action.SET, 48, "GB per rank"), "set --hicache-size 48 (GB per rank)"),
        (Recommendation("--enable-x", Action.SET, value=True), "set --enable-x"),
        (Recommendation("--mem-fraction-static", Action.DECREASE, 0.88), "lower --mem-fraction-static to 0.88"),
        (Recommendation("--mem-fraction-static", Action.INCREASE), "raise --mem-fraction-static"),
        (Recommendation("--x", Action.REMOVE), "remove --x"),
        (Recommendation("NCCL_DEBUG", Action.ENV, "INFO"), "export NCCL_DEBUG=INFO"),
        (Recommendation("sglang", Action.UPGRADE, "0.5.9"), "upgrade sglang to 0.5.9"),
        (Recommendation("free the GPU", Action.OTHER), "free the GPU"),
    ],
)
def test_recommendation(advice: Recommendation, shown: str) -> None:
    assert recommendation(advice) == shown


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [(300, 48, "300 → 48"), (None, 0.88, "added: 0.88"), (None, True, "added"), (True, None, "removed"), (300, None, "removed (was 300)")],
)
def test_change(old: Any, new: Any, shown: str) -> None:
    assert change(FlagChange("--x", old, new, "")) == shown


def test_cut_keeps_the_needle() -> None:
    assert cut("abc", 10) == "abc"
    text = cut("x" * 100 + "NEEDLE" + "y" * 100, 20, "NEEDLE")
    assert "NEEDLE" in text
    assert len(text) <= 20
    assert text.startswith("…")
    assert text.endswith("…")


# --- frames ----------------------------------------------------------------------------------------------------------------

FRAMES = {"decode": pl.DataFrame({"line": [1, 2], "text": ['a,"b"\n', None]}), "errors": pl.DataFrame(schema={"line": pl.UInt64})}


@pytest.mark.parametrize("fmt", ["parquet", "csv", "json"])
def test_frames_round_trip(tmp_path: Path, fmt: Any) -> None:
    paths = write_frames(FRAMES, tmp_path / "new" / "folder", fmt)
    assert [path.name for path in paths] == [f"decode.{fmt}", f"errors.{fmt}"]
    read: Any = {"parquet": pl.read_parquet, "csv": pl.read_csv, "json": pl.read_ndjson}[fmt]
    assert read(paths[0]).equals(FRAMES["decode"])
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [f"decode.{fmt}", f"errors.{fmt}"]


SECRETS = [
    '{"api_key": "verysecret", "admin_api_key": "verysecret"}',
    "--api-key verysecret", "HF_TOKEN=verysecretX1", "password: verysecret", "passphrase=verysecret", "AWS_SECRET_ACCESS_KEY=verysecret",
    "credentials=verysecret", "Authorization: Bearer verysecret", "https://me:verysecret@host/", "hf_verysecretABC12345",
    "sk-verysecret1234567890", "ghp_verysecret1234567890abcd", "github_pat_verysecret1234567890", "glpat-verysecret1234567890",
    "xoxb-verysecret1234567890", "nvapi-verysecret1234567890",
]  # fmt: skip


@pytest.mark.parametrize("secret", SECRETS)
def test_frames_hold_no_secret(tmp_path: Path, secret: str) -> None:
    frame = pl.DataFrame({"source": ["s", "s", "s"], "text": ["harmless", secret, None], "line": [1, 2, 3]})
    (path,) = write_frames({"notices": frame}, tmp_path, "csv")
    written = path.read_text(encoding="utf-8")
    assert "***" in written
    assert "verysecret" not in written.lower()
    assert "harmless" in written


def test_frames_leave_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(frame: pl.DataFrame, path: Path, **_: Any) -> None:
        path.write_text("half", encoding="utf-8")
        if not frame.height:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.DataFrame, "write_csv", full_disk)
    (tmp_path / "decode.csv").write_text("old", encoding="utf-8")
    with pytest.raises(LogforensicsError, match=r"errors\.csv: No space left"):
        write_frames(FRAMES, tmp_path, "csv")
    assert [path.name for path in tmp_path.iterdir()] == ["decode.csv"]
    assert (tmp_path / "decode.csv").read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize("fmt", ["parquet", "csv", "json"])
def test_frames_that_come_in_pieces_are_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fmt: Any) -> None:
    monkeypatch.setattr("logforensics.render.frames._ROWS_AT_ONCE", 3)
    pieces = [pl.DataFrame({"line": [number, number + 1], "text": ["a", "b"]}) for number in range(1, 20, 2)]
    with FrameFiles(tmp_path, fmt) as files:
        for piece in pieces:
            files.write("decode", piece)
    read = {"parquet": pl.read_parquet, "csv": pl.read_csv, "json": pl.read_ndjson}[fmt]
    assert read(files.paths[0]).equals(pl.concat(pieces))
    assert files.rows == {"decode": 20}
    assert [path.name for path in tmp_path.iterdir()] == [f"decode.{fmt}"]


def test_frames_into_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(LogforensicsError, match="cannot make the folder"):
        write_frames(FRAMES, tmp_path / "file", "csv")


# --- layout ----------------------------------------------------------------------------------------------------------------

WORDS = st.text(st.sampled_from("ab-_=→×…é漢字😀\u0301  "), max_size=120)


@given(WORDS, st.integers(3, 60))
def test_lines_break_where_rich_breaks_them(text: str, width: int) -> None:
    ours = [line.rstrip().plain for line in Styled((text[:7], "bold"), (text[7:], "")).wrapped(width)]
    assert ours == [line.plain.rstrip() for line in Text(text).wrap(Console(), width)] or [""]


def test_our_own_symbols_take_the_columns_that_rich_gives_them() -> None:
    assert [chr(code) for code in _OWN_SYMBOLS if Text(chr(code)).cell_len != 1] == []
    assert columns_of("8 × 漢字 → é") == Text("8 × 漢字 → é").cell_len


@pytest.mark.parametrize("width", [40, 80, 120])
def test_colour_changes_nothing_but_colour(width: int) -> None:
    for shown in (diagnosis(), hostile_diagnosis()):
        plain, coloured = (render(shown, "text", Screen(width=width, color=color)) for color in (False, True))
        assert coloured != plain
        assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
