"""Anthropic's whole requests and replies <-> core, with stop reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from everthread.core.canonical_usage import normalize_usage
from everthread.core.types import Reply, Request, System
from everthread.errors import WireError
from everthread.wire.anthropic.message_codec import (
    API,
    EncodedHistory,
    count_leading_instructions,
    decode_message,
    decode_messages,
    encode_assistant_blocks,
    encode_messages,
    encode_system,
)
from everthread.wire.anthropic.tool_codec import decode_tools, encode_tools
from everthread.wire.common import (
    error_text,
    require_list,
    require_object,
    require_objects,
    require_text,
    split_reply_fields,
    without_private_fields,
)

DEFAULT_MAX_TOKENS = 8192
"""Anthropic requires `max_tokens`; every model in service can write this much."""


def decode_request(body: Mapping[str, Any]) -> Request:
    """Return a request in core form. Its assistant messages count as written by the requested model."""
    params = dict(without_private_fields(require_object(body, "the request")))
    model = require_text(params.pop("model", None), "model")
    messages = decode_messages(params.pop("messages", None), model=model)
    system = _decode_system(params.pop("system", None))
    tools = decode_tools(params.pop("tools") if params.get("tools") else [])
    return Request(model, messages, system, tools, params)


def encode_request(
    request: Request, *, encoded_history: EncodedHistory | None = None
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
    # A copy costs a long history time.
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
    fields = {
        name: value
        for name, value in without_private_fields(params).items()
        if name not in _OPENAI_ONLY_FIELDS
    }
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
    """Return a JSON schema for the answer; None for OpenAI's other formats, which Anthropic does not have."""
    inner = value.get("json_schema") if isinstance(value, dict) else None
    schema = inner.get("schema") if isinstance(inner, dict) else None
    return {"format": {"type": "json_schema", "schema": schema}} if schema else None


def _encode_metadata(value: Any) -> Any:
    """Return the metadata if it names the user, as Anthropic's does; else None."""
    return (
        None if isinstance(value, dict) and value and "user_id" not in value else value
    )


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


_STOP_BY_REASON = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "refusal",
    "pause_turn": "pause",
    "compaction": "pause",
}
_REASON_BY_STOP = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "refusal": "refusal",
    "content_filter": "refusal",
    "pause": "pause_turn",
    "other": "end_turn",
}


def decode_reply(body: Mapping[str, Any], *, model: str | None = None) -> Reply:
    """Return a reply in core form. `model` is the requested name, if it is known."""
    body = without_private_fields(require_object(body, "the reply"))
    if body.get("type") == "error":
        raise WireError(
            f"the reply is an error, not a message: {error_text(body) or repr(body)}"
        )
    content = list(require_list(body.get("content"), "content"))
    fields, other_fields = split_reply_fields(body)
    author = model or fields.get("model")
    [message] = decode_message(
        {"role": "assistant", "content": content}, "the reply", model=author
    )
    raw = {
        key: value
        for key, value in other_fields.items()
        if key not in ("role", "content", "usage")
    }
    return Reply(
        message=message,
        stop=decode_stop_reason(body.get("stop_reason")),
        raw={**raw, "_api": API},
        **fields,
    )


def encode_reply(reply: Reply) -> dict[str, Any]:
    """Return a reply as an Anthropic message. A decoded reply is returned verbatim."""
    is_native = reply.raw.get("_api") == API
    other_fields: dict[str, Any] = (
        dict(without_private_fields(reply.raw))
        if is_native
        else {"stop_sequence": None}
    )
    if (
        not is_native
        or decode_stop_reason(other_fields.get("stop_reason")) != reply.stop
    ):
        other_fields["stop_reason"] = _REASON_BY_STOP.get(reply.stop or "")
    body = {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": encode_assistant_blocks(reply.message),
        "usage": reply.usage
        if is_native and reply.usage is not None
        else _encode_usage(reply.usage),
    }
    return body | other_fields


def decode_stop_reason(reason: Any) -> str | None:
    """Return the core name of Anthropic's stop reason."""
    return None if reason is None else _STOP_BY_REASON.get(str(reason), "other")


def _encode_usage(usage: Mapping[str, Any] | None) -> dict[str, int]:
    """Return another API's usage in Anthropic's terms, in which `input_tokens` excludes the cache."""
    figures = normalize_usage(usage)
    return {
        "input_tokens": figures.input_tokens,
        "cache_creation_input_tokens": figures.cache_write_tokens,
        "cache_read_input_tokens": figures.cache_read_tokens,
        "output_tokens": figures.output_tokens,
    }
