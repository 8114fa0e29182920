"""Anthropic's whole requests and replies <-> core, with the reasons a reply stopped for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from everthread.core.canonical_usage import normalize_usage
from everthread.core.types import Reply, Request, System
from everthread.errors import WireError
from everthread.wire.anthropic.message_codec import (
    API,
    EncodedHistory,
    assistant_blocks,
    decode_message,
    decode_messages,
    decode_tools,
    encode_messages,
    encode_system,
    encode_tools,
    leading_instructions,
    objects,
)
from everthread.wire.common import (
    error_text,
    reply_fields,
    require_list,
    require_object,
    require_text,
    without_private_fields,
)

DEFAULT_MAX_TOKENS = 8192
"""Anthropic requires `max_tokens`; every model in service can write this much."""


def decode_request(body: Mapping[str, Any]) -> Request:
    """Return a request in core form. Its assistant messages count as written by the requested model."""
    params = dict(without_private_fields(require_object(body, "the request")))
    model = require_text(params.pop("model", None), "model")
    messages = decode_messages(params.pop("messages", None), model=model)
    system = _system(params.pop("system", None))
    tools = decode_tools(params.pop("tools") if params.get("tools") else [])
    return Request(model, messages, system, tools, params)


def encode_request(
    request: Request, *, written: EncodedHistory | None = None
) -> dict[str, Any]:
    """Return the body to send. Instructions the messages begin with join the system prompt.

    `written`: of one conversation, so that its earlier messages are not written again for every request.
    """
    leading = leading_instructions(request.messages)
    system = encode_system(request.system, request.messages[:leading])
    params = _params(request.params)
    max_tokens = params.pop("max_tokens", None)
    body = {
        "model": request.model,
        "max_tokens": DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
    }
    if system is not None:
        body["system"] = system
    # A copy costs a long history time.
    messages = request.messages[leading:] if leading else request.messages
    body["messages"] = encode_messages(messages, model=request.model, written=written)
    if request.tools:
        body["tools"] = encode_tools(request.tools)
    return params | body


def _system(value: Any) -> System:
    if value is None or isinstance(value, str):
        return value
    return [dict(block) for block in objects(value, "system")]


def _params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return every field by its own name, but OpenAI's by the name they have here, or not at all."""
    fields = {
        name: value
        for name, value in without_private_fields(params).items()
        if name not in _OPENAI_ONLY
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


def _tool_choice(value: Any) -> Any:
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


def _output_config(value: Any) -> Any:
    """Return a JSON schema for the answer; OpenAI's other formats have no name here."""
    inner = value.get("json_schema") if isinstance(value, dict) else None
    schema = inner.get("schema") if isinstance(inner, dict) else None
    return {"format": {"type": "json_schema", "schema": schema}} if schema else None


def _metadata(value: Any) -> Any:
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
    "tool_choice": (_tool_choice, "tool_choice"),
    "response_format": (_output_config, "output_config"),
    "metadata": (_metadata, "metadata"),
    "service_tier": (
        lambda value: None if value in _OPENAI_TIERS else value,
        "service_tier",
    ),
}
_OPENAI_ONLY = frozenset(
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
    fields, rest = reply_fields(body)
    author = model or fields.get("model")
    [message] = decode_message(
        {"role": "assistant", "content": content}, "the reply", model=author
    )
    raw = {
        key: value
        for key, value in rest.items()
        if key not in ("role", "content", "usage")
    }
    return Reply(
        message=message,
        stop=stop_of(body.get("stop_reason")),
        raw={**raw, "_api": API},
        **fields,
    )


def encode_reply(reply: Reply) -> dict[str, Any]:
    """Return a reply as an Anthropic message. A decoded one is returned verbatim."""
    native = reply.raw.get("_api") == API
    rest: dict[str, Any] = (
        dict(without_private_fields(reply.raw)) if native else {"stop_sequence": None}
    )
    if not native or stop_of(rest.get("stop_reason")) != reply.stop:
        rest["stop_reason"] = _REASON_BY_STOP.get(reply.stop or "")
    body = {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": assistant_blocks(reply.message),
        "usage": reply.usage
        if native and reply.usage is not None
        else _usage(reply.usage),
    }
    return body | rest


def stop_of(reason: Any) -> str | None:
    """Return our name of Anthropic's stop reason."""
    return None if reason is None else _STOP_BY_REASON.get(str(reason), "other")


def _usage(usage: Mapping[str, Any] | None) -> dict[str, int]:
    """Return another API's usage in Anthropic's terms, in which `input_tokens` excludes the cache."""
    figures = normalize_usage(usage)
    return {
        "input_tokens": figures.input_tokens,
        "cache_creation_input_tokens": figures.cache_write_tokens,
        "cache_read_input_tokens": figures.cache_read_tokens,
        "output_tokens": figures.output_tokens,
    }
