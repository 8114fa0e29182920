"""Completions of the chat protocol, and items and responses of the Responses protocol."""

from __future__ import annotations

from typing import Any

REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "encrypted_content": "gAAA",
}
TEXT = {"type": "output_text", "text": "Let me see.", "annotations": []}
MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [TEXT],
}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "c1",
    "name": "look",
    "arguments": '{"city": "Oslo"}',
}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "4 degrees"}
SHELL = {
    "type": "shell_call",
    "id": "sh_1",
    "call_id": "c2",
    "action": {"commands": ["ls"]},
    "status": "completed",
}
SHELL_OUTPUT = {
    "type": "shell_call_output",
    "call_id": "c2",
    "output": [
        {
            "stdout": "a.txt",
            "stderr": "warning",
            "outcome": {"type": "exit", "exit_code": 0},
        }
    ],
}


def completion(
    message: dict[str, Any], finish_reason: str | None = "stop", **fields: Any
) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": finish_reason,
        "logprobs": None,
    }
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    head = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-5",
        "usage": usage,
    }
    return {**head, "choices": [choice], **fields}


def response(*output: Any, **fields: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 8,
    }
    head = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5",
        "status": "completed",
    }
    rest: dict[str, Any] = {
        "error": None,
        "incomplete_details": None,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    return {**head, **rest, "usage": usage, "output": list(output), **fields}
