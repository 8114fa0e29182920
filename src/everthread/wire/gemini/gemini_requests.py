"""Decode and encode Gemini's requests, with their tools.

The model of a request is in its path, not in its body; here it is the field `model`, which the caller adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.json_values import as_text, without_keys
from everthread.core.messages import content_text, parts_of
from everthread.core.types import ModelRequest, System
from everthread.wire.gemini.field_names import find_field_name, get_field, get_object_field
from everthread.wire.gemini.gemini_decoding import decode_messages
from everthread.wire.gemini.gemini_encoding import encode_messages
from everthread.wire.gemini.gemini_parts import API
from everthread.wire.native_values import native_value, with_native, without_private_fields
from everthread.wire.payload_checks import (
    list_or_empty,
    require_list,
    require_object,
    require_objects,
    require_text,
)


def decode_request(body: Mapping[str, Any]) -> ModelRequest:
    """Return a request in core form. A field that the core form cannot restore verbatim stays in `params` too."""
    params = dict(without_private_fields(require_object(body, "the request")))
    model = require_text(params.pop("model", None), "model")
    messages = decode_messages(params.pop("contents", None), model=model)
    system_name = find_field_name(params, "systemInstruction")
    system = _decode_system(params.get(system_name))
    if _encode_system(system) == params.get(system_name):
        params.pop(system_name, None)
    tools = decode_tools(params.get("tools") or [])
    if tools and encode_tools(tools) == params["tools"]:
        del params["tools"]
    return ModelRequest(model, messages, system, tools, params)


def encode_request(request: ModelRequest) -> dict[str, Any]:
    """Return the body to send, with the model in it. OpenAI's names of common settings are translated."""
    params = _translate_settings(without_private_fields(request.params))
    system_name = find_field_name(params, "systemInstruction")
    if _decode_system(params.get(system_name)) != request.system:
        params.pop(system_name, None)
    if system_name not in params and request.system is not None:
        params["systemInstruction"] = _encode_system(request.system)
    if decode_tools(params.get("tools") or []) != request.tools:
        params.pop("tools", None)
    if "tools" not in params and (tools := encode_tools(request.tools)):
        params["tools"] = tools
    return {
        "model": request.model,
        **params,
        "contents": encode_messages(request.messages, model=request.model),
    }


def _decode_system(value: Any) -> System:
    if value is None:
        return None
    if isinstance(value, str):
        return value
    part_list = require_object(value, "systemInstruction").get("parts") or []
    parts = require_objects(part_list, "systemInstruction.parts")
    return [{"type": "text", "text": as_text(part.get("text"))} for part in parts]


def _encode_system(system: System) -> dict[str, Any] | None:
    if system is None:
        return None
    return {"parts": [{"text": content_text([part])} for part in parts_of({"content": system})]}


_GEMINI_SETTING_NAMES = {
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "max_output_tokens": "maxOutputTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "stop": "stopSequences",
}


def _translate_settings(params: Mapping[str, Any]) -> dict[str, Any]:
    """Move OpenAI's settings into `generationConfig`."""
    fields = without_keys(params, *_GEMINI_SETTING_NAMES)
    settings = {
        gemini_name: params[openai_name]
        for openai_name, gemini_name in _GEMINI_SETTING_NAMES.items()
        if params.get(openai_name) is not None
    }
    if isinstance(settings.get("stopSequences"), str):
        settings["stopSequences"] = [settings["stopSequences"]]
    if not settings:
        return fields
    name = find_field_name(fields, "generationConfig")
    return {**fields, name: {**settings, **(get_object_field(fields, name) or {})}}


def decode_tools(wire_tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return core tools: each function declaration, and Gemini's own tools unchanged."""
    tools: list[dict[str, Any]] = []
    for index, value in enumerate(require_list(wire_tools, "tools")):
        tool = require_object(value, f"tools[{index}]")
        name = find_field_name(tool, "functionDeclarations")
        path = f"tools[{index}].{name}"
        for position, declaration in enumerate(list_or_empty(tool.get(name), path)):
            tools.append(_decode_function(require_object(declaration, f"{path}[{position}]"), path))
        built_in_tools = without_keys(tool, name)
        if built_in_tools:
            tools.append(with_native(built_in_tools, API, built_in_tools))
    return tools


def _decode_function(declaration: Mapping[str, Any], path: str) -> dict[str, Any]:
    function = {"name": require_text(declaration.get("name"), f"{path}.name")}
    if declaration.get("description") is not None:
        function["description"] = declaration["description"]
    schema = get_field(declaration, "parametersJsonSchema") or declaration.get("parameters")
    if schema is not None:
        function["parameters"] = schema
    core_tool: dict[str, Any] = {"type": "function", "function": function}
    if _encode_function(core_tool) == declaration:
        return core_tool
    return with_native(core_tool, API, dict(declaration))


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools Gemini can call, without those built into another API."""
    functions: list[dict[str, Any]] = []
    built_in_tools: list[dict[str, Any]] = []
    for tool in tools:
        native = native_value(tool, API)
        if isinstance(tool.get("function"), Mapping):
            functions.append(_encode_function(tool))
        elif "function" not in tool and isinstance(native, dict):
            built_in_tools.append(native)
    if functions:
        return [{"functionDeclarations": functions}, *built_in_tools]
    return built_in_tools


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
