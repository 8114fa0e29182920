"""`everthread continue`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everthread.lab.importers.read_logs import parse_log, read_log
from tests.cli.conftest import Command


@pytest.mark.parametrize(("client", "folder"), [("codex", ".codex"), ("claude", ".claude")])
def test_a_session_is_written_for_another_agent(
    client: str,
    folder: str,
    everthread: Command,
    user_environment: dict[str, str],
    workspace: Path,
) -> None:
    log = str(Path(user_environment["HOME"]) / ".claude" / "projects" / "p" / "s1.jsonl")
    result = everthread(
        f"continue {log} --in {client} --folder {workspace} --json",
        env=user_environment,
    )
    handover = json.loads(result.stdout)
    file = Path(handover["file"])
    assert file.is_relative_to(Path(user_environment["HOME"]) / folder)
    assert handover["command"].split()[:2] == (
        ["codex", "resume"] if client == "codex" else ["claude", "--resume"]
    )
    assert handover["command"].split()[-1] in file.name
    continued = parse_log(file.read_text("utf-8")) if client == "codex" else None
    text = file.read_text("utf-8")
    assert "Wish 23" in text
    assert "setting_number_0" in text
    if continued is not None:
        assert [entry.message["role"] for entry in continued.entries][:2] == [
            "user",
            "assistant",
        ]
        assert continued.session_id in handover["command"]
    assert read_log(log).messages, "the first agent's log is unchanged"
    assert (
        "use one of: claude, codex"
        in everthread(f"continue {log} --in vim", env=user_environment).stderr
    )
