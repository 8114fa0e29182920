"""`everthread statusline`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.claude_code_session import CLAUDE
from tests.cli.conftest import Command


def test_prints_the_context_and_cache_of_the_latest_call(
    everthread: Command, user_environment: dict[str, str]
) -> None:
    output = everthread("statusline", env=user_environment).stdout
    assert output.startswith("context 69,2")
    assert " of 200,000 (35%) · compaction from 100,000 · cache " in output
    assert output.endswith(" · compacted 1×\n")
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 8_990,
        "output_tokens": 1_000,
    }
    client_status = {
        "model": {"id": CLAUDE},
        "cost": {"total_cost_usd": 1.5},
        "context_window": {"context_window_size": 100_000, "current_usage": usage},
    }
    line = everthread(
        "statusline", stdin=json.dumps(client_status).encode(), env=user_environment
    ).stdout
    assert line == "context 10,000 of 100,000 (10%) · compaction from 50,000 · cache 100% · $1.50\n"


def test_the_status_line_is_set_after_asking(everthread: Command, tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text(
        '{"model": "opus", "statusLine": {"type": "command", "command": "mine"}}',
        "utf-8",
    )
    env = {"CLAUDE_CONFIG_DIR": str(tmp_path)}
    declined = everthread("statusline --install", stdin=b"n\n", env=env)
    assert "instead of" in declined.stdout
    assert "Nothing was changed" in declined.stdout
    everthread("statusline --install", stdin=b"y\n", env=env)
    written = json.loads(settings.read_text("utf-8"))
    assert written == {
        "model": "opus",
        "statusLine": {"type": "command", "command": "everthread statusline"},
    }
    assert "already" in everthread("statusline --install", env=env).stdout
