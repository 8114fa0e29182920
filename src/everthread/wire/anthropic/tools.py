"""Anthropic's tools <-> core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.wire.anthropic.message_decoding import API
from everthread.wire.native_values import native_value, without_private_fields
from everthread.wire.payload_checks import require_objects, require_text

_FREE_TEXT_SCHEMA = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""The schema of an OpenAI custom tool: one text."""
_OPTIONAL_TOOL_FIELDS = ("description", "strict", "cache_control")


def decode_tools(wire: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return core tools. A custom tool keeps its native value only if its core form would not restore it."""
    return [
        _decode_tool(tool, f"tools[{index}]")
        for index, tool in enumerate(require_objects(wire, "tools"))
    ]


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools that Anthropic can call, without those built into another API."""
    return [encoded for tool in tools if (encoded := _encode_tool(tool)) is not None]


def _decode_tool(tool: Mapping[str, Any], path: str) -> dict[str, Any]:
    native = {"_native": {"api": API, "value": dict(tool)}}
    if tool.get("type") not in (None, "custom"):
        return {**tool, **native}
    wire_name_by_core_name = {
        "description": "description",
        "parameters": "input_schema",
        "strict": "strict",
    }
    optional_fields = {
        core_name: tool[wire_name]
        for core_name, wire_name in wire_name_by_core_name.items()
        if tool.get(wire_name) is not None
    }
    function = {
        "name": require_text(tool.get("name"), f"{path}.name"),
        **optional_fields,
    }
    core_tool = {"type": "function", "function": function}
    return core_tool if _encode_tool(core_tool) == tool else {**core_tool, **native}


def _encode_tool(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    native = native_value(tool, API)
    if isinstance(native, dict):
        return native
    for kind in ("function", "custom"):
        inner = tool.get(kind)
        if isinstance(inner, Mapping):
            schema = inner.get("parameters") or {"type": "object", "properties": {}}
            optional_fields = {**inner, "cache_control": tool.get("cache_control")}
            return {
                "name": inner.get("name"),
                "input_schema": _FREE_TEXT_SCHEMA if kind == "custom" else schema,
                **{
                    key: optional_fields[key]
                    for key in _OPTIONAL_TOOL_FIELDS
                    if optional_fields.get(key) is not None
                },
            }
    return None if "_native" in tool else without_private_fields(tool)
