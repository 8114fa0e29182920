"""Decode and encode completions of OpenAI's chat protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.core.json_values import without_keys
from everthread.core.messages import Message, content_text, with_content
from everthread.core.types import ModelReply
from everthread.errors import WireError
from everthread.wire.native_values import (
    public_message,
    without_private_fields,
)
from everthread.wire.openai_chat.chat_conversion import to_chat_messages
from everthread.wire.openai_chat.chat_decoding import decode_message
from everthread.wire.openai_chat.chat_encoding import encode_messages
from everthread.wire.payload_checks import require_list, require_object
from everthread.wire.reply_fields import (
    encode_openai_usage,
    raise_reply_error,
    split_reply_fields,
)

_STOP_BY_FINISH_REASON = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


def decode_reply(body: Mapping[str, Any], *, model: str | None = None) -> ModelReply:
    """Return a reply in core form. `model` is the requested name, because the reply often has another one."""
    body = without_private_fields(require_object(body, "the reply"))
    if body.get("error") and not body.get("choices"):
        raise_reply_error(body["error"], "completion")
    choices = require_list(body.get("choices"), "choices")
    if not choices:
        raise WireError("the reply holds no choice")
    choice = require_object(choices[0], "choices[0]")
    fields, other_fields = split_reply_fields(body)
    message = decode_message(
        choice.get("message"), "choices[0].message", model=model or fields.get("model")
    )
    choice_fields = without_keys(choice, "message")
    raw = {**other_fields, "choices": [choice_fields, *choices[1:]]}
    return ModelReply(
        message=message,
        stop=decode_finish_reason(choice.get("finish_reason"), message),
        raw=raw,
        **fields,
    )


def encode_reply(reply: ModelReply) -> dict[str, Any]:
    """Return a reply as a completion."""
    choice = {
        "index": 0,
        "message": encode_messages([_to_client_message(reply.message)])[0],
        "finish_reason": _choose_finish_reason(reply),
    }
    body = {
        "object": "chat.completion",
        "created": 0,
        "choices": [choice],
        "id": reply.id,
        "model": reply.model,
    }
    if reply.usage is not None:
        body["usage"] = encode_openai_usage(
            reply.usage, prompt_name="prompt_tokens", output_name="completion_tokens"
        )
    return body


def decode_finish_reason(finish_reason: Any, message: Message) -> str | None:
    """Return the core name of a finish reason. A `stop` with a refusal text is a `refusal`."""
    if finish_reason is None:
        return None
    stop = _STOP_BY_FINISH_REASON.get(str(finish_reason), "other")
    return "refusal" if stop == "stop" and message.get("refusal") else stop


def _to_client_message(message: Message) -> Message:
    """Return a message of another API in the form that chat clients expect of an answer: one text, not parts.

    Clients may show its reasoning. If a request returns the reasoning, it is removed there.
    """
    body = to_chat_messages(public_message(message))[0]
    content = body.get("content")
    return with_content(body, content_text(content)) if isinstance(content, list) else body


def _choose_finish_reason(reply: ModelReply) -> str | None:
    """Return chat's finish reason. For a refusal without a text, clients expect `content_filter`."""
    if reply.stop == "refusal" and not reply.message.get("refusal"):
        return "content_filter"
    if reply.stop is None:
        return None
    return reply.stop if reply.stop in _STOP_BY_FINISH_REASON else "stop"
