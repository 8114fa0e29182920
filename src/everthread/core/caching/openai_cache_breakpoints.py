"""Cache breakpoints of OpenAI models from GPT-5.6 on.

These models bill cache writes and match the cache only at breakpoints. OpenAI sets one by itself near the latest
message, so that a growing conversation reads from the cache. It does not set one after the tools and the system prompt,
so that a compacted conversation would read nothing: Everthread sets that one. A breakpoint is a field of a content
part; tools, `instructions` and the assistant's own messages cannot carry one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.core.caching.cache_lifetimes import bills_cache_writes
from everthread.core.messages import SYSTEM_ROLES, Message
from everthread.core.types import Api, System
from everthread.core.urls import host_of

BREAKPOINT = "prompt_cache_breakpoint"
_EXPLICIT_MODE = {"mode": "explicit"}
_HOSTS = ("openai.com", "openrouter.ai")
_PROVIDERS = ("openai", "openrouter")
_PART_TYPES: Mapping[str, str] = {
    "openai_chat": "text",
    "openai_responses": "input_text",
}


def accepts_breakpoints(
    api: Api, model: str, provider: str = "auto", base_url: str | None = None
) -> bool:
    """Return whether a route accepts breakpoints: OpenAI's own API and OpenRouter do.

    The API used with a ChatGPT login refuses them.
    """
    if api not in _PART_TYPES or not bills_cache_writes(model):
        return False
    if base_url:
        host = f".{host_of(base_url)}"
        return any(host.endswith(f".{known_host}") for known_host in _HOSTS)
    return provider in (*_PROVIDERS, "auto")


def mark_system_breakpoint(system: System) -> System:
    """Return a system prompt as blocks, with a breakpoint on the first and the last block.

    If a compaction appends a block, the prefix up to the first breakpoint stays valid.
    """
    blocks = _as_parts(system, "text")
    if not blocks:
        return system
    marked_indexes = {0, len(blocks) - 1}
    return [
        {**block, BREAKPOINT: _EXPLICIT_MODE} if index in marked_indexes else block
        for index, block in enumerate(blocks)
    ]


def has_breakpoint(content: Any) -> bool:
    """Return whether a part of a content carries a breakpoint."""
    parts = content if isinstance(content, list) else ()
    return any(isinstance(part, dict) and BREAKPOINT in part for part in parts)


def find_breakpoint_index(messages: list[Any], leading_count: int, note: str = "") -> int | None:
    """Return the index of the message to mark.

    It is the last of the `leading_count` system messages that is not our `note`, else the first user message, which a
    compaction keeps in place.
    """
    for index in range(leading_count - 1, -1, -1):
        if messages[index].get("content") != note and _can_carry_breakpoint(messages[index]):
            return index
    if leading_count < len(messages) and messages[leading_count].get("role") == "user":
        return leading_count if _can_carry_breakpoint(messages[leading_count]) else None
    return None


def mark_message(api: Api, message: Any, note: str = "") -> dict[str, Any]:
    """Return a message with a breakpoint on its last part that is not our `note`."""
    parts = _as_parts(message.get("content"), _PART_TYPES[api])
    last_index = max(index for index, part in enumerate(parts) if part.get("text") != note)
    parts[last_index] = {**parts[last_index], BREAKPOINT: _EXPLICIT_MODE}
    return {**message, "content": parts}


def _can_carry_breakpoint(message: Message | Mapping[str, Any]) -> bool:
    is_input = message.get("role") in (*SYSTEM_ROLES, "user")
    content = message.get("content")
    parts = content if isinstance(content, list) else [{}]
    return is_input and bool(content) and all(isinstance(part, dict) for part in parts)


def _as_parts(content: Any, kind: str) -> list[Any]:
    if isinstance(content, str):
        return [{"type": kind, "text": content}] if content else []
    return list(content) if isinstance(content, list) else []
