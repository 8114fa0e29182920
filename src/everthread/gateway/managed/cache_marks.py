"""Set cache marks for clients that set none: of Claude, and of OpenAI from GPT-5.6 on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from everthread.core.caching.claude_cache_marks import (
    find_cache_route,
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
    DecodedMessages,
    Element,
    SlicedBody,
    slice_body,
)
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.wire_messages import encode_value

if TYPE_CHECKING:
    from everthread.gateway.request.client_request import ClientRequest


@dataclass(slots=True)
class MarkMemory:
    """The cache marks of a thread's last request. They may be lost at any moment."""

    replacement_digest: bytes = b""
    """A digest of the text that replaced the beginning of the history."""
    last_index: int = -1
    """The index of the message with the last mark; -1 if there is none."""


def make_mark_changes(
    request: ClientRequest,
    call: PreparedCall,
    body: bytes,
    memory: MarkMemory,
    *,
    ttl: str,
) -> list[BodyEdit]:
    """Return the changes that put cache marks into the body of a client that sets none."""
    api = call.settings.api
    is_same = body is request.sliced_body.body
    has_marks = request.has_cache_marks if is_same else b'"cache_control"' in body
    # A client that sets a mark anywhere manages the cache itself.
    if has_marks or not uses_cache_marks(api, call.model, call.settings.upstream):
        return []
    if not call.expects_more_calls:
        return []
    return place_cache_marks(
        api,
        request.sliced_body if is_same else slice_body(body, api),
        ttl,
        memory=memory,
        replacement=call.rewrite.replacement if call.rewrite else b"",
        leading_count=request.system_count if is_same else None,
    )


def place_cache_marks(  # noqa: PLR0913 - a body and facts about it
    api: Api,
    sliced: SlicedBody,
    ttl: str,
    *,
    memory: MarkMemory,
    replacement: bytes = b"",
    leading_count: int | None = None,
) -> list[BodyEdit]:
    """Return the changes that put the marks into a body, and remember the index of the last mark.

    `replacement`: the text that replaces the beginning of the history. `leading_count`: the number of system messages.
    """
    count = len(sliced.elements)
    replacement_digest = blake2b(replacement, digest_size=8).digest()
    is_known = memory.replacement_digest == replacement_digest and 0 <= memory.last_index < count
    previous_index = memory.last_index if is_known else None
    marked_texts = mark_messages(api, sliced.elements, ttl, previous_index, leading_count)
    changes = [
        (sliced.elements[index].start, sliced.elements[index].end, marked_text)
        for index, marked_text in marked_texts.items()
    ]
    system = (
        mark_system_field(sliced.fields["system"], ttl)
        if api == "anthropic" and "system" in sliced.fields
        else None
    )
    if system is not None:
        changes.append((*sliced.spans["system"], system))
    memory.replacement_digest = replacement_digest
    memory.last_index = max(marked_texts, default=count - 1)
    return changes


def make_breakpoint_changes(
    request: ClientRequest, call: PreparedCall, body: bytes
) -> list[BodyEdit]:
    """Set a cache breakpoint after tools and system prompt, if the client set none."""
    api = call.settings.api
    if request.has_breakpoints or not call.expects_more_calls:
        return []
    if not accepts_breakpoints(api, call.model, base_url=call.settings.upstream):
        return []
    is_same = body is request.sliced_body.body
    sliced = request.sliced_body if is_same else slice_body(body, api)
    return place_breakpoint(api, sliced, request.system_count, call.note)


def place_breakpoint(
    api: Api, sliced: SlicedBody, leading_count: int, note: str = ""
) -> list[BodyEdit]:
    """Return the changes that set a breakpoint after the system messages and our note, if they end with one."""
    wire_messages = [element.value for element in sliced.elements[: leading_count + 2]]
    if (
        note
        and leading_count < len(wire_messages)
        and wire_messages[leading_count].get("content") == note
    ):
        leading_count += 1
    index = find_breakpoint_index(wire_messages, leading_count, note)
    if index is None:
        return []
    element = sliced.elements[index]
    marked_text = encode_value(mark_message(api, wire_messages[index], note))
    return [(element.start, element.end, marked_text)]


def uses_cache_marks(api: Api, model: str, upstream: str) -> bool:
    """Return whether the model uses cache marks."""
    if api == "anthropic":
        return "claude" in model.lower()
    return api == "openai_chat" and find_cache_route(model, base_url=upstream) is not None


def mark_system_field(system: Any, ttl: str) -> str | None:
    """Return the system field with its mark, as text; None if there is nothing to mark."""
    marked_system = mark_system(system, ttl=ttl)
    return (
        None if marked_system is system or marked_system == system else encode_value(marked_system)
    )


def mark_messages(
    api: Api,
    elements: Sequence[Element],
    ttl: str,
    previous_index: int | None,
    leading_count: int | None = None,
) -> dict[int, str]:
    """Return the marked messages as text, by index. `previous_index`: the index of the previous request's last mark."""
    is_anthropic = api == "anthropic"
    marked_messages = place_marks(
        DecodedMessages(elements),
        ttl=ttl,
        native_anthropic=is_anthropic,
        previous_index=previous_index,
        mark_tool_results=not is_anthropic,
        leading_count=leading_count,
    )
    return {
        index: encode_value(message)
        for index, message in marked_messages.items()
        if _is_on_block(message)
    }


def _is_on_block(message: Any) -> bool:
    """Return whether the mark is on a block of the message: the API rejects marks on the message itself."""
    return "cache_control" not in message
