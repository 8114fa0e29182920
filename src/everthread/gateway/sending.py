"""What goes upstream for a request: the rewrite, cache marks, a lower output cap, and what the client is told."""

from __future__ import annotations

from hashlib import blake2b

from everthread.conversation.compaction import FADING
from everthread.core.exchange import Api
from everthread.gateway.base import Outgoing
from everthread.gateway.marking import marked_messages, marked_system, takes_marks
from everthread.gateway.slicing import slice_body, spliced, written
from everthread.gateway.thrashing import fading_text
from everthread.gateway.turns import Turn
from everthread.providers.output_cap import FIELDS, cap_field

THREAD = "x-everthread-thread"
COMPACTIONS = "x-everthread-compactions"
TOKENS = "x-everthread-tokens"
NOTICE = "x-everthread-notice"
PLAN = "x-everthread-plan"
HOLD_SHARE = 0.70
"""From this share of the window on an overflow is likely."""


def untouched(turn: Turn) -> Outgoing:
    """The bytes that came, with the thread told."""
    turn.told[THREAD] = turn.place.thread
    return Outgoing(turn.incoming.raw, told=turn.told)


def outgoing(turn: Turn, before: int, after: int, *, ttl: str | None) -> Outgoing:
    """The request as it goes: `before` and `after` are its tokens without and with the rewrite."""
    told = turn.told
    told[THREAD] = turn.place.thread
    told[COMPACTIONS] = str(turn.used.depth if turn.used else 0)
    told[TOKENS] = f"{before}/{after}"
    if turn.used is not None and turn.used.depth >= FADING:
        told[NOTICE] = fading_text(turn.used.depth)
    if turn.decision:
        told[PLAN] = turn.decision
    text = turn.text()
    if turn.cap is not None:
        text = _capped(turn.incoming.api, turn.incoming.upstream, text, turn.cap)
    if ttl is not None:
        text = _marked(turn, text, ttl)
    hold = after > HOLD_SHARE * turn.window
    if text is turn.sliced.text or text == turn.sliced.text:
        return Outgoing(turn.incoming.raw, told=told, hold=hold)
    return Outgoing(text.encode(), rewritten=True, told=told, hold=hold)


def _capped(api: Api, upstream: str, text: str, cap: int) -> str:
    """The body with this output cap: in the place of the client's, else as a field of its own."""
    sliced = slice_body(text.encode(), api)
    stated = next((name for name in FIELDS if name in sliced.spans), None)
    if stated is not None:
        return spliced(text, [(*sliced.spans[stated], str(cap))])
    start = text.index("{") + 1
    return spliced(text, [(start, start, f"{written(cap_field(api, upstream))}:{cap},")])


def _marked(turn: Turn, text: str, ttl: str) -> str:
    api, upstream = turn.incoming.api, turn.incoming.upstream
    if not takes_marks(api, turn.model, upstream, text):
        return text
    sliced = turn.sliced if text is turn.sliced.text else slice_body(text.encode(), api)
    count = len(sliced.elements)
    begins = blake2b(turn.used.replacement if turn.used else b"", digest_size=8).digest()
    known = turn.memory.marked
    previous = known[1] if known and known[0] == begins and known[1] < count else None
    changes = [
        (sliced.elements[index].start, sliced.elements[index].end, new)
        for index, new in marked_messages(api, sliced.elements, ttl, previous).items()
    ]
    system = marked_system(sliced.fields["system"], ttl) if api == "anthropic" and "system" in sliced.fields else None
    if system is not None:
        changes.append((*sliced.spans["system"], system))
    turn.memory.marked = begins, count - 1
    return spliced(text, changes)
