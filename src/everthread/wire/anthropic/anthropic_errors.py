"""Encode errors of Anthropic's protocol, as a body and as an event of a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from everthread.wire.sse import SseEvent

_TYPES_BY_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def encode_error(status: int, code: str, message: str) -> dict[str, Any]:
    default_type = "api_error" if status >= 500 else "invalid_request_error"
    error_type = _TYPES_BY_STATUS.get(status, default_type)
    return {"type": "error", "error": {"type": error_type, "message": message}}


def encode_error_event(body: Mapping[str, Any]) -> SseEvent:
    return SseEvent("error", json.dumps({"type": "error", **body}))
