"""Conversations for the replay's tests: made up, always the same."""

from __future__ import annotations

from typing import Any

from everthread.core.messages import Message
from everthread.thread.options import RecallOptions, SessionOptions

PLAIN = SessionOptions(
    recall=RecallOptions(enabled=False), economics=False, background=False
)
"""Compaction by size alone, nothing injected."""


def make_history(turns: int, *, words: int = 300) -> list[Message]:
    """Turns of four messages: a question, a call, a long result, an answer."""
    messages: list[Any] = []
    for turn in range(turns):
        command = f"pytest -q tests/test_part_{turn}.py"
        call = {
            "id": f"call_{turn}",
            "type": "function",
            "function": {"name": "bash", "arguments": f'{{"command": "{command}"}}'},
        }
        result = " ".join(f"line{turn}x{number}" for number in range(words))
        messages += [
            {
                "role": "user",
                "content": f"Question {turn}: why does part {turn} fail? Look into src/part_{turn}.py.",
            },
            {
                "role": "assistant",
                "content": f"I run the tests of part {turn}.",
                "tool_calls": [call],
            },
            {"role": "tool", "tool_call_id": f"call_{turn}", "content": result},
            {
                "role": "assistant",
                "content": f"Part {turn} fails because of value {turn * 7919 % 1000}.",
            },
        ]
    return messages
