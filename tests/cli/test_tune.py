"""`everthread tune`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from everthread.config.yaml_text import parse_yaml
from tests.cli.claude_code_session import CLAUDE
from tests.cli.conftest import Command, configure


def test_tune_proposes_and_applies(
    everthread: Command, user_environment: dict[str, str], home: Path
) -> None:
    log = str(Path(user_environment["HOME"]) / ".claude" / "projects" / "p" / "s1.jsonl")
    (found,) = everthread.json(f"tune {log}", env=user_environment)["models"]
    assert (found["model"], found["sessions"], found["calls"]) == (CLAUDE, 1, 25)
    cheapest = min(
        one["dollars"]
        for one in found["tried"]
        if one["in_context"] >= 0.9 * _current_choice(found)["in_context"]
    )
    assert found["proposed"]["dollars"] == cheapest < _current_choice(found)["dollars"]
    configure(home, "compression:\n  models:\n    other: {threshold: 0.4}  # mine\n")
    everthread.succeeds(f"tune {log} --apply", env=user_environment)
    written = parse_yaml((home / "config.yaml").read_text("utf-8"))["compression"]["models"]
    assert written["other"] == {"threshold": 0.4}
    assert written[CLAUDE]["threshold_tokens"] == found["proposed"]["tokens"]
    assert everthread("config check").returncode == 0
    assert "--last '30' is not allowed" in everthread("tune --last 30", env=user_environment).stderr
    assert everthread("tune --last 1h", env=user_environment).returncode == 0, "the file is new"


def test_tune_says_which_sessions_it_skips(everthread: Command, tmp_path: Path) -> None:
    log = tmp_path / "unnamed.json"
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi"},
    ]
    log.write_text(json.dumps(messages), "utf-8")
    result = everthread(f"tune {log} --apply")
    assert result.stdout == (
        "Skipped: 1 session without the name of a model.\nThe configuration is unchanged.\n"
    )


def _current_choice(found: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in found["tried"] if one["is_current"])
