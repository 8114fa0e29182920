"""Gemini's tools <-> core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.wire.gemini.fields import find_field_name, get_field
from everthread.wire.gemini.parts import API
from everthread.wire.native_values import native_value, without_private_fields
from everthread.wire.payload_checks import (
    list_or_empty,
    require_list,
    require_object,
    require_text,
)


def decode_tools(wire: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return core tools: each function declaration, and Gemini's own tools unchanged."""
    tools: list[dict[str, Any]] = []
    for index, value in enumerate(require_list(wire, "tools")):
        tool = require_object(value, f"tools[{index}]")
        name = find_field_name(tool, "functionDeclarations")
        path = f"tools[{index}].{name}"
        for position, declaration in enumerate(list_or_empty(tool.get(name), path)):
            tools.append(
                _decode_function(
                    require_object(declaration, f"{path}[{position}]"), path
                )
            )
        built_in_tools = {
            key: settings for key, settings in tool.items() if key != name
        }
        if built_in_tools:
            tools.append(
                {**built_in_tools, "_native": {"api": API, "value": built_in_tools}}
            )
    return tools


def _decode_function(declaration: Mapping[str, Any], path: str) -> dict[str, Any]:
    function = {"name": require_text(declaration.get("name"), f"{path}.name")}
    if declaration.get("description") is not None:
        function["description"] = declaration["description"]
    schema = get_field(declaration, "parametersJsonSchema") or declaration.get(
        "parameters"
    )
    if schema is not None:
        function["parameters"] = schema
    core_tool = {"type": "function", "function": function}
    if _encode_function(core_tool) == declaration:
        return core_tool
    return {**core_tool, "_native": {"api": API, "value": dict(declaration)}}


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools Gemini can call, without those built into another API."""
    functions = [
        _encode_function(tool)
        for tool in tools
        if isinstance(tool.get("function"), Mapping)
    ]
    native_values = [
        native_value(tool, API) for tool in tools if "function" not in tool
    ]
    declarations = [{"functionDeclarations": functions}] if functions else []
    return [
        *declarations,
        *(
            native_tool
            for native_tool in native_values
            if isinstance(native_tool, dict)
        ),
    ]


def _encode_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    native = native_value(tool, API)
    if isinstance(native, dict):
        return native
    function = without_private_fields(tool["function"])
    declaration: dict[str, Any] = {
        key: function[key] for key in ("name", "description") if key in function
    }
    if function.get("parameters") is not None:
        declaration["parametersJsonSchema"] = function["parameters"]
    return declaration
