"""What a model said, in a form that can be sent back to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from everthread.core.messages import CALL_BLOCKS, Message, calls_of, kind_of, off_the_wire
from everthread.core.validity import is_empty
from everthread.store.base import new_id


def storable(message: Message) -> Message:
    """The message itself where nothing is wrong with it; else every call with an id of its own, and some content.

    Some servers give calls no ids, or all of them the same: no result could then be told from another.
    """
    ids = [call.id for call in calls_of(message)]
    if not ids:
        return {**off_the_wire(message), "content": ""} if _says_nothing(message) else message
    if all(ids) and len(set(ids)) == len(ids):
        return message
    fresh = _own_ids(ids)
    copy: dict[str, Any] = dict(off_the_wire(message))
    if isinstance(message.get("content"), list):
        copy["content"] = [_named(part, fresh) if kind_of(part) in CALL_BLOCKS else part for part in copy["content"]]
    if isinstance(message.get("tool_calls"), list):
        copy["tool_calls"] = [_named(call, fresh) if isinstance(call, dict) else call for call in copy["tool_calls"]]
    return cast("Message", copy)


def _says_nothing(message: Message) -> bool:
    """Neither here nor in what was on the wire, which may hold reasoning: an empty block would be refused."""
    native = message.get("_native", {}).get("value")
    said = native.get("content") if isinstance(native, dict) else native
    return is_empty(message) and is_empty({"role": "assistant", "content": said})


def _own_ids(ids: list[str]) -> Iterator[str]:
    seen: set[str] = set()
    for given in ids:
        yield given if given and given not in seen else f"call_{new_id()}"
        seen.add(given)


def _named(call: dict[str, Any], ids: Iterator[str]) -> dict[str, Any]:
    return {**call, "id": next(ids)}
