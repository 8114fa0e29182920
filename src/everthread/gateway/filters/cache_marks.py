"""Set cache marks for clients that set none: of Claude, and of OpenAI from GPT-5.6 on."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from everthread.core.cache_breakpoints import (
    breakpoint_place,
    mark_message,
    takes_breakpoints,
)
from everthread.core.cache_control import cache_route, mark_system, place_marks
from everthread.core.types import Api
from everthread.gateway.json_slices import (
    Change,
    Element,
    SlicedBody,
    Values,
    encode_value,
    slice_body,
)
from everthread.gateway.management.rewrites import RewriteState

if TYPE_CHECKING:
    from everthread.gateway.management.thread_memory import ThreadMemory
    from everthread.gateway.management.turn import ManagedTurn


def mark_changes(turn: ManagedTurn, body: bytes, ttl: str) -> list[Change]:
    """Return the changes that put cache marks into the body of a client that sets none."""
    api = turn.request.incoming.api
    upstream = turn.request.incoming.upstream
    has_marks = (
        turn.request.has_marks
        if body is turn.request.sliced.body
        else b'"cache_control"' in body
    )
    if has_marks or not takes_marks(
        api, turn.request.model, upstream
    ):  # a mark anywhere is the client's own way
        return []
    if not turn.is_continued:
        return []
    is_same = body is turn.request.sliced.body
    return place_cache_marks(
        api,
        turn.request.sliced if is_same else slice_body(body, api),
        ttl,
        memory=turn.memory,
        replacement=turn.used.replacement if turn.used else b"",
        leading=turn.request.first if is_same else None,
    )


def place_cache_marks(  # noqa: PLR0913 - a body and what is known of it
    api: Api,
    sliced: SlicedBody,
    ttl: str,
    *,
    memory: ThreadMemory,
    replacement: bytes = b"",
    leading: int | None = None,
) -> list[Change]:
    """Return the changes that put the marks into a body, and remember the place of the last mark.

    `replacement`: the text that replaces the beginning of the history. `leading`: the number of system messages.
    """
    count = len(sliced.elements)
    begins = blake2b(replacement, digest_size=8).digest()
    last_marks = memory.cache_marks
    previous = (
        last_marks[1]
        if last_marks and last_marks[0] == begins and last_marks[1] < count
        else None
    )
    marked = mark_messages(api, sliced.elements, ttl, previous, leading)
    changes = [
        (sliced.elements[index].start, sliced.elements[index].end, new)
        for index, new in marked.items()
    ]
    system = (
        mark_system_field(sliced.fields["system"], ttl)
        if api == "anthropic" and "system" in sliced.fields
        else None
    )
    if system is not None:
        changes.append((*sliced.spans["system"], system))
    memory.cache_marks = begins, max(marked, default=count - 1)
    return changes


def breakpoint_changes(turn: ManagedTurn, body: bytes) -> list[Change]:
    """Set a cache breakpoint after tools and system prompt, if the client set none."""
    request = turn.request
    api = request.incoming.api
    if request.has_breakpoints or not turn.is_continued:
        return []
    if not takes_breakpoints(api, request.model, base_url=request.incoming.upstream):
        return []
    is_same = body is request.sliced.body
    sliced = request.sliced if is_same else slice_body(body, api)
    note = RewriteState.load(turn.used.state).note if turn.used else ""
    return place_breakpoint(api, sliced, request.first, note)


def place_breakpoint(
    api: Api, sliced: SlicedBody, leading: int, note: str = ""
) -> list[Change]:
    """Return the changes that set a breakpoint after the `leading` system messages, which may end with our note."""
    values = [element.value for element in sliced.elements[: leading + 2]]
    if note and leading < len(values) and values[leading].get("content") == note:
        leading += 1
    place = breakpoint_place(values, leading, note)
    if place is None:
        return []
    element = sliced.elements[place]
    marked = encode_value(mark_message(api, values[place], note))
    return [(element.start, element.end, marked)]


def takes_marks(api: Api, model: str, upstream: str) -> bool:
    """Return whether the model uses cache marks."""
    if api == "anthropic":
        return "claude" in model.lower()
    return api == "openai_chat" and cache_route(model, base_url=upstream) is not None


def mark_system_field(system: Any, ttl: str) -> str | None:
    """Return the system field with its mark, as text; None if there is nothing to mark."""
    marked = mark_system(system, ttl=ttl)
    return None if marked is system or marked == system else encode_value(marked)


def mark_messages(
    api: Api,
    elements: Sequence[Element],
    ttl: str,
    previous: int | None,
    leading: int | None = None,
) -> dict[int, str]:
    """Return the marked messages as text, by index. `previous`: the index of the last request's last mark."""
    native = api == "anthropic"
    placed = place_marks(
        Values(elements),
        ttl=ttl,
        native_anthropic=native,
        previous=previous,
        wordless_results=not native,
        leading=leading,
    )
    return {
        index: encode_value(message)
        for index, message in placed.items()
        if _is_on_block(message)
    }


def _is_on_block(message: Any) -> bool:
    """Return whether the mark is on a block; the API does not know marks on a message itself."""
    return "cache_control" not in message
