"""Gateway errors in the form of the client's protocol."""

from __future__ import annotations

import json
import math
from typing import Any

from everthread.core.types import Api

_ANTHROPIC_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_GEMINI_STATUS_NAMES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_OPENAI_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


class RequestRefused(Exception):  # noqa: N818  it is an answer, not a failure
    """Raised to refuse a request; has an HTTP status, a short code and a message for a person."""

    def __init__(
        self, status: int, code: str, message: str, *, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.retry_after = retry_after


def make_error_body(api: Api, refused: RequestRefused) -> bytes:
    status = refused.status
    body: dict[str, Any]
    if api == "gemini":
        name = _GEMINI_STATUS_NAMES.get(status, "INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
        body = {"error": {"code": status, "message": refused.message, "status": name}}
    elif api == "anthropic":
        kind = _ANTHROPIC_ERROR_TYPES.get(
            status, "api_error" if status >= 500 else "invalid_request_error"
        )
        body = {"type": "error", "error": {"type": kind, "message": refused.message}}
    else:
        kind = _OPENAI_ERROR_TYPES.get(
            status, "server_error" if status >= 500 else "invalid_request_error"
        )
        body = {
            "error": {
                "message": refused.message,
                "type": kind,
                "param": None,
                "code": refused.code,
            }
        }
    return json.dumps(body).encode()


def make_error_event(api: Api, status: int, body: bytes) -> bytes:
    """Return a provider's error as an event, for a client whose stream has begun."""
    try:
        payload: Any = json.loads(body)
    except (ValueError, RecursionError):
        payload = None
    error = payload.get("error") if isinstance(payload, dict) else None
    if not isinstance(error, dict):
        message = f"The upstream answered with the status {status} instead of a stream."
        payload = json.loads(
            make_error_body(api, RequestRefused(status, "upstream_error", message))
        )
        error = payload["error"]
    if api == "anthropic":
        return b"event: error\ndata: " + json.dumps({"type": "error", **payload}).encode() + b"\n\n"
    if api in ("openai_chat", "gemini"):
        return b"data: " + json.dumps(payload).encode() + b"\n\n"
    fields = {name: error.get(name) for name in ("code", "message", "param")}
    event = {"type": "error", "sequence_number": 0, **fields, "error": error}
    return b"event: error\ndata: " + json.dumps(event).encode() + b"\n\n"


def make_error_headers(refused: RequestRefused, body: bytes) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-everthread-error", refused.code.encode("ascii", "replace")),
    ]
    if refused.status == 426:  # which protocol to use instead
        headers += [(b"upgrade", b"HTTP/1.1"), (b"connection", b"close")]
    if refused.retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(refused.retry_after))).encode()))
    return headers
