"""The HTML report in a real browser: it draws its charts, fits, and has nothing to complain about. Skips where there is no browser."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from logforensics import Hardware
from logforensics.reporting import build_report
from logforensics.reporting.html import report_to_html

FIXTURES = Path(__file__).parents[1] / "fixtures"
BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no browser")
# what a script of the test may do that the page's policy forbids
PROBE = """<script>
const done = () => {
  if (document.documentElement.dataset.drawn) { probe(); } else { setTimeout(done, 50); }
};
const labels = (key) => [...document.querySelectorAll(`#chart-${key} .role-axis-label text`)].map((text) => text.textContent).sort().join(" ");
const later = () => new Promise((resolve) => setTimeout(resolve, 300));
const probe = async () => {
  const before = [labels("throughput"), labels("queue")];
  document.querySelector("[data-zoom=in]").click();
  await later();
  const zoomed = [labels("throughput"), labels("queue")];
  document.querySelector("[data-zoom=all]").click();
  await later();
  const root = document.documentElement;
  root.dataset.zoomed = zoomed.every((text, at) => text !== before[at]);
  root.dataset.reset = [labels("throughput"), labels("queue")].every((text, at) => text === before[at]);
  root.dataset.overflow = root.scrollWidth > root.clientWidth;
};
done();
</script>"""


def browse(page: Path, width: int, *options: str) -> tuple[str, str]:
    """The document after its scripts have run, and what the browser's console says."""
    done = subprocess.run(
        [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=15000",
            f"--window-size={width},2000", f"--user-data-dir={page.parent / 'profile'}", *options, page.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    told = build_report(FIXTURES / "founding_hicache48" / "server.log", hardware=Hardware(host_ram_bytes=449 * 10**9))
    path.write_text(report_to_html(told), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_is_drawn_without_a_complaint(page: Path, width: int, scheme: str) -> None:
    document, console = browse(page, width, "--dump-dom", f"--blink-settings=preferredColorScheme={int(scheme == 'light')}")
    assert console == ""
    assert 'data-drawn="7"' in document
    assert len(re.findall(r'<svg[^>]*class="marks"', document)) == 7


def test_the_screenshot_is_not_blank(page: Path) -> None:
    image = page.with_name("page.png")
    browse(page, 1280, f"--screenshot={image}", "--hide-scrollbars")
    data = image.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1280, 2000)
    assert len(data) > 100_000


@pytest.mark.parametrize("width", [1280, 400])
def test_buttons_zoom_all_charts_and_nothing_sticks_out(page: Path, width: int) -> None:
    probed = page.with_name(f"probed-{width}.html")
    text = page.read_text(encoding="utf-8")
    before, _, after = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text).rpartition("</body>")
    probed.write_text(f"{before}{PROBE}</body>{after}", encoding="utf-8")
    document, console = browse(probed, width, "--dump-dom")
    assert console == ""
    for answer in ('data-zoomed="true"', 'data-reset="true"', 'data-overflow="false"'):
        assert answer in document


def test_a_policy_keeps_foreign_scripts_from_running(page: Path) -> None:
    probed = page.with_name("foreign.html")
    foreign = "<script>document.documentElement.dataset.harmed = 'yes'</script><img src=x onerror=\"document.documentElement.dataset.harmed = 1\">"
    probed.write_text(page.read_text(encoding="utf-8").replace("<main>", f"<main>{foreign}"), encoding="utf-8")
    document, console = browse(probed, 1280, "--dump-dom")
    assert "data-harmed" not in document
    assert "Content Security Policy" in console
