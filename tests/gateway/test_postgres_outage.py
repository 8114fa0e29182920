"""PostgreSQL fails under a running gateway: each request waits one second for it, then continues and says so."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
import psycopg
import pytest

from everthread import open_store
from everthread.config import parse_config
from everthread.factory.gateways import open_gateway
from everthread.gateway.router import Upstream
from tests.apis import CHAT_PATH
from tests.gateway.raw_http import (
    JSON,
    RawMessage,
    RawUpstream,
    WriteAnswer,
    open_raw_upstream,
)
from tests.gateway.raw_http import fixed_answer as give
from tests.store.messages import texts_of
from tests.store.postgres_server import Server

MODEL = "gpt-4o"
PATIENCE = 20.0
"""Far above the one second there is, for a machine that is busy; far below what waiting for the database took."""


def outages(server: Server) -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """How it goes away and comes back."""
    return {
        "stopped": (server.stop, server.start),
        "frozen": (server.freeze, server.thaw),
    }


@contextmanager
def expect_quick(what: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    took = time.monotonic() - begun
    print(f"{what}: {took:.2f} s")
    assert took < PATIENCE, what


def chat_body(text: str) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
    }


ANSWER = json.dumps(
    {
        "id": "c1",
        "object": "chat.completion",
        "model": MODEL,
        "created": 1,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "yes"},
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 9,
            "completion_tokens": 1,
            "total_tokens": 10,
        },
    }
).encode()


@asynccontextmanager
async def run_gateway(
    server: Server, auth: str = "none", answer: WriteAnswer | None = None
) -> AsyncIterator[tuple[httpx2.AsyncClient, RawUpstream]]:
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE work")
    config = parse_config(
        f"store: {{url: '{server.url('work')}'}}\ngateway: {{port: 0, auth: {auth}}}"
    )
    async with open_raw_upstream(answer or give(200, JSON, ANSWER)) as upstream:
        opened = open_gateway(config, upstreams=[Upstream("lab", upstream.url)])
        async with (
            opened as gateway,
            httpx2.AsyncClient(base_url=gateway.url, timeout=120) as http,
        ):
            yield http, upstream


async def is_ready(http: httpx2.AsyncClient) -> None:
    while (await http.get("/readyz")).status_code != 200:  # noqa: ASYNC110 - as a load balancer asks
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("outage", ["stopped", "frozen"])
async def test_forwards_requests_and_refuses_everything_else_during_an_outage(
    own_server: Server, outage: str
) -> None:
    leave, come_back = outages(own_server)[outage]
    async with run_gateway(own_server) as (http, upstream):
        thread = (await http.post(CHAT_PATH, json=chat_body("hello"))).headers[
            "x-everthread-thread"
        ]
        response = await http.get("/readyz")
        assert response.status_code == 200
        await asyncio.to_thread(leave)
        try:
            with expect_quick("four unknown threads"):
                answers = await asyncio.gather(
                    *(http.post(CHAT_PATH, json=chat_body(f"unknown {n}")) for n in range(4))
                )
            assert {(answer.status_code, answer.content) for answer in answers} == {(200, ANSWER)}
            assert all("unmanaged" in answer.headers["x-everthread-notice"] for answer in answers)
            assert not [answer for answer in answers if "x-everthread-thread" in answer.headers]
            with expect_quick("/readyz"):
                response = await http.get("/readyz")
                assert response.status_code == 503
            for method, path in (
                ("GET", "/api/threads"),
                ("GET", f"/api/threads/{thread}"),
                ("POST", "/api/threads"),
                ("POST", "/mcp"),
            ):
                with expect_quick(f"{method} {path}"):
                    answer = await http.request(method, path, json={} if method == "POST" else None)
                assert answer.status_code == 503, path
                assert answer.headers["retry-after"] == "1", path
            response = await http.get("/metrics")
            assert 'everthread_failed_open_total{step="prepare"} 4.0' in response.text
        finally:
            await asyncio.to_thread(come_back)
        await is_ready(http)
        again = await http.post(CHAT_PATH, json=chat_body("hello"))
        # The store's state is cached for a second.
        while "x-everthread-thread" not in again.headers:
            again = await http.post(CHAT_PATH, json=chat_body("hello"))
        assert again.headers["x-everthread-thread"] == thread
        assert upstream.received[-1].body == again.request.content


@pytest.mark.parametrize("outage", ["stopped", "frozen"])
async def test_accepts_a_new_credential_without_waiting(own_server: Server, outage: str) -> None:
    leave, come_back = outages(own_server)[outage]
    async with run_gateway(own_server, "passthrough") as (http, _):
        await asyncio.to_thread(leave)
        try:
            with expect_quick("a credential that no upstream has accepted yet"):
                answer = await http.post(
                    CHAT_PATH,
                    json=chat_body("hi"),
                    headers={"authorization": "Bearer sk-new"},
                )
            assert answer.status_code == 200
            assert answer.content == ANSWER
        finally:
            await asyncio.to_thread(come_back)


@pytest.mark.parametrize("outage", ["stopped", "frozen"])
async def test_an_outage_during_an_answer_delays_only_its_storage(
    own_server: Server, outage: str
) -> None:
    """The header names no thread while none is stored; it does once the server is back."""
    leave, come_back = outages(own_server)[outage]

    async def answer(request: RawMessage, writer: asyncio.StreamWriter) -> None:
        if b"leave now" in request.body:
            await asyncio.to_thread(leave)
        await give(200, JSON, ANSWER)(request, writer)

    async with run_gateway(own_server, answer=answer) as (http, _):
        await http.post(CHAT_PATH, json=chat_body("hello"))
        try:
            with expect_quick("an answer"):
                response = await http.post(CHAT_PATH, json=chat_body("leave now"))
            assert response.status_code == 200
            assert response.content == ANSWER
        finally:
            await asyncio.to_thread(come_back)
        await is_ready(http)
        store = open_store(own_server.url("work"))
        try:
            stored: dict[str, list[str]] = {}
            while not any("leave now" in texts for texts in stored.values()):
                threads = [row.first.id for row in await store.list_threads()]
                stored = {name: texts_of(await store.load_history(name)) for name in threads}
        finally:
            await store.close()
    (thread,) = [name for name, texts in stored.items() if "leave now" in texts]
    assert response.headers.get("x-everthread-thread") in (None, thread)


async def test_a_gateway_stops_even_if_the_database_hangs(own_server: Server) -> None:
    """An answer waits to be stored, on a connection that stays open and says nothing."""
    try:
        async with run_gateway(own_server) as (http, _):
            await http.post(CHAT_PATH, json=chat_body("hello"))
            await asyncio.to_thread(own_server.freeze)
            turns = [
                *chat_body("hello")["messages"],
                {"role": "assistant", "content": "yes"},
                *chat_body("and now?")["messages"],
            ]
            response = await http.post(CHAT_PATH, json={"model": MODEL, "messages": turns})
            assert response.status_code == 200
            assert response.content == ANSWER
    finally:
        await asyncio.to_thread(own_server.thaw)
