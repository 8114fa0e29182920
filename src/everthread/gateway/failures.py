"""Errors of ours, in the words of the protocol the client speaks."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from everthread.core.exchange import Api
from everthread.gateway.access import Refused

_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_OPENAI = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def spoken(path: str, headers: Mapping[str, str]) -> Api:
    """The protocol a client speaks, by the path and, where that tells nothing, by its headers."""
    if path.startswith("/v1/messages") or "anthropic-version" in headers:
        return "anthropic"
    return "openai_responses" if path.startswith("/v1/responses") else "openai_chat"


def error_body(api: Api, refused: Refused) -> bytes:
    status = refused.status
    body: dict[str, Any]
    if api == "anthropic":
        kind = _ANTHROPIC.get(status, "api_error" if status >= 500 else "invalid_request_error")
        body = {"type": "error", "error": {"type": kind, "message": refused.message}}
    else:
        kind = _OPENAI.get(status, "server_error" if status >= 500 else "invalid_request_error")
        body = {"error": {"message": refused.message, "type": kind, "param": None, "code": refused.code}}
    return json.dumps(body).encode()


def error_headers(refused: Refused, body: bytes) -> list[tuple[bytes, bytes]]:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-everthread-error", refused.code.encode("ascii", "replace")),
    ]
    if refused.retry_after is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(refused.retry_after))).encode()))
    return headers
