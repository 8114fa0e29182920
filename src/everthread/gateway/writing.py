"""The answer to a client: its first lines once, its body as it comes, and no wait for who does not read."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from starlette.types import Send

from everthread.gateway.access import Refused
from everthread.gateway.base import THREAD
from everthread.gateway.failures import error_body, error_headers
from everthread.gateway.incoming import Call, ClientGone
from everthread.gateway.logs import log_fields
from everthread.gateway.metrics import Metrics
from everthread.gateway.upstream import Headers

_LOG = logging.getLogger("everthread.gateway")


class Writer:
    """One answer. `ClientGone` when the client takes too long to read a piece."""

    def __init__(self, send: Send, call: Call, metrics: Metrics, seconds: float) -> None:
        self._send = send
        self._call = call
        self._metrics = metrics
        self._seconds = seconds
        self._begun = time.monotonic()
        self.status: int | None = None
        self._thread = ""
        self._facts: dict[str, Any] = {}

    async def start(self, status: int, headers: Headers, told: Mapping[str, str] | None = None) -> None:
        self.status = status
        self._thread = (told or {}).get(THREAD, "")
        self._metrics.count("requests", api=self._call.conversation or "other", status=str(status))
        self._metrics.took(time.monotonic() - self._begun)
        ours = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in (told or {}).items()]
        await self._put({"type": "http.response.start", "status": status, "headers": [*headers, *ours]})

    async def body(self, data: bytes) -> None:
        await self._put({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        await self._put({"type": "http.response.body", "body": data, "more_body": False})

    async def refuse(self, refused: Refused) -> None:
        """An error of ours, in the client's protocol; where the answer has begun it can only break off."""
        if self.status is not None:
            return
        body = error_body(self._call.speaks, refused)
        await self.start(refused.status, error_headers(refused, body))
        await self.end(body)

    def note(self, **facts: Any) -> None:
        """What else the request's line in the log says; nothing of what was said."""
        self._facts |= facts

    def log(self) -> None:
        """One line for a request that was answered, or not."""
        if not _LOG.isEnabledFor(logging.INFO):
            return
        call, seconds, status = self._call, time.monotonic() - self._begun, self.status or 0
        fields = {
            "method": call.method, "path": call.path, "status": status, "seconds": round(seconds, 4),
            "tenant": call.caller.tenant, "key": call.caller.key_id, "thread": self._thread, **self._facts,
        }  # fmt: skip
        told = {name: value for name, value in fields.items() if value or name in self._facts}
        log_fields(_LOG, logging.INFO, f"{call.method} {call.path} {status or 'unanswered'} in {seconds:.3f} s", told)

    async def _put(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._send(message)
        except TimeoutError:
            raise ClientGone from None
