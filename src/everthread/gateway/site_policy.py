"""Decide which web pages and host names may use the gateway, and answer browsers that ask for it (CORS)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from starlette.types import Message, Scope, Send

from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.monitoring.log_lines import make_printable

Headers = list[tuple[bytes, bytes]]
_OWN_FETCH_SITES = frozenset({"same-origin", "none"})
"""Values of `Sec-Fetch-Site` for requests that no other site's page made."""
_PREFLIGHT_MAX_AGE = b"600"


@dataclass(frozen=True, slots=True)
class SitePolicy:
    """Protect against web pages, which can reach this machine through the user's browser without consent."""

    allowed_origins: tuple[str, ...] = ()
    """Origins whose pages may use the gateway, such as `https://app.example` or `null`. `chrome-extension://*` allows
    all origins of a scheme other than http and https."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names of the gateway, in addition to `localhost` and addresses."""
    has_keys: bool = False
    """Whether clients need a gateway key, which no page has, so that the host name does not matter on proxy paths."""

    def check(self, headers: Headers, *, checks_host: bool) -> str | None:
        """Return the origin of a page that may call, or None if no page calls.

        Raise `RequestRefused` for other pages, unknown host names and WebSockets.
        """
        fields = _read_site_headers(headers)
        origin = self._check_origin(fields)
        if checks_host:
            self._check_host(fields[b"host"])
        if any(protocol.lower() == "websocket" for protocol in fields[b"upgrade"]):
            raise RequestRefused(
                426,
                "no_websocket",
                "WebSockets are not served here; send the request over HTTP.",
            )
        return origin

    def check_page(self, headers: Headers, *, is_change: bool) -> None:
        """Check a request to the dashboard: any site may link to it, but only its own pages may change anything."""
        fields = _read_site_headers(headers)
        self._check_host(fields[b"host"])
        if is_change:
            self._check_origin(fields)

    def _check_host(self, hosts: list[str]) -> None:
        """Raise `RequestRefused` for an unknown host name, against DNS rebinding."""
        if len(hosts) != 1 or not self._is_own_host(hosts[0]):
            host_names = ", ".join(hosts) or "no host"
            message = (
                f"The gateway does not answer under {make_printable(host_names[:200])}; "
                "list the name in gateway.allowed_hosts."
            )
            raise RequestRefused(403, "unknown_host", message)

    def _check_origin(self, fields: dict[bytes, list[str]]) -> str | None:
        """Return the allowed origin of the page that sent a request, or None if no other site's page did.

        Raise `RequestRefused` for a page of any other origin.
        """
        origins = fields[b"origin"]
        sites = fields[b"sec-fetch-site"]
        foreign = [origin for origin in origins if not _is_same_origin(origin, fields[b"host"])]
        if len(origins) == 1 and foreign and self._is_allowed(foreign[0]):
            return foreign[0]
        if not foreign and all(site.lower() in _OWN_FETCH_SITES for site in sites):
            return None
        page = (
            f"The page {make_printable(', '.join(foreign)[:200])}"
            if foreign
            else "Another site's page"
        )
        raise RequestRefused(
            403,
            "foreign_origin",
            f"{page} may not use this gateway; list its origin in gateway.allowed_origins.",
        )

    def _is_own_host(self, header: str) -> bool:
        name, _, port = header.rpartition(":")
        host = (name if name and port.isdecimal() else header).strip("[]").lower()
        return (
            host == "localhost" or host in map(str.lower, self.allowed_hosts) or _is_address(host)
        )

    def _is_allowed(self, origin: str) -> bool:
        scheme, separator, _ = origin.partition("://")
        return any(
            origin == allowed_origin
            or (separator and allowed_origin == f"{scheme}://*" and scheme not in ("http", "https"))
            for allowed_origin in self.allowed_origins
        )


def is_loopback(host: str) -> bool:
    """Return whether the address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_preflight(scope: Scope) -> bool:
    """Return whether a browser asks what a page may send (CORS)."""
    return scope["method"] == "OPTIONS" and any(
        name == b"access-control-request-method" for name, _ in scope["headers"]
    )


def make_preflight_headers(scope: Scope) -> Headers:
    """Return the headers that answer a preflight of an allowed origin: allow every method and the requested headers."""
    answer = [
        (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
        (b"content-length", b"0"),
        (b"access-control-max-age", _PREFLIGHT_MAX_AGE),
    ]
    for name, value in scope["headers"]:
        if name == b"access-control-request-headers":
            answer.append((b"access-control-allow-headers", value))
        elif name == b"access-control-request-private-network":
            answer.append((b"access-control-allow-private-network", b"true"))
    return answer


def add_cors(send: Send, origin: str) -> Send:
    """Wrap `send` to add the headers that let pages of an allowed origin read the answer."""
    cors_headers = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"*"),
        (b"vary", b"origin"),
    ]

    async def send_with_cors(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {
                **message,
                "headers": [*message.get("headers", []), *cors_headers],
            }
        await send(message)

    return send_with_cors


def _is_same_origin(origin: str, hosts: list[str]) -> bool:
    """Return whether an origin is the gateway's own. Ignore the scheme, because TLS may end before the gateway."""
    return len(hosts) == 1 and origin.lower() in (
        f"http://{hosts[0].lower()}",
        f"https://{hosts[0].lower()}",
    )


@lru_cache(maxsize=64)
def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _read_site_headers(
    headers: Iterable[tuple[bytes, bytes]],
) -> dict[bytes, list[str]]:
    """Read the headers that show a request's origin, in one pass."""
    fields: dict[bytes, list[str]] = {
        b"host": [],
        b"origin": [],
        b"sec-fetch-site": [],
        b"upgrade": [],
    }
    for name, value in headers:
        if name in fields:
            fields[name].append(value.decode("latin-1").strip())
    return fields
