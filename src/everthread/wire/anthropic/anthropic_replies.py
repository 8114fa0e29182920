"""Decode and encode replies of Anthropic's protocol, with their stop reasons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.core.costs.canonical_usage import normalize_usage
from everthread.core.json_values import without_keys
from everthread.core.types import ModelReply
from everthread.wire.anthropic.anthropic_decoding import decode_message
from everthread.wire.anthropic.anthropic_encoding import encode_assistant_blocks
from everthread.wire.native_values import without_private_fields
from everthread.wire.payload_checks import (
    require_list,
    require_object,
)
from everthread.wire.reply_fields import raise_reply_error, split_reply_fields

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


def decode_reply(body: Mapping[str, Any], *, model: str | None = None) -> ModelReply:
    """Return a reply in core form. `model` is the requested name."""
    body = without_private_fields(require_object(body, "the reply"))
    if body.get("type") == "error":
        raise_reply_error(body, "message")
    content = list(require_list(body.get("content"), "content"))
    fields, other_fields = split_reply_fields(body)
    author = model or fields.get("model")
    [message] = decode_message({"role": "assistant", "content": content}, "the reply", model=author)
    return ModelReply(
        message=message,
        stop=decode_stop_reason(body.get("stop_reason")),
        raw=without_keys(other_fields, "role", "content", "usage"),
        **fields,
    )


def encode_reply(reply: ModelReply) -> dict[str, Any]:
    """Return a reply as an Anthropic message."""
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": encode_assistant_blocks(reply.message),
        "usage": _encode_usage(reply.usage),
        "stop_sequence": None,
        "stop_reason": _REASON_BY_STOP.get(reply.stop or ""),
    }


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
