"""Render the body to send upstream: the client's own bytes with the thread's changes."""

from __future__ import annotations

from dataclasses import dataclass, field

from everthread.core.types import Api
from everthread.gateway.managed.cache_marks import (
    MarkMemory,
    make_breakpoint_changes,
    make_mark_changes,
)
from everthread.gateway.managed.system_note import accepts_blocks, make_note_change
from everthread.gateway.recall.recall_tool import make_tool_change
from everthread.gateway.request.client_request import ClientRequest
from everthread.gateway.request.json_slices import (
    BodyEdit,
    SlicedBody,
    slice_body,
    splice,
)
from everthread.providers.catalog import OUTPUT_CAP_FIELDS, choose_output_cap_field
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.wire_messages import encode_value
from everthread.wire.gemini.field_names import find_field_name, get_object_field


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """Options for rendering a prepared call."""

    offers_recall: bool = False
    """Whether to add our own tool."""
    mark_ttl: str | None = None
    """The lifetime of the cache marks to set; None to set none."""
    marks: MarkMemory = field(default_factory=MarkMemory)


def render_request(
    request: ClientRequest, call: PreparedCall, options: RenderOptions
) -> bytes | None:
    """Return the body to send; None if the client's own bytes need no change."""
    body = request.sliced_body.body
    is_plain = call.rewrite is None and call.rounds.is_empty and call.output_cap is None
    if is_plain:
        tool = (
            [make_tool_change(call.settings.api, request.sliced_body)]
            if options.offers_recall
            else []
        )
        changes = [*tool, *_cache_changes(request, call, body, options)]
        return splice(body, changes) if changes else None
    body = render_messages(request, call, offers_recall=options.offers_recall)
    if call.output_cap is not None:
        body = _set_output_cap(call.settings.api, call.settings.upstream, body, cap=call.output_cap)
    marks = _cache_changes(request, call, body, options)
    return splice(body, marks) if marks else body


def render_messages(request: ClientRequest, call: PreparedCall, *, offers_recall: bool) -> bytes:
    """Return the body with our changes of the messages, our note and our tool."""
    sliced = request.sliced_body
    api = call.settings.api
    elements = request.elements
    changes: list[BodyEdit] = [
        (elements[edit.start].start, elements[edit.end - 1].end, edit.text)
        for edit in call.list_edits()
    ]
    if call.note:
        as_blocks = accepts_blocks(api, call.model, call.settings.upstream)
        noted = make_note_change(api, sliced, request.system_count, call.note, as_blocks=as_blocks)
        changes += [noted] if noted else []
    texts = call.rounds.texts
    if texts:
        last = sliced.elements[-1]
        changes.append((last.end, last.end, "".join(f",{text}" for text in texts)))
    if offers_recall:
        changes.append(make_tool_change(api, sliced))
    elif texts and not sliced.fields.get("tools"):
        # Calls in a history need a tool that is described.
        changes.append(make_tool_change(api, sliced, forbids_calls=True))
    return splice(sliced.body, changes)


def _cache_changes(
    request: ClientRequest, call: PreparedCall, body: bytes, options: RenderOptions
) -> list[BodyEdit]:
    """Return the changes that mark a body for the provider's cache; empty if the client sets marks itself."""
    if options.mark_ttl is None:
        return []
    marks = make_mark_changes(request, call, body, options.marks, ttl=options.mark_ttl)
    return marks or make_breakpoint_changes(request, call, body)


def _set_output_cap(api: Api, upstream: str, body: bytes, *, cap: int) -> bytes:
    """Return the body with this output cap, in the client's field if there is one."""
    sliced = slice_body(body, api)
    if api == "gemini":
        return _set_gemini_cap(sliced, cap)
    client_field = next((name for name in OUTPUT_CAP_FIELDS if name in sliced.spans), None)
    if client_field is not None:
        return splice(body, [(*sliced.spans[client_field], str(cap))])
    start = body.index(b"{") + 1
    name = encode_value(choose_output_cap_field(api, upstream))
    return splice(body, [(start, start, f"{name}:{cap},")])


def _set_gemini_cap(sliced: SlicedBody, cap: int) -> bytes:
    """Return the body with this `maxOutputTokens` in its settings."""
    name = find_field_name(sliced.fields, "generationConfig")
    settings = dict(get_object_field(sliced.fields, name) or {})
    settings[find_field_name(settings, "maxOutputTokens")] = cap
    if name in sliced.spans:
        return splice(sliced.body, [(*sliced.spans[name], encode_value(settings))])
    start = sliced.body.index(b"{") + 1
    return splice(sliced.body, [(start, start, f'"{name}":{encode_value(settings)},')])
