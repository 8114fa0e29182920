"""Write one response to the client, and log it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from starlette.types import Send

from everthread.gateway.error_answers import (
    RequestRefused,
    make_error_body,
    make_error_headers,
)
from everthread.gateway.header_selection import Headers
from everthread.gateway.monitoring.log_lines import log_fields
from everthread.gateway.monitoring.metrics import Metrics
from everthread.gateway.request.client_connection import limit_send_time
from everthread.gateway.request.request_head import RequestHead

_LOG = logging.getLogger("everthread.gateway")
BROWSER_GUARD = (
    (b"content-security-policy", b"sandbox"),
    (b"x-content-type-options", b"nosniff"),
)
"""Headers that prevent a browser from running a proxied answer in the origin of the gateway's own pages."""


class ResponseWriter:
    """Writes one response. Raises `ClientGone` if the client takes too long to read a piece."""

    def __init__(self, send: Send, head: RequestHead, metrics: Metrics, seconds: float) -> None:
        self._send = limit_send_time(send, seconds)
        self._head = head
        self._metrics = metrics
        self._started_at = time.monotonic()
        self.status: int | None = None
        self._remaining_bytes = -1
        """Bytes missing from the stated length; negative if no length is stated."""
        self._is_complete = False
        self._facts: dict[str, Any] = {}

    async def start(
        self,
        status: int,
        headers: Headers,
        own_headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self._metrics.count(
            "requests", api=self._head.conversation_api or "other", status=str(status)
        )
        self._metrics.observe_first_byte(time.monotonic() - self._started_at)
        encoded_headers = [
            (name.encode("latin-1"), value.encode("latin-1", "replace"))
            for name, value in (own_headers or {}).items()
        ]
        lengths = [
            int(value) for name, value in headers if name == b"content-length" and value.isdigit()
        ]
        self._remaining_bytes = lengths[0] if len(lengths) == 1 else -1
        await self._send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [*headers, *BROWSER_GUARD, *encoded_headers],
            }
        )

    async def body(self, data: bytes) -> None:
        """Send a piece. The response is complete when the stated length is reached."""
        self._remaining_bytes -= len(data)
        self._is_complete = self._remaining_bytes == 0
        await self._send(
            {
                "type": "http.response.body",
                "body": data,
                "more_body": not self._is_complete,
            }
        )

    async def end(self, data: bytes = b"") -> None:
        if not self._is_complete:
            await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def refuse(self, refused: RequestRefused) -> None:
        """Send an error of the gateway in the client's protocol; do nothing if the answer has begun."""
        if self.status is not None:
            return
        self.note(reason=refused.message)
        body = make_error_body(self._head.client_api, refused)
        await self.start(refused.status, make_error_headers(refused, body))
        await self.end(body)

    def note(self, **facts: Any) -> None:
        """Add facts to the request's log line, but never text of a conversation."""
        self._facts |= facts

    def log(self) -> None:
        """Log one line for the request, answered or not."""
        if not _LOG.isEnabledFor(logging.INFO):
            return
        head = self._head
        seconds = time.monotonic() - self._started_at
        status = self.status or 0
        fields = {
            "method": head.method,
            "path": head.path,
            "status": status,
            "seconds": round(seconds, 4),
            "tenant": head.caller.tenant,
            "key": head.caller.key_id,
            **self._facts,
        }
        filled = {name: value for name, value in fields.items() if value or name in self._facts}
        log_fields(
            logging.INFO,
            f"{head.method} {head.path} {status or 'unanswered'} in {seconds:.3f} s",
            filled,
        )
