"""Events with defaults, so that a test names only the values that it prints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everthread.agent.turn_events import ToolFinished
from everthread.compaction.summarizers.summarizer import Verification
from everthread.thread.events import CompactionDone


def compaction_done(**changes: Any) -> CompactionDone:
    event = CompactionDone(
        session="s2",
        previous="s1",
        reason="manual",
        tokens_before=9,
        tokens_after=5,
        messages_before=9,
        messages_after=5,
        author="journal",
        count=1,
        verification=Verification(),
        duration=0.1,
    )
    return replace(event, **changes)


def tool_finished(tool: str, text: str = "ok", **changes: Any) -> ToolFinished:
    return replace(ToolFinished("s", "c1", tool, text), **changes)
