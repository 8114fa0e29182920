"""The note that there are summaries: behind the client's system prompt, so that the cached text before it stays valid.

It comes with the first rewrite of a history and stays the same with all that follow. Where a client sends no system
prompt there is nothing to put it behind, and it is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.core.caching import cache_route
from everthread.core.exchange import Api
from everthread.gateway.slicing import Sliced, written

_NOTE = "_system_note"
_GAP = "\n\n"

Change = tuple[int, int, str]
"""From, to, and what stands there instead."""


def with_note(state: Mapping[str, Any], note: str) -> dict[str, Any]:
    """A rewrite's state with the note of its history."""
    return {**state, _NOTE: note} if note else dict(state)


def note_of(state: Mapping[str, Any]) -> str:
    return str(state.get(_NOTE, ""))


def without_note(state: Mapping[str, Any]) -> dict[str, Any]:
    """What the engine said itself."""
    return {key: value for key, value in state.items() if key != _NOTE}


def takes_blocks(api: Api, model: str, upstream: str) -> bool:
    """Whether a system prompt that is one text may become blocks: not everybody who speaks OpenAI's takes them."""
    return api == "anthropic" or (api == "openai_chat" and cache_route(model, base_url=upstream) is not None)


def note_change(api: Api, sliced: Sliced, first: int, note: str, *, blocks: bool) -> Change | None:
    """Where the note goes, and as what. `first`: how many messages at the start are the system prompt."""
    field = {"anthropic": "system", "openai_responses": "instructions"}.get(api)
    if field is not None and sliced.fields.get(field):
        return (*sliced.spans[field], written(_behind(sliced.fields[field], note, blocks=blocks)))
    if not first:
        return None
    last = sliced.elements[first - 1]
    content = last.value.get("content")
    if not content:
        return None
    if api == "openai_responses":
        added = {**last.value, "content": note}
        added.pop("id", None)
        return last.end, last.end, f",{written(added)}"
    return last.start, last.end, written({**last.value, "content": _behind(content, note, blocks=blocks)})


def _behind(system: Any, note: str, *, blocks: bool) -> Any:
    block = {"type": "text", "text": note}
    if isinstance(system, list):
        return [*system, block]
    return [{"type": "text", "text": system}, block] if blocks else f"{system}{_GAP}{note}"
