"""`everthread compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_compare(everthread: Any, user_environment: dict[str, str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    output = everthread.succeeds(f"compare --html {page}", env=user_environment)
    sentence = output.splitlines()[0]
    assert sentence.startswith("At its compaction Claude Code's summary kept ")
    assert "s1.jsonl" in output
    assert "s1.jsonl" in page.read_text("utf-8")
    report = everthread.json("compare", env=user_environment)
    assert report["sentence"] == sentence
    (made,) = report["logs"][0]["compactions"]
    assert made["held"]["own"]["files"] < made["files"]
