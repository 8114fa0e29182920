"""Build the schemas of tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def build_schema(
    name: str, description: str, properties: Mapping[str, Any], required: Sequence[str]
) -> dict[str, Any]:
    """Build a tool's schema in OpenAI's chat form."""
    parameters = {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": parameters,
        },
    }
