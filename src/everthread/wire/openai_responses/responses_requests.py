"""Requests of OpenAI's Responses protocol <-> core requests, with their tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.caching.openai_cache_breakpoints import BREAKPOINT, has_breakpoint
from everthread.core.messages import (
    content_text,
    without_keys,
)
from everthread.core.types import Request, System
from everthread.wire.native_values import native_value, without_private_fields
from everthread.wire.openai_responses.response_items import API
from everthread.wire.openai_responses.responses_decoding import decode_messages
from everthread.wire.openai_responses.responses_encoding import encode_messages
from everthread.wire.payload_checks import (
    require_object,
    require_objects,
    require_text,
)


def decode_request(body: Mapping[str, Any]) -> Request:
    """Return a request in core form. A field the core cannot express (`input: null`) stays in `params`."""
    body = without_private_fields(require_object(body, "the request"))
    model = require_text(body.get("model"), "model")
    messages = decode_messages(body.get("input") or [], model=model)
    tools = decode_tools(body.get("tools") or [])
    system: System = body["instructions"] if isinstance(body.get("instructions"), str) else None
    fields_in_core = {
        "input": messages,
        "tools": tools,
        "instructions": system is not None,
        "model": True,
    }
    params = {key: value for key, value in body.items() if not fields_in_core.get(key)}
    return Request(model=model, messages=messages, system=system, tools=tools, params=params)


def encode_request(request: Request) -> dict[str, Any]:
    body = {"model": request.model, **without_private_fields(request.params)}
    if request.messages:
        text = native_value(request.messages[0], API) if len(request.messages) == 1 else None
        body["input"] = (
            text
            if isinstance(text, str)
            else encode_messages(request.messages, model=request.model)
        )
    if isinstance(request.system, str):
        body["instructions"] = request.system
    elif request.system and has_breakpoint(request.system):
        body["input"] = [_encode_system(request.system), *_as_items(body.get("input"))]
    elif request.system:
        body["instructions"] = "\n\n".join(content_text([part]) for part in request.system)
    tools = encode_tools(request.tools)
    return {**body, "tools": tools} if tools else body


def _encode_system(system: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a system prompt as a message: `instructions` cannot carry a breakpoint."""
    parts: list[Any] = []
    for part in system or ():
        breakpoint_field = {key: part[key] for key in part if key == BREAKPOINT}
        parts.append({"type": "input_text", "text": content_text([part]), **breakpoint_field})
    return {"type": "message", "role": "developer", "content": parts}


def _as_items(items: Any) -> list[Any]:
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    return list(items or ())


def decode_tools(wire: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return functions and custom tools in chat's nested form; built-in tools are unchanged."""
    return [_decode_tool(tool) for tool in require_objects(wire, "tools")]


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools that this API can call, without those built into another API."""
    return [encoded for tool in tools if (encoded := _encode_tool(tool)) is not None]


def _decode_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    kind = tool.get("type")
    fields = without_keys(without_private_fields(tool), "type")
    if kind == "function":
        return {"type": kind, kind: fields}
    if kind == "custom":
        tool_format = fields.get("format")
        if isinstance(tool_format, dict) and tool_format.get("type") == "grammar":
            grammar = without_keys(tool_format, "type")
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
        if isinstance(tool_format, dict) and isinstance(tool_format.get("grammar"), dict):
            custom = {**custom, "format": {"type": "grammar", **tool_format["grammar"]}}
        return {"type": "custom", **custom}
    return (
        without_private_fields(tool)
        if "_native" not in tool or native_value(tool, API) is not None
        else None
    )
