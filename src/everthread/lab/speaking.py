"""A scripted answer -> a whole reply in one protocol's own form: ids, reasoning, length, usage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any, cast

from everthread.core.exchange import Api, Reply
from everthread.core.messages import REASONING_BLOCKS, Message, calls_of, kind_of, parts_of, text_of
from everthread.core.tokens import TokenCounter
from everthread.lab.prompt_cache import CacheUse
from everthread.lab.protocols import Protocol
from everthread.wire import openai_responses
from everthread.wire.native import native_value, with_native

_SIGNED = "bGFi"
"""What the signatures made here begin with; others are not judged."""
_CALL = 10
"""Tokens a call costs besides its name and arguments."""


def spoken(answer: Reply | str, protocol: Protocol, *, name: str, number: int) -> Reply:
    """The whole reply of the model with this name, but for its usage."""
    reply = Reply({"role": "assistant", "content": answer}) if isinstance(answer, str) else answer
    told = reply.id or f"{protocol.prefix}{number}"
    stop = reply.stop or ("tool_calls" if calls_of(reply.message) else "stop")
    return replace(reply, stop=stop, model=reply.model or name, id=told)


def within(reply: Reply, counter: TokenCounter, room: int) -> Reply:
    """The reply, its text cut where it is longer than the room; calls are never cut."""
    text = reply.message.get("content")
    if not isinstance(text, str) or calls_of(reply.message) or counter.text(text) <= room:
        return reply
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if counter.text(text[:middle]) <= room else (low, middle - 1)
    return replace(reply, message={**reply.message, "content": text[:low]}, stop="length")


def with_usage(reply: Reply, protocol: Protocol, use: CacheUse, counter: TokenCounter, *, thoughts: int = 0) -> Reply:
    """The reply in the protocol's own form; usage that was given stays.

    `thoughts` are reasoning tokens besides those of the reasoning shown.
    """
    body = protocol.codec.encode_reply(replace(reply, message=_with_thoughts(reply.message, protocol.api, reply.id)))
    if reply.usage is None:
        reasoning = _reasoning_tokens(reply.message, counter) + thoughts
        output = reasoning + _said_tokens(reply.message, counter)
        body["usage"] = protocol.usage(use, output, reasoning)
    return protocol.codec.decode_reply(body)


def reasoned_items(reply: Reply) -> dict[str, str]:
    """The ids of a response's items, each with that of the reasoning before it."""
    items = native_value(reply.message, "openai_responses")
    pairs: dict[str, str] = {}
    before = ""
    for item in items if isinstance(items, list) else []:
        if kind_of(item) == "reasoning":
            before = str(item.get("id"))
        elif before:
            pairs[str(item.get("id"))] = before
    return pairs


def is_forged(part: Mapping[str, Any]) -> bool:
    """Whether a thinking block bears a signature made here, for other words."""
    signature = part.get("signature")
    if kind_of(part) != "thinking" or not isinstance(signature, str) or not signature.startswith(_SIGNED):
        return False
    return signature != sign(str(part.get("thinking")))


def sign(thinking: str) -> str:
    """The signature of words of reasoning."""
    return _SIGNED + blake2b(thinking.encode("utf-8", "replace"), digest_size=24).hexdigest()


def _with_thoughts(message: Message, api: Api, name: str) -> Message:
    """Reasoning that is told as plain text (`reasoning_content`), in the form the protocol gives it.

    Chat clients read it as it is; Claude signs it; the responses protocol hides it in an item.
    """
    thinking = message.get("reasoning_content")
    if not thinking or api == "openai_chat" or "_native" in message:
        return message
    rest = cast("Message", {key: value for key, value in message.items() if key != "reasoning_content"})
    if api == "anthropic":
        thought = {"type": "thinking", "thinking": thinking, "signature": sign(thinking)}
        return {**rest, "content": [thought, *parts_of(message)]}
    item = {
        "id": f"rs_{name}",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": thinking}],
        "encrypted_content": sign(thinking),
    }
    said = openai_responses.encode_reply(Reply(rest, stop="stop", id=name))["output"]
    return with_native(message, api, [item, *said])


def _said_tokens(message: Message, counter: TokenCounter) -> int:
    calls = sum(counter.text(call.name) + counter.text(call.arguments) + _CALL for call in calls_of(message))
    return counter.text(text_of(message)) + counter.text(message.get("refusal") or "") + calls


def _reasoning_tokens(message: Message, counter: TokenCounter) -> int:
    shown = [part for part in parts_of(message) if kind_of(part) in REASONING_BLOCKS]
    told = counter.text(message.get("reasoning_content") or "")
    return told + sum(counter.text(str(part.get("thinking") or "")) for part in shown)
