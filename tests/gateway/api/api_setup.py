"""A gateway with the native API on loopback, and a model that waits until a test lets it answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from everthread import open_store
from everthread.config import parse_config
from everthread.core.messages import text_of
from everthread.core.types import Reply, Request, StreamDelta
from everthread.factory.agent import make_agent_opener, make_preview_function
from everthread.gateway.access.authentication import Caller
from everthread.gateway.api import QueueOptions
from everthread.gateway.api.queue import TurnQueue
from everthread.gateway.api.threads_api import ThreadsApi
from everthread.gateway.app import GatewayApp
from everthread.gateway.error_answers import Refused
from everthread.gateway.proxy import Proxy
from everthread.gateway.router import Routes, Upstream
from everthread.gateway.server import Gateway
from everthread.store.store import Store
from everthread.testing import ScriptedModel
from everthread.wire.sse import SseParser
from tests.gateway.raw_http import PassThroughManager

FAST_OPTIONS = QueueOptions(
    queue=3, lease_seconds=0.6, poll_seconds=0.03, sweep_seconds=0.1
)
SCOPES = {
    "ann": {"threads"},
    "bob": {"threads"},
    "amy": {"threads", "tools"},
    "pat": {"proxy"},
}
TENANTS = {"ann": "acme", "amy": "acme", "bob": "other", "pat": "acme"}


class NamedKeys:
    """A key is a person's name."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        name = headers.get("authorization", "").removeprefix("Bearer ")
        if name not in SCOPES:
            raise Refused(401, "invalid_api_key", "This API key is not known here.")
        return Caller(TENANTS[name], name, frozenset(SCOPES[name]))


class WaitingModel(ScriptedModel):
    """Answers `re: …` to what was said last, or what `answers` says; a message with a gate waits for it."""

    def __init__(
        self, answers: Callable[[Request], Any] | None = None, **more: Any
    ) -> None:
        super().__init__(
            answers or (lambda request: f"re: {text_of(request.messages[-1])}"), **more
        )
        self.gates: dict[str, asyncio.Event] = {}
        self.begun: list[str] = []

    def hold(self, said: str) -> asyncio.Event:
        return self.gates.setdefault(said, asyncio.Event())

    async def stream(
        self, request: Request
    ) -> AsyncGenerator[StreamDelta | Reply, None]:
        said = text_of(request.messages[-1])
        self.begun.append(said)
        if said in self.gates:
            yield StreamDelta("text", text="Wait. ")
            await self.gates[said].wait()
        async for piece in super().stream(request):
            yield piece

    async def until(self, said: str) -> None:
        async with asyncio.timeout(10):
            while said not in self.begun:  # noqa: ASYNC110 - a model tells nobody
                await asyncio.sleep(0.005)


@dataclass
class ApiSetup:
    """One gateway process."""

    url: str
    store: Store
    model: WaitingModel
    queue: TurnQueue
    clients: dict[str, httpx2.AsyncClient] = field(default_factory=dict)

    def of(self, name: str) -> httpx2.AsyncClient:
        if name not in self.clients:
            headers = {"authorization": f"Bearer {name}"} if name else {}
            self.clients[name] = httpx2.AsyncClient(
                base_url=self.url, headers=headers, timeout=120
            )
        return self.clients[name]

    async def thread(self, name: str = "ann", **body: Any) -> str:
        made = await self.of(name).post("/api/threads", json=body)
        assert made.status_code == 201, made.text
        return str(made.json()["id"])

    async def say(
        self,
        thread: str,
        text: Any,
        name: str = "ann",
        *,
        wait: float = 20,
        key: str = "",
    ) -> Any:
        path = f"/api/threads/{thread}/messages?wait={wait}"
        headers = {"idempotency-key": key} if key else {}
        return await self.of(name).post(path, json={"content": text}, headers=headers)

    async def history(
        self, thread: str, view: str = "whole", name: str = "ann"
    ) -> list[str]:
        found = await self.of(name).get(
            f"/api/threads/{thread}/history?view={view}&limit=100"
        )
        return [text_of(item["body"]) for item in found.json()["items"]]


@asynccontextmanager
async def open_api(
    url: str,
    model: WaitingModel | None = None,
    *,
    options: QueueOptions = FAST_OPTIONS,
    tools: bool = False,
    keys: bool = True,
    access: Callable[[Store], Any] = lambda _store: NamedKeys(),
    grace_seconds: float = 5.0,
    settings: str = "",
    wrap: Callable[[Any], Any] = lambda opened: opened,
) -> AsyncIterator[ApiSetup]:
    answering_model = model or WaitingModel()
    store = await asyncio.to_thread(open_store, url)
    config = parse_config(settings)
    queue = TurnQueue(store, wrap(make_agent_opener(config, answering_model)), options)
    app = ThreadsApi(
        queue,
        preview=make_preview_function(parse_config("")),
        tools=tools,
        heartbeat_seconds=0.05,
    )
    await app.start()
    proxy = Proxy(
        Routes([Upstream("only", "http://127.0.0.1:9")]), PassThroughManager()
    )
    service = GatewayApp(
        proxy, authenticator=access(store) if keys else None, threads_api=app
    )
    made: ApiSetup | None = None
    try:
        async with Gateway(service, grace_seconds=grace_seconds) as gateway:
            made = ApiSetup(gateway.url, store, answering_model, queue)
            yield made
    finally:
        for client in made.clients.values() if made is not None else ():
            await client.aclose()
        await store.close()


class EventReader:
    """The events of a stream, as they come."""

    def __init__(self, response: Any) -> None:
        self._response = response
        self._parser = SseParser()
        self.raw = b""

    async def __aiter__(self) -> AsyncIterator[tuple[str, Any]]:
        async for chunk in self._response.aiter_bytes():
            self.raw += chunk
            for event in self._parser.feed(chunk):
                yield event.event or "", json.loads(event.data)

    async def all(self) -> list[tuple[str, Any]]:
        return [event async for event in self]


STREAM = {"accept": "text/event-stream"}
