"""Set cache marks for Claude.

A provider caches the prefix of a request (tools, system, messages, in that order) up to each
marked block. Claude allows four marks: one stays on the system prompt, three move with the
end of the conversation, so that the next request finds a prefix that this one wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from everthread.core.fingerprints import OPAQUE_FIELDS
from everthread.core.messages import REASONING_BLOCKS, SYSTEM_ROLES, Message, Messages
from everthread.core.types import System
from everthread.errors import InputError

T = TypeVar("T")

MARKED_MESSAGES = 3
"""Marks that move with the end of the conversation; the fourth is on the system prompt."""
MIN_CACHED = 1024
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
    previous: int | None = None,
    wordless_results: bool = False,
) -> list[Message]:
    """Return the messages with one mark on the last leading system message and three on the last three others.

    Outside Anthropic's own API a tool's result carries no mark, nor does a message of calls alone: the mark moves to
    the nearest earlier message with content, so that a tool loop keeps reading from the cache. With
    `wordless_results` the last result of such calls carries it, on a block of its text, as OpenRouter takes it. Marks
    that were there are taken away, so there are never more than four. Nothing is mutated, and a message without a mark
    before and after is the same object. `previous` is the index of the last message the previous call had marked (by
    default the last that carries a mark): when more than 20 blocks came since, the provider would no longer find it,
    so the first of the three stays there. Without a system message its mark is not used elsewhere: a system prompt
    kept apart needs it (`mark_system`).
    """
    cache_marker(ttl)
    previous = last_marker(messages) if previous is None else previous
    marked = [without_cache_control(message) for message in messages]
    route = {"native_anthropic": native_anthropic, "wordless_results": wordless_results}
    for index, message in place_marks(
        marked, ttl=ttl, previous=previous, most=len(marked), **route
    ).items():
        marked[index] = message
    return marked


def place_marks(  # noqa: PLR0913  which messages, and what of the route and the last request is known
    messages: Sequence[Any],
    *,
    ttl: str = "5m",
    native_anthropic: bool = False,
    previous: int | None = None,
    wordless_results: bool = False,
    leading: int | None = None,
    most: int = _NEAR_END_MESSAGES,
) -> dict[int, Message]:
    """Return the messages to mark, with their marks, by index; the given messages carry none.

    `leading`: the number of leading system messages, if known. `most`: the number of other messages examined, from the
    end.
    """
    carriers = _Carriers(native_anthropic, wordless_results)
    if leading is None:
        leading = next(
            (index for index, m in enumerate(messages) if _role(m) not in SYSTEM_ROLES),
            len(messages),
        )
    places = _last_carriers(messages, max(leading, len(messages) - most), carriers)
    if (
        previous is not None
        and len(places) == MARKED_MESSAGES
        and _is_far_back(messages, previous, places[0])
    ):
        places = (
            [previous, *places[1:]]
            if carriers.can_carry(messages, previous)
            else places
        )
    places = [leading - 1, *places] if leading else places
    return {index: carriers.mark(messages[index], ttl) for index in places}


def first_markable_index(count: int, previous: int | None) -> int:
    """Return the index of the first message that may carry a mark, of `count` messages.

    `previous`: the index of the last mark of the previous call. A caller whose earlier
    messages carry no mark can skip them.
    """
    end = count - _NEAR_END_MESSAGES
    return max(0, end if previous is None else min(previous, end))


def mark_system(system: System, *, ttl: str = "5m") -> System:
    """Return a separate system prompt as blocks, the last one marked; unchanged if there is nothing to mark."""
    cache_marker(ttl)
    clean = without_cache_control(system)
    marked = _mark_content(clean, ttl)
    return clean if marked is None else marked


def cache_marker(ttl: str) -> dict[str, str]:
    """Return the mark of a block. Five minutes is the default and is not spelt out."""
    if ttl not in ("5m", "1h"):
        raise InputError(
            f"prompt_caching.cache_ttl: {ttl!r} is not allowed; it must be 5m or 1h."
        )
    return {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}


def without_cache_control(value: T) -> T:
    """Return the value without marks; the same object if it had none.

    Tool arguments and schemas are left alone.
    """
    return cast("T", _unmark(value, 0))


def last_marker(messages: Messages) -> int | None:
    """Return the index of the last message that carries a mark."""
    for index in range(len(messages) - 1, -1, -1):
        if without_cache_control(messages[index]) is not messages[index]:
            return index
    return None


def cache_route(
    model: str, provider: str = "auto", base_url: str | None = None
) -> str | None:
    """Return the route on which a Claude model takes marks: `Anthropic` or `OpenRouter`.

    None for any other route or model.

    A provider that names the route decides, else the address. Without either, OpenRouter's names have a vendor in
    front (`anthropic/claude-…`), Anthropic's own have not.
    """
    name = model.lower()
    if "claude" not in name:
        return None
    if provider in _ROUTES:
        return _ROUTES[provider]
    if base_url:
        host = host_of(base_url)
        return next(
            (
                _ROUTES[key]
                for key, end in _HOSTS.items()
                if f".{host}".endswith(f".{end}")
            ),
            None,
        )
    if provider != "auto":
        return None
    if name.startswith("claude"):
        return "Anthropic"
    return "OpenRouter" if name.startswith("anthropic/") else None


def caching_line(
    model: str, provider: str = "auto", base_url: str | None = None, *, ttl: str = "5m"
) -> str | None:
    """Return the line that the command line prints at its start; None if nothing is marked."""
    route = cache_route(model, provider, base_url)
    return (
        f"💾 Prompt caching: ENABLED (Claude via {route}, {ttl} TTL)" if route else None
    )


_ROUTES = {"anthropic": "Anthropic", "openrouter": "OpenRouter"}
_HOSTS = {"anthropic": "anthropic.com", "openrouter": "openrouter.ai"}


@dataclass(frozen=True, slots=True)
class _Carriers:
    """Decides which messages may carry a mark on a route, and on which block.

    OpenRouter takes a mark on a text block of a tool's message (its SDK gives such a message `string | content
    items`; measured in github.com/earendil-works/pi issue 6940, mended there by pull request 6941). On the message
    itself it is not answered at all (github.com/NousResearch/hermes-agent pull request 2391).
    """

    native_anthropic: bool
    wordless_results: bool

    def can_carry(self, messages: Sequence[Any], index: int) -> bool:
        message = messages[index]
        role = _role(message)
        if role is None or role in SYSTEM_ROLES:
            return False
        if self.native_anthropic:
            return True
        if carrier_block(_as_blocks(message.get("content"))) is None:
            return False
        return role != "tool" or (
            self.wordless_results and self._ends_wordless_calls(messages, index)
        )

    def _ends_wordless_calls(self, messages: Sequence[Any], index: int) -> bool:
        """Return whether it is the last result of calls that came without text."""
        if index + 1 < len(messages) and _role(messages[index + 1]) == "tool":
            return False
        caller = index - 1
        while caller >= 0 and _role(messages[caller]) == "tool":
            caller -= 1
        return caller >= 0 and not self.can_carry(messages, caller)

    def mark(self, message: Message, ttl: str) -> Message:
        """Mark a block of the content, else the message: the encoder then chooses a block."""
        if message["role"] != "tool" or not self.native_anthropic:
            content = _mark_content(message.get("content"), ttl)
            if content is not None:
                return {**message, "content": content}
        return {**message, "cache_control": cache_marker(ttl)}


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _last_carriers(
    messages: Sequence[Any], first: int, carriers: _Carriers
) -> list[int]:
    """Return the last messages that can carry a mark, as many as there are marks, filled up with the last others."""
    carrying: list[int] = []
    others: list[int] = []
    for index in range(len(messages) - 1, first - 1, -1):
        if len(carrying) == MARKED_MESSAGES:
            break
        if carriers.can_carry(messages, index):
            carrying.append(index)
        elif _role(messages[index]) not in (None, "tool", *SYSTEM_ROLES):
            others.append(index)
    return sorted([*carrying, *others[: MARKED_MESSAGES - len(carrying)]])


def _is_far_back(messages: Sequence[Any], previous: int, last: int) -> bool:
    """Return whether more blocks came since than the provider looks back."""
    if not 0 <= previous < last:
        return False
    blocks = 0
    for index in range(len(messages) - 1, previous, -1):
        blocks += _blocks(messages[index])
        if blocks > LOOKBACK_BLOCKS:
            return True
    return False


def _blocks(message: Any) -> int:
    """Count the blocks of a message: its parts and calls; a tool's result is one."""
    if not isinstance(message, dict):
        return 0
    content = message.get("content")
    calls = message.get("tool_calls")
    parts = (
        len(content)
        if isinstance(content, list) and message.get("role") != "tool"
        else int(bool(content))
    )
    return parts + (len(calls) if isinstance(calls, list) else 0)


def _mark_content(content: Any, ttl: str) -> list[Any] | None:
    """Return the content as blocks with a mark on the last possible one; None if none is."""
    blocks = _as_blocks(content)
    index = carrier_block(blocks)
    if index is None:
        return None
    return [
        *blocks[:index],
        {**blocks[index], "cache_control": cache_marker(ttl)},
        *blocks[index + 1 :],
    ]


def _as_blocks(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content if isinstance(content, list) else []


def carrier_block(blocks: list[Any]) -> int | None:
    """Return the index of the last block that may carry a mark; None if none may."""
    return next(
        (
            index
            for index in range(len(blocks) - 1, -1, -1)
            if _can_carry(blocks[index])
        ),
        None,
    )


def _can_carry(block: Any) -> bool:
    """Return whether a block may carry a mark; reasoning and empty text may not."""
    if not isinstance(block, dict):
        return False
    kind = block.get("type")
    text = block.get("text")
    if kind == "text":
        return isinstance(text, str) and bool(text.strip())
    return isinstance(kind, str) and kind not in REASONING_BLOCKS


def _unmark(value: Any, depth: int) -> Any:
    if depth > _MAX_MARKER_DEPTH:
        return value
    if isinstance(value, dict):
        fields = {
            key: item if key in OPAQUE_FIELDS else _unmark(item, depth + 1)
            for key, item in value.items()
            if key != "cache_control"
        }
        same = len(fields) == len(value) and all(
            fields[key] is value[key] for key in fields
        )
        return value if same else fields
    if isinstance(value, list):
        items = [_unmark(item, depth + 1) for item in value]
        return (
            value
            if all(new is old for new, old in zip(items, value, strict=True))
            else items
        )
    return value


def host_of(base_url: str) -> str:
    """Return the host of an address, which may lack a scheme; empty if it has none."""
    try:
        return (
            urlsplit(base_url if "//" in base_url else f"//{base_url}").hostname or ""
        )
    except ValueError:
        return ""
