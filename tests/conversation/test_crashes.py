"""A compaction that is killed at any of its steps leaves the old state or the new one, and the thread goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from everthread.core.validation import validate_messages
from everthread.testing import ScriptedModel
from tests.conversation.dying import THREAD
from tests.conversation.talk import room

CHILD = Path(__file__).with_name("dying.py")


def child(folder: Path, step: int) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    command = [sys.executable, str(CHILD), str(folder / "store.db"), str(step)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


async def after(folder: Path) -> tuple[str, int]:
    """What a restart finds: which state, and how much was accounted for."""
    async with room(folder) as place:
        tip = await place.store.session(await place.store.get_compression_tip(THREAD))
        whole = await place.store.history(THREAD)
        assert [item.body["role"] for item in whole] == [
            "user",
            "assistant",
            "tool",
            *["assistant", "user"] * 5,
            "assistant",
        ]
        records = await place.store.compactions(THREAD)
        model = ScriptedModel(["on we go"], window=16_000)
        conversation = await place.open(model, resume=THREAD)
        assert (await conversation.send("Where were we?")).text == "on we go"
        assert not validate_messages(model.requests[0].messages, api="openai")
        assert (tip.kind == "continuation") == bool(records)
        assert (await place.store.check()).problems == ()
        return tip.kind, len(await place.store.usage(THREAD))


async def test_killed_at_each_step(tmp_path: Path) -> None:
    lived = child(tmp_path / "lives", 0)
    assert lived.returncode == 0, lived.stderr
    steps = lived.stdout.split()[1:]
    assert "continue_session" in steps
    with ThreadPoolExecutor(2) as pool:
        died = list(pool.map(lambda step: child(tmp_path / f"s{step}", step), range(1, len(steps) + 1)))
    assert [item.returncode for item in died] == [-signal.SIGKILL] * len(steps)
    continued = steps.index("continue_session") + 1
    for step in range(1, len(steps) + 1):
        state, _usage = await after(tmp_path / f"s{step}")
        assert state == ("main" if step <= continued else "continuation"), (step, steps)
