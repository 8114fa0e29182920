"""The report of a replay in a real browser: its charts work without network."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from everthread.lab.replay import replay
from everthread.lab.replay.report import render_report
from tests.lab.recorded_histories import PLAIN, make_history

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no Chromium here (on Debian: apt-get install chromium)")
    return found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = replay(make_history(30), model="claude-sonnet-4-5", window=12_000, options=PLAIN)
    target = tmp_path_factory.mktemp("report") / "report.html"
    # Beside the page itself: press keys, point at a chart, and say what was seen.
    script = """<script>
      const chart = document.querySelector(".chart");
      chart.dispatchEvent(new KeyboardEvent("keydown", {key: "End", bubbles: true}));
      document.documentElement.dataset.tip = document.querySelector(".tip").textContent;
      chart.dispatchEvent(new Event("blur"));
      document.documentElement.dataset.after = document.querySelector(".tip").textContent;
      const charts = [...document.querySelectorAll(".chart")];
      const shown = charts.map((c) => c.getBoundingClientRect().width).filter((width) => width > 0);
      document.documentElement.dataset.width = Math.min(...shown);
      document.documentElement.dataset.shown = shown.length / charts.length;
      document.documentElement.dataset.over = document.documentElement.scrollWidth - innerWidth;
    </script></body>"""
    target.write_text(render_report([found]).replace("</body>", script), "utf-8")
    return target


def _run(browser: str, report: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={report.parent / 'profile'}",
        *arguments,
        report.as_uri(),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.mark.parametrize("width", [390, 1_280])
def test_report_works_in_a_browser(browser: str, report: Path, width: int) -> None:
    answer = _run(browser, report, f"--window-size={width},900", "--dump-dom")
    root = re.search(r"<html[^>]*>", answer.stdout)
    assert root is not None
    assert 'data-ready="yes"' in root[0]
    tip = re.search(r'data-tip="([^"]*)"', root[0])
    assert tip is not None
    assert re.match(r"call 60\nEverthread: [\d,]+\n", tip[1])
    assert 'data-after=""' in root[0]
    assert float(re.findall(r'data-width="([\d.]+)"', root[0])[0]) > 250
    assert 'data-shown="0.5"' in root[0], "each chart once, for this width"
    assert float(re.findall(r'data-over="(-?[\d.]+)"', root[0])[0]) <= 0
    complaints = [line for line in answer.stderr.split("\n") if "CONSOLE" in line]
    assert complaints == []


@pytest.mark.parametrize("dark", [False, True])
def test_report_in_light_and_dark(browser: str, report: Path, dark: bool, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    wanted = (
        ["--blink-settings=preferredColorScheme=0"]
        if dark
        else ["--blink-settings=preferredColorScheme=1"]
    )
    _run(
        browser,
        report,
        *wanted,
        "--window-size=1100,3000",
        "--hide-scrollbars",
        f"--screenshot={picture}",
    )
    assert picture.stat().st_size > 50_000
    sys.stdout.write(f"{picture}\n")
