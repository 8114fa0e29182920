"""Usage, calls and tools in the form of OpenAI's chat protocol, from the fields that frameworks have."""

from __future__ import annotations

import json
from typing import Any


def chat_usage(
    prompt: Any, output: Any, *, cached: Any = 0, written: Any = 0, reasoning: Any = 0
) -> dict[str, Any] | None:
    """Usage in the form of OpenAI's chat, whose prompt contains the cached part; None without a prompt."""
    if not prompt:
        return None
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output or 0,
        "prompt_tokens_details": {
            "cached_tokens": cached or 0,
            "cache_write_tokens": written or 0,
        },
        "completion_tokens_details": {"reasoning_tokens": reasoning or 0},
    }


def chat_call(call_id: str, name: str | None, arguments: Any) -> Any:
    """A framework's call as a chat message has it."""
    text = (
        arguments
        if isinstance(arguments, str)
        else json.dumps(arguments or {}, ensure_ascii=False)
    )
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name or "", "arguments": text},
    }


def chat_tool(name: str, description: str | None, parameters: Any) -> dict[str, Any]:
    """A framework's tool as a chat request has it."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description or "",
            "parameters": parameters or {"type": "object"},
        },
    }
