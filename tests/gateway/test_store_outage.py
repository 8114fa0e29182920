"""While the store is away, requests are forwarded unmanaged at once, and the gateway's own paths say why."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from everthread.errors import StoreUnreachableError
from everthread.gateway.app import GatewayApp
from everthread.gateway.contracts import IncomingRequest
from everthread.gateway.monitoring.store_watch import StoreWatch
from everthread.gateway.proxy import Proxy
from everthread.gateway.router import Routes, Upstream
from everthread.gateway.server import Gateway
from tests.gateway.raw_http import (
    JSON,
    PassThroughManager,
    PassThroughTurn,
    fixed_answer,
    open_raw_upstream,
    post_request,
    send_bytes,
    send_post,
)


class ProbedStore:
    """A store that answers, hangs or fails."""

    def __init__(self) -> None:
        self.asked = 0
        self.state = "there"
        self.released = asyncio.Event()

    async def __call__(self) -> None:
        self.asked += 1
        if self.state == "hangs":
            await asyncio.Event().wait()
        elif self.state == "fails":
            raise StoreUnreachableError("refused")


class WaitingManager(PassThroughManager):
    """A manager that waits for its store for ever while that is away."""

    def __init__(self, probe: ProbedStore) -> None:
        super().__init__()
        self._probe = probe
        self.cancelled = 0

    async def prepare(self, incoming: IncomingRequest) -> PassThroughTurn:
        if self._probe.state != "there":
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled += 1
        return await super().prepare(incoming)


async def page(_scope: Any, _receive: Any, send: Any) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [],
        }
    )
    await send({"type": "http.response.body"})


async def test_forwards_requests_unmanaged_while_the_store_is_away() -> None:
    probe = ProbedStore()
    now = [0.0]
    manager = WaitingManager(probe)
    watch = StoreWatch(probe, seconds=0.05, clock=lambda: now[0])
    chat = post_request("/v1/chat/completions", b'{"model": "m", "messages": []}')
    async with open_raw_upstream(fixed_answer(200, JSON, b"{}")) as upstream:
        proxy = Proxy(Routes([Upstream("only", upstream.url)]), manager, store_watch=watch)
        app = GatewayApp(proxy, mounted_apps={"/mcp": page}, store_watch=watch)
        async with Gateway(app, grace_seconds=1.0) as running:
            response = await send_bytes(running.url, chat)
            assert "x-everthread-notice" not in response.header_values
            response = await send_post(running.url, "/mcp")
            assert response.status == 200
            for state in ("hangs", "fails"):
                probe.state = state
                now[0] += 10
                before = probe.asked
                for _ in range(3):
                    answer = await send_bytes(running.url, chat)
                    assert answer.status == 200
                    assert answer.body == b"{}"
                    assert "unmanaged" in answer.header_values["x-everthread-notice"]
                away = await send_post(running.url, "/mcp")
                assert away.status == 503
                assert away.header_values["retry-after"] == "1"
                assert probe.asked == before + 1, "what is known is not asked again"
            assert manager.cancelled == 2, "the others did not even begin"
            assert proxy.metrics.value("failed_open", step="prepare") == 6
            probe.state = "there"
            now[0] += 10
            response = await send_bytes(running.url, chat)
            assert "x-everthread-notice" not in response.header_values
            response = await send_post(running.url, "/mcp")
            assert response.status == 200
    assert len(upstream.received) == 8


async def test_a_store_that_answers_other_calls_is_busy() -> None:
    probe = ProbedStore()
    probe.state = "hangs"
    busy = StoreWatch(probe, seconds=0.01, get_last_answer_time=time.monotonic)
    assert not await busy.is_unresponsive()
    assert not busy.is_known_unresponsive
    assert not await busy.is_unresponsive(), (
        "that is asked again: it says nothing of the next moment"
    )
    assert probe.asked == 2
    begun = time.monotonic()
    silent = StoreWatch(probe, seconds=0.01, get_last_answer_time=lambda: begun - 1.0)
    assert await silent.is_unresponsive()
    assert silent.is_known_unresponsive
    probe.state = "fails"
    refusing = StoreWatch(probe, seconds=0.01, get_last_answer_time=time.monotonic)
    assert await refusing.is_unresponsive(), "what refuses is away, whatever it said before"


async def test_waits_for_a_busy_store() -> None:
    probe = ProbedStore()
    probe.state = "hangs"
    watch = StoreWatch(probe, seconds=0.01, get_last_answer_time=time.monotonic)

    async def work() -> str:
        while probe.asked < 2:  # noqa: ASYNC110  until it was looked at twice
            await asyncio.sleep(0.001)
        return "managed"

    assert await watch.run_with_store(work()) == "managed"
