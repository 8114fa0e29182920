"""Messages of the chat format that many tests need."""

from __future__ import annotations

from typing import Any

from everthread.core.types import Reply


def function_call(call_id: str, name: str, arguments: str = "{}") -> Any:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def calls_message(*calls: Any, text: str | None = None) -> Any:
    return {"role": "assistant", "content": text, "tool_calls": list(calls)}


def calls_reply(*calls: Any, text: str | None = None) -> Reply:
    return Reply(calls_message(*calls, text=text), "tool_calls")


def result_message(call_id: Any, content: Any) -> Any:
    return {"role": "tool", "tool_call_id": call_id, "content": content}
