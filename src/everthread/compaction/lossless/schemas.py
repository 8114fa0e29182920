"""The tools as the model is told of them."""

from __future__ import annotations

from typing import Any

GREP, DESCRIBE, EXPAND = NAMES = "lcm_grep", "lcm_describe", "lcm_expand"

_ID = {
    "type": "string",
    "description": "n0123456789ab (a node), message:123 or output:0123456789abcdef, from the summary or an answer.",
}


def _schema(name: str, description: str, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


SCHEMAS = (
    _schema(
        GREP,
        "Search everything that was said in this conversation, also what the summary stands for, and every stored tool "
        "output. Gives exact excerpts with their ids, turns and times.",
        {
            "pattern": {"type": "string", "description": "Words that must occur, or a regular expression."},
            "mode": {"type": "string", "enum": ["text", "regex"], "description": "Default text."},
            "scope": {
                "type": "string",
                "enum": ["thread", "all"],
                "description": "This conversation, or all of the user's. Default thread.",
            },
            "role": {"type": "string", "enum": ["user", "assistant", "tool", "system"]},
            "tool": {"type": "string", "description": "Only results of this tool."},
            "limit": {"type": "integer", "description": "Places on a page, 1 to 20. Default 6."},
            "offset": {"type": "integer", "description": "Places to skip. Default 0."},
        },
        ["pattern"],
    ),
    _schema(
        DESCRIBE,
        "What a node of the summary covers (turns, times, sources, sizes, who wrote it), or how large a message or "
        "stored output is.",
        {"id": _ID},
        ["id"],
    ),
    _schema(
        EXPAND,
        "The originals word for word: all messages a node covers, or one message or stored output, in parts.",
        {
            "id": _ID,
            "offset": {"type": "integer", "description": "Characters to skip. Default 0."},
            "limit": {"type": "integer", "description": "Characters to read, at most about 5,000."},
        },
        ["id"],
    ),
)
"""Always the same bytes: tools are part of the cached prefix."""
