"""Tools of OpenAI's Responses protocol <-> core tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.wire.native_values import native_value, without_private_fields
from everthread.wire.openai_responses.items import API
from everthread.wire.payload_checks import require_list, require_object


def decode_tools(wire: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return functions and custom tools in chat's nested form; built-in tools are unchanged."""
    return [
        _decode_tool(require_object(tool, f"tools[{index}]"))
        for index, tool in enumerate(require_list(wire, "tools"))
    ]


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools that this API can call, without those built into another API."""
    return [encoded for tool in tools if (encoded := _encode_tool(tool)) is not None]


def _decode_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    kind = tool.get("type")
    fields = {
        key: value
        for key, value in without_private_fields(tool).items()
        if key != "type"
    }
    if kind == "function":
        return {"type": kind, kind: fields}
    if kind == "custom":
        tool_format = fields.get("format")
        if isinstance(tool_format, dict) and tool_format.get("type") == "grammar":
            grammar = {
                key: value for key, value in tool_format.items() if key != "type"
            }
            fields = {**fields, "format": {"type": "grammar", "grammar": grammar}}
        return {"type": kind, kind: fields}
    return {
        **without_private_fields(tool),
        "_native": {"api": API, "value": without_private_fields(tool)},
    }


def _encode_tool(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    function = tool.get("function")
    custom = tool.get("custom")
    if isinstance(function, dict):
        return {"type": "function", **function}
    if isinstance(custom, dict):
        tool_format = custom.get("format")
        if isinstance(tool_format, dict) and isinstance(
            tool_format.get("grammar"), dict
        ):
            custom = {**custom, "format": {"type": "grammar", **tool_format["grammar"]}}
        return {"type": "custom", **custom}
    return (
        without_private_fields(tool)
        if "_native" not in tool or native_value(tool, API) is not None
        else None
    )
