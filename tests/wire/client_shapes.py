"""Requests in the shape of real clients, with made-up words, and what their providers refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from everthread.core.messages import kind_of
from everthread.core.types import Api
from tests.chat_messages import (
    assistant_message,
    call_block,
    result_block,
    user_message,
)

SHAPES = Path(__file__).parent / "shapes"


def load_shape(name: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads((SHAPES / f"{name}.json").read_text("utf-8"))
    body.pop("about")
    return body


def rounds(api: Api, count: int, size: int = 1_500, start: int = 0) -> list[Any]:
    """Return calls with long results, as a client of this API sends them."""
    made: list[Any] = []
    for number in range(start, start + count):
        body = f"ship {number} " + " ".join(
            f"crate_{number}_{crate}" for crate in range(size // 14)
        )
        if api == "anthropic":
            call = call_block(f"work_{number}", "Bash", {"command": f"cat {number}"})
            made.append(assistant_message([call]))
            answer = result_block(f"work_{number}", body)
            made.append(user_message([answer]))
        else:
            call = {
                "type": "function_call",
                "call_id": f"work_{number}",
                "name": "exec_command",
                "arguments": "{}",
            }
            made.append(call)
            made.append(
                {
                    "type": "function_call_output",
                    "call_id": f"work_{number}",
                    "output": body,
                }
            )
    return made


def assert_anthropic(wire: list[Any]) -> None:
    """Check what Anthropic refuses: calls without results, and system messages in other places than after a user's."""
    waiting: set[str] = set()
    for index, message in enumerate(wire):
        blocks = message["content"] if isinstance(message["content"], list) else []
        answered = {block["tool_use_id"] for block in blocks if kind_of(block) == "tool_result"}
        assert answered == waiting, f"message {index}"
        waiting = {block["id"] for block in blocks if kind_of(block) == "tool_use"}
        if message["role"] == "system":
            assert index
            assert wire[index - 1]["role"] == "user"
            assert index + 1 == len(wire) or wire[index + 1]["role"] == "assistant"
    assert not waiting


def references(wire: list[Any]) -> list[str]:
    """Return the tools that the tool results load, in order."""
    blocks = [
        block
        for message in wire
        if isinstance(message["content"], list)
        for block in message["content"]
    ]
    results = [block["content"] for block in blocks if kind_of(block) == "tool_result"]
    parts = [part for content in results if isinstance(content, list) for part in content]
    return [part["tool_name"] for part in parts if kind_of(part) == "tool_reference"]
