"""Convert frameworks' usage, calls and tools to the form of OpenAI's chat protocol."""

from __future__ import annotations

import json
from typing import Any


def make_chat_usage(
    prompt_tokens: Any,
    output_tokens: Any,
    *,
    cached_tokens: Any = 0,
    cache_write_tokens: Any = 0,
    reasoning_tokens: Any = 0,
) -> dict[str, Any] | None:
    """Return usage in chat form: `prompt_tokens` include cached ones. Return None without prompt tokens."""
    if not prompt_tokens:
        return None
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens or 0,
        "prompt_tokens_details": {
            "cached_tokens": cached_tokens or 0,
            "cache_write_tokens": cache_write_tokens or 0,
        },
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens or 0},
    }


def make_chat_call(call_id: str, name: str | None, arguments: Any) -> Any:
    """Return a framework's call in chat form."""
    text = (
        arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    )
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name or "", "arguments": text},
    }


def make_chat_tool(name: str, description: str | None, parameters: Any) -> dict[str, Any]:
    """Return a framework's tool in chat form."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description or "",
            "parameters": parameters or {"type": "object"},
        },
    }
