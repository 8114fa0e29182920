"""Decode and encode Gemini's responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.core.costs.canonical_usage import normalize_usage
from everthread.core.json_values import without_keys
from everthread.core.messages import calls_of
from everthread.core.types import ModelReply
from everthread.wire.gemini.field_names import get_field, get_object_field
from everthread.wire.gemini.gemini_decoding import decode_content
from everthread.wire.gemini.gemini_encoding import encode_messages
from everthread.wire.native_values import without_private_fields
from everthread.wire.payload_checks import require_list, require_object
from everthread.wire.reply_fields import raise_reply_error, split_reply_fields

_STOP_BY_REASON = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "LANGUAGE": "content_filter",
}
_REASON_BY_STOP = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
    "refusal": "SAFETY",
}


def decode_single_reply(body: Mapping[str, Any], *, model: str | None = None) -> ModelReply:
    """Return a reply that is one object in core form. `model` is the requested name."""
    body = without_private_fields(require_object(body, "the reply"))
    if body.get("error") and not body.get("candidates"):
        raise_reply_error(body["error"], "response")
    candidate_list = body.get("candidates")
    candidates = [] if candidate_list is None else list(require_list(candidate_list, "candidates"))
    candidate = require_object(candidates[0], "candidates[0]") if candidates else {}
    content = candidate.get("content")
    fields, raw = split_reply_fields(
        body, id_name="responseId", model_name="modelVersion", usage_name="usageMetadata"
    )
    path = "candidates[0].content"
    content_fields = require_object({} if content is None else content, path)
    [message] = decode_content(
        {"role": "model", **content_fields}, path, model=model or fields.get("model")
    )
    if candidates:
        raw["candidates"] = [without_keys(candidate, "content"), *candidates[1:]]
    return ModelReply(
        message=message,
        stop=decode_stop(body, candidate, has_calls=bool(calls_of(message))),
        raw=raw,
        **fields,
    )


def decode_stop(
    body: Mapping[str, Any], candidate: Mapping[str, Any], *, has_calls: bool
) -> str | None:
    reason = get_field(candidate, "finishReason")
    if reason is None:
        return "content_filter" if get_object_field(body, "promptFeedback") else None
    stop = _STOP_BY_REASON.get(str(reason), "other")
    return "tool_calls" if stop == "stop" and has_calls else stop


def encode_reply(reply: ModelReply) -> dict[str, Any]:
    """Return a reply as a response."""
    contents = [
        content for content in encode_messages([reply.message]) if content["role"] == "model"
    ]
    candidate: dict[str, Any] = {
        "index": 0,
        "content": contents[0] if contents else {"role": "model", "parts": []},
    }
    if reply.stop is not None:
        candidate["finishReason"] = _REASON_BY_STOP.get(reply.stop, "OTHER")
    body: dict[str, Any] = {"candidates": [candidate]}
    fields = {
        "usageMetadata": _encode_usage(reply.usage),
        "modelVersion": reply.model,
        "responseId": reply.id,
    }
    return body | {name: value for name, value in fields.items() if value}


def _encode_usage(usage: Mapping[str, Any] | None) -> dict[str, int] | None:
    if usage is None:
        return None
    figures = normalize_usage(usage)
    return {
        "promptTokenCount": figures.prompt_tokens,
        "cachedContentTokenCount": figures.cache_read_tokens,
        "candidatesTokenCount": figures.output_tokens - figures.reasoning_tokens,
        "thoughtsTokenCount": figures.reasoning_tokens,
        "totalTokenCount": figures.total_tokens,
    }
