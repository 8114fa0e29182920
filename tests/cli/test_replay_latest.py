"""`everthread replay --latest`."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.cli.claude_code_session import CLAUDE
from tests.cli.conftest import Command


def test_the_newest_session_is_summed_up_in_five_sentences(
    everthread: Command, user_environment: dict[str, str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    output = everthread.succeeds(f"replay --latest --html {page}", env=user_environment)
    length, cost, own, ours, agreement = output.splitlines()[:5]
    assert length.startswith(
        f"Claude Code, {CLAUDE}: 25 calls in 48 minutes, begun 2026-05-01 08:00 UTC; the largest"
    )
    assert cost.startswith("It cost $")
    assert own.startswith("At its compaction Claude Code's summary kept ")
    assert own.endswith("% in the same room.")
    assert ours.startswith("Everthread would")
    assert "as recorded" in ours
    assert "16 calls before Claude Code's own compaction" in agreement
    assert "as it was, by the log's usage" in output
    assert own.replace("'", "&#39;") in page.read_text("utf-8")
    report = everthread.json("replay --latest", env=user_environment)["replays"][0]
    assert len(report["verdict"]) == 5
    assert (report["window"], report["log"]["own_compactions"]) == (200_000, 1)


def test_the_newest_session_of_all_programs_is_replayed(
    everthread: Command, user_environment: dict[str, str]
) -> None:
    newer = Path(user_environment["HOME"]) / ".pi" / "agent" / "sessions" / "p" / "1.jsonl"
    newer.parent.mkdir(parents=True)
    answer = {
        "role": "assistant",
        "content": [{"type": "text", "text": "Hello"}],
        "model": CLAUDE,
    }
    lines = [
        {
            "type": "session",
            "id": "s",
            "cwd": "/w",
        },
        {
            "type": "message",
            "message": {"role": "user", "content": "Hi"},
        },
        {"type": "message", "message": answer},
    ]
    newer.write_text("\n".join(json.dumps(line) for line in lines), "utf-8")
    os.utime(newer, (4_000_000_000, 4_000_000_000))
    assert everthread("replay --latest", env=user_environment).stdout.startswith(
        f"pi, {CLAUDE}: 1 call; "
    )


def test_a_missing_session_is_reported(
    everthread: Command, user_environment: dict[str, str], tmp_path: Path
) -> None:
    empty = {**user_environment, "HOME": str(tmp_path / "nobody")}
    assert (
        "no sessions were found in the usual folders of Claude Code, Codex, pi, opencode, Copilot CLI"
        in everthread.refuses("replay --latest", env=empty)
    )
    assert "give a file, or --latest" in everthread("replay", env=user_environment).stderr
    assert "not both" in everthread("replay --latest x.json", env=user_environment).stderr
