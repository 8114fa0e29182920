"""Cache marks for Claude clients that set none: without them nothing of a long history is read from the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everthread.core.caching import apply_cache_control, cache_route, mark_system, marks_begin, without_cache_control
from everthread.core.exchange import Api
from everthread.core.messages import SYSTEM_ROLES, parts_of
from everthread.gateway.slicing import Element, written


def takes_marks(api: Api, model: str, upstream: str, text: str) -> bool:
    """Whether marks mean something to the model and the client set none; a mark anywhere is the client's own way."""
    if '"cache_control"' in text:
        return False
    if api == "anthropic":
        return "claude" in model.lower()
    return api == "openai_chat" and cache_route(model, base_url=upstream) is not None


def marked_system(system: Any, ttl: str) -> str | None:
    """The system field with its mark, as text; None where there is nothing to mark."""
    marked = mark_system(system, ttl=ttl)
    return None if marked is system or marked == system else written(marked)


def marked_messages(api: Api, elements: Sequence[Element], ttl: str, previous: int | None) -> dict[int, str]:
    """The messages that get a mark, as text by their place. `previous`: where the last request had its last one."""
    start = marks_begin(len(elements), previous)
    leading = [element.value for element in elements[: min(start, 1)] if element.value.get("role") in SYSTEM_ROLES]
    near = [*leading, *(element.value for element in elements[start:])]
    shift = start - len(leading)
    new = apply_cache_control(
        near, ttl=ttl, native_anthropic=api == "anthropic", previous=None if previous is None else previous - shift
    )
    found = {}
    for index, (before, after) in enumerate(zip(near, new, strict=True)):
        if after is not before and _fits(after):
            found[0 if index < len(leading) else index + shift] = written(after)
    return found


def _fits(message: Any) -> bool:
    """A mark stands on a block; on the message itself it is none the wire knows."""
    if "cache_control" in message:
        return False
    return any(without_cache_control(part) is not part for part in parts_of(message))
