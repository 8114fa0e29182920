"""Messages and their parts, in the forms of chat completions and of Anthropic's blocks."""

from __future__ import annotations

import json
from typing import Any

from everthread.core.types import ModelReply


def user_message(content: Any) -> Any:
    return {"role": "user", "content": content}


def assistant_message(content: Any) -> Any:
    return {"role": "assistant", "content": content}


def function_call(call_id: str, name: str, arguments: Any = "{}") -> Any:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def custom_call(call_id: str, name: str, text: str) -> Any:
    return {
        "id": call_id,
        "type": "custom",
        "custom": {"name": name, "input": text},
    }


def calls_message(*calls: Any, text: Any = None) -> Any:
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": list(calls),
    }


def calls_reply(*calls: Any, text: str | None = None) -> ModelReply:
    return ModelReply(calls_message(*calls, text=text), "tool_calls")


def call_reply(
    *calls: tuple[str, Any] | tuple[str, Any, str], text: str | None = None
) -> ModelReply:
    """Return an answer that calls tools: name, arguments (a value, or text as a model wrote it), and perhaps an id."""
    messages: list[Any] = []
    for number, (name, arguments, *rest) in enumerate(calls, start=1):
        call_id = rest[0] if rest else f"call_{number}"
        encoded = arguments if isinstance(arguments, str) else json.dumps(arguments)
        messages.append(function_call(call_id, name, encoded))
    return calls_reply(*messages, text=text)


def result_message(call_id: Any, content: Any) -> Any:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def text_part(text: Any) -> Any:
    return {"type": "text", "text": text}


def image_part(url: Any) -> Any:
    return {"type": "image_url", "image_url": {"url": url}}


def call_block(call_id: Any, name: Any, arguments: Any) -> Any:
    return {
        "type": "tool_use",
        "id": call_id,
        "name": name,
        "input": arguments,
    }


def result_block(call_id: Any, content: Any) -> Any:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}
