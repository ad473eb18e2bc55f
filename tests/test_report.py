"""The post-mortem: what is in it, that nothing in a log can act in it, and that --anonymize leaves no name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
from markdown_it import MarkdownIt

from logforensics import Hardware, parse
from logforensics.errors import InputError, LogforensicsError
from logforensics.reporting import build_report, report
from logforensics.reporting.anonymize import Anonymizer
from logforensics.reporting.drawing import inline_json, javascript
from logforensics.reporting.html import report_to_html
from logforensics.reporting.markdown import report_to_markdown
from logforensics.reporting.series import downsampled

ROOT = Path(__file__).parents[1]
FIXTURES = ROOT / "fixtures"
HICACHE300 = FIXTURES / "founding_hicache300" / "server.log"
HICACHE48 = FIXTURES / "founding_hicache48" / "server.log"
HOST = Hardware(host_ram_bytes=449 * 10**9)
SECTIONS = ("Summary", "Impact", "Timeline", "Root cause", "Charts", "Configured against took effect", "Corrected command", "Appendix")
EVIL = "</script><img src=x onerror=alert(1)>\u2028[x](javascript:alert(1))`|{{7*7}}"


class Elements(HTMLParser):
    """Tags, ids and links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("href", "src"):
                self.targets.append(value or "")
            elif name.startswith("on"):
                self.handlers.append(name)


def elements(page: str) -> Elements:
    found = Elements()
    found.feed(page)
    return found


@pytest.fixture(scope="module")
def page() -> str:
    return report_to_html(build_report(HICACHE300, hardware=HOST))


# --- structure -----------------------------------------------------------------------------------------------------------------


def test_the_page_has_every_section(page: str) -> None:
    headings = re.findall(r"<h2[^>]*>([^<]*)</h2>", page.partition("</main>")[0])
    assert headings == [*SECTIONS[:7], "How it could have been seen earlier", "Appendix"]


def test_every_link_of_the_page_leads_somewhere_in_it(page: str) -> None:
    found = elements(page)
    assert len(found.ids) == len(set(found.ids))
    outside = [target for target in found.targets if not target.startswith("#") and target != "data:,"]
    assert outside == []
    assert [target for target in found.targets if target.startswith("#") and target[1:] not in found.ids] == []


def test_the_page_needs_no_network(page: str) -> None:
    assert "default-src 'none'" in page
    assert elements(page).tags.count("script") == 3
    assert re.search(r"<(?:link|script|img)[^>]+(?:src|href)=[\"']?(?:https?:)?//", page) is None


def test_the_root_cause_is_told_with_its_lines(page: str) -> None:
    assert "2,400 GB" in page
    for line in (1, 133, 140):
        assert f'href="#L{line}"' in page
        assert f'id="L{line}"' in page
    assert "--hicache-size 48" in page


def test_how_it_could_have_been_seen_earlier() -> None:
    told = build_report(HICACHE300, hardware=HOST)
    first = told.foresight[0]
    assert (first.code, first.place.line, first.by_flags_alone) == ("LF101", 1, True)
    assert first.seconds_before == 65
    assert told.foresight[1].stage in ("graph_end", "capacity")
    assert [line.split(":")[0] for line in told.advice] == ["Before the start", "During the start"]
    assert "--host-ram 449GB" in told.advice[0]


def test_a_full_pool_could_be_seen_while_serving() -> None:
    told = build_report(HICACHE48, hardware=HOST)
    full = next(item for item in told.foresight if item.code == "LF501")
    assert full.stage == "serving"
    assert full.place.line < 200
    assert any("alert on token usage" in line for line in told.advice)


def test_configured_against_took_effect() -> None:
    command = "python -m sglang.launch_server --model-path /models/Kimi-K2.5 --tp 8 --hicache-size 300 --api-key sk-not-to-be-seen-123"
    rows = {row.flag: row for row in build_report(HICACHE300, hardware=HOST, launch_command=command).settings}
    assert (rows["--hicache-size"].typed, rows["--hicache-size"].logged, rows["--hicache-size"].default) == ("300", "300", "0")
    assert rows["--hicache-size"].effect == "300 GB on each of 8 pools: 2,400 GB"
    assert rows["--max-running-requests"].effect == "2,048 requests"
    assert rows["--max-running-requests"].place is not None
    assert rows["--max-running-requests"].place.line == 132
    assert rows["--api-key"].typed == "***"


def test_impact() -> None:
    assert (
        build_report(HICACHE300, hardware=HOST).impact[0].startswith("The server did not answer a single request: its log ends 1 min 5 s")
    )
    served = build_report(HICACHE48, hardware=HOST).impact
    assert any("1,144 token/s on average" in line for line in served)


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*/server.log")), ids=lambda path: path.parent.name)
def test_every_story_can_be_told(path: Path) -> None:
    told = build_report(path, hardware=HOST)
    assert told.timeline
    assert told.impact
    assert report_to_markdown(told, {}).count("\n## ") >= 4


# --- charts --------------------------------------------------------------------------------------------------------------------


def test_every_chart_has_its_figures() -> None:
    charts = {chart.key: chart for chart in build_report(HICACHE48, hardware=HOST).charts}
    assert list(charts) == ["stages", "loading", "memory", "throughput", "running", "queue", "kv_usage"]
    assert all(len({len(row) for row in chart.figures}) == 1 and len(chart.figures) > 1 for chart in charts.values())
    assert charts["throughput"].figures[1][0] == "TP0"
    assert len(charts["memory"].figures) == 9


def test_long_series_keep_their_extremes() -> None:
    rows = pl.DataFrame({"line": range(100_000), "v": [float(n % 977) for n in range(100_000)]})
    rows[50_001, "v"], rows[70_003, "v"] = 1e6, -1e6
    thin = downsampled(rows, "v", 2_000)
    assert thin.height <= 2_000
    assert thin["line"].is_sorted()
    assert (thin["v"].max(), thin["v"].min()) == (1e6, -1e6)
    assert (thin["line"][0], thin["line"][-1]) == (0, 99_999)


def test_short_series_stay_whole() -> None:
    rows = pl.DataFrame({"line": [1, 2, 3], "v": [1.0, None, 3.0]})
    assert downsampled(rows, "v", 10).equals(rows)


def test_a_log_without_times_is_drawn_over_its_lines() -> None:
    log = parse(HICACHE48)
    bare = replace(log, frames={name: frame.with_columns(time=pl.lit(None, pl.Datetime("us"))) for name, frame in log.frames.items()})
    charts = {chart.key: chart for chart in build_report(bare).charts}
    assert charts["throughput"].zooms is False
    assert "which has no times" in charts["throughput"].caption
    assert "stages" not in charts


# --- files ---------------------------------------------------------------------------------------------------------------------


def test_markdown_has_its_charts_beside_it(tmp_path: Path) -> None:
    written = report(HICACHE48, tmp_path / "post mortem.md", hardware=HOST)
    text = written[0].read_text(encoding="utf-8")
    images = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text)
    assert len(images) == 7
    assert images[0] == "post%20mortem-stages.svg"
    assert all(path.read_text(encoding="utf-8").startswith("<svg") for path in written[1:])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in written)


def test_json(tmp_path: Path) -> None:
    (path,) = report(HICACHE48, tmp_path / "report.json", hardware=HOST, title="What happened")
    told = json.loads(path.read_text(encoding="utf-8"))
    assert (told["schema"], told["title"]) == ("logforensics.report/1", "What happened")
    assert told["diagnosis"]["schema"] == "logforensics.diagnosis/1"
    throughput = next(chart for chart in told["charts"] if chart["key"] == "throughput")
    assert len(throughput["points"]) == 60
    assert throughput["points"][0] | {"v": 0} == {"x": "2026-02-18T15:23:06Z", "at": "15:23:06", "v": 0, "s": "TP0", "n": 146}


def test_the_ending_says_the_form(tmp_path: Path) -> None:
    with pytest.raises(LogforensicsError, match=r"\.html, \.md or \.json"):
        report(HICACHE48, tmp_path / "report.pdf")


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.log").write_text("hello\nworld\n", encoding="utf-8")
    with pytest.raises(InputError):
        report(tmp_path / "other.log", tmp_path / "report.md")
    assert not (tmp_path / "report.md").exists()


def command(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "logforensics", "report", *map(str, arguments)],
        capture_output=True, timeout=120, check=False, env={**os.environ, "PYTHONUTF8": "1"},
    )  # fmt: skip


def test_the_command(tmp_path: Path) -> None:
    done = command(HICACHE300, "-o", tmp_path / "r.html", "--host-ram", "449GB")
    assert (done.returncode, done.stdout.decode()) == (0, f"{tmp_path / 'r.html'}\n"), done.stderr.decode()
    refused = command(HICACHE300, "-o", tmp_path / "r.docx")
    assert refused.returncode == 2
    assert b"cannot tell the form of the report" in refused.stderr


# --- hostile logs --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The founding log with an evil model name, an evil error, and secrets."""
    folder = tmp_path_factory.mktemp("hostile")
    log = HICACHE300.read_text(encoding="utf-8").replace("/models/Kimi-K2.5", f"/models/{EVIL.replace(chr(39), '')}")
    log = log.replace("server_args=ServerArgs(", "server_args=ServerArgs(api_key='sk-very-secret-1234567890', ", 1)
    trouble = f"[2026-02-18 14:03:47 TP0] Scheduler hit an exception: Traceback (most recent call last):\nRuntimeError: {EVIL}\n"
    path = folder / "<b>&evil.log"
    path.write_text(log + trouble, encoding="utf-8")
    return path


def test_nothing_in_a_log_acts_in_the_page(hostile: Path) -> None:
    page = report_to_html(build_report(hostile, hardware=HOST))
    found = elements(page)
    assert "img" not in found.tags
    assert "b" in found.tags
    assert found.tags.count("script") == 3
    assert found.handlers == []
    assert "\u2028" not in page
    assert "very-secret" not in page
    assert "onerror" in page  # it is shown


def test_nothing_in_a_log_acts_in_markdown(hostile: Path) -> None:
    text = report_to_markdown(build_report(hostile, hardware=HOST), {})
    shown = elements(MarkdownIt("commonmark").enable("table").render(text))
    assert {"img", "script", "b"} & set(shown.tags) == set()
    assert [target for target in shown.targets if not target.endswith(tuple("0123456789"))] == []
    assert shown.handlers == []
    assert "\u2028" not in text
    assert "very-secret" not in text


def test_inline_json_cannot_end_its_element() -> None:
    text = inline_json({"v": "</script><!--\u2028&amp;"})
    assert re.search("[<>&\u2028]", text) is None
    assert json.loads(text) == {"v": "</script><!--\u2028&amp;"}


def test_the_library_cannot_end_its_element() -> None:
    assert "</script" not in javascript().lower()


# --- anonymize -----------------------------------------------------------------------------------------------------------------


def test_anonymize_leaves_no_name(tmp_path: Path) -> None:
    log = tmp_path / "zebulon-gpu17.log"
    text = HICACHE300.read_text(encoding="utf-8").replace("host='0.0.0.0'", "host='gpu17.corp.example.com'", 1)
    text += (
        "[2026-02-18 14:03:47 TP0] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/home/zebulon/sglang/python/sglang/srt/managers/scheduler.py", line 12, in run\n'
        "RuntimeError: cannot reach tcp://10.1.2.3:29500 as bob@corp.example.com for KimiK25ForConditionalGeneration\n"
    )
    log.write_text(text, encoding="utf-8")
    told = build_report(log, hardware=HOST, anonymize=True)
    for page in (report_to_markdown(told, {}), report_to_html(told)):
        for name in ("kimi", "zebulon", "bob@", "gpu17", "corp.example", "10.1.2.3", "/home/", str(tmp_path)):
            assert name not in page.lower(), name
        assert "model-1" in page
        assert "log-1.log" in page
    assert "scheduler.py" in report_to_markdown(told, {}).replace("\\", "")
    assert "--hicache-size 48" in told.diagnosis.recommended_command.text  # type: ignore[union-attr]


def test_the_same_name_is_always_the_same_word() -> None:
    hide = Anonymizer({"model_path": "/data/models/Qwen3-235B-A22B", "served_model_name": "qwen3-235b-a22b", "host": "10.0.0.1"}, [])
    assert hide("/data/models/Qwen3-235B-A22B and qwen3_235b_a22b") == "model-1 and model-1"
    assert hide("10.0.0.1 to 10.0.0.2, again 10.0.0.1") == "host-1 to host-2, again host-1"
    assert hide("http://zebulon:pw@node7:30000/v1/models") == "http://user-1@host-3:30000/v1/models"
    assert hide("/home/zebulon/run/x.sh in /home/zebulon/run/x.sh") == "path-1 in path-1"
    assert hide("/usr/lib/python3.11/site-packages/sglang/srt/server.py") == "path-2/site-packages/sglang/srt/server.py"
    assert hide("type=Qwen3MoeForCausalLM") == "type=architecture-1"


@pytest.mark.parametrize(
    "text",
    [
        "8 × 300 GB = 2,400 GB",
        "avail mem=0.82 GB",
        "127.0.0.1 and 0.0.0.0",
        "/v1/chat/completions",
        "1,144 token/s",
        "0.5.8",
        "/dev/nvidia0/x",
    ],
)
def test_what_is_no_name_stays(text: str) -> None:
    assert Anonymizer({"model_path": "model", "host": "0.0.0.0"}, [])(text) == text  # noqa: S104
