"""Conversations for the engine's tests, and an engine over test doubles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.engine import Events, Services, ignore_event
from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.testing import ScriptedSummarizer


def user_message(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant_message(text: str) -> Message:
    return {"role": "assistant", "content": text}


def call_with_result(
    number: int, name: str, arguments: str, result: str, text: str | None = None
) -> list[Message]:
    """An assistant message with one call, and its result."""
    made = {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    asked: Any = {"role": "assistant", "content": text, "tool_calls": [made]}
    return [
        asked,
        {"role": "tool", "tool_call_id": f"call_{number}", "content": result},
    ]


def tool_turns(start: int, count: int, *, size: int = 1500) -> list[Message]:
    """A stretch of tool use: reads and commands with long outputs."""
    found: list[Message] = []
    for number in range(start, start + count):
        path = f"src/module_{number}.py"
        body = f"{path} " + " ".join(
            f"name_{number}_{i} = {i * number}" for i in range(size // 20)
        )
        found += call_with_result(
            number, "read_file", f'{{"path": "{path}"}}', body, f"Reading {path}."
        )
    return found


def make_services(
    window: int,
    summarizer: Summarizer | None = None,
    *,
    clock: Callable[[], float] = lambda: 0.0,
    events: Events = ignore_event,
    **settings: Any,
) -> Services:
    return Services(
        summarizer or ScriptedSummarizer(),
        TokenCounter("gpt-4o"),
        Budget.for_window(window, **settings),
        clock,
        events,
    )


def make_engine(
    window: int, summarizer: Summarizer | None = None, **options: Any
) -> ContextCompressor:
    return ContextCompressor(make_services(window, summarizer, **options))
