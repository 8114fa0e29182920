"""Render the body to send upstream: the client's own bytes with the thread's changes."""

from __future__ import annotations

from dataclasses import dataclass

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
    make_fields_edit,
    slice_body,
    splice,
)
from everthread.gateway.request.request_reader import CLAUDE_CACHE_FIELD, count_leading_system
from everthread.thread.caller.caller_request import CallSettings
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.wire_messages import encode_value
from everthread.wire.codecs import CODECS


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
        edits.append(_make_cap_edit(call.settings, rendered, cap=call.output_cap))
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
        note_edit = _make_note_edit(request, call)
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


def _make_note_edit(request: ClientRequest, call: PreparedCall) -> BodyEdit | None:
    """Return the edit that adds the note to the system prompt; None if there is no system prompt."""
    slices = request.slices
    settings = call.settings
    request_fields = CODECS[settings.api].request_fields
    changed_fields = request_fields.add_note(slices.fields, call.note)
    if changed_fields:
        return make_fields_edit(slices, changed_fields)
    if not request.system_count:
        return None
    last = slices.messages[request.system_count - 1]
    if not last.value.get("content"):
        return None
    as_blocks = request_fields.accepts_system_blocks(call.model, settings.upstream)
    messages = request_fields.add_note_to_message(last.value, call.note, as_blocks=as_blocks)
    texts = [last.text if message is last.value else encode_value(message) for message in messages]
    return BodyEdit(last.start, last.end, ",".join(texts))


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


def _make_cap_edit(settings: CallSettings, slices: BodySlices, *, cap: int) -> BodyEdit:
    """Return the edit that sets this output cap, in the client's field if there is one."""
    request_fields = CODECS[settings.api].request_fields
    changed_fields = request_fields.set_output_cap(slices.fields, cap, settings.upstream)
    return make_fields_edit(slices, changed_fields)
