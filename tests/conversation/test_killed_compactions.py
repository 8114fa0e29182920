"""A compaction killed at any step leaves the old state or the new one, and the thread can be continued."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from everthread.core.validation import validate_messages
from everthread.testing import ScriptedModel
from tests.conversation.conversation_setup import open_conversations
from tests.conversation.killed_process import THREAD

CHILD = Path(__file__).with_name("killed_process.py")


async def read_after_restart(folder: Path) -> tuple[str, int]:
    """Return the state found after a restart, and the recorded usage."""
    async with open_conversations(folder) as conversations:
        tip = await conversations.store.load_session(
            await conversations.store.get_compression_tip(THREAD)
        )
        history = await conversations.store.load_history(THREAD)
        assert [item.body["role"] for item in history] == [
            "user",
            "assistant",
            "tool",
            *["assistant", "user"] * 5,
            "assistant",
        ]
        records = await conversations.store.list_compactions(THREAD)
        model = ScriptedModel(["on we go"], window=16_000)
        conversation = await conversations.open(model, resume=THREAD)
        assert (await conversation.send("Where were we?")).text == "on we go"
        assert not validate_messages(model.requests[0].messages, api="openai")
        assert (tip.kind == "continuation") == bool(records)
        assert (await conversations.store.check()).problems == ()
        return tip.kind, len(await conversations.store.usage.list_usage(THREAD))


async def test_a_compaction_killed_at_any_step_leaves_a_consistent_thread(
    tmp_path: Path,
) -> None:
    command = [
        sys.executable,
        str(CHILD),
        str(tmp_path),
    ]
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    steps, exit_codes = json.loads(process.stdout)
    assert "continue_session" in steps
    assert exit_codes == [-signal.SIGKILL] * len(steps)
    commit_step = steps.index("continue_session") + 1
    for step in range(1, len(steps) + 1):
        state, _usage = await read_after_restart(tmp_path / f"s{step}")
        assert state == ("main" if step <= commit_step else "continuation"), (
            step,
            steps,
        )
