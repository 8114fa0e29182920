"""Render the body to send upstream: the client's own bytes with the thread's changes."""

from __future__ import annotations

from dataclasses import dataclass

from everthread.gateway.managed.cache_marks import (
    CacheMethod,
    MarkMemory,
    choose_cache_method,
    place_breakpoint,
    place_cache_marks,
)
from everthread.gateway.managed.system_note import accepts_blocks, make_note_edit
from everthread.gateway.recall.recall_tool import make_tool_edit
from everthread.gateway.request.client_request import ClientRequest
from everthread.gateway.request.json_slices import (
    BodyEdit,
    SlicedBody,
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
    sliced = request.sliced_body
    if call.rewrite is None and call.rounds.is_empty and call.output_cap is None:
        method = _choose_cache_method(
            request, call, options, has_marks=request.located_body.has_cache_marks
        )
        edits = _make_cache_edits(method, request, call, options, sliced)
        if options.offers_recall:
            edits.append(make_tool_edit(call.settings.api, sliced))
        return splice(sliced.body, edits) if edits else None
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
    sliced = request.sliced_body
    api = call.settings.api
    elements = request.elements
    edits = [
        BodyEdit(elements[edit.start].start, elements[edit.end - 1].end, edit.text)
        for edit in call.list_edits()
    ]
    if call.note:
        as_blocks = accepts_blocks(api, call.model, call.settings.upstream)
        note_edit = make_note_edit(
            api, sliced, request.system_count, call.note, as_blocks=as_blocks
        )
        if note_edit is not None:
            edits.append(note_edit)
    texts = call.rounds.texts
    if texts:
        end = sliced.elements[-1].end
        edits.append(BodyEdit(end, end, "".join(f",{text}" for text in texts)))
    if offers_recall:
        edits.append(make_tool_edit(api, sliced))
    elif texts and not sliced.fields.get("tools"):
        # Calls in a history need a tool that is described.
        edits.append(make_tool_edit(api, sliced, forbids_calls=True))
    return splice(sliced.body, edits)


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
    sliced: SlicedBody,
) -> list[BodyEdit]:
    """Return the edits that prepare a body, the client's own or a rendered one, for the provider's cache."""
    api = call.settings.api
    if method == "breakpoint":
        return place_breakpoint(api, sliced, request.system_count, call.note)
    if method is None or options.mark_ttl is None:
        return []
    leading_count = request.system_count
    if sliced is not request.sliced_body:
        leading_count = count_leading_system(sliced.elements)
    return place_cache_marks(
        api,
        sliced,
        options.mark_ttl,
        memory=options.marks,
        leading_count=leading_count,
        replacement=call.rewrite.replacement if call.rewrite else b"",
    )


def _make_cap_edit(settings: CallSettings, sliced: SlicedBody, cap: int) -> BodyEdit:
    """Return the edit that sets this output cap, in the client's field if there is one."""
    start = sliced.body.index(b"{") + 1
    if settings.api == "gemini":
        name = find_field_name(sliced.fields, "generationConfig")
        config = dict(get_object_field(sliced.fields, name) or {})
        config[find_field_name(config, "maxOutputTokens")] = cap
        if name in sliced.spans:
            return BodyEdit(*sliced.spans[name], encode_value(config))
        return BodyEdit(start, start, f'"{name}":{encode_value(config)},')
    for name in OUTPUT_CAP_FIELDS:
        if name in sliced.spans:
            return BodyEdit(*sliced.spans[name], str(cap))
    name = choose_output_cap_field(settings.api, settings.upstream)
    return BodyEdit(start, start, f"{encode_value(name)}:{cap},")
