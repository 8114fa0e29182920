"""Conversations in files, in the formats of three APIs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.chat_messages import calls_message, function_call, result_message

OPENAI = [
    {"role": "user", "content": "List the files."},
    calls_message(function_call("c1", "terminal", '{"command": "ls"}')),
    result_message("c1", "main.py\n[bold]odd[/bold] name.py"),
    {"role": "assistant", "content": "Two files."},
]


ANTHROPIC = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 100,
    "system": "Be brief.",
    "tools": [
        {
            "name": "terminal",
            "description": "Run.",
            "input_schema": {"type": "object", "properties": {}},
        }
    ],
    "messages": [
        {"role": "user", "content": "List the files."},
        {
            "role": "assistant",
            "content": [
                {
                    "type": "tool_use",
                    "id": "t1",
                    "name": "terminal",
                    "input": {"command": "ls"},
                }
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": "main.py",
                }
            ],
        },
    ],
}


RESPONSES = {
    "model": "gpt-5",
    "instructions": "Be brief.",
    "input": [{"role": "user", "content": "List the files."}],
}


def write(path: Path, value: Any) -> str:
    path.write_text(value if isinstance(value, str) else json.dumps(value), "utf-8")
    return str(path)
