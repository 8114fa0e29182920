"""What somebody pinned to a thread: notes that every later compaction carries word for word.

A pin is a stored output of the thread, under a tool name of its own: written once whoever else writes at the same time,
exported, deleted and read by its id as any other. Taking one back is written down behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from everthread.core.redaction import redact
from everthread.errors import InputError, UnknownIdError
from everthread.store.models import new_id
from everthread.store.store import Store

PIN, UNPIN = "everthread_pin", "everthread_unpin"
PIN_CHARS = 2_000
"""Characters of one pin."""
MOST_PINS = 50


@dataclass(frozen=True, slots=True)
class Pin:
    id: str
    text: str
    created: float


async def list_pins(store: Store, thread: str) -> list[Pin]:
    """The pins that hold, the earliest first. A branch has those its parent had when it left."""
    held = await _held(store, thread, until=None)
    return [Pin(key, await store.output(key, tenant=tenant), created) for key, (tenant, created) in held.items()]


async def add_pin(store: Store, tenant: str, thread: str, text: str) -> Pin:
    """Keep a text. It is stored when this returns; one that is pinned already stays as it is."""
    note = redact(text).strip()
    if not note:
        raise InputError("there is nothing to pin: give a text, or the id of a message")
    if len(note) > PIN_CHARS:
        raise InputError(f"a pin has at most {PIN_CHARS:,} characters, not {len(note):,}; pin what matters of it")
    held = await list_pins(store, thread)
    same = next((known for known in held if known.text == note), None)
    if same is not None:
        return same
    if len(held) >= MOST_PINS:
        raise InputError(f"{MOST_PINS} texts are pinned to this thread already; take one back first")
    kept = await store.put_output(thread, note, call_id=new_id(), tool=PIN)
    return Pin(kept.id, await store.output(kept.id, tenant=tenant), kept.created)


async def remove_pin(store: Store, thread: str, pinned: str) -> None:
    """Take a pin back, by its id. What summaries carry of it goes with the next compaction."""
    if pinned not in {known.id for known in await list_pins(store, thread)}:
        raise UnknownIdError(f"nothing is pinned under {pinned[:80]!r}")
    await store.put_output(thread, f"{UNPIN} {pinned} {new_id()}", call_id=pinned, tool=UNPIN)


async def _held(store: Store, thread: str, until: float | None) -> dict[str, tuple[str, float]]:
    session = await store.session(thread)
    held: dict[str, tuple[str, float]] = {}
    if session.kind == "branch" and session.parent is not None:
        try:
            held = await _held(store, (await store.session(session.parent)).thread, session.started)
        except UnknownIdError:  # it outlives the thread it left
            held = {}
    for kept in await store.outputs(thread):
        if until is not None and kept.created > until:
            continue
        if kept.tool == PIN:
            held.setdefault(kept.id, (session.tenant, kept.created))
        elif kept.tool == UNPIN:
            held.pop(kept.call_id, None)
    return held
