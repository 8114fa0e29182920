"""Decode and encode requests of OpenAI's chat protocol, with their tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.messages import SYSTEM_ROLES
from everthread.core.types import ModelRequest, System
from everthread.wire.native_values import (
    without_private_fields,
)
from everthread.wire.openai_chat.chat_conversion import to_chat_parts
from everthread.wire.openai_chat.chat_decoding import decode_messages
from everthread.wire.openai_chat.chat_encoding import encode_messages
from everthread.wire.payload_checks import (
    require_list,
    require_object,
    require_objects,
    require_text,
)

_SYSTEM_ROLE_PARAM = "_system_role"


def decode_request(body: Mapping[str, Any]) -> ModelRequest:
    """Return a request in core form. The first message becomes the system prompt if nothing of it would be lost."""
    params = dict(without_private_fields(require_object(body, "the request")))
    model = require_text(params.pop("model", None), "model")
    wire_messages = require_list(params.pop("messages", None), "messages")
    system: System = None
    if wire_messages and _is_system_prompt(wire_messages[0]):
        system = wire_messages[0]["content"]
        if wire_messages[0]["role"] != "system":
            params[_SYSTEM_ROLE_PARAM] = wire_messages[0]["role"]
        messages = decode_messages(wire_messages[1:], model=model, start=1)
    else:
        messages = decode_messages(wire_messages, model=model)
    tools = decode_tools(params.get("tools") or [])
    if tools:
        del params["tools"]
    return ModelRequest(model, messages, system, tools, params)


def encode_request(request: ModelRequest) -> dict[str, Any]:
    """Return the body to send."""
    messages = encode_messages(request.messages, model=request.model)
    if request.system is not None:
        content = request.system
        if not isinstance(content, str):
            content = to_chat_parts(content)
        role = request.params.get(_SYSTEM_ROLE_PARAM, "system")
        messages.insert(0, {"role": role, "content": content})
    body = {
        "model": request.model,
        "messages": messages,
        **without_private_fields(request.params),
    }
    if tools := encode_tools(request.tools):
        body["tools"] = tools
    return body


def _is_system_prompt(message: Any) -> bool:
    """Return whether a message has only role and content, so that these two restore it."""
    if not isinstance(message, Mapping) or message.keys() != {"role", "content"}:
        return False
    if message["role"] not in SYSTEM_ROLES:
        return False
    content = message["content"]
    return isinstance(content, str) or (
        isinstance(content, list) and to_chat_parts(content) == content
    )


def decode_tools(wire_tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return core tools, which have the form of chat tools."""
    return [without_private_fields(tool) for tool in require_objects(wire_tools, "tools")]


def encode_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools that chat can call, without those built into another API."""
    return [
        without_private_fields(tool)
        for tool in tools
        if "_native" not in tool or "function" in tool or "custom" in tool
    ]
