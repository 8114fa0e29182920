"""The ASGI application: our own pages, the threads API, and everything else to the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Match, Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everthread.errors import InputError
from everthread.gateway.api.http import Sender, error_answer
from everthread.gateway.auth import Authenticator, Caller, OpenAuthenticator
from everthread.gateway.dashboard.app import Dashboard, is_page
from everthread.gateway.errors import Refused
from everthread.gateway.middleware import PathMiddleware, RequestIdMiddleware, SiteMiddleware, SitePolicy, is_loopback
from everthread.gateway.observability import STORE_SECONDS, Metrics, StoreWatch
from everthread.gateway.proxy import Proxy
from everthread.gateway.requests import ClientGone, RequestHead, header_map
from everthread.gateway.streaming import ResponseWriter

__all__ = ["Authenticator", "Caller", "GatewayApp", "OpenAuthenticator", "Refused"]

Ready = Callable[[], Awaitable[str | None]]
"""Why it cannot serve now; None when it can."""
Refuse = Callable[[Scope, Send, Refused], Awaitable[None]]
"""Answers a request that is not let in."""


class HealthApp:
    """Answers `/healthz`, `/readyz` and `/metrics`."""

    def __init__(self, metrics: Metrics, ready: Ready | None = None) -> None:
        self._metrics = metrics
        self._ready = ready
        self.ending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        path = scope["path"]
        if path == "/metrics":
            await _page(send, 200, self._metrics.text().encode(), b"text/plain; version=0.0.4; charset=utf-8")
            return
        trouble = await self._find_trouble() if path == "/readyz" else None
        body = {"status": "ok"} if trouble is None else {"status": "unavailable", "reason": trouble}
        await _page(send, 200 if trouble is None else 503, json.dumps(body).encode(), b"application/json")

    async def _find_trouble(self) -> str | None:
        if self.ending:
            return "the gateway is shutting down"
        return await self._ready() if self._ready else None


async def _page(send: Send, status: int, body: bytes, kind: bytes) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class ThreadsApi(Protocol):
    """The application under `/api`; who calls is in the request's state."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...
    async def close(self, patience: float = 0.0) -> None: ...


class PathRoute(BaseRoute):
    """A route for every request that a test accepts; path and root stay as they came."""

    def __init__(self, accepts: Callable[[Scope], bool], app: ASGIApp) -> None:
        self._accepts = accepts
        self._app = app

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if self._accepts(scope) else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)


class CallerMiddleware:
    """Finds out who calls, and puts it into the request's state."""

    def __init__(self, app: ASGIApp, find_caller: Callable[[Scope], Awaitable[Caller]], refuse: Refuse) -> None:
        self._app = app
        self._find_caller = find_caller
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            caller = await self._find_caller(scope)
        except Refused as refused:
            await self._refuse(scope, send, refused)
            return
        await self._app({**scope, "state": {**scope.get("state", {}), "caller": caller}}, receive, send)


class CountMiddleware:
    """Counts the answers of the threads API by their status."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.count("requests", api="native", status=str(message["status"]))
            await send(message)

        await self._app(scope, receive, count)


class StoreMiddleware:
    """Answers within a second that the store is away, for what needs the store and has not begun to answer."""

    def __init__(self, app: ASGIApp, watch: StoreWatch | None, refuse: Refuse) -> None:
        self._app = app
        self._watch = watch
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._watch is None:
            await self._app(scope, receive, send)
            return
        is_begun = False

        async def note(message: Message) -> None:
            nonlocal is_begun
            is_begun = True
            await send(message)

        async def answer() -> None:
            await self._app(scope, receive, note)

        if await self._watch.is_away():
            await self._refuse(scope, send, _store_away_error())
            return
        work = asyncio.ensure_future(answer())
        try:
            done, _ = await asyncio.wait({work}, timeout=STORE_SECONDS / 2)
            if not done and await self._watch.is_away() and not is_begun:
                work.cancel()
                await asyncio.wait({work})
            if work.cancelled() and not is_begun:
                await self._refuse(scope, send, _store_away_error())
            else:
                await work
        finally:
            work.cancel()


def _store_away_error() -> Refused:
    return Refused(503, "store_unavailable", "The store does not answer; try again in a second.", retry_after=1)


class GatewayApp:
    """Lets clients in, and sends each to who answers it. `authenticator` None: no keys, this machine only."""

    def __init__(  # noqa: PLR0913 - who answers what, each by its name
        self,
        proxy: Proxy,
        *,
        authenticator: Authenticator | None = None,
        native: ThreadsApi | None = None,
        mounted: Mapping[str, ASGIApp] | None = None,
        ready: Ready | None = None,
        sites: SitePolicy | None = None,
        watch: StoreWatch | None = None,
        pages: Dashboard | None = None,
    ) -> None:
        self.proxy = proxy
        self.health = HealthApp(proxy.metrics, ready)
        self.has_keys = authenticator is not None
        self._authenticator: Authenticator = authenticator or OpenAuthenticator()
        self._watch = watch
        self.pages = pages
        """For people, at `/`; they let in whom they know themselves."""
        self._native = native
        self._router = self._routes(sites or SitePolicy(has_keys=self.has_keys), mounted or {})

    def _routes(self, sites: SitePolicy, mounted: Mapping[str, ASGIApp]) -> Router:
        """Each path with its checks, the outermost first; what no route takes is the proxy's.

        The pages check Host and Origin themselves: a link to them may be followed from anywhere.
        """

        def site(refuse: Refuse = self._refuse, *, checks_host: bool = True) -> Middleware:
            return Middleware(SiteMiddleware, sites=sites, refuse=refuse, checks_host=checks_host)

        def caller(find: Callable[[Scope], Awaitable[Caller]], refuse: Refuse = self._refuse) -> Middleware:
            return Middleware(CallerMiddleware, find_caller=find, refuse=refuse)

        def stored(refuse: Refuse = self._refuse) -> Middleware:
            return Middleware(StoreMiddleware, watch=self._watch, refuse=refuse)

        routes: list[BaseRoute] = []
        if self.pages is not None:
            routes.append(PathRoute(lambda scope: is_page(scope["method"], scope["path"]), self.pages))
        if self._native is not None:
            checks = [
                site(self._refuse_native),
                Middleware(CountMiddleware, metrics=self.proxy.metrics),
                stored(self._refuse_native),
                caller(self._native_caller, self._refuse_native),
            ]
            routes.append(PathRoute(_is_native, _wrap_app(self._native, checks)))
        alive = _wrap_app(self.health, [site(checks_host=False)])
        routes += [Route("/healthz", alive), Route("/readyz", alive)]
        checks = [site(), stored(), caller(self._mounted_caller)]
        routes += [Route(path, _wrap_app(app, checks)) for path, app in mounted.items()]
        routes.append(Route("/metrics", _wrap_app(self.health, [site(), caller(self._caller)])))
        proxied = _wrap_app(self.proxy, [site(checks_host=not sites.has_keys), caller(self._proxy_caller)])
        outermost = [Middleware(RequestIdMiddleware), Middleware(PathMiddleware)]
        return Router(routes, redirect_slashes=False, default=proxied, middleware=outermost)

    def may_listen(self, host: str) -> None:
        """`InputError` for an address that others reach, while nobody needs a key."""
        if not self.has_keys and not is_loopback(host):
            raise InputError(
                f"without API keys the gateway listens on this machine only, not on {host}; use 127.0.0.1, or let "
                "clients show a key"
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._router(scope, receive, send)

    async def end(self, patience: float) -> None:
        """Turns of the native API have this long to end."""
        self.health.ending = True
        if self.pages is not None:
            self.pages.close()
        if self._native is not None:
            await self._native.close(patience)

    # Refusals, in the words of who would have answered

    async def _refuse(self, scope: Scope, send: Send, refused: Refused) -> None:
        call = RequestHead.of(scope, Caller())
        with contextlib.suppress(ClientGone):
            await ResponseWriter(send, call, self.proxy.metrics, self.proxy.limits.write_seconds).refuse(refused)

    async def _refuse_native(self, _scope: Scope, send: Send, refused: Refused) -> None:
        with contextlib.suppress(ClientGone):
            await Sender(send, self.proxy.limits.write_seconds).answer(error_answer(refused))

    # Who calls, and whether that is enough for the path

    async def _caller(self, scope: Scope) -> Caller:
        headers = header_map(scope)
        size = sum(len(name) + len(value) for name, value in headers.items())
        if size > self.proxy.limits.header_bytes:
            raise Refused(
                431, "headers_too_large", f"The request's headers have {size:,} bytes, more than allowed here."
            )
        return await self._authenticator.authenticate(headers)

    async def _native_caller(self, scope: Scope) -> Caller:
        caller = await self._caller(scope)
        if self.has_keys and "threads" not in caller.scopes:
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


def _is_native(scope: Scope) -> bool:
    path: str = scope["path"]
    return path == "/api" or path.startswith("/api/")


def _wrap_app(app: ASGIApp, middleware: list[Middleware]) -> ASGIApp:
    for cls, args, kwargs in reversed(middleware):
        app = cls(app, *args, **kwargs)
    return app
