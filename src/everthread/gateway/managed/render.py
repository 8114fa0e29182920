"""Render the body to send upstream: the client's own bytes with the thread's changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from everthread.core.caching.claude_cache_marks import find_cache_route
from everthread.core.caching.openai_cache_breakpoints import accepts_breakpoints
from everthread.core.types import Api
from everthread.gateway.managed.cache_marks import (
    CacheMethod,
    MarkMemory,
    choose_cache_method,
    make_cache_edits,
)
from everthread.gateway.recall.recall_tool import make_tool_edit
from everthread.gateway.request.client_request import ClientRequest
from everthread.gateway.request.json_slices import (
    BodyEdit,
    BodySlices,
    slice_body,
    splice,
)
from everthread.gateway.request.request_reader import CLAUDE_CACHE_FIELD, count_leading_system
from everthread.providers.catalog import OUTPUT_CAP_FIELDS, choose_output_cap_field
from everthread.thread.caller.caller_request import CallSettings
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.wire_messages import encode_value
from everthread.wire.gemini.field_names import find_field_name, get_object_field


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """Options for rendering a prepared call."""

    offers_recall: bool
    """Whether to add our own tool."""
    mark_ttl: str | None
    """The lifetime of the cache marks to set; None to set none."""
    marks: MarkMemory


def render_request(
    request: ClientRequest, call: PreparedCall, options: RenderOptions
) -> bytes | None:
    """Return the body to send; None if the client's own bytes need no change."""
    slices = request.slices
    if call.rewrite is None and call.rounds.is_empty and call.output_cap is None:
        method = _choose_cache_method(
            request, call, options, has_marks=request.located_body.has_cache_marks
        )
        edits = _make_cache_edits(method, request, call, options, slices)
        if options.offers_recall:
            edits.append(make_tool_edit(call.settings.api, slices))
        return splice(slices.body, edits) if edits else None
    body = render_messages(request, call, offers_recall=options.offers_recall)
    has_marks = CLAUDE_CACHE_FIELD.encode() in body
    method = _choose_cache_method(request, call, options, has_marks=has_marks)
    if method is None and call.output_cap is None:
        return body
    rendered = slice_body(body, call.settings.api)
    edits = _make_cache_edits(method, request, call, options, rendered)
    if call.output_cap is not None:
        edits.append(_make_cap_edit(call.settings, rendered, call.output_cap))
    return splice(body, edits) if edits else body


def render_messages(request: ClientRequest, call: PreparedCall, *, offers_recall: bool) -> bytes:
    """Return the body with our changes of the messages, our note and our tool."""
    slices = request.slices
    api = call.settings.api
    messages = request.history_messages
    edits = [
        BodyEdit(messages[edit.start].start, messages[edit.end - 1].end, edit.text)
        for edit in call.list_edits()
    ]
    if call.note:
        as_blocks = _accepts_blocks(api, call.model, call.settings.upstream)
        note_edit = _make_note_edit(
            api, slices, request.system_count, call.note, as_blocks=as_blocks
        )
        if note_edit is not None:
            edits.append(note_edit)
    texts = call.rounds.texts
    if texts:
        end = slices.messages[-1].end
        edits.append(BodyEdit(end, end, "".join(f",{text}" for text in texts)))
    if offers_recall:
        edits.append(make_tool_edit(api, slices))
    elif texts and not slices.fields.get("tools"):
        # Calls in a history need a tool that is described.
        edits.append(make_tool_edit(api, slices, forbids_calls=True))
    return splice(slices.body, edits)


def _accepts_blocks(api: Api, model: str, upstream: str) -> bool:
    """Return whether the upstream accepts a system prompt as blocks; some OpenAI-compatible ones accept only text."""
    if api == "openai_chat":
        by_marks = find_cache_route(model, base_url=upstream) is not None
        return by_marks or accepts_breakpoints(api, model, base_url=upstream)
    return api == "anthropic"


def _make_note_edit(
    api: Api, slices: BodySlices, system_count: int, note: str, *, as_blocks: bool
) -> BodyEdit | None:
    """Return the edit that adds the note to the system prompt; None if there is no system prompt.

    `system_count`: number of system messages. `as_blocks`: whether a text may be replaced with blocks.
    """
    if api == "gemini":
        return _make_gemini_note_edit(slices, note)
    field = {"anthropic": "system", "openai_responses": "instructions"}.get(api)
    if field is not None and slices.fields.get(field):
        system = _append_note(slices.fields[field], note, as_blocks=as_blocks)
        return BodyEdit(*slices.spans[field], encode_value(system))
    if not system_count:
        return None
    last = slices.messages[system_count - 1]
    content = last.value.get("content")
    if not content:
        return None
    if api == "openai_responses":
        note_message = {**last.value, "content": note}
        note_message.pop("id", None)
        return BodyEdit(last.end, last.end, f",{encode_value(note_message)}")
    message = {**last.value, "content": _append_note(content, note, as_blocks=as_blocks)}
    return BodyEdit(last.start, last.end, encode_value(message))


def _make_gemini_note_edit(slices: BodySlices, note: str) -> BodyEdit | None:
    field = find_field_name(slices.fields, "systemInstruction")
    system = get_object_field(slices.fields, field)
    if system is None or not isinstance(system.get("parts"), list):
        return None
    noted_system = {**system, "parts": [*system["parts"], {"text": note}]}
    return BodyEdit(*slices.spans[field], encode_value(noted_system))


def _append_note(system: Any, note: str, *, as_blocks: bool) -> Any:
    block = {"type": "text", "text": note}
    if isinstance(system, list):
        return [*system, block]
    return [{"type": "text", "text": system}, block] if as_blocks else f"{system}\n\n{note}"


def _choose_cache_method(
    request: ClientRequest, call: PreparedCall, options: RenderOptions, *, has_marks: bool
) -> CacheMethod | None:
    """Return how to prepare a body for the provider's cache; None if the cache would not be read."""
    if options.mark_ttl is None or not call.expects_more_calls:
        return None
    return choose_cache_method(
        call.settings.api,
        call.model,
        call.settings.upstream,
        has_marks=has_marks,
        has_breakpoints=request.located_body.has_breakpoints,
    )


def _make_cache_edits(
    method: CacheMethod | None,
    request: ClientRequest,
    call: PreparedCall,
    options: RenderOptions,
    slices: BodySlices,
) -> list[BodyEdit]:
    """Return the edits that prepare a body, the client's own or a rendered one, for the provider's cache."""
    if options.mark_ttl is None:
        return []
    # The rendered body may have other system messages in front than the client's.
    leading_count = request.system_count
    if method == "marks" and slices is not request.slices:
        leading_count = count_leading_system(slices.messages)
    return make_cache_edits(
        method,
        call.settings.api,
        slices,
        options.mark_ttl,
        memory=options.marks,
        leading_count=leading_count,
        replacement=call.rewrite.replacement if call.rewrite else b"",
        note=call.note,
    )


def _make_cap_edit(settings: CallSettings, slices: BodySlices, cap: int) -> BodyEdit:
    """Return the edit that sets this output cap, in the client's field if there is one."""
    start = slices.body.index(b"{") + 1
    if settings.api == "gemini":
        name = find_field_name(slices.fields, "generationConfig")
        config = dict(get_object_field(slices.fields, name) or {})
        config[find_field_name(config, "maxOutputTokens")] = cap
        if name in slices.spans:
            return BodyEdit(*slices.spans[name], encode_value(config))
        return BodyEdit(start, start, f'"{name}":{encode_value(config)},')
    for name in OUTPUT_CAP_FIELDS:
        if name in slices.spans:
            return BodyEdit(*slices.spans[name], str(cap))
    name = choose_output_cap_field(settings.api, settings.upstream)
    return BodyEdit(start, start, f"{encode_value(name)}:{cap},")
