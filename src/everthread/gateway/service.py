"""The application: our own pages, the native API, and everything else to the proxy."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Mapping
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everthread.errors import InputError
from everthread.gateway.access import Anybody, Authenticator, Caller, Refused
from everthread.gateway.health import Health, Ready
from everthread.gateway.incoming import Call, ClientGone, header_map
from everthread.gateway.logs import identified
from everthread.gateway.native.replies import Sender, error_answer
from everthread.gateway.proxy import Proxy
from everthread.gateway.writing import Writer

__all__ = ["Anybody", "Authenticator", "Caller", "Refused", "Service"]

_NATIVE = "/api"


class Native(Protocol):
    """The application under `/api`; who calls is in the request's state."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...
    async def close(self, patience: float = 0.0) -> None: ...


class Service:
    """Lets clients in, and sends each to who answers it. `authenticator` None: no keys, this machine only."""

    def __init__(  # noqa: PLR0913 - who answers what, each by its name
        self,
        proxy: Proxy,
        *,
        authenticator: Authenticator | None = None,
        native: Native | None = None,
        mounted: Mapping[str, ASGIApp] | None = None,
        hooks: Mapping[str, ASGIApp] | None = None,
        ready: Ready | None = None,
    ) -> None:
        self.proxy = proxy
        self.health = Health(proxy.metrics, ready)
        self.has_keys = authenticator is not None
        self._authenticator: Authenticator = authenticator or Anybody()
        self._native = native
        self._mounted = mounted or {}
        """By path, for callers that were let in; who it is stands in the state of the request."""
        self._hooks = hooks or {}
        """By path, for who shows a signature of its own instead of a key."""

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
        path = scope["path"]
        if self._native is not None and (path == _NATIVE or path.startswith(f"{_NATIVE}/")):
            await self._to_native(self._native, scope, receive, send)
            return
        if path in self._hooks:
            await self._hooks[path](scope, receive, send)
            return
        if path in ("/healthz", "/readyz"):
            await self.health.answer(path, send)
            return
        try:
            caller = await self._caller(path, header_map(scope))
        except Refused as refused:
            call = Call.of(scope, Caller())
            with contextlib.suppress(ClientGone):
                await Writer(send, call, self.proxy.metrics, self.proxy.limits.write_seconds).refuse(refused)
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
            with contextlib.suppress(ClientGone):
                await Sender(send, self.proxy.limits.write_seconds).answer(error_answer(refused))
            return
        await native({**scope, "state": {**scope.get("state", {}), "caller": caller}}, receive, send)

    async def _caller(self, path: str, headers: Mapping[str, str]) -> Caller:
        """Who it is. Without keys the address must be meant: a page in a browser can name any host that
        leads to this machine."""
        size = sum(len(name) + len(value) for name, value in headers.items())
        if size > self.proxy.limits.header_bytes:
            raise Refused(
                431, "headers_too_large", f"The request's headers have {size:,} bytes, more than allowed here."
            )
        if not self.has_keys and not is_loopback(_host(headers.get("host", ""))):
            raise Refused(403, "unknown_host", "Without API keys the gateway answers under a loopback address only.")
        caller = await self._authenticator.authenticate(headers)
        if path == _NATIVE or path.startswith(f"{_NATIVE}/"):
            if self.has_keys and "threads" not in caller.scopes:
                raise Refused(403, "missing_scope", "Conversations need a key with the scope `threads`.")
            return caller
        if caller.key_id is not None and "proxy" not in caller.scopes and path != "/metrics":
            raise Refused(403, "missing_scope", "This key may not use the proxy; it lacks the scope `proxy`.")
        return caller


def _host(header: str) -> str:
    name, _, port = header.rpartition(":")
    return (name if name and port.isdecimal() else header).strip("[]")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
