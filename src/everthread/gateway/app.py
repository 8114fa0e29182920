"""The ASGI application: choose the app for each path, and check each request before that app answers it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everthread.errors import InputError
from everthread.gateway.access.authentication import Authenticator, Caller
from everthread.gateway.api.http import make_error_response
from everthread.gateway.callers import CallerFinder
from everthread.gateway.dashboard.page_routes import Dashboard, is_page
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.monitoring.log_lines import add_request_id
from everthread.gateway.monitoring.metrics import Metrics
from everthread.gateway.monitoring.store_watch import MAX_STORE_WAIT_SECONDS, StoreWatch
from everthread.gateway.proxy import Proxy
from everthread.gateway.request.client_connection import ClientGone, limit_send_time
from everthread.gateway.request.request_head import (
    RequestHead,
    find_client_api,
    find_conversation_api,
)
from everthread.gateway.response_writer import ResponseWriter
from everthread.gateway.site_policy import (
    SitePolicy,
    add_cors,
    is_loopback,
    is_preflight,
    make_preflight_headers,
)

if TYPE_CHECKING:
    from everthread.gateway.api.threads_api import ThreadsApi


@dataclass(frozen=True, slots=True)
class RoutePolicy:
    """The app that answers a path, and the checks before it."""

    app: ASGIApp
    find_caller: Callable[[RequestHead], Awaitable[Caller]]
    """Raise `RequestRefused` for a caller who may not use this path."""
    checks_site: bool = True
    """Whether to check `Origin` and `Host`, or False if the app checks them itself."""
    checks_host: bool = True
    """Whether to check the host name, or False if the path needs a key or reveals nothing."""
    needs_store: bool = False
    shows_threads: bool = False
    """Whether its answers show threads, so that delayed records are made first."""
    is_threads_api: bool = False
    """Whether this is the threads API, whose requests are counted here and whose errors have their own form."""


FindProblem = Callable[[], Awaitable[str | None]]
"""Return why the gateway cannot serve now, or None if it can."""


class Health:
    """Answers `/healthz` (alive), `/readyz` (ready) and `/metrics`."""

    def __init__(self, metrics: Metrics, find_problem: FindProblem | None) -> None:
        self._metrics = metrics
        self._find_own_problem = find_problem
        self.is_ending = False
        """Whether the gateway is shutting down, so that it is no longer ready."""

    async def answer_alive(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _make_health_answer(None)(scope, receive, send)

    async def answer_ready(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _make_health_answer(await self._find_problem())(scope, receive, send)

    async def show_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = Response(
            self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8"
        )
        await answer(scope, receive, send)

    async def _find_problem(self) -> str | None:
        if self.is_ending:
            return "the gateway is shutting down"
        return await self._find_own_problem() if self._find_own_problem else None


def _make_health_answer(problem: str | None) -> Response:
    if problem is None:
        return Response(json.dumps({"status": "ok"}), media_type="application/json")
    return Response(
        json.dumps({"status": "unavailable", "reason": problem}),
        503,
        media_type="application/json",
    )


class GatewayApp:
    """Checks each request, and passes it to the app that answers its path.

    `__call__` makes all checks, because each further layer of middleware would slow down every proxied request.
    """

    def __init__(  # noqa: PLR0913 - the apps, each by its name
        self,
        proxy: Proxy,
        *,
        authenticator: Authenticator | None = None,
        threads_api: ThreadsApi | None = None,
        mounted_apps: Mapping[str, ASGIApp] | None = None,
        find_problem: FindProblem | None = None,
        site_policy: SitePolicy | None = None,
        store_watch: StoreWatch | None = None,
        pages: Dashboard | None = None,
        forwarded_authenticator: Authenticator | None = None,
    ) -> None:
        """Wire up the apps. `authenticator`: None if no keys exist; the gateway then listens on this machine only.

        `forwarded_authenticator`: authenticates requests that another server forwarded, if no keys exist.
        """
        callers = CallerFinder(authenticator, forwarded_authenticator)
        health = Health(proxy.metrics, find_problem)
        self.proxy = proxy
        self.pages = pages
        self._threads_api = threads_api
        self._health = health
        self._has_keys = callers.has_keys
        self._site_policy = site_policy or SitePolicy(has_keys=callers.has_keys)
        self._store_watch = store_watch
        self._route_by_path = {
            "/healthz": RoutePolicy(health.answer_alive, callers.admit_anyone, checks_host=False),
            "/readyz": RoutePolicy(health.answer_ready, callers.admit_anyone, checks_host=False),
            "/metrics": RoutePolicy(health.show_metrics, callers.authenticate),
        }
        for path, app in (mounted_apps or {}).items():
            self._route_by_path.setdefault(
                path,
                RoutePolicy(app, callers.admit_reader, needs_store=True, shows_threads=True),
            )
        self._dashboard_route: RoutePolicy | None = None
        if pages is not None:  # a link to a page may be followed from anywhere
            self._dashboard_route = RoutePolicy(
                pages, callers.admit_anyone, checks_site=False, shows_threads=True
            )
        self._threads_route: RoutePolicy | None = None
        if threads_api is not None:
            self._threads_route = RoutePolicy(
                threads_api,
                callers.admit_to_threads,
                needs_store=True,
                shows_threads=True,
                is_threads_api=True,
            )
        self._proxy_route = RoutePolicy(
            proxy, callers.admit_to_proxy, checks_host=not self._site_policy.has_keys
        )

    def check_listen_host(self, host: str) -> None:
        """Raise `InputError` for an address that others can reach, if no key is needed."""
        if not self._has_keys and not is_loopback(host):
            raise InputError(
                f"without API keys the gateway listens on this machine only, not on {host}; use 127.0.0.1, or "
                "gateway.auth: keys"
            )

    async def shut_down(self, grace_seconds: float) -> None:
        """Shut down. Turns of the threads API have `grace_seconds` to end."""
        self._health.is_ending = True
        if self.pages is not None:
            self.pages.close()
        if self._threads_api is not None:
            await self._threads_api.close(grace_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request's head, path, site and caller, then let its app answer."""
        if scope["type"] != "http":
            return
        send = add_request_id(send)
        try:
            head = RequestHead.read(scope, Caller(), max_bytes=self.proxy.limits.header_bytes)
            self._check_path(head)
        except RequestRefused as refused:
            scope = {**scope, "state": {"head": RequestHead.read_unchecked(scope, Caller())}}
            await self._refuse(self._proxy_route, scope, receive, send=send, refused=refused)
            return
        state = {**scope.get("state", {}), "head": head}
        scope = {**scope, "raw_path": head.raw_path, "path": head.path, "state": state}
        route = self._find_route(head.method, head.path)
        origin = None
        try:
            if route.checks_site:
                origin = self._site_policy.check(scope["headers"], checks_host=route.checks_host)
        except RequestRefused as refused:
            await self._refuse(route, scope, receive, send=send, refused=refused)
            return
        if origin is not None:
            send = add_cors(send, origin)
        if origin is not None and is_preflight(scope):
            await send(
                {
                    "type": "http.response.start",
                    "status": 204,
                    "headers": make_preflight_headers(scope),
                }
            )
            await send({"type": "http.response.body"})
            return
        if route.is_threads_api:
            send = self._count_answers(send)
        if route.needs_store and self._store_watch is not None:
            await self._answer_with_store(
                self._store_watch, route, scope, receive=receive, send=send
            )
        else:
            await self._answer(route, scope, receive, send=send)

    def _find_route(self, method: str, path: str) -> RoutePolicy:
        """Return the route of a path: the dashboard, the threads API, another path of the gateway, else the proxy."""
        if self._dashboard_route is not None and is_page(method, path):
            return self._dashboard_route
        if self._threads_route is not None and (path == "/api" or path.startswith("/api/")):
            return self._threads_route
        return self._route_by_path.get(path, self._proxy_route)

    def _check_path(self, head: RequestHead) -> None:
        """Raise `RequestRefused` if an upstream that decodes the path differently would understand another path."""
        if b"%" not in head.raw_path:
            return
        if self._interpret_path(head.method, head.literal_path) != self._interpret_path(
            head.method, head.path
        ):
            message = "The path means something else each time it is decoded; send it without percent-encoding."
            raise RequestRefused(400, "ambiguous_path", message)

    def _interpret_path(self, method: str, path: str) -> tuple[object, ...]:
        """Return all decisions that depend on a path, to compare two spellings of the path."""
        is_for_feature = path in self.proxy.feature_paths
        return (
            self._find_route(method, path),
            find_conversation_api(path),
            find_client_api(path, {}),
            is_for_feature,
        )

    async def _answer(
        self, route: RoutePolicy, scope: Scope, receive: Receive, *, send: Send
    ) -> None:
        """Authenticate the caller, then let the app answer."""
        head: RequestHead = scope["state"]["head"]
        try:
            caller = await route.find_caller(head)
        except RequestRefused as refused:
            await self._refuse(route, scope, receive, send=send, refused=refused)
            return
        scope["state"] |= {"head": replace(head, caller=caller), "caller": caller}
        if route.shows_threads:
            await self.proxy.flush_records()
        await route.app(scope, receive, send)

    async def _answer_with_store(
        self,
        store_watch: StoreWatch,
        route: RoutePolicy,
        scope: Scope,
        *,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a request that needs the store; refuse it within a second if the store does not answer."""
        has_begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        refusal = RequestRefused(
            503,
            "store_unavailable",
            "The store does not answer; try again in a second.",
            retry_after=1,
        )
        if await store_watch.is_unresponsive():
            await self._refuse(route, scope, receive, send=send, refused=refusal)
            return
        work = asyncio.create_task(self._answer(route, scope, receive, send=send_and_note))
        try:
            finished_tasks, _ = await asyncio.wait({work}, timeout=MAX_STORE_WAIT_SECONDS / 2)
            if not finished_tasks and await store_watch.is_unresponsive() and not has_begun:
                work.cancel()
                await asyncio.wait({work})
            if work.cancelled() and not has_begun:
                await self._refuse(route, scope, receive, send=send, refused=refusal)
            else:
                await work
        finally:
            work.cancel()

    def _count_answers(self, send: Send) -> Send:
        """Count the answers of the threads API by their status."""

        async def send_and_count(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.proxy.metrics.count("requests", api="native", status=str(message["status"]))
            await send(message)

        return send_and_count

    async def _refuse(
        self,
        route: RoutePolicy,
        scope: Scope,
        receive: Receive,
        *,
        send: Send,
        refused: RequestRefused,
    ) -> None:
        """Refuse a request in the form of the app that would have answered."""
        seconds = self.proxy.limits.write_seconds
        with contextlib.suppress(ClientGone):
            if route.is_threads_api:
                await make_error_response(refused)(scope, receive, limit_send_time(send, seconds))
            else:
                head: RequestHead = scope["state"]["head"]
                writer = ResponseWriter(send, head, self.proxy.metrics, seconds)
                await writer.refuse(refused)
                writer.log()
