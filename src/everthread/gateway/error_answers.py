"""Gateway errors in the form of the client's protocol."""

from __future__ import annotations

import json
import math
from typing import Any

from everthread.core.types import Api
from everthread.wire.codecs import CODECS
from everthread.wire.sse import encode_event


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
    error = CODECS[api].encode_error(refused.status, refused.code, refused.message)
    return json.dumps(error).encode()


def make_error_event(api: Api, status: int, body: bytes) -> bytes:
    """Return a provider's error as an event, for a client whose stream has begun."""
    codec = CODECS[api]
    try:
        error_body: Any = json.loads(body)
    except (ValueError, RecursionError):
        error_body = None
    if not isinstance(error_body, dict) or not isinstance(error_body.get("error"), dict):
        message = f"The upstream answered with the status {status} instead of a stream."
        error_body = codec.encode_error(status, "upstream_error", message)
    return encode_event(codec.encode_error_event(error_body))


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
