"""Select the headers that pass between a client and an upstream."""

from __future__ import annotations

from collections.abc import Iterable

from everthread.gateway.contracts import CREDENTIAL_HEADERS
from everthread.gateway.request.encoding import keep_supported_encodings
from everthread.gateway.request.request_head import remove_gateway_keys
from everthread.gateway.router import Provider, Upstream

Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
_CREDENTIALS = frozenset(name.encode() for name in CREDENTIAL_HEADERS)
_OUR_PREFIX = b"x-everthread-"
_ORIGIN_HEADERS = frozenset(
    b"set-cookie set-cookie2 clear-site-data service-worker-allowed strict-transport-security public-key-pins alt-svc "
    b"nel report-to reporting-endpoints x-content-type-options".split()
)
"""Headers that a browser applies to a whole origin, or that the gateway sets itself (`BROWSER_GUARD`)."""


class ResponseHeaders(dict[str, str]):
    """An answer's headers by lower-case name, the last one of each name. `raw`: all headers, unchanged."""

    def __init__(self, raw: Headers) -> None:
        super().__init__(
            (name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in raw
        )
        self.raw = raw


def drop_hop_by_hop(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Remove the headers of a single connection, including those named in `connection`."""
    fields = [(name.lower(), value) for name, value in headers]
    connection_value = b",".join(value for name, value in fields if name == b"connection")
    dropped_names = _HOP_BY_HOP | {word.strip().lower() for word in connection_value.split(b",")}
    return [(name, value) for name, value in fields if name not in dropped_names]


def select_client_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Select the headers of an upstream's answer that the client gets.

    Drop headers that affect the gateway's own origin, such as cookies, headers on which pages may read the answer
    (`site_policy.SitePolicy` decides that), and the gateway's own headers.
    """
    return [
        (name, value)
        for name, value in drop_hop_by_hop(headers)
        if name not in _ORIGIN_HEADERS and not name.startswith((b"access-control-", _OUR_PREFIX))
    ]


def select_upstream_headers(
    headers: Iterable[tuple[bytes, bytes]],
    upstream: Upstream,
    provider: Provider,
    *,
    is_trusted: bool,
) -> Headers:
    """Select the headers to send upstream, without gateway keys.

    `is_trusted`: whether the client's credential is meant for the upstream.
    """
    dropped_names = {b"host", b"expect"}
    if upstream.api_key is not None or not is_trusted:
        dropped_names |= _CREDENTIALS
    outgoing: Headers = []
    for name, client_value in drop_hop_by_hop(headers):
        if name in dropped_names or name.startswith(_OUR_PREFIX):
            continue
        # A gateway key may be anywhere, even in a cookie.
        value = client_value if is_trusted else remove_gateway_keys(client_value)
        if name == b"accept-encoding":
            value = keep_supported_encodings(value)
        elif name == b"cookie":
            value = remove_session_cookies(value)
        outgoing.append((name, value))
    if upstream.api_key is not None:
        key = upstream.api_key.encode()
        outgoing.append(_make_credential_header(provider, key))
    return outgoing


def _make_credential_header(provider: Provider, key: bytes) -> tuple[bytes, bytes]:
    if provider == "anthropic":
        return b"x-api-key", key
    return (
        (b"x-goog-api-key", key) if provider == "gemini" else (b"authorization", b"Bearer " + key)
    )


def remove_session_cookies(cookies: bytes) -> bytes:
    """Remove the cookies that log in to the gateway's own pages."""
    parts = [part.strip() for part in cookies.split(b";")]
    return b"; ".join(part for part in parts if not part.startswith(b"everthread_"))


def drop_body_headers(headers: Headers) -> Headers:
    """Remove the length and the encoding, for a rewritten body, which is not compressed."""
    return [
        (name, value)
        for name, value in headers
        if name not in (b"content-length", b"content-encoding")
    ]
