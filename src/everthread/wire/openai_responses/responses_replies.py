"""Decode and encode responses of OpenAI's Responses protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.core.json_values import without_keys
from everthread.core.messages import Message
from everthread.core.types import ModelReply
from everthread.wire.native_values import native_value, without_private_fields
from everthread.wire.openai_responses.responses_decoding import decode_assistant_items
from everthread.wire.openai_responses.responses_encoding import encode_messages
from everthread.wire.openai_responses.responses_items import API, ResponseItem
from everthread.wire.payload_checks import require_object, require_objects
from everthread.wire.reply_fields import (
    encode_openai_usage,
    raise_reply_error,
    split_reply_fields,
)

_STOP_BY_INCOMPLETE_REASON = {
    "max_output_tokens": "length",
    "content_filter": "content_filter",
}


def decode_reply(body: Mapping[str, Any], *, model: str | None = None) -> ModelReply:
    """Return a reply in core form. `model` is the requested name."""
    body = without_private_fields(require_object(body, "the reply"))
    if body.get("error") and "output" not in body:
        raise_reply_error(body["error"], "response")
    output = [dict(item) for item in require_objects(body.get("output"), "output")]
    fields, other_fields = split_reply_fields(body)
    message = decode_assistant_items(output, model=model or fields.get("model"))
    raw = without_keys(other_fields, "output")
    return ModelReply(
        message=message,
        stop=_decode_stop(raw, message),
        raw=raw,
        **fields,
    )


def encode_reply(reply: ModelReply) -> dict[str, Any]:
    """Return a reply as a response."""
    body = {
        **_DEFAULT_RESPONSE_FIELDS,
        "output": _encode_output(reply),
        **_encode_status(reply.stop),
        "id": reply.id,
        "model": reply.model,
    }
    if reply.usage is not None:
        body["usage"] = encode_openai_usage(
            reply.usage, prompt_name="input_tokens", output_name="output_tokens"
        )
    return body


def _decode_stop(raw: Mapping[str, Any], message: Message) -> str | None:
    status = raw.get("status")
    if status == "completed":
        if message.get("tool_calls"):
            return "tool_calls"
        return "refusal" if message.get("refusal") else "stop"
    if status == "incomplete":
        details = raw.get("incomplete_details")
        reason = str(details.get("reason")) if isinstance(details, dict) else ""
        return _STOP_BY_INCOMPLETE_REASON.get(reason, "other")
    return "other" if status in ("failed", "cancelled") else None


def _encode_status(stop: str | None) -> dict[str, Any]:
    for reason, name in _STOP_BY_INCOMPLETE_REASON.items():
        if name == stop:
            return {"status": "incomplete", "incomplete_details": {"reason": reason}}
    status = "in_progress" if stop is None else "completed"
    return {"status": status, "incomplete_details": None}


def _encode_output(reply: ModelReply) -> list[ResponseItem]:
    """Return the items of the reply. Items made from another API's message get the fields that clients expect."""
    items = encode_messages([reply.message])
    if native_value(reply.message, API) is not None:
        return items
    return [
        _add_answer_fields(item, f"{reply.id or 'reply'}_{index}")
        for index, item in enumerate(items)
    ]


def _add_answer_fields(item: ResponseItem, id_suffix: str) -> ResponseItem:
    prefix = {"message": "msg", "function_call": "fc"}.get(item["type"], "ctc")
    answer = {"id": f"{prefix}_{id_suffix}", "status": "completed", **item}
    if item["type"] == "message":
        answer["content"] = [
            {"annotations": [], "logprobs": [], **part} if part["type"] == "output_text" else part
            for part in item["content"]
        ]
    return answer


_DEFAULT_RESPONSE_FIELDS: dict[str, Any] = {
    "object": "response",
    "created_at": 0,
    "error": None,
    "instructions": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
