"""Run the whole demo, as a newcomer does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(1_000)
def test_the_demo_runs_to_its_end() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "examples.demo"]
    done = subprocess.run(command, cwd=root, capture_output=True, timeout=900, check=False)
    said = done.stdout.decode()
    assert done.returncode == 0, done.stderr.decode()
    assert "<- compaction 2" in said or "This part cannot run here" in said
    assert "compaction 3: " in said
    assert "0 refused for size" in said
    assert (root / "everthread-report.html").read_text("utf-8").startswith("<!doctype html>")
