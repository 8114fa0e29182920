"""The ASGI application: our own pages, the threads API, and everything else to the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everthread.errors import InputError
from everthread.gateway.api.http import Sender, error_answer
from everthread.gateway.auth import Authenticator, Caller, OpenAuthenticator
from everthread.gateway.base import CREDENTIAL_HEADERS
from everthread.gateway.dashboard.app import Dashboard, is_page
from everthread.gateway.errors import Refused
from everthread.gateway.middleware import SitePolicy, add_cors, is_loopback, is_preflight, preflight_headers
from everthread.gateway.observability import STORE_SECONDS, StoreWatch, add_request_id
from everthread.gateway.proxy import Proxy
from everthread.gateway.requests import ClientGone, RequestHead
from everthread.gateway.router import normalize_path
from everthread.gateway.streaming import ResponseWriter

if TYPE_CHECKING:
    from everthread.gateway.api.app import NativeApp

Ready = Callable[[], Awaitable[str | None]]
"""Why it cannot serve now; None when it can."""


@dataclass(frozen=True, slots=True)
class Entrance:
    """Who answers a path, and what a request passes before it gets there."""

    app: ASGIApp
    find_caller: Callable[[Scope], Awaitable[Caller]]
    """`Refused` for who may not use this path."""
    checks_host: bool = True
    """False: any name will do, for the path needs a key or tells nothing."""
    needs_store: bool = False
    is_native: bool = False
    """The threads API: its requests are counted here, and its errors have its own form."""


class GatewayApp:
    """Lets clients in, and sends each to who answers it. `authenticator` None: no keys, this machine only.

    Everything is decided in one place and one pass: each layer more would cost every proxied request.
    """

    def __init__(  # noqa: PLR0913 - who answers what, each by its name
        self,
        proxy: Proxy,
        *,
        authenticator: Authenticator | None = None,
        native: NativeApp | None = None,
        mounted: Mapping[str, ASGIApp] | None = None,
        ready: Ready | None = None,
        sites: SitePolicy | None = None,
        watch: StoreWatch | None = None,
        pages: Dashboard | None = None,
    ) -> None:
        self.proxy = proxy
        self.pages = pages
        """For people, at `/`; they let in whom they know themselves."""
        self._has_keys = authenticator is not None
        self._authenticator: Authenticator = authenticator or OpenAuthenticator()
        self._native = native
        self._ready = ready
        self._sites = sites or SitePolicy(has_keys=self._has_keys)
        self._watch = watch
        self._is_ending = False
        alive = Entrance(self._answer_health, self._anybody, checks_host=False)
        self._entrances = {path: Entrance(app, self._mounted_caller, needs_store=True)
                           for path, app in (mounted or {}).items()}  # fmt: skip
        self._entrances |= {"/healthz": alive, "/readyz": alive, "/metrics": Entrance(self._show_metrics, self._caller)}
        self._proxied = Entrance(proxy, self._proxy_caller, checks_host=not self._sites.has_keys)
        self._threads: Entrance | None = None
        if native is not None:
            self._threads = Entrance(native, self._native_caller, needs_store=True, is_native=True)

    def may_listen(self, host: str) -> None:
        """`InputError` for an address that others reach, while nobody needs a key."""
        if not self._has_keys and not is_loopback(host):
            raise InputError(
                f"without API keys the gateway listens on this machine only, not on {host}; use 127.0.0.1, or let "
                "clients show a key"
            )

    async def end(self, patience: float) -> None:
        """Turns of the native API have this long to end."""
        self._is_ending = True
        if self.pages is not None:
            self.pages.close()
        if self._native is not None:
            await self._native.close(patience)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        send = add_request_id(send)
        raw = normalize_path(scope["raw_path"])  # before anything is decided by it
        if raw != scope["raw_path"]:
            scope = {**scope, "raw_path": raw, "path": unquote(raw.decode("ascii"))}
        path: str = scope["path"]
        if self.pages is not None and is_page(scope["method"], path):
            # They check Host and Origin themselves: a link to them may be followed from anywhere.
            await self.pages(scope, receive, send)
            return
        if self._threads is not None and (path == "/api" or path.startswith("/api/")):
            entrance = self._threads
        else:
            entrance = self._entrances.get(path, self._proxied)
        try:
            origin = self._sites.check(scope["headers"], checks_host=entrance.checks_host)
        except Refused as refused:
            await self._refuse(entrance, scope, send, refused)
            return
        if origin is not None:
            send = add_cors(send, origin)
            if is_preflight(scope):
                await send({"type": "http.response.start", "status": 204, "headers": preflight_headers(scope)})
                await send({"type": "http.response.body"})
                return
        if entrance.is_native:
            send = self._count(send)
        if entrance.needs_store and self._watch is not None:
            await self._answer_with_store(self._watch, entrance, scope, receive, send)
        else:
            await self._answer(entrance, scope, receive, send)

    async def _answer(self, entrance: Entrance, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            caller = await entrance.find_caller(scope)
        except Refused as refused:
            await self._refuse(entrance, scope, send, refused)
            return
        scope.setdefault("state", {})["caller"] = caller
        await entrance.app(scope, receive, send)

    async def _answer_with_store(
        self, watch: StoreWatch, entrance: Entrance, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """The same for what needs the store: an answer that has not begun says within a second that it is away."""
        is_begun = False

        async def note(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        away = Refused(503, "store_unavailable", "The store does not answer; try again in a second.", retry_after=1)
        if await watch.is_away():
            await self._refuse(entrance, scope, send, away)
            return
        work = asyncio.create_task(self._answer(entrance, scope, receive, note))
        try:
            done, _ = await asyncio.wait({work}, timeout=STORE_SECONDS / 2)
            if not done and await watch.is_away() and not is_begun:
                work.cancel()
                await asyncio.wait({work})
            if work.cancelled() and not is_begun:
                await self._refuse(entrance, scope, send, away)
            else:
                await work
        finally:
            work.cancel()

    def _count(self, send: Send) -> Send:
        """Count the answers of the threads API by their status."""

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.proxy.metrics.count("requests", api="native", status=str(message["status"]))
            await send(message)

        return count

    async def _refuse(self, entrance: Entrance, scope: Scope, send: Send, refused: Refused) -> None:
        """In the words of who would have answered."""
        seconds = self.proxy.limits.write_seconds
        with contextlib.suppress(ClientGone):
            if entrance.is_native:
                await Sender(send, seconds).answer(error_answer(refused))
            else:
                await ResponseWriter(send, RequestHead.of(scope, Caller()), self.proxy.metrics, seconds).refuse(refused)

    # Who calls, and whether that is enough for the path

    async def _anybody(self, _scope: Scope) -> Caller:
        return Caller()

    async def _caller(self, scope: Scope) -> Caller:
        headers = scope["headers"]
        size = sum([len(name) + len(value) for name, value in headers])
        if size > self.proxy.limits.header_bytes:
            raise Refused(
                431, "headers_too_large", f"The request's headers have {size:,} bytes, more than allowed here."
            )
        credentials = {
            field: value.decode("latin-1")
            for name, value in headers
            if (field := name.decode("latin-1")) in CREDENTIAL_HEADERS
        }
        return await self._authenticator.authenticate(credentials)

    async def _native_caller(self, scope: Scope) -> Caller:
        caller = await self._caller(scope)
        if self._has_keys and "threads" not in caller.scopes:
            raise Refused(403, "missing_scope", "Conversations need a key with the scope `threads`.")
        return caller

    async def _mounted_caller(self, scope: Scope) -> Caller:
        caller = await self._caller(scope)
        if caller.key_id is not None and not caller.passthrough and "threads" not in caller.scopes:
            raise Refused(403, "missing_scope", "Reading conversations needs a key with the scope `threads`.")
        caller.admit()
        return caller

    async def _proxy_caller(self, scope: Scope) -> Caller:
        caller = await self._caller(scope)
        if caller.key_id is not None and "proxy" not in caller.scopes:
            raise Refused(403, "missing_scope", "This key may not use the proxy; it lacks the scope `proxy`.")
        return caller

    # How the gateway is

    async def _answer_health(self, scope: Scope, receive: Receive, send: Send) -> None:
        trouble = await self._find_trouble() if scope["path"] == "/readyz" else None
        body = {"status": "ok"} if trouble is None else {"status": "unavailable", "reason": trouble}
        answer = Response(json.dumps(body), 200 if trouble is None else 503, media_type="application/json")
        await answer(scope, receive, send)

    async def _find_trouble(self) -> str | None:
        if self._is_ending:
            return "the gateway is shutting down"
        return await self._ready() if self._ready else None

    async def _show_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = Response(self.proxy.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
        await answer(scope, receive, send)
