"""The bytes that go upstream for a request: the client's own, with the thread's changes."""

from __future__ import annotations

from dataclasses import dataclass, field

from everthread.core.types import Api
from everthread.gateway.filters.cache_marks import (
    MarkMemory,
    breakpoint_changes,
    mark_changes,
)
from everthread.gateway.managed.system_note import note_change, takes_blocks
from everthread.gateway.recall.recall_offer import tool_change
from everthread.gateway.request.client_request import ClientRequest
from everthread.gateway.request.json_slices import (
    Change,
    SlicedBody,
    slice_body,
    splice,
)
from everthread.providers.catalog import OUTPUT_CAP_FIELDS, choose_output_cap_field
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.wire_messages import encode_value
from everthread.wire.gemini.fields import find_field_name, get_object_field


@dataclass(frozen=True, slots=True)
class Rendering:
    """How a prepared call is rendered, apart from its messages."""

    offers_recall: bool = False
    """Whether our own tool is among the tools."""
    mark_ttl: str | None = None
    """The lifetime of the cache marks to set; None: set none."""
    marks: MarkMemory = field(default_factory=MarkMemory)


def render_request(
    request: ClientRequest, call: PreparedCall, how: Rendering
) -> bytes | None:
    """Return the body to send; None if the client's own bytes need no change."""
    body = request.sliced.body
    is_plain = call.rewrite is None and call.rounds.is_empty and call.output_cap is None
    if is_plain:
        tool = (
            [tool_change(call.frame.api, request.sliced)] if how.offers_recall else []
        )
        changes = [*tool, *_cache_changes(request, call, body, how)]
        return splice(body, changes) if changes else None
    body = render_messages(request, call, offers_recall=how.offers_recall)
    if call.output_cap is not None:
        body = _set_output_cap(
            call.frame.api, call.frame.upstream, body, cap=call.output_cap
        )
    marks = _cache_changes(request, call, body, how)
    return splice(body, marks) if marks else body


def render_messages(
    request: ClientRequest, call: PreparedCall, *, offers_recall: bool
) -> bytes:
    """Return the body with our text in place of the messages it replaces, our note and our tool."""
    sliced = request.sliced
    api = call.frame.api
    elements = request.elements
    changes: list[Change] = [
        (elements[edit.start].start, elements[edit.end - 1].end, edit.text)
        for edit in call.edits()
    ]
    if call.note:
        blocks = takes_blocks(api, call.model, call.frame.upstream)
        noted = note_change(api, sliced, request.first, call.note, blocks=blocks)
        changes += [noted] if noted else []
    texts = call.rounds.texts
    if texts:
        last = sliced.elements[-1]
        changes.append((last.end, last.end, "".join(f",{text}" for text in texts)))
    if offers_recall:
        changes.append(tool_change(api, sliced))
    elif texts and not sliced.fields.get("tools"):
        # Calls in a history need a tool that is described.
        changes.append(tool_change(api, sliced, final=True))
    return splice(sliced.body, changes)


def _cache_changes(
    request: ClientRequest, call: PreparedCall, body: bytes, how: Rendering
) -> list[Change]:
    """Return what marks a body for the provider's cache, if the client does not do so."""
    if how.mark_ttl is None:
        return []
    marks = mark_changes(request, call, body, how.marks, ttl=how.mark_ttl)
    return marks or breakpoint_changes(request, call, body)


def _set_output_cap(api: Api, upstream: str, body: bytes, *, cap: int) -> bytes:
    """Return the body with this output cap: in the place of the client's, else as a field of its own."""
    sliced = slice_body(body, api)
    if api == "gemini":
        return _set_gemini_cap(sliced, cap)
    client_field = next(
        (name for name in OUTPUT_CAP_FIELDS if name in sliced.spans), None
    )
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
