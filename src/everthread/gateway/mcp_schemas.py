"""The schemas of the MCP server's tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.compaction.lossless.graph_tools import SCHEMAS as LOSSLESS_SCHEMAS
from everthread.core.tool_schemas import build_schema
from everthread.thread.lookup.pins import MAX_PIN_CHARS

MAX_SEARCH_LIMIT = 20
MAX_ANSWER_CHARS = 20_000
_THREAD_PROPERTY = {
    "type": "string",
    "description": "The thread's id, or how it begins. Default: the one this server is for.",
}
_OFFSET_PROPERTY = {
    "type": "integer",
    "minimum": 0,
    "description": "Where to go on, as the answer before said. Default 0.",
}
SEARCH_SCHEMA = build_schema(
    "search",
    "Search everything that was said in past conversations, also what was summarised away, and every stored tool "
    "output. Gives exact excerpts with message id, turn and time.",
    {
        "query": {
            "type": "string",
            "description": 'Words that must occur; "a phrase"; prefix*; or a pattern.',
        },
        "mode": {
            "enum": ["text", "regex"],
            "description": "How the query is meant. Default text.",
        },
        "scope": {
            "enum": ["thread", "all"],
            "description": "This thread, or all threads. Default: the thread, where there is one.",
        },
        "thread": _THREAD_PROPERTY,
        "role": {
            "type": "string",
            "description": "Only what this role said: user, assistant, tool.",
        },
        "tool": {"type": "string", "description": "Only results of this tool."},
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_SEARCH_LIMIT,
            "description": "Places. Default 8.",
        },
        "offset": _OFFSET_PROPERTY,
    },
    ["query"],
)
EXPAND_SCHEMA = build_schema(
    "expand",
    "Read the exact original, in parts: a message (message:123), a stored tool output (output:0123456789abcdef), or "
    "everything a summary stands for (compaction:12, the id of the summary's message, or of a node).",
    {
        "id": {
            "type": "string",
            "description": "As a search, a summary or `status` gave it.",
        },
        "thread": _THREAD_PROPERTY,
        "offset": _OFFSET_PROPERTY,
        "limit": {
            "type": "integer",
            "minimum": 1,
            "maximum": MAX_ANSWER_CHARS,
            "description": "Characters. Default 8000.",
        },
    },
    ["id"],
)
PIN_SCHEMA = build_schema(
    "pin",
    "Keep a text word for word through every later compaction of the thread: give the text, or the id of a message. "
    "`remove` takes a pin back by its id. `status` lists the pins.",
    {
        "text": {
            "type": "string",
            "description": f"At most {MAX_PIN_CHARS:,} characters.",
        },
        "id": {"type": "string", "description": "message:123, whose text is pinned."},
        "remove": {
            "type": "string",
            "description": "pin:0123456789abcdef, a pin's id.",
        },
        "thread": _THREAD_PROPERTY,
    },
    [],
)
STATUS_SCHEMA = build_schema(
    "status",
    "How large a thread is: messages, tokens, compactions, cost, pins. Without a thread: the latest threads.",
    {"thread": _THREAD_PROPERTY},
    [],
)
STATE_SCHEMA = build_schema(
    "state",
    "How things stand in a thread, as JSON: files with their last change, commands and tests with their outcome, open "
    "errors, the agent's to-do list.",
    {"thread": _THREAD_PROPERTY},
    [],
)


def _add_thread_argument(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool of the lossless engine with an additional argument for the thread."""
    function = tool["function"]
    parameters = tool["function"]["parameters"]
    return build_schema(
        function["name"],
        function["description"],
        {**parameters["properties"], "thread": _THREAD_PROPERTY},
        parameters["required"],
    )


SCHEMAS: dict[str, dict[str, Any]] = {
    tool["function"]["name"]: tool
    for tool in (
        SEARCH_SCHEMA,
        EXPAND_SCHEMA,
        PIN_SCHEMA,
        STATUS_SCHEMA,
        STATE_SCHEMA,
        *map(_add_thread_argument, LOSSLESS_SCHEMAS),
    )
}
