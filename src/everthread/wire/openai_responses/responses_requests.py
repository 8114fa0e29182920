"""Decode and encode requests of OpenAI's Responses protocol, with their tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.caching.openai_cache_breakpoints import BREAKPOINT, has_breakpoint
from everthread.core.json_values import without_keys
from everthread.core.messages import content_text
from everthread.core.types import ModelRequest, System
from everthread.wire.native_values import native_value, with_native, without_private_fields
from everthread.wire.openai_responses.responses_decoding import decode_messages
from everthread.wire.openai_responses.responses_encoding import encode_messages
from everthread.wire.openai_responses.responses_items import API
from everthread.wire.payload_checks import (
    require_object,
    require_objects,
    require_text,
)


def decode_request(body: Mapping[str, Any]) -> ModelRequest:
    """Return a request in core form. A field the core cannot express (`input: null`) stays in `params`."""
    params = dict(without_private_fields(require_object(body, "the request")))
    model = require_text(params.pop("model", None), "model")
    messages = decode_messages(params.get("input") or [], model=model)
    if messages:
        del params["input"]
    system: System = None
    if isinstance(params.get("instructions"), str):
        system = params.pop("instructions")
    tools = decode_tools(params.get("tools") or [])
    if tools:
        del params["tools"]
    return ModelRequest(model, messages, system, tools, params)


def encode_request(request: ModelRequest) -> dict[str, Any]:
    """Return the body to send."""
    body = {"model": request.model, **without_private_fields(request.params)}
    if request.messages:
        text = native_value(request.messages[0], API) if len(request.messages) == 1 else None
        if isinstance(text, str):
            body["input"] = text
        else:
            body["input"] = encode_messages(request.messages, model=request.model)
    if isinstance(request.system, str):
        body["instructions"] = request.system
    elif request.system and has_breakpoint(request.system):
        body["input"] = [_encode_system(request.system), *_as_items(body.get("input"))]
    elif request.system:
        body["instructions"] = "\n\n".join(content_text([part]) for part in request.system)
    if tools := encode_tools(request.tools):
        body["tools"] = tools
    return body


def _encode_system(system: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a system prompt as a message: `instructions` cannot carry a breakpoint."""
    parts: list[Any] = []
    for part in system:
        breakpoint_field = {key: part[key] for key in part if key == BREAKPOINT}
        parts.append({"type": "input_text", "text": content_text([part]), **breakpoint_field})
    return {"type": "message", "role": "developer", "content": parts}


def _as_items(items: Any) -> list[Any]:
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    return list(items or ())


def decode_tools(wire_tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return functions and custom tools in chat's nested form; built-in tools are unchanged."""
    return [_decode_tool(tool) for tool in require_objects(wire_tools, "tools")]


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
    built_in_tool = without_private_fields(tool)
    return with_native(built_in_tool, API, built_in_tool)


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
    if "_native" in tool and native_value(tool, API) is None:
        return None
    return without_private_fields(tool)
