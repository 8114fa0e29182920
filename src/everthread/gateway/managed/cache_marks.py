"""Set cache marks for clients that set none: of Claude, and of OpenAI from GPT-5.6 on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

from everthread.core.caching.claude_cache_marks import (
    mark_system,
    place_marks,
)
from everthread.core.caching.openai_cache_breakpoints import (
    accepts_breakpoints,
    find_breakpoint_index,
    mark_message,
)
from everthread.core.types import Api
from everthread.gateway.request.json_slices import (
    BodyEdit,
    BodySlices,
    DecodedMessages,
    MessageSlice,
)
from everthread.thread.wire_messages import encode_value
from everthread.wire.codecs import CODECS


@dataclass(slots=True)
class MarkMemory:
    """The cache marks of a thread's last request. They may be lost at any moment."""

    replacement_digest: bytes = b""
    """A digest of the text that replaced the beginning of the history."""
    last_index: int = -1
    """The index of the message with the last mark; -1 if there is none."""


CacheMethod = Literal["marks", "breakpoint"]
"""How a request is prepared for the provider's cache: with marks of Claude, or with a breakpoint of OpenAI."""


def choose_cache_method(
    api: Api, model: str, upstream: str, *, has_marks: bool, has_breakpoints: bool
) -> CacheMethod | None:
    """Return the method of the model; None if it has none, or if the client uses the method itself.

    `has_marks`, `has_breakpoints`: whether the body has any from the client, which then manages the cache itself.
    """
    if not has_marks and CODECS[api].request_fields.accepts_cache_marks(model, upstream):
        return "marks"
    if not has_breakpoints and accepts_breakpoints(api, model, base_url=upstream):
        return "breakpoint"
    return None


def make_cache_edits(  # noqa: PLR0913 - a body and facts about it
    method: CacheMethod | None,
    api: Api,
    slices: BodySlices,
    ttl: str,
    *,
    memory: MarkMemory,
    leading_count: int,
    replacement: bytes = b"",
    note: str = "",
) -> list[BodyEdit]:
    """Return the edits that prepare a body for the provider's cache.

    `leading_count`: the number of system messages. `replacement`: the text that replaces the beginning of the history.
    `note`: our note after the system messages, or an empty string.
    """
    if method == "marks":
        return _place_cache_marks(
            api,
            slices,
            ttl,
            memory=memory,
            leading_count=leading_count,
            replacement=replacement,
        )
    if method == "breakpoint":
        return _place_breakpoint(api, slices, leading_count, note)
    return []


def _place_cache_marks(  # noqa: PLR0913 - a body and facts about it
    api: Api,
    slices: BodySlices,
    ttl: str,
    *,
    memory: MarkMemory,
    leading_count: int,
    replacement: bytes,
) -> list[BodyEdit]:
    """Return the edits that put the marks into a body, and remember the index of the last mark."""
    count = len(slices.messages)
    replacement_digest = blake2b(replacement, digest_size=8).digest()
    is_known = memory.replacement_digest == replacement_digest and 0 <= memory.last_index < count
    previous_index = memory.last_index if is_known else None
    marked_texts = _mark_messages(
        api, slices.messages, ttl, previous_index=previous_index, leading_count=leading_count
    )
    edits = []
    for index, marked_text in marked_texts.items():
        message = slices.messages[index]
        edits.append(BodyEdit(message.start, message.end, marked_text))
    if CODECS[api].request_fields.has_native_cache_marks and "system" in slices.fields:
        system = slices.fields["system"]
        marked_system = mark_system(system, ttl=ttl)
        if marked_system != system:
            edits.append(BodyEdit(*slices.spans["system"], encode_value(marked_system)))
    memory.replacement_digest = replacement_digest
    memory.last_index = max(marked_texts, default=count - 1)
    return edits


def _place_breakpoint(
    api: Api, slices: BodySlices, leading_count: int, note: str
) -> list[BodyEdit]:
    """Return the edits that set a breakpoint after the system messages and our note, if they end with one."""
    wire_messages = [message.value for message in slices.messages[: leading_count + 2]]
    following_messages = wire_messages[leading_count:]
    if note and following_messages and following_messages[0].get("content") == note:
        leading_count += 1
    index = find_breakpoint_index(wire_messages, leading_count, note)
    if index is None:
        return []
    message = slices.messages[index]
    marked_text = encode_value(mark_message(api, wire_messages[index], note))
    return [BodyEdit(message.start, message.end, marked_text)]


def _mark_messages(
    api: Api,
    messages: Sequence[MessageSlice],
    ttl: str,
    *,
    previous_index: int | None,
    leading_count: int,
) -> dict[int, str]:
    """Return the marked messages as text, by index. `previous_index`: the index of the previous request's last mark."""
    is_native = CODECS[api].request_fields.has_native_cache_marks
    marked_messages = place_marks(
        DecodedMessages(messages),
        ttl=ttl,
        native_anthropic=is_native,
        previous_index=previous_index,
        mark_tool_results=not is_native,
        leading_count=leading_count,
    )
    # The API rejects a mark on a message itself, instead of on one of its blocks.
    return {
        index: encode_value(message)
        for index, message in marked_messages.items()
        if "cache_control" not in message
    }
