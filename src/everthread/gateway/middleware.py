"""What stands before every request: its name, its path, which web pages may call, and how many at once."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everthread.gateway.errors import Refused
from everthread.gateway.observability import add_request_id, printable
from everthread.gateway.router import normalize_path

Headers = list[tuple[bytes, bytes]]

_FETCH_SITES = frozenset({"same-origin", "none"})
"""What `Sec-Fetch-Site` says of a request that no other site's page made."""
_PREFLIGHT_SECONDS = b"600"


@dataclass(frozen=True, slots=True)
class SitePolicy:
    """Guards against web pages: their requests carry the browser's reach to this machine, not the user's will."""

    allowed_origins: tuple[str, ...] = ()
    """Origins whose pages may call, such as `https://app.example`; `null`; `chrome-extension://*` for any of a scheme
    that is not of the web."""
    allowed_hosts: tuple[str, ...] = ()
    """Names the gateway answers under, besides `localhost` and addresses."""
    has_keys: bool = False
    """Clients show a key of ours, which no page has: on the proxy's paths the name does not matter then."""

    def check_host(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """`Refused` for a name that anybody could have pointed at this machine (DNS rebinding)."""
        hosts = _values(headers, b"host")
        if len(hosts) != 1 or not self._is_own_host(hosts[0]):
            named = ", ".join(hosts) or "no host"
            words = (
                f"The gateway does not answer under {printable(named[:200])}; list the name in gateway.allowed_hosts."
            )
            raise Refused(403, "unknown_host", words)

    def check_origin(self, headers: Sequence[tuple[bytes, bytes]]) -> str | None:
        """The listed origin that the request comes from; None: from no other site's page. Else `Refused`."""
        origins = _values(headers, b"origin")
        foreign = [origin for origin in origins if not _is_same_origin(origin, _values(headers, b"host"))]
        if len(origins) == 1 and foreign and self._is_allowed(foreign[0]):
            return foreign[0]
        sites = _values(headers, b"sec-fetch-site")
        if not foreign and all(site.lower() in _FETCH_SITES for site in sites):
            return None
        page = f"The page {printable(', '.join(foreign)[:200])}" if foreign else "Another site's page"
        raise Refused(
            403, "foreign_origin", f"{page} may not use this gateway; list its origin in gateway.allowed_origins."
        )

    def _is_own_host(self, header: str) -> bool:
        name, _, port = header.rpartition(":")
        host = (name if name and port.isdecimal() else header).strip("[]").lower()
        return host == "localhost" or host in map(str.lower, self.allowed_hosts) or _is_address(host)

    def _is_allowed(self, origin: str) -> bool:
        scheme, separator, _ = origin.partition("://")
        return any(
            origin == allowed or (separator and allowed == f"{scheme}://*" and scheme not in ("http", "https"))
            for allowed in self.allowed_origins
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_preflight(scope: Scope) -> bool:
    """Whether a browser asks what a page may send (CORS)."""
    return scope["method"] == "OPTIONS" and bool(_values(scope["headers"], b"access-control-request-method"))


def preflight_headers(scope: Scope) -> Headers:
    """The answer to it for a listed origin: every method, and the headers it asks for."""
    answer = [(b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"), (b"content-length", b"0"),
              (b"access-control-max-age", _PREFLIGHT_SECONDS)]  # fmt: skip
    for name, value in scope["headers"]:
        if name == b"access-control-request-headers":
            answer.append((b"access-control-allow-headers", value))
        elif name == b"access-control-request-private-network":
            answer.append((b"access-control-allow-private-network", b"true"))
    return answer


def _cors_headers(origin: str) -> Headers:
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"*"),
        (b"vary", b"origin"),
    ]


def _is_same_origin(origin: str, hosts: Sequence[str]) -> bool:
    """Whether it is the gateway's own page; TLS may end before the gateway, so that its scheme is not known here."""
    return len(hosts) == 1 and origin.lower() in (f"http://{hosts[0].lower()}", f"https://{hosts[0].lower()}")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _values(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for name, value in headers if name == wanted]


class RequestIdMiddleware:
    """Gives every request a name, which its answer and its log lines carry."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, add_request_id(send))


class PathMiddleware:
    """Makes one path of all its spellings, before anything is decided by it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw = normalize_path(scope["raw_path"])
        if raw != scope["raw_path"]:
            scope = {**scope, "raw_path": raw, "path": unquote(raw.decode("ascii"))}
        await self._app(scope, receive, send)


class SiteMiddleware:
    """Keeps out foreign pages, foreign names and WebSockets; answers CORS preflights of the listed origins.

    `checks_host` False: any name will do, for the path needs a key or tells nothing.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        sites: SitePolicy,
        refuse: Callable[[Scope, Send, Refused], Awaitable[None]],
        checks_host: bool = True,
    ) -> None:
        self._app = app
        self._sites = sites
        self._refuse = refuse
        self._checks_host = checks_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            origin = self._check(scope["headers"])
        except Refused as refused:
            await self._refuse(scope, send, refused)
            return
        if origin is None:
            await self._app(scope, receive, send)
            return
        ours = _cors_headers(origin)

        async def send_with_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", []), *ours]}
            await send(message)

        if is_preflight(scope):
            await send_with_cors({"type": "http.response.start", "status": 204, "headers": preflight_headers(scope)})
            await send_with_cors({"type": "http.response.body"})
            return
        await self._app(scope, receive, send_with_cors)

    def _check(self, headers: Headers) -> str | None:
        """The listed origin of a page that calls."""
        origin = self._sites.check_origin(headers)
        if self._checks_host:
            self._sites.check_host(headers)
        if any(name == b"upgrade" and value.strip().lower() == b"websocket" for name, value in headers):
            raise Refused(426, "no_websocket", "WebSockets are not served here; send the request over HTTP.")
        return origin


class Admission:
    """Counts who is inside, or the bytes they hold. Nobody waits in line: a client is told when to come again.

    One key has at most half of the places, so that none can take all of them from the others.
    """

    def __init__(self, most: int, what: str = "requests") -> None:
        self._most = most
        self._what = what
        self._share = max(1, most // 2)
        self._by_key: Counter[str] = Counter()
        self.inside = 0

    @contextmanager
    def enter(self, key: str | None = None) -> Iterator[None]:
        """`key`: whose share it counts to; None: nobody's, there is one user."""
        with self.reserve(key) as add:
            add(1)
            yield

    @contextmanager
    def reserve(self, key: str | None = None) -> Iterator[Callable[[int], None]]:
        """A function that takes more places, until the end. It raises `Refused` where there are no more."""
        taken = 0

        def add(number: int) -> None:
            nonlocal taken
            if self.inside + number > self._most:
                words = f"The gateway is busy with {self.inside:,} {self._what}, as many as it takes"
                raise Refused(429, "rate_limit_exceeded", f"{words}; try again in a second.", retry_after=1)
            if key is not None and self._by_key[key] + number > self._share:
                words = f"This key has {self._by_key[key]:,} {self._what} under way, as many as one may have"
                raise Refused(429, "rate_limit_exceeded", f"{words}; try again in a second.", retry_after=1)
            taken += number
            self.inside += number
            if key is not None:
                self._by_key[key] += number

        try:
            yield add
        finally:
            self.inside -= taken
            if key is not None:
                self._by_key[key] -= taken
                if not self._by_key[key]:
                    del self._by_key[key]
