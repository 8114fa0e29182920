"""Turn an answer of the script into a reply in the form of its protocol, with its usage."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import Any, cast

from everthread.core.messages import (
    REASONING_BLOCK_KINDS,
    Message,
    calls_of,
    kind_of,
    parts_of,
    text_of,
)
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, ModelReply
from everthread.lab.provider.cache import CacheUse
from everthread.lab.provider.served_models import Protocol
from everthread.lab.provider.signatures import sign_call, sign_text
from everthread.wire import gemini, openai_responses
from everthread.wire.native_values import native_value, with_native

_CALL_TOKENS = 10
"""Tokens that a call costs besides its name and arguments."""


def complete_reply(  # noqa: PLR0913  a reply depends on all of these
    answer: ModelReply | str,
    protocol: Protocol,
    counter: TokenCounter,
    *,
    model: str,
    number: int,
    max_tokens: int,
    use: CacheUse,
    extra_reasoning_tokens: int = 0,
) -> tuple[ModelReply, dict[str, Any]]:
    """Turn an answer of the script into a reply and return it with its body. A usage in the script is kept.

    A text longer than `max_tokens` is cut; calls never are. `extra_reasoning_tokens` are added to those of the visible
    reasoning.
    """
    reply = (
        ModelReply({"role": "assistant", "content": answer}) if isinstance(answer, str) else answer
    )
    calls = calls_of(reply.message)
    stop = reply.stop or ("tool_calls" if calls else "stop")
    reply = replace(
        reply,
        stop=stop,
        model=reply.model or model,
        id=reply.id or f"{protocol.id_prefix}{number}",
    )
    text = reply.message.get("content")
    if isinstance(text, str) and not calls and counter.text(text) > max_tokens:
        fitting_chars = bisect_right(
            range(len(text)), max_tokens, key=lambda end: counter.text(text[: end + 1])
        )
        reply = replace(
            reply,
            message={**reply.message, "content": text[:fitting_chars]},
            stop="length",
        )
    body = protocol.codec.encode_reply(
        replace(reply, message=_encode_thoughts(reply.message, protocol.api, reply.id))
    )
    if reply.usage is None:
        reasoning_tokens = _count_reasoning_tokens(reply.message, counter) + extra_reasoning_tokens
        body[protocol.usage_field] = protocol.make_usage(
            use, reasoning_tokens + count_answer(reply.message, counter), reasoning_tokens
        )
    return protocol.codec.decode_reply(body), body


def map_items_to_reasoning(reply: ModelReply) -> dict[str, str]:
    """Return the id of the reasoning before each item of a response, by the item's id."""
    items = native_value(reply.message, "openai_responses")
    reasoning_id_by_item_id: dict[str, str] = {}
    reasoning_id = ""
    for item in items if isinstance(items, list) else []:
        if kind_of(item) == "reasoning":
            reasoning_id = str(item.get("id"))
        elif reasoning_id:
            reasoning_id_by_item_id[str(item.get("id"))] = reasoning_id
    return reasoning_id_by_item_id


def _encode_thoughts(message: Message, api: Api, reply_id: str) -> Message:
    """Convert plain-text reasoning (`reasoning_content`) to the form of the protocol.

    Chat clients read it unchanged, Claude signs it, the Responses protocol hides it in an item, and Gemini signs calls.
    """
    thinking = message.get("reasoning_content")
    if api == "gemini" and "_native" not in message:
        return _sign_content(message)
    if not thinking or api == "openai_chat" or "_native" in message:
        return message
    message_without_thoughts = cast(
        "Message",
        {key: value for key, value in message.items() if key != "reasoning_content"},
    )
    if api == "anthropic":
        thought = {
            "type": "thinking",
            "thinking": thinking,
            "signature": sign_text(thinking),
        }
        return {**message_without_thoughts, "content": [thought, *parts_of(message)]}
    item = {
        "id": f"rs_{reply_id}",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": thinking}],
        "encrypted_content": sign_text(thinking),
    }
    items = openai_responses.encode_reply(
        ModelReply(message_without_thoughts, stop="stop", id=reply_id)
    )["output"]
    return with_native(message, api, [item, *items])


def _sign_content(message: Message) -> Message:
    """Return the message as Gemini writes it: thoughts as a part, and a signature on the first call."""
    message_without_thoughts = cast(
        "Message",
        {key: value for key, value in message.items() if key != "reasoning_content"},
    )
    contents = [
        content
        for content in gemini.encode_messages([message_without_thoughts])
        if content["role"] == "model"
    ]
    parts = [dict(part) for content in contents for part in content["parts"]]
    first_call = next((part for part in parts if "functionCall" in part), None)
    if first_call is not None:
        first_call["thoughtSignature"] = sign_call(first_call["functionCall"])
    if thinking := message.get("reasoning_content"):
        parts.insert(0, {"text": thinking, "thought": True})
    return with_native(message, "gemini", {"role": "model", "parts": parts})


def count_answer(message: Message, counter: TokenCounter) -> int:
    """Count the tokens of an answer without its reasoning."""
    call_tokens = sum(
        counter.text(call.name) + counter.text(call.arguments) + _CALL_TOKENS
        for call in calls_of(message)
    )
    return counter.text(text_of(message)) + counter.text(message.get("refusal") or "") + call_tokens


def _count_reasoning_tokens(message: Message, counter: TokenCounter) -> int:
    blocks = [part for part in parts_of(message) if kind_of(part) in REASONING_BLOCK_KINDS]
    text_tokens = counter.text(message.get("reasoning_content") or "")
    return text_tokens + sum(counter.text(str(part.get("thinking") or "")) for part in blocks)
