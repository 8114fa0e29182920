"""Our own pages: alive, ready, figures."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from starlette.types import Send

from everthread.gateway.metrics import Metrics

Ready = Callable[[], Awaitable[str | None]]
"""Why it cannot serve now; None when it can."""


class Health:
    """Answers `/healthz`, `/readyz` and `/metrics`."""

    def __init__(self, metrics: Metrics, ready: Ready | None = None) -> None:
        self._metrics = metrics
        self._ready = ready
        self.ending = False

    async def answer(self, path: str, send: Send) -> None:
        if path == "/metrics":
            await _page(send, 200, self._metrics.text().encode(), b"text/plain; version=0.0.4; charset=utf-8")
            return
        trouble = await self._trouble() if path == "/readyz" else None
        body = {"status": "ok"} if trouble is None else {"status": "unavailable", "reason": trouble}
        await _page(send, 200 if trouble is None else 503, json.dumps(body).encode(), b"application/json")

    async def _trouble(self) -> str | None:
        if self.ending:
            return "the gateway is shutting down"
        return await self._ready() if self._ready else None


async def _page(send: Send, status: int, body: bytes, kind: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
