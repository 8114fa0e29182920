"""Decode messages of OpenAI's chat protocol, whose form core messages have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from everthread.core.messages import Message
from everthread.errors import WireError
from everthread.wire.native_values import with_native, without_private_fields
from everthread.wire.openai_chat.chat_conversion import API
from everthread.wire.openai_chat.chat_encoding import encode_messages, without_reasoning
from everthread.wire.payload_checks import require_list, require_object, require_text


def decode_messages(
    wire_messages: Sequence[Mapping[str, Any]], *, model: str | None = None, start: int = 0
) -> list[Message]:
    """Return core messages. `model` is the author of their reasoning, if known. `start`: index of the first one."""
    return [
        decode_message(message, f"messages[{index}]", model=model)
        for index, message in enumerate(require_list(wire_messages, "messages"), start=start)
    ]


def decode_message(wire_message: Any, path: str, *, model: str | None = None) -> Message:
    """Decode one message. It gets a native record only if encoding would change it, or if it has reasoning."""
    message = cast("Message", without_private_fields(require_object(wire_message, path)))
    require_text(message.get("role"), f"{path}.role")
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise WireError(
            f"{path}.content must be a string, a list of parts or null, not {type(content).__name__}"
        )
    if message.get("tool_calls") is not None:
        require_list(message["tool_calls"], f"{path}.tool_calls")
    if encode_messages([message]) != [message]:
        return with_native(message, API, message, model=model)
    if without_reasoning(message) is not message:
        return with_native(message, API, None, model=model)
    return message
