"""The page of one message."""

from __future__ import annotations

from typing import Any

from everthread.gateway.dashboard.message_rows import make_message_row
from everthread.gateway.dashboard.text import message_text
from everthread.store.records import StoredMessage

MAX_MESSAGE_CHARS = 100_000
"""Characters that the page shows; a longer message is shown in parts."""


def make_message_page(
    message: StoredMessage, *, start: int, revealed: bool
) -> dict[str, Any]:
    """Return the values of the page. `revealed`: whether secrets are shown."""
    body = message_text(message.body)
    start = max(0, min(start, len(body)))
    return {
        "item": make_message_row(
            message, chars=MAX_MESSAGE_CHARS, start=start, revealed=revealed
        ),
        "size": len(body),
        "start": start,
        "shown": min(MAX_MESSAGE_CHARS, len(body) - start),
        "most": MAX_MESSAGE_CHARS,
        "revealed": revealed,
        "kind": message.kind,
        "may_pin": 0 < len(body.strip()) <= 2_000,
    }
