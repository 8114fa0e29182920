"""Encode errors of Gemini's protocol, as a body and as an event of a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from everthread.wire.sse import SseEvent

_NAMES_BY_STATUS = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def encode_error(status: int, code: str, message: str) -> dict[str, Any]:
    default_name = "INTERNAL" if status >= 500 else "INVALID_ARGUMENT"
    name = _NAMES_BY_STATUS.get(status, default_name)
    return {"error": {"code": status, "message": message, "status": name}}


def encode_error_event(body: Mapping[str, Any]) -> SseEvent:
    return SseEvent(None, json.dumps(body))
