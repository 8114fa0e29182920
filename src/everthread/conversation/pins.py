"""What somebody pinned to a thread: notes that every later compaction carries word for word."""

from __future__ import annotations

from everthread.core.redaction import redact
from everthread.errors import InputError
from everthread.store.models import Pin
from everthread.store.store import Store

PIN_CHARS = 2_000
"""Characters of one pin."""
MOST_PINS = 50


async def list_pins(store: Store, thread: str) -> list[Pin]:
    """The pins that hold, the earliest first. A branch begins with those its parent had when it left."""
    return await store.pins(thread)


async def add_pin(store: Store, thread: str, text: str) -> Pin:
    """Keep a text. It is stored when this returns; one that is pinned already stays as it is."""
    note = redact(text).strip()
    if not note:
        raise InputError("there is nothing to pin: give a text, or the id of a message")
    if len(note) > PIN_CHARS:
        raise InputError(f"a pin has at most {PIN_CHARS:,} characters, not {len(note):,}; pin what matters of it")
    return await store.put_pin(thread, note, most=MOST_PINS)


async def remove_pin(store: Store, thread: str, pinned: str) -> None:
    """Take a pin back, by its id. What summaries carry of it goes with the next compaction."""
    await store.delete_pin(thread, pinned)
