"""The bytes that go upstream for a request: the client's own, with the thread's changes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from everthread.core.cache_control import MIN_CACHED
from everthread.core.types import Api
from everthread.gateway.contracts import (
    COMPACTIONS_HEADER,
    NOTICE_HEADER,
    PLAN_HEADER,
    TOKENS_HEADER,
    Outgoing,
)
from everthread.gateway.filters.cache_marks import breakpoint_changes, mark_changes
from everthread.gateway.json_slices import (
    Change,
    SlicedBody,
    encode_value,
    slice_body,
    splice,
)
from everthread.gateway.management.recall_offer import recall_changes
from everthread.gateway.management.replacement import replacement_change
from everthread.gateway.management.rewrites import RewriteState
from everthread.gateway.management.system_note import note_change, takes_blocks
from everthread.providers.catalog import FIELDS, cap_field
from everthread.store.records import Rewrite
from everthread.thread.policy import FADING, fading_text
from everthread.wire.gemini.fields import name_of, object_of

if TYPE_CHECKING:
    from everthread.gateway.management.turn import ManagedTurn

HOLD_SHARE = 0.70
"""From this share of the window on an overflow is likely."""


def send_untouched(turn: ManagedTurn) -> Outgoing:
    """Send the client's bytes unchanged."""
    if turn.request.unmanaged_reason:
        turn.headers[NOTICE_HEADER] = (
            f"passed on unmanaged: {turn.request.unmanaged_reason}"
        )
    return Outgoing(
        turn.request.incoming.raw, rewritten=turn.is_expanded, headers=turn.headers
    )


def receipt_text(used: Rewrite, before: int, after: int, *, recall: bool) -> str:
    """Return the effect of a compaction in one line."""
    back = "; the model gets it back with recall" if recall else ""
    return f"compaction {used.depth}: {before} -> {after} tokens, {used.length} messages covered{back}"


def build_outgoing(
    turn: ManagedTurn, before: int, after: int, *, ttl: str | None
) -> Outgoing:
    """The request to send; `before` and `after` are its tokens without and with the rewrite."""
    headers = turn.headers
    depth = turn.used.depth if turn.used else 0
    headers[COMPACTIONS_HEADER] = str(depth)
    headers[TOKENS_HEADER] = f"{before}/{after}"
    if depth >= FADING:
        headers[NOTICE_HEADER] = fading_text(depth)
    if turn.plan:
        headers[PLAN_HEADER] = turn.plan
    outgoing = Outgoing(
        turn.request.incoming.raw,
        headers=headers,
        compactions=depth,
        tokens=after,
        hold=after > HOLD_SHARE * turn.limit.window,
        recall=turn.recall.offered,
    )
    mark_ttl = ttl if after >= MIN_CACHED else None
    if turn.used is None and not turn.recall.has_rounds and turn.output_cap is None:
        body = turn.request.sliced.body
        tool = recall_changes(turn) if turn.recall.offered else []
        changes = [*tool, *_cache_changes(turn, body, mark_ttl)]
        if not changes:
            return outgoing
        return replace(outgoing, body=splice(body, changes), rewritten=True)
    body = render_body(turn)
    if turn.output_cap is not None:
        body = _set_output_cap(
            turn.request.incoming.api,
            turn.request.incoming.upstream,
            body,
            cap=turn.output_cap,
        )
    marks = _cache_changes(turn, body, mark_ttl)
    rendered = splice(body, marks) if marks else body
    return replace(outgoing, body=rendered, rewritten=True)


def _cache_changes(turn: ManagedTurn, body: bytes, ttl: str | None) -> list[Change]:
    """Return what marks a body for the provider's cache, if the client does not do so."""
    if ttl is None:
        return []
    return mark_changes(turn, body, ttl) or breakpoint_changes(turn, body)


def _set_output_cap(api: Api, upstream: str, body: bytes, *, cap: int) -> bytes:
    """Return the body with this output cap: in the place of the client's, else as a field of its own."""
    sliced = slice_body(body, api)
    if api == "gemini":
        return _set_gemini_cap(sliced, cap)
    stated = next((name for name in FIELDS if name in sliced.spans), None)
    if stated is not None:
        return splice(body, [(*sliced.spans[stated], str(cap))])
    start = body.index(b"{") + 1
    name = encode_value(cap_field(api, upstream))
    return splice(body, [(start, start, f"{name}:{cap},")])


def _set_gemini_cap(sliced: SlicedBody, cap: int) -> bytes:
    """Return the body with this `maxOutputTokens` in its settings."""
    name = name_of(sliced.fields, "generationConfig")
    settings = dict(object_of(sliced.fields, name) or {})
    settings[name_of(settings, "maxOutputTokens")] = cap
    if name in sliced.spans:
        return splice(sliced.body, [(*sliced.spans[name], encode_value(settings))])
    start = sliced.body.index(b"{") + 1
    return splice(sliced.body, [(start, start, f'"{name}":{encode_value(settings)},')])


def render_body(turn: ManagedTurn) -> bytes:
    """Return the body with the rewrite in place of the messages it covers."""
    request = turn.request
    sliced = request.sliced
    used = turn.used
    if used is None:
        return splice(sliced.body, recall_changes(turn))
    changes = [
        replacement_change(
            sliced, request.first, used.length, used.replacement.decode()
        )
    ]
    note = RewriteState.load(used.state).note
    if note:
        incoming = request.incoming
        blocks = takes_blocks(incoming.api, request.model, incoming.upstream)
        noted = note_change(incoming.api, sliced, request.first, note, blocks=blocks)
        changes += [noted] if noted else []
    changes += recall_changes(turn)
    taken = {start for start, _, _ in changes}
    for index, value in turn.restored(used.length).items():
        element = request.elements[index]
        if element.start not in taken:
            changes.append((element.start, element.end, encode_value(value)))
    return splice(sliced.body, changes)
