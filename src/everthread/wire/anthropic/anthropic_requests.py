"""Decode and encode requests of Anthropic's protocol, with their tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everthread.core.json_values import without_keys
from everthread.core.types import ModelRequest, System
from everthread.wire.anthropic.anthropic_blocks import API
from everthread.wire.anthropic.anthropic_decoding import decode_messages
from everthread.wire.anthropic.anthropic_encoding import (
    count_leading_instructions,
    encode_system,
)
from everthread.wire.anthropic.anthropic_history import EncodedHistory, encode_messages
from everthread.wire.native_values import native_value, with_native, without_private_fields
from everthread.wire.payload_checks import (
    require_object,
    require_objects,
    require_text,
)

DEFAULT_MAX_TOKENS = 8192
"""Anthropic requires `max_tokens`; every model in service can write this much."""


def decode_request(body: Mapping[str, Any]) -> ModelRequest:
    """Return a request in core form. Its assistant messages count as written by the requested model."""
    params = dict(without_private_fields(require_object(body, "the request")))
    model = require_text(params.pop("model", None), "model")
    messages = decode_messages(params.pop("messages", None), model=model)
    system = _decode_system(params.pop("system", None))
    tools = decode_tools(params.get("tools") or [])
    if tools:
        del params["tools"]
    return ModelRequest(model, messages, system, tools, params)


def encode_request(
    request: ModelRequest, *, encoded_history: EncodedHistory | None = None
) -> dict[str, Any]:
    """Return the body to send. Instructions at the start of the messages are added to the system prompt.

    `encoded_history`: kept for one conversation, so that its earlier messages are encoded only once.
    """
    leading_count = count_leading_instructions(request.messages)
    system = encode_system(request.system, request.messages[:leading_count])
    params = _encode_params(request.params)
    max_tokens = params.pop("max_tokens", None)
    body = {
        "model": request.model,
        "max_tokens": DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
    }
    if system is not None:
        body["system"] = system
    # Copying a long history takes time.
    messages = request.messages[leading_count:] if leading_count else request.messages
    body["messages"] = encode_messages(
        messages, model=request.model, encoded_history=encoded_history
    )
    if request.tools:
        body["tools"] = encode_tools(request.tools)
    return params | body


def _decode_system(value: Any) -> System:
    if value is None or isinstance(value, str):
        return value
    return [dict(block) for block in require_objects(value, "system")]


def _encode_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields, OpenAI's under Anthropic's names. Drop those that Anthropic does not have."""
    fields = without_keys(without_private_fields(params), *_OPENAI_ONLY_FIELDS)
    for name, (translate, new_name) in _TRANSLATED_FIELDS.items():
        value = translate(fields.pop(name, None))
        if value is not None and fields.get(new_name) is None:
            fields[new_name] = value
    choice = fields.get("tool_choice", {"type": "auto"})
    if (
        params.get("parallel_tool_calls") is False
        and isinstance(choice, dict)
        and choice.get("type") != "none"
    ):
        fields["tool_choice"] = {**choice, "disable_parallel_tool_use": True}
    return fields


def _encode_tool_choice(value: Any) -> Any:
    if isinstance(value, str):
        return {"type": "any" if value == "required" else value}
    kind = value.get("type") if isinstance(value, dict) else None
    if kind in ("function", "custom"):
        inner = value.get(kind)
        return {
            "type": "tool",
            "name": (inner if isinstance(inner, dict) else value).get("name"),
        }
    return value


def _encode_output_config(value: Any) -> Any:
    """Return a JSON schema for the answer, or None for OpenAI's other formats, which Anthropic does not have."""
    inner = value.get("json_schema") if isinstance(value, dict) else None
    schema = inner.get("schema") if isinstance(inner, dict) else None
    return {"format": {"type": "json_schema", "schema": schema}} if schema else None


def _encode_metadata(value: Any) -> Any:
    """Return the metadata if it names the user, as Anthropic's does; else None."""
    return None if isinstance(value, dict) and value and "user_id" not in value else value


_OPENAI_TIERS = ("default", "flex", "scale", "priority")
_TRANSLATED_FIELDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "max_completion_tokens": (lambda value: value, "max_tokens"),
    "max_output_tokens": (lambda value: value, "max_tokens"),
    "stop": (
        lambda value: [value] if isinstance(value, str) else value,
        "stop_sequences",
    ),
    "tool_choice": (_encode_tool_choice, "tool_choice"),
    "response_format": (_encode_output_config, "output_config"),
    "metadata": (_encode_metadata, "metadata"),
    "service_tier": (
        lambda value: None if value in _OPENAI_TIERS else value,
        "service_tier",
    ),
}
_OPENAI_ONLY_FIELDS = frozenset(
    {
        "audio",
        "frequency_penalty",
        "function_call",
        "functions",
        "include",
        "logit_bias",
        "logprobs",
        "max_tool_calls",
        "modalities",
        "moderation",
        "n",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "reasoning_effort",
        "safety_identifier",
        "seed",
        "store",
        "stream_options",
        "text",
        "top_logprobs",
        "truncation",
        "user",
        "verbosity",
        "web_search_options",
    }
)
"""Fields for which Anthropic would refuse the request."""


_FREE_TEXT_SCHEMA = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""The schema of an OpenAI custom tool: one text."""
_OPTIONAL_TOOL_FIELDS = ("description", "strict", "cache_control")


def decode_tools(wire_tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return core tools. A custom tool keeps its native value only if its core form would not restore it."""
    return [
        _decode_tool(tool, f"tools[{index}]")
        for index, tool in enumerate(require_objects(wire_tools, "tools"))
    ]


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools that Anthropic can call, without those built into another API."""
    return [encoded for tool in tools if (encoded := _encode_tool(tool)) is not None]


def _decode_tool(tool: Mapping[str, Any], path: str) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        return with_native(dict(tool), API, dict(tool))
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
    return core_tool if _encode_tool(core_tool) == tool else with_native(core_tool, API, dict(tool))


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
