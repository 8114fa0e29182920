"""The tools as a client sees them: their descriptions and their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.agent.tools.arguments import schema
from everthread.compaction.lossless.schemas import SCHEMAS as LOSSLESS
from everthread.conversation.pins import PIN_CHARS

PLACES, MOST_PLACES = 8, 20
CHARS, MOST_CHARS = 8_000, 20_000

_THREAD = {"type": "string", "description": "The thread's id, or how it begins. Default: the one this server is for."}
_OFFSET = {"type": "integer", "minimum": 0, "description": "Where to go on, as the answer before said. Default 0."}

SEARCH = schema(
    "search",
    "Search everything that was said in past conversations, also what was summarised away, and every stored tool "
    "output. Gives exact excerpts with message id, turn and time.",
    {
        "query": {"type": "string", "description": 'Words that must occur; "a phrase"; prefix*; or a pattern.'},
        "mode": {"enum": ["text", "regex"], "description": "How the query is meant. Default text."},
        "scope": {
            "enum": ["thread", "all"],
            "description": "This thread, or all threads. Default: the thread, where there is one.",
        },
        "thread": _THREAD,
        "role": {"type": "string", "description": "Only what this role said: user, assistant, tool."},
        "tool": {"type": "string", "description": "Only results of this tool."},
        "limit": {"type": "integer", "minimum": 1, "maximum": MOST_PLACES, "description": "Places. Default 8."},
        "offset": _OFFSET,
    },
    ["query"],
)
EXPAND = schema(
    "expand",
    "Read the exact original, in parts: a message (message:123), a stored tool output (output:0123456789abcdef), or "
    "everything a summary stands for (compaction:12, the id of the summary's message, or of a node).",
    {
        "id": {"type": "string", "description": "As a search, a summary or `status` gave it."},
        "thread": _THREAD,
        "offset": _OFFSET,
        "limit": {"type": "integer", "minimum": 1, "maximum": MOST_CHARS, "description": "Characters. Default 8000."},
    },
    ["id"],
)
PIN = schema(
    "pin",
    "Keep a text word for word through every later compaction of the thread: give the text, or the id of a message. "
    "`remove` takes a pin back by its id. `status` lists the pins.",
    {
        "text": {"type": "string", "description": f"At most {PIN_CHARS:,} characters."},
        "id": {"type": "string", "description": "message:123, whose text is pinned."},
        "remove": {"type": "string", "description": "output:0123456789abcdef, a pin's id."},
        "thread": _THREAD,
    },
    [],
)
STATUS = schema(
    "status",
    "How large a thread is: messages, tokens, compactions, cost, pins. Without a thread: the latest threads.",
    {"thread": _THREAD},
    [],
)


def _in_any_thread(tool: Mapping[str, Any]) -> dict[str, Any]:
    """One of the lossless engine's tools, here with the thread it is about."""
    function, parameters = tool["function"], tool["function"]["parameters"]
    return schema(
        function["name"], function["description"], {**parameters["properties"], "thread": _THREAD},
        parameters["required"],
    )  # fmt: skip


SCHEMAS: dict[str, dict[str, Any]] = {
    tool["function"]["name"]: tool for tool in (SEARCH, EXPAND, PIN, STATUS, *map(_in_any_thread, LOSSLESS))
}
