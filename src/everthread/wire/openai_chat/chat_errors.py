"""Encode errors of OpenAI's chat protocol, as a body and as an event of a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from everthread.wire.sse import SseEvent

_TYPES_BY_STATUS = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


def encode_error(status: int, code: str, message: str) -> dict[str, Any]:
    default_type = "server_error" if status >= 500 else "invalid_request_error"
    error_type = _TYPES_BY_STATUS.get(status, default_type)
    return {"error": {"message": message, "type": error_type, "param": None, "code": code}}


def encode_error_event(body: Mapping[str, Any]) -> SseEvent:
    return SseEvent(None, json.dumps(body))
