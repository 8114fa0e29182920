"""The ASGI application: the list of paths, and the steps before a request is answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everthread.errors import InputError
from everthread.gateway.access.authentication import Authenticator, Caller
from everthread.gateway.access.callers import CallerFinder
from everthread.gateway.api.http import Sender, make_error_answer
from everthread.gateway.dashboard.page_routes import Dashboard, is_page
from everthread.gateway.error_answers import Refused
from everthread.gateway.middleware import (
    SitePolicy,
    add_cors,
    is_loopback,
    is_preflight,
    preflight_headers,
)
from everthread.gateway.monitoring.health import Health, Ready
from everthread.gateway.monitoring.log_lines import add_request_id
from everthread.gateway.monitoring.store_watch import STORE_SECONDS, StoreWatch
from everthread.gateway.proxy import Proxy
from everthread.gateway.request.request_head import (
    ClientGone,
    RequestHead,
    client_protocol,
    conversation_at,
)
from everthread.gateway.streaming import ResponseWriter

if TYPE_CHECKING:
    from everthread.gateway.api.threads_api import NativeApp


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """The app that answers a path, and the checks before it."""

    app: ASGIApp
    find_caller: Callable[[RequestHead], Awaitable[Caller]]
    """Raise `Refused` for a caller who may not use this path."""
    checks_site: bool = True
    """False: the app checks `Origin` and `Host` itself."""
    checks_host: bool = True
    """False: any host name will do, because the path needs a key or reveals nothing."""
    needs_store: bool = False
    shows_threads: bool = False
    """Its answers show threads, so the records that wait are made first."""
    is_native: bool = False
    """The threads API: its requests are counted here, and its errors have its own form."""


class GatewayApp:
    """Let clients in, and send each to the app that answers its path.

    All checks are made in one pass, `__call__`: every layer more would cost each proxied request.
    """

    def __init__(  # noqa: PLR0913 - the apps, each by its name
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
        forwarded: Authenticator | None = None,
    ) -> None:
        """Wire up the apps. `authenticator`: None if no keys exist; the gateway then listens on this machine only.

        `forwarded`: authenticates requests that another server forwarded, if no keys exist.
        """
        callers = CallerFinder(authenticator, forwarded)
        health = Health(proxy.metrics, ready)
        self.proxy = proxy
        self.pages = pages
        self._native = native
        self._health = health
        self._has_keys = callers.has_keys
        self._sites = sites or SitePolicy(has_keys=callers.has_keys)
        self._watch = watch
        self._paths = {
            "/healthz": RoutePolicy(
                health.answer_alive, callers.admit_anybody, checks_host=False
            ),
            "/readyz": RoutePolicy(
                health.answer_ready, callers.admit_anybody, checks_host=False
            ),
            "/metrics": RoutePolicy(health.show_metrics, callers.authenticate),
        }
        for path, app in (mounted or {}).items():
            self._paths.setdefault(
                path,
                RoutePolicy(
                    app, callers.admit_to_mounted, needs_store=True, shows_threads=True
                ),
            )
        self._dashboard: RoutePolicy | None = None
        if pages is not None:  # a link to a page may be followed from anywhere
            self._dashboard = RoutePolicy(
                pages, callers.admit_anybody, checks_site=False, shows_threads=True
            )
        self._threads: RoutePolicy | None = None
        if native is not None:
            self._threads = RoutePolicy(
                native,
                callers.admit_to_threads,
                needs_store=True,
                shows_threads=True,
                is_native=True,
            )
        self._proxied = RoutePolicy(
            proxy, callers.admit_to_proxy, checks_host=not self._sites.has_keys
        )

    def may_listen(self, host: str) -> None:
        """Raise `InputError` for an address that others can reach, if no key is needed."""
        if not self._has_keys and not is_loopback(host):
            raise InputError(
                f"without API keys the gateway listens on this machine only, not on {host}; use 127.0.0.1, or let "
                "clients show a key"
            )

    async def end(self, patience: float) -> None:
        """Shut down; turns of the threads API have `patience` seconds to end."""
        self._health.is_ending = True
        if self.pages is not None:
            self.pages.close()
        if self._native is not None:
            await self._native.close(patience)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request through all checks: its head, its path, its site, its caller. Then its app answers."""
        if scope["type"] != "http":
            return
        send = add_request_id(send)
        try:
            head = RequestHead.read(
                scope, Caller(), max_bytes=self.proxy.limits.header_bytes
            )
            self._check_path(head)
        except Refused as refused:
            await self._refuse(
                self._proxied,
                RequestHead.unchecked(scope, Caller()),
                send,
                refused=refused,
            )
            return
        state = {**scope.get("state", {}), "head": head}
        scope = {**scope, "raw_path": head.raw_path, "path": head.path, "state": state}
        route = self._find_route(head.method, head.path)
        try:
            origin = (
                self._sites.check(scope["headers"], checks_host=route.checks_host)
                if route.checks_site
                else None
            )
        except Refused as refused:
            await self._refuse(route, head, send, refused=refused)
            return
        if origin is not None:
            send = add_cors(send, origin)
        if origin is not None and is_preflight(scope):
            await send(
                {
                    "type": "http.response.start",
                    "status": 204,
                    "headers": preflight_headers(scope),
                }
            )
            await send({"type": "http.response.body"})
            return
        if route.is_native:
            send = self._count_answers(send)
        if route.needs_store and self._watch is not None:
            await self._answer_with_store(
                self._watch, route, scope, receive=receive, send=send
            )
        else:
            await self._answer(route, scope, receive, send=send)

    def _find_route(self, method: str, path: str) -> RoutePolicy:
        """Return who answers a path: a page, the threads API, a path of our own, and else the proxy."""
        if self._dashboard is not None and is_page(method, path):
            return self._dashboard
        if self._threads is not None and (path == "/api" or path.startswith("/api/")):
            return self._threads
        return self._paths.get(path, self._proxied)

    def _check_path(self, head: RequestHead) -> None:
        """Raise `Refused` if a path means one thing here and another to an upstream that decodes it otherwise."""
        if b"%" not in head.raw_path:
            return
        if self._interpret_path(head.method, head.literal_path) != self._interpret_path(
            head.method, head.path
        ):
            words = "The path means something else each time it is decoded; send it without percent-encoding."
            raise Refused(400, "ambiguous_path", words)

    def _interpret_path(self, method: str, path: str) -> tuple[object, ...]:
        """Return every decision that depends on a path, to compare two spellings of it."""
        is_for_feature = path in self.proxy.feature_paths
        return (
            self._find_route(method, path),
            conversation_at(path),
            client_protocol(path, {}),
            is_for_feature,
        )

    async def _answer(
        self, route: RoutePolicy, scope: Scope, receive: Receive, *, send: Send
    ) -> None:
        """Find out who calls, and have the app answer."""
        head: RequestHead = scope["state"]["head"]
        try:
            caller = await route.find_caller(head)
        except Refused as refused:
            await self._refuse(route, head, send, refused=refused)
            return
        scope["state"] |= {"head": replace(head, caller=caller), "caller": caller}
        if route.shows_threads:
            await self.proxy.finish_records()
        await route.app(scope, receive, send)

    async def _answer_with_store(
        self,
        watch: StoreWatch,
        route: RoutePolicy,
        scope: Scope,
        *,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a request that needs the store. If the store is away, say so within a second."""
        has_begun = False

        async def note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        head = scope["state"]["head"]
        refusal = Refused(
            503,
            "store_unavailable",
            "The store does not answer; try again in a second.",
            retry_after=1,
        )
        if await watch.is_away():
            await self._refuse(route, head, send, refused=refusal)
            return
        work = asyncio.create_task(self._answer(route, scope, receive, send=note))
        try:
            finished_tasks, _ = await asyncio.wait({work}, timeout=STORE_SECONDS / 2)
            if not finished_tasks and await watch.is_away() and not has_begun:
                work.cancel()
                await asyncio.wait({work})
            if work.cancelled() and not has_begun:
                await self._refuse(route, head, send, refused=refusal)
            else:
                await work
        finally:
            work.cancel()

    def _count_answers(self, send: Send) -> Send:
        """Count the answers of the threads API by their status."""

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.proxy.metrics.count(
                    "requests", api="native", status=str(message["status"])
                )
            await send(message)

        return count

    async def _refuse(
        self, route: RoutePolicy, head: RequestHead, send: Send, *, refused: Refused
    ) -> None:
        """Refuse a request in the form of the app that would have answered."""
        seconds = self.proxy.limits.write_seconds
        with contextlib.suppress(ClientGone):
            if route.is_native:
                await Sender(send, seconds).answer(make_error_answer(refused))
            else:
                writer = ResponseWriter(send, head, self.proxy.metrics, seconds)
                await writer.refuse(refused)
                writer.log()
