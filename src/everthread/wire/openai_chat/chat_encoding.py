"""Encode core messages as messages of OpenAI's chat protocol."""

from __future__ import annotations

from typing import Any, cast

from everthread.core.json_values import as_list, without_keys
from everthread.core.messages import Message, Messages, Part, kind_of
from everthread.wire.native_values import (
    can_use_reasoning,
    native_value,
    public_message,
    without_private_fields,
)
from everthread.wire.openai_chat.chat_conversion import API, to_chat_messages

REASONING_FIELDS = frozenset(
    {
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "reasoning_text",
        "reasoning_opaque",
        "thinking_blocks",
    }
)
"""Fields for reasoning in the dialects of chat: DeepSeek, OpenRouter, Copilot, LiteLLM."""
_FIELDS_CHAT_LACKS = frozenset({"cache_control", "is_error"})
"""Fields of a core message that chat does not have."""
_MEDIA_KINDS = frozenset({"image_url", "file", "input_audio", "video_url"})


def encode_messages(messages: Messages, *, model: str | None = None) -> list[dict[str, Any]]:
    """Return chat messages for `model`, without reasoning that another model or API wrote.

    Chat takes media from the user only: those in tool results follow in a user message, after the last result.
    """
    wire_messages: list[dict[str, Any]] = []
    media: list[Part] = []
    for message in messages:
        for body, separate_media in _encode_message(message, model):
            if media and body["role"] != "tool":
                wire_messages.append({"role": "user", "content": media})
                media = []
            wire_messages.append(body)
            media += separate_media
    if media:
        wire_messages.append({"role": "user", "content": media})
    return wire_messages


def _encode_message(message: Message, model: str | None) -> list[tuple[dict[str, Any], list[Part]]]:
    """Return the wire messages, each with the media that must move to a user message."""
    body = public_message(message)
    if "_native" in message and not can_use_reasoning(message, API, model):
        body = without_reasoning(body)
    value = native_value(message, API)
    if value is not None and value == public_message(message):
        return [(cast("dict[str, Any]", body), [])]
    calls = as_list(body.get("tool_calls"))
    public_calls: list[Any] = [
        without_private_fields(call) if isinstance(call, dict) else call for call in calls
    ]
    if any(new is not old for new, old in zip(public_calls, calls, strict=True)):
        body = {**body, "tool_calls": public_calls}
    if not _FIELDS_CHAT_LACKS.isdisjoint(body):
        body = cast("Message", without_keys(body, *_FIELDS_CHAT_LACKS))
    return [_split_media(chat_message) for chat_message in to_chat_messages(body)]


def _split_media(message: Message) -> tuple[dict[str, Any], list[Part]]:
    """Split a tool result into its text and its media. The media begin with a text that names the call.

    Other messages are returned unchanged, without media.
    """
    content = message.get("content")
    if message.get("role") != "tool" or not isinstance(content, list):
        return cast("dict[str, Any]", message), []
    media = [part for part in content if kind_of(part) in _MEDIA_KINDS]
    if not media:
        return cast("dict[str, Any]", message), []
    text_parts = [part for part in content if kind_of(part) not in _MEDIA_KINDS]
    intro = {"type": "text", "text": f"[result of {message.get('tool_call_id')}]"}
    return {**message, "content": text_parts or "[in the next message]"}, [intro, *media]


def without_reasoning(message: Message) -> Message:
    """Return the message without reasoning and Gemini's call signatures; the same object if it has none."""
    calls = as_list(message.get("tool_calls"))
    has_signed_calls = any("extra_content" in call for call in calls if isinstance(call, dict))
    if not has_signed_calls and REASONING_FIELDS.isdisjoint(message):
        return message
    fields = without_keys(message, *REASONING_FIELDS)
    if has_signed_calls:
        fields["tool_calls"] = [
            without_keys(call, "extra_content") if isinstance(call, dict) else call
            for call in calls
        ]
    return cast("Message", fields)
