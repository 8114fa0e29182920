"""Append the note about summaries to the client's system prompt."""

from __future__ import annotations

from typing import Any

from everthread.core.caching.claude_cache_marks import find_cache_route
from everthread.core.caching.openai_cache_breakpoints import accepts_breakpoints
from everthread.core.types import Api
from everthread.gateway.request.json_slices import BodyEdit, SlicedBody
from everthread.thread.wire_messages import encode_value
from everthread.wire.gemini.field_names import find_field_name, get_object_field

_GAP = "\n\n"


def accepts_blocks(api: Api, model: str, upstream: str) -> bool:
    """Return whether the upstream accepts a system prompt as blocks; some OpenAI-compatible ones accept only text."""
    if api == "openai_chat":
        by_marks = find_cache_route(model, base_url=upstream) is not None
        return by_marks or accepts_breakpoints(api, model, base_url=upstream)
    return api == "anthropic"


def make_note_edit(
    api: Api, sliced: SlicedBody, system_count: int, note: str, *, as_blocks: bool
) -> BodyEdit | None:
    """Return the edit that adds the note to the system prompt; None if there is no system prompt.

    `system_count`: number of system messages. `as_blocks`: whether a text may be replaced with blocks.
    """
    if api == "gemini":
        return _make_gemini_note_edit(sliced, note)
    field = {"anthropic": "system", "openai_responses": "instructions"}.get(api)
    if field is not None and sliced.fields.get(field):
        system = _append_note(sliced.fields[field], note, as_blocks=as_blocks)
        return BodyEdit(*sliced.spans[field], encode_value(system))
    if not system_count:
        return None
    last = sliced.elements[system_count - 1]
    content = last.value.get("content")
    if not content:
        return None
    if api == "openai_responses":
        note_message = {**last.value, "content": note}
        note_message.pop("id", None)
        return BodyEdit(last.end, last.end, f",{encode_value(note_message)}")
    message = {**last.value, "content": _append_note(content, note, as_blocks=as_blocks)}
    return BodyEdit(last.start, last.end, encode_value(message))


def _make_gemini_note_edit(sliced: SlicedBody, note: str) -> BodyEdit | None:
    field = find_field_name(sliced.fields, "systemInstruction")
    system = get_object_field(sliced.fields, field)
    if system is None or not isinstance(system.get("parts"), list):
        return None
    noted_system = {**system, "parts": [*system["parts"], {"text": note}]}
    return BodyEdit(*sliced.spans[field], encode_value(noted_system))


def _append_note(system: Any, note: str, *, as_blocks: bool) -> Any:
    block = {"type": "text", "text": note}
    if isinstance(system, list):
        return [*system, block]
    return [{"type": "text", "text": system}, block] if as_blocks else f"{system}{_GAP}{note}"
