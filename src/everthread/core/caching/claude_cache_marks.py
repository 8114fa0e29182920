"""Set cache marks for Claude.

A provider caches the prefix of a request (tools, system, messages, in that order) up to each
marked block. Claude allows four marks: one stays on the system prompt, three move with the
end of the conversation, so that the next request finds a prefix that this one wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from everthread.core.fingerprints import OPAQUE_FIELDS
from everthread.core.json_values import as_list
from everthread.core.messages import (
    REASONING_BLOCK_KINDS,
    SYSTEM_ROLES,
    Message,
    Messages,
    count_leading_system_messages,
)
from everthread.core.types import System
from everthread.core.urls import host_of
from everthread.errors import InputError

T = TypeVar("T")

MARKED_MESSAGES = 3
"""Marks that move with the end of the conversation; the fourth is on the system prompt."""
MIN_CACHED_TOKENS = 1024
"""Tokens: no Claude model caches a shorter prompt."""
LOOKBACK_BLOCKS = 20
"""How many blocks before a mark the provider looks for an earlier cached prefix."""

_NEAR_END_MESSAGES = 60
"""More messages than a client adds between two calls; marks are among the last of them."""
_MAX_MARKER_DEPTH = 16
"""No protocol nests blocks deeper than this."""


def apply_cache_control(
    messages: Messages,
    *,
    ttl: str = "5m",
    native_anthropic: bool = False,
    previous_index: int | None = None,
    mark_tool_results: bool = False,
) -> list[Message]:
    """Return the messages with one mark on the last leading system message and three on the last three others.

    Remove existing marks first, so that there are never more than four. An unchanged message is the same object. If
    there is no leading system message, its mark is left for a separate system prompt (`mark_system`).

    Outside Anthropic's own API, neither a tool result nor a message of calls alone can carry a mark. The mark moves to
    the nearest earlier message with content, so that a tool loop keeps reading from the cache. With
    `mark_tool_results`, the last result of such calls carries the mark on a block of its text, as OpenRouter accepts.

    `previous_index` is the last message that the previous call marked; by default, the last message with a mark. If
    more than 20 blocks follow it, the provider would no longer find its prefix, so the first of the three marks stays
    on it.
    """
    make_cache_marker(ttl)
    previous_index = find_last_marked_index(messages) if previous_index is None else previous_index
    marked_messages = [without_cache_control(message) for message in messages]
    for index, message in place_marks(
        marked_messages,
        ttl=ttl,
        previous_index=previous_index,
        max_examined=len(marked_messages),
        native_anthropic=native_anthropic,
        mark_tool_results=mark_tool_results,
    ).items():
        marked_messages[index] = message
    return marked_messages


def place_marks(  # noqa: PLR0913  which messages, and what of the route and the last request is known
    messages: Sequence[Any],
    *,
    ttl: str = "5m",
    native_anthropic: bool = False,
    previous_index: int | None = None,
    mark_tool_results: bool = False,
    leading_count: int | None = None,
    max_examined: int = _NEAR_END_MESSAGES,
) -> dict[int, Message]:
    """Return the messages to mark, with their marks, by index. The given messages must carry no marks.

    `leading_count`: the number of leading system messages, if known. `max_examined`: how many other messages to
    examine, from the end.
    """
    rules = _MarkRules(native_anthropic, mark_tool_results)
    if leading_count is None:
        leading_count = count_leading_system_messages(messages)
    indexes = _choose_indexes_to_mark(
        messages, max(leading_count, len(messages) - max_examined), rules
    )
    if (
        previous_index is not None
        and len(indexes) == MARKED_MESSAGES
        and _is_beyond_lookback(messages, previous_index, indexes[0])
        and rules.can_carry_mark(messages, previous_index)
    ):
        indexes = [previous_index, *indexes[1:]]
    if leading_count:
        indexes = [leading_count - 1, *indexes]
    return {index: rules.mark(messages[index], ttl) for index in indexes}


def find_first_markable_index(count: int, previous_index: int | None) -> int:
    """Return the index of the first of `count` messages that may carry a mark; a caller can skip those before it.

    `previous_index`: the last message that the previous call marked.
    """
    end = count - _NEAR_END_MESSAGES
    return max(0, end if previous_index is None else min(previous_index, end))


def mark_system(system: System, *, ttl: str = "5m") -> System:
    """Return a separate system prompt as blocks, the last one marked, or unchanged if there is nothing to mark."""
    make_cache_marker(ttl)
    unmarked_system = without_cache_control(system)
    marked_system = _mark_content(unmarked_system, ttl)
    return unmarked_system if marked_system is None else marked_system


def make_cache_marker(ttl: str) -> dict[str, str]:
    """Return the mark of a block. Five minutes is the default and is not written."""
    if ttl not in ("5m", "1h"):
        raise InputError(f"prompt_caching.cache_ttl: {ttl!r} is not allowed; it must be 5m or 1h.")
    return {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}


def without_cache_control(value: T) -> T:
    """Return the value without marks; the same object if it had none.

    Tool arguments and schemas are left alone.
    """
    return cast("T", _remove_marks(value, 0))


def find_last_marked_index(messages: Messages) -> int | None:
    """Return the index of the last message that carries a mark."""
    for index in range(len(messages) - 1, -1, -1):
        if without_cache_control(messages[index]) is not messages[index]:
            return index
    return None


def find_cache_route(model: str, provider: str = "auto", base_url: str | None = None) -> str | None:
    """Return the route on which a Claude model takes marks, `Anthropic` or `OpenRouter`, or None for any other.

    A known provider decides, or else the address. Without either, the model's name decides: OpenRouter's names begin
    with a vendor (`anthropic/claude-…`), Anthropic's own do not.
    """
    name = model.lower()
    if "claude" not in name:
        return None
    if provider in _ROUTE_BY_PROVIDER:
        return _ROUTE_BY_PROVIDER[provider]
    if base_url:
        host = host_of(base_url)
        return next(
            (
                _ROUTE_BY_PROVIDER[known_provider]
                for known_provider, host_suffix in _HOST_BY_PROVIDER.items()
                if f".{host}".endswith(f".{host_suffix}")
            ),
            None,
        )
    if provider != "auto":
        return None
    if name.startswith("claude"):
        return "Anthropic"
    return "OpenRouter" if name.startswith("anthropic/") else None


def make_caching_notice(
    model: str, provider: str = "auto", base_url: str | None = None, *, ttl: str = "5m"
) -> str | None:
    """Return the notice that `chat` prints at its start, or None if the route takes no marks."""
    route = find_cache_route(model, provider, base_url)
    return f"💾 Prompt caching: ENABLED (Claude via {route}, {ttl} TTL)" if route else None


_ROUTE_BY_PROVIDER = {"anthropic": "Anthropic", "openrouter": "OpenRouter"}
_HOST_BY_PROVIDER = {"anthropic": "anthropic.com", "openrouter": "openrouter.ai"}


@dataclass(frozen=True, slots=True)
class _MarkRules:
    """Decides which messages may carry a mark on a route, and on which block.

    OpenRouter accepts a mark on a text block of a tool message (measured in github.com/earendil-works/pi issue 6940,
    fixed there by pull request 6941). It does not answer a request with a mark on the message itself
    (github.com/NousResearch/hermes-agent pull request 2391).
    """

    native_anthropic: bool
    mark_tool_results: bool

    def can_carry_mark(self, messages: Sequence[Any], index: int) -> bool:
        message = messages[index]
        role = _role_of(message)
        if role is None or role in SYSTEM_ROLES:
            return False
        if self.native_anthropic:
            return True
        if find_markable_block(_as_blocks(message.get("content"))) is None:
            return False
        return role != "tool" or (
            self.mark_tool_results and self._ends_calls_without_text(messages, index)
        )

    def _ends_calls_without_text(self, messages: Sequence[Any], index: int) -> bool:
        """Return whether the message is the last result of calls whose message has no text."""
        if index + 1 < len(messages) and _role_of(messages[index + 1]) == "tool":
            return False
        caller_index = index - 1
        while caller_index >= 0 and _role_of(messages[caller_index]) == "tool":
            caller_index -= 1
        return caller_index >= 0 and not self.can_carry_mark(messages, caller_index)

    def mark(self, message: Message, ttl: str) -> Message:
        """Return the message with a cache mark on a block of its content.

        If no block can carry the mark, or a tool result goes to Anthropic directly, the message itself carries it, and
        the encoder chooses the block.
        """
        if message["role"] != "tool" or not self.native_anthropic:
            content = _mark_content(message.get("content"), ttl)
            if content is not None:
                return {**message, "content": content}
        return {**message, "cache_control": make_cache_marker(ttl)}


def _role_of(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _choose_indexes_to_mark(
    messages: Sequence[Any], first_index: int, rules: _MarkRules
) -> list[int]:
    """Return the last messages that can carry a mark. If they are fewer than three, add the last other messages."""
    markable: list[int] = []
    others: list[int] = []
    for index in range(len(messages) - 1, first_index - 1, -1):
        if len(markable) == MARKED_MESSAGES:
            break
        if rules.can_carry_mark(messages, index):
            markable.append(index)
        elif _role_of(messages[index]) not in (None, "tool", *SYSTEM_ROLES):
            others.append(index)
    return sorted([*markable, *others[: MARKED_MESSAGES - len(markable)]])


def _is_beyond_lookback(messages: Sequence[Any], previous_index: int, last_index: int) -> bool:
    """Return whether more blocks follow the previous mark than the provider looks back."""
    if not 0 <= previous_index < last_index:
        return False
    block_count = 0
    for index in range(len(messages) - 1, previous_index, -1):
        block_count += _count_blocks(messages[index])
        if block_count > LOOKBACK_BLOCKS:
            return True
    return False


def _count_blocks(message: Any) -> int:
    """Count the blocks of a message: its parts and calls; a tool's result is one."""
    if not isinstance(message, dict):
        return 0
    content = message.get("content")
    calls = message.get("tool_calls")
    part_count = int(bool(content))
    if isinstance(content, list) and message.get("role") != "tool":
        part_count = len(content)
    return part_count + len(as_list(calls))


def _mark_content(content: Any, ttl: str) -> list[Any] | None:
    """Return the content as blocks with a mark on the last block that may carry one, or None if no block may."""
    blocks = _as_blocks(content)
    index = find_markable_block(blocks)
    if index is None:
        return None
    return [
        *blocks[:index],
        {**blocks[index], "cache_control": make_cache_marker(ttl)},
        *blocks[index + 1 :],
    ]


def _as_blocks(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


def find_markable_block(blocks: list[Any]) -> int | None:
    """Return the index of the last block that may carry a mark, or None if no block may."""
    return next(
        (index for index in range(len(blocks) - 1, -1, -1) if _is_markable_block(blocks[index])),
        None,
    )


def _is_markable_block(block: Any) -> bool:
    """Return whether a block may carry a mark; reasoning and empty text may not."""
    if not isinstance(block, dict):
        return False
    kind = block.get("type")
    text = block.get("text")
    if kind == "text":
        return isinstance(text, str) and bool(text.strip())
    return isinstance(kind, str) and kind not in REASONING_BLOCK_KINDS


def _remove_marks(value: Any, depth: int) -> Any:
    if depth > _MAX_MARKER_DEPTH:
        return value
    if isinstance(value, dict):
        fields = {
            key: item if key in OPAQUE_FIELDS else _remove_marks(item, depth + 1)
            for key, item in value.items()
            if key != "cache_control"
        }
        is_unchanged = len(fields) == len(value) and all(
            fields[key] is value[key] for key in fields
        )
        return value if is_unchanged else fields
    if isinstance(value, list):
        items = [_remove_marks(item, depth + 1) for item in value]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value
