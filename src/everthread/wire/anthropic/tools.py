"""Tool definitions: Anthropic's custom tools <-> OpenAI function tools; Anthropic's own tools stay as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.wire.anthropic.blocks import API
from everthread.wire.anthropic.reading import objects
from everthread.wire.native import native_value
from everthread.wire.shape import a_text, own

_FREE_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
"""What an OpenAI custom tool takes: one text."""


def decode_tools(wire: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Core tools. A custom tool keeps its native value only where its core form would not give it back."""
    return [_decoded(tool, f"tools[{index}]") for index, tool in enumerate(objects(wire, "tools"))]


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The tools Anthropic can call; what is built into another API is not among them."""
    return [encoded for tool in tools if (encoded := _encoded(tool)) is not None]


def _decoded(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    native = {"_native": {"api": API, "value": dict(tool)}}
    if tool.get("type") not in (None, "custom"):
        return {**tool, **native}
    optional = {
        "description": tool.get("description"),
        "parameters": tool.get("input_schema"),
        "strict": tool.get("strict"),
    }
    function = {"name": a_text(tool.get("name"), f"{where}.name")} | _given(optional)
    core = {"type": "function", "function": function}
    return core if _encoded(core) == tool else {**core, **native}


def _encoded(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    native = native_value(tool, API)
    if isinstance(native, dict):
        return native
    for kind in ("function", "custom"):
        inner = tool.get(kind)
        if isinstance(inner, Mapping):
            schema = inner.get("parameters") or {"type": "object", "properties": {}}
            optional = {
                "description": inner.get("description"),
                "strict": inner.get("strict"),
                "cache_control": tool.get("cache_control"),
            }
            return {
                "name": inner.get("name"),
                "input_schema": _FREE_TEXT if kind == "custom" else schema,
                **_given(optional),
            }
    return None if "_native" in tool else own(tool)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None}
