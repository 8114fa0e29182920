"""Events of a stream: parse their JSON, and report an error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from everthread.core.types import StreamDelta
from everthread.errors import WireError
from everthread.wire.payload_checks import require_object
from everthread.wire.reply_fields import error_text
from everthread.wire.sse import SseEvent


def parse_event(event: SseEvent | Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON object of a stream event; None for the mark that ends the stream."""
    if not isinstance(event, SseEvent):
        return require_object(event, "the event")
    if event.data.strip() == "[DONE]":
        return None
    try:
        value = json.loads(event.data)
    except (ValueError, RecursionError):
        raise WireError(
            f"an event of the stream is not JSON: {event.data[:80]!r}"
        ) from None
    return require_object(value, "the event")


def make_error_delta(error: Any) -> StreamDelta:
    """Return the delta for an error in a stream."""
    error_fields = (
        error
        if isinstance(error, dict)
        else {"message": error_text(error) or str(error or "")}
    )
    return StreamDelta("error", text=error_text(error_fields), raw=error_fields)
