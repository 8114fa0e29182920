"""The text in which a model reads the definition of a tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 8  # results within documents within results: nothing real nests deeper


def read_function(tool: Any) -> dict[str, Any]:
    """Return name, description and schema of a tool in any form; other kinds of tools unchanged."""
    if not isinstance(tool, Mapping):
        return {}
    function = tool.get("function")
    holder = function if isinstance(function, Mapping) else tool
    tool_fields = {key: holder[key] for key in ("name", "description") if holder.get(key)}
    schema = holder.get("parameters") or holder.get("input_schema")
    return {**tool_fields, "parameters": schema} if schema else tool_fields


def render_declaration(function: Mapping[str, Any]) -> str:
    """Return a tool as OpenAI shows it to its models: a commented type declaration."""
    schema = function.get("parameters")
    body = _render_type(schema) if isinstance(schema, Mapping) and schema.get("properties") else ""
    return f"{_render_comment(function)}type {function.get('name')} = ({f'_: {body}' if body else ''}) => any;\n\n"


def _render_comment(value: Mapping[str, Any]) -> str:
    return "".join(f"// {line}\n" for line in str(value.get("description") or "").splitlines())


def _render_type(schema: Any, depth: int = 0) -> str:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return "any"
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return " | ".join(_render_type(option, depth + 1) for option in options)
    if isinstance(schema.get("enum"), list):
        return " | ".join(map(dump_json, schema["enum"]))
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        lines = (_render_property(key, value, schema, depth) for key, value in properties.items())
        return "{\n" + "".join(lines) + "}"
    kind = schema.get("type")
    if kind == "array":
        return f"{_render_type(schema.get('items'), depth + 1)}[]"
    return str(kind or "any")


def _render_property(key: Any, value: Any, owner: Mapping[str, Any], depth: int) -> str:
    required = owner.get("required")
    optional = "" if isinstance(required, list) and key in required else "?"
    comment = _render_comment(value) if isinstance(value, Mapping) else ""
    return f"{comment}{key}{optional}: {_render_type(value, depth + 1)},\n"


def dump_json(value: Any, *, is_compact: bool = False) -> str:
    try:
        return json.dumps(
            value,
            ensure_ascii=False,
            default=str,
            skipkeys=True,
            separators=(",", ":") if is_compact else None,
        )
    except (ValueError, RecursionError):
        return ""
