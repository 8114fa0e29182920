"""Gemini's requests <-> core requests.

The model of a request is in its path, not in its body; here it is the field `model`, which the caller adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.core.messages import as_text, content_text, parts_of
from everthread.core.types import Request, System
from everthread.wire.gemini.fields import find_field_name, get_object_field
from everthread.wire.gemini.message_decoding import decode_messages
from everthread.wire.gemini.message_encoding import encode_messages
from everthread.wire.gemini.tools import decode_tools, encode_tools
from everthread.wire.native_values import without_private_fields
from everthread.wire.payload_checks import require_list, require_object, require_text


def decode_request(body: Mapping[str, Any]) -> Request:
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
    return Request(model, messages, system, tools, params)


def encode_request(request: Request) -> dict[str, Any]:
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
    parts = require_list(
        require_object(value, "systemInstruction").get("parts") or [],
        "systemInstruction.parts",
    )
    texts = [
        as_text(require_object(part, "systemInstruction.parts[]").get("text"))
        for part in parts
    ]
    return [{"type": "text", "text": text} for text in texts]


def _encode_system(system: System) -> dict[str, Any] | None:
    if system is None:
        return None
    return {
        "parts": [
            {"text": content_text([part])} for part in parts_of({"content": system})
        ]
    }


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
    fields = {
        name: value
        for name, value in params.items()
        if name not in _GEMINI_SETTING_NAMES
    }
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
