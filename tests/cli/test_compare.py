"""`everthread compare`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command


def test_prints_one_sentence_and_a_table_of_the_logs(
    everthread: Command, user_environment: dict[str, str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    output = everthread.succeeds(f"compare --html {page}", env=user_environment)
    sentence = output.splitlines()[0]
    assert sentence.startswith("At its compaction Claude Code's summary kept ")
    assert "s1.jsonl" in output
    assert "s1.jsonl" in page.read_text("utf-8")
    report = everthread.json("compare", env=user_environment)
    assert report["sentence"] == sentence
    (log,) = report["logs"]
    (compaction,) = log["compactions"]
    kept = compaction["held"]["own"]
    assert kept["files"] < compaction["files"]
