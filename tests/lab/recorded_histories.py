"""Conversations for the replay's tests: made up, always the same."""

from __future__ import annotations

from typing import Any

from everthread.core.messages import Message
from everthread.thread.options import RecallOptions, SessionOptions
from tests.chat_messages import calls_message, function_call, result_message

PLAIN = SessionOptions(recall=RecallOptions(enabled=False), economics=False, background=False)
"""Compaction by size alone, nothing injected."""


def make_history(turns: int, *, words: int = 300) -> list[Message]:
    """Turns of four messages: a question, a call, a long result, an answer."""
    messages: list[Any] = []
    for turn in range(turns):
        command = f"pytest -q tests/test_part_{turn}.py"
        call = function_call(f"call_{turn}", "bash", f'{{"command": "{command}"}}')
        result = " ".join(f"line{turn}x{number}" for number in range(words))
        messages += [
            {
                "role": "user",
                "content": f"Question {turn}: why does part {turn} fail? Look into src/part_{turn}.py.",
            },
            calls_message(call, text=f"I run the tests of part {turn}."),
            result_message(f"call_{turn}", result),
            {
                "role": "assistant",
                "content": f"Part {turn} fails because of value {turn * 7919 % 1000}.",
            },
        ]
    return messages
