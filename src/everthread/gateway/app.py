"""The ASGI application: our own pages, the threads API, and everything else to the proxy."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everthread.errors import InputError
from everthread.gateway.api.requests import Sender, error_answer
from everthread.gateway.auth import Anybody, Authenticator, Caller
from everthread.gateway.dashboard.app import Dashboard, is_page
from everthread.gateway.errors import Refused
from everthread.gateway.middleware import SitePolicy, is_loopback, is_preflight, preflight_headers, with_cors
from everthread.gateway.observability import Metrics, StoreWatch, identified
from everthread.gateway.proxy import Proxy
from everthread.gateway.requests import ClientGone, RequestHead, header_map
from everthread.gateway.router import normalize_path
from everthread.gateway.streaming import ResponseWriter

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


__all__ = ["Anybody", "Authenticator", "Caller", "GatewayApp", "Refused"]

_NATIVE = "/api"
_HEALTH = ("/healthz", "/readyz")


class Native(Protocol):
    """The application under `/api`; who calls is in the request's state."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...
    async def close(self, patience: float = 0.0) -> None: ...


class GatewayApp:
    """Lets clients in, and sends each to who answers it. `authenticator` None: no keys, this machine only."""

    def __init__(  # noqa: PLR0913 - who answers what, each by its name
        self,
        proxy: Proxy,
        *,
        authenticator: Authenticator | None = None,
        native: Native | None = None,
        mounted: Mapping[str, ASGIApp] | None = None,
        ready: Ready | None = None,
        sites: SitePolicy | None = None,
        watch: StoreWatch | None = None,
        pages: Dashboard | None = None,
    ) -> None:
        self.proxy = proxy
        self.health = Health(proxy.metrics, ready)
        self.has_keys = authenticator is not None
        self._authenticator: Authenticator = authenticator or Anybody()
        self._watch = watch
        self._sites = sites or SitePolicy(has_keys=self.has_keys)
        self.pages = pages
        """For people, at `/`; they let in whom they know themselves."""
        self._native = native
        self._mounted = mounted or {}
        """By path, for callers that were let in; who it is stands in the state of the request."""

    def may_listen(self, host: str) -> None:
        """`InputError` for an address that others reach, while nobody needs a key."""
        if not self.has_keys and not is_loopback(host):
            raise InputError(
                f"without API keys the gateway listens on this machine only, not on {host}; use 127.0.0.1, or let "
                "clients show a key"
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        send = identified(send)
        raw = normalize_path(scope["raw_path"])
        if raw != scope["raw_path"]:
            scope = {**scope, "raw_path": raw, "path": unquote(raw.decode("ascii"))}
        try:
            origin = self._check_site(scope)
        except Refused as refused:
            await self._refuse(scope, send, refused)
            return
        send = with_cors(send, origin)
        if origin is not None and is_preflight(scope):
            await send({"type": "http.response.start", "status": 204, "headers": preflight_headers(scope)})
            await send({"type": "http.response.body"})
            return
        await self._dispatch(scope, receive, send)

    def _check_site(self, scope: Scope) -> str | None:
        """The listed origin of a page that calls. `Refused` for another page, another name, another protocol."""
        path, headers = scope["path"], scope["headers"]
        if self._is_page(scope):
            return None  # they check that themselves: a link may be followed from anywhere
        origin = self._sites.check_origin(headers)
        is_proxied = not (self._is_native(path) or path in self._mounted or path == "/metrics")
        if path not in _HEALTH and not (self._sites.has_keys and is_proxied):
            self._sites.check_host(headers)
        if any(name == b"upgrade" and value.strip().lower() == b"websocket" for name, value in headers):
            raise Refused(426, "no_websocket", "WebSockets are not served here; send the request over HTTP.")
        return origin

    def _is_page(self, scope: Scope) -> bool:
        return self.pages is not None and is_page(scope["method"], scope["path"])

    def _is_native(self, path: str) -> bool:
        return self._native is not None and (path == _NATIVE or path.startswith(f"{_NATIVE}/"))

    async def _refuse(self, scope: Scope, send: Send, refused: Refused) -> None:
        with contextlib.suppress(ClientGone):
            if self._is_native(scope["path"]):
                await Sender(send, self.proxy.limits.write_seconds).answer(error_answer(refused))
            else:
                call = RequestHead.of(scope, Caller())
                await ResponseWriter(send, call, self.proxy.metrics, self.proxy.limits.write_seconds).refuse(refused)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if self.pages is not None and self._is_page(scope):
            await self.pages(scope, receive, send)
            return
        if self._native is not None and self._is_native(path):
            await self._to_native(self._native, scope, receive, send)
            return
        if path in _HEALTH:
            await self.health.answer(path, send)
            return
        try:
            caller = await self._caller(path, header_map(scope))
        except Refused as refused:
            await self._refuse(scope, send, refused)
            return
        if path in self._mounted:
            scope["state"] = {**scope.get("state", {}), "caller": caller}
            await self._mounted[path](scope, receive, send)
        elif path == "/metrics":
            await self.health.answer(path, send)
        else:
            await self.proxy.handle(scope, receive, send, caller)

    async def end(self, patience: float) -> None:
        """Turns of the native API have this long to end."""
        self.health.ending = True
        if self.pages is not None:
            self.pages.close()
        if self._native is not None:
            await self._native.close(patience)

    async def _to_native(self, native: Native, scope: Scope, receive: Receive, sending: Send) -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.proxy.metrics.count("requests", api="native", status=str(message["status"]))
            await sending(message)

        try:
            caller = await self._caller(scope["path"], header_map(scope))
        except Refused as refused:
            await self._refuse(scope, send, refused)
            return
        await native({**scope, "state": {**scope.get("state", {}), "caller": caller}}, receive, send)

    async def _caller(self, path: str, headers: Mapping[str, str]) -> Caller:
        """Who it is."""
        if (self._is_native(path) or path in self._mounted) and self._watch is not None and await self._watch.is_away():
            raise Refused(503, "store_unavailable", "The store does not answer; try again in a second.", retry_after=1)
        size = sum(len(name) + len(value) for name, value in headers.items())
        if size > self.proxy.limits.header_bytes:
            raise Refused(
                431, "headers_too_large", f"The request's headers have {size:,} bytes, more than allowed here."
            )
        caller = await self._authenticator.authenticate(headers)
        if path == _NATIVE or path.startswith(f"{_NATIVE}/"):
            if self.has_keys and "threads" not in caller.scopes:
                raise Refused(403, "missing_scope", "Conversations need a key with the scope `threads`.")
            return caller
        if path in self._mounted:
            if caller.key_id is not None and not caller.passthrough and "threads" not in caller.scopes:
                raise Refused(403, "missing_scope", "Reading conversations needs a key with the scope `threads`.")
            caller.admit()
            return caller
        if caller.key_id is not None and "proxy" not in caller.scopes and path != "/metrics":
            raise Refused(403, "missing_scope", "This key may not use the proxy; it lacks the scope `proxy`.")
        return caller
