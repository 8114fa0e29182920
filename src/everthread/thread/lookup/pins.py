"""Pins: notes on a thread that every later compaction carries word for word."""

from __future__ import annotations

from everthread.core.secrets.redaction import redact
from everthread.errors import InputError
from everthread.store.records import Pin
from everthread.store.store import Store

MAX_PIN_CHARS = 2_000
"""Maximum characters of one pin."""
MAX_PINS = 50


async def add_pin(store: Store, thread: str, text: str) -> Pin:
    """Store a pin, unless the same text is pinned already."""
    note = redact(text).strip()
    if not note:
        raise InputError("there is nothing to pin: give a text, or the id of a message")
    if len(note) > MAX_PIN_CHARS:
        raise InputError(
            f"a pin has at most {MAX_PIN_CHARS:,} characters, not {len(note):,}; pin only the part that matters"
        )
    return await store.state.put_pin(thread, note, max_pins=MAX_PINS)
