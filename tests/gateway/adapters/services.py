"""The other side over real HTTP: Telegram's bot API, and a service that takes callbacks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from everthread import open_store
from everthread.config import parse_config
from everthread.factory.adapters import open_adapters
from everthread.factory.native import agent_opener
from everthread.gateway.api.app import NativeApp
from everthread.gateway.api.options import DeskOptions
from everthread.gateway.api.queue import TurnDesk
from everthread.gateway.app import GatewayApp
from everthread.gateway.proxy import Proxy
from everthread.gateway.router import Routes, Upstream
from everthread.gateway.server import Gateway, LoopServer, listen
from everthread.store.store import Store
from tests.gateway.api.house import Waiting
from tests.gateway.raw import Plain

TOKEN = "123456:AAtheTokenOfTheBot"


@asynccontextmanager
async def serving(routes: list[Route]) -> AsyncIterator[str]:
    listener = listen(0)
    server = LoopServer(Starlette(routes=routes), listener, log_level="critical")
    await server.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        await server.stop()


@dataclass
class BotApi:
    """Telegram's side: updates are given until they are confirmed, and messages are taken."""

    updates: list[dict[str, Any]] = field(default_factory=list)
    sent: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[dict[str, Any]] = field(default_factory=list)
    """What `sendMessage` answers first."""
    confirmed: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _number: int = 1_000

    def says(self, text: str, *, user: int = 7, chat: int | None = None, kind: str = "private", **more: Any) -> Any:
        self._number += 1
        message = {
            "message_id": self._number,
            "from": {"id": user, "is_bot": False, "first_name": f"User{user}", "language_code": "en"},
            "chat": {"id": chat or user, "type": kind},
            "date": 1_700_000_000,
            "text": text,
            **more,
        }
        update = {"update_id": self._number, "message": message}
        self.updates.append(update)
        self.arrived.set()
        return update

    async def call(self, request: Request) -> Response:
        if request.path_params["token"] != f"bot{TOKEN}":
            return JSONResponse({"ok": False, "error_code": 401, "description": "Unauthorized"}, 401)
        arguments = json.loads(await request.body() or b"{}")
        if request.path_params["method"] == "getUpdates":
            return JSONResponse({"ok": True, "result": await self._pending(int(arguments.get("offset", 0)))})
        if self.refusals:
            refused = self.refusals.pop(0)
            return JSONResponse(refused, refused["error_code"])
        assert len(arguments["text"].encode("utf-16-le")) // 2 <= 4_096
        self.sent.append(arguments)
        return JSONResponse(
            {"ok": True, "result": {"message_id": len(self.sent), "chat": {"id": arguments["chat_id"]}}}
        )

    async def _pending(self, offset: int) -> list[dict[str, Any]]:
        self.confirmed = max(self.confirmed, offset - 1)
        self.updates = [update for update in self.updates if update["update_id"] >= offset]
        if not self.updates:
            self.arrived.clear()
            try:
                async with asyncio.timeout(0.5):
                    await self.arrived.wait()
            except TimeoutError:
                return []
        return list(self.updates)

    @property
    def routes(self) -> list[Route]:
        return [Route("/{token}/{method}", self.call, methods=["GET", "POST"])]


@dataclass
class Callbacks:
    """Takes callbacks."""

    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    async def take(self, request: Request) -> Response:
        body = await request.body()
        status = self.statuses.pop(0) if self.statuses else 200
        if status < 300:
            self.got.append((dict(request.headers), body))
        return Response(status_code=status, headers={"location": "/elsewhere"} if 300 <= status < 400 else {})

    @property
    def routes(self) -> list[Route]:
        return [Route("/{path:path}", self.take, methods=["POST"])]


@dataclass
class Bridged:
    """A gateway with adapters."""

    url: str
    store: Store
    model: Waiting
    desk: TurnDesk


@asynccontextmanager
async def bridged(folder: Path, settings: str, model: Waiting | None = None) -> AsyncIterator[Bridged]:
    """`settings`: what stands under `gateway.adapters`."""
    answering = model or Waiting()
    config = parse_config(f"gateway: {{adapters: {settings}}}")
    async with AsyncExitStack() as stack:
        store = open_store(folder / "store.db")
        stack.push_async_callback(store.close)
        options = DeskOptions(queue=3, lease_seconds=0.6, poll_seconds=0.03, sweep_seconds=0.1)
        desk = TurnDesk(store, agent_opener(config, answering), options)
        app = NativeApp(desk)
        stack.push_async_callback(app.close)
        await app.start()
        hooks = await open_adapters(config.gateway.adapters, desk, stack)
        proxy = Proxy(Routes([Upstream("only", "http://127.0.0.1:9")]), Plain())
        gateway = Gateway(GatewayApp(proxy, native=app, hooks=hooks), patience=2.0)
        yield Bridged((await stack.enter_async_context(gateway)).url, store, answering, desk)


async def until(check: Callable[[], Any] | Callable[[], Awaitable[Any]], seconds: float = 20.0) -> None:
    """Wait for something another task does."""
    async with asyncio.timeout(seconds):
        while True:
            found = check()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.01)
