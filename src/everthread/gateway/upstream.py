"""The HTTP client for upstreams, built on aiohttp: bodies and headers pass unchanged in both directions.

aiohttp does connection reuse, framing and hop-by-hop rules; this module makes the decisions of a proxy. aiohttp cannot
send a header value that is not UTF-8 unchanged: it is read as Latin-1 and sent as UTF-8.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import select
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx2
import yarl

from everthread.gateway.contracts import CREDENTIAL_HEADERS, Limits
from everthread.gateway.error_answers import Refused
from everthread.gateway.request.encoding import keep_supported_encodings
from everthread.gateway.request.request_head import remove_gateway_keys
from everthread.gateway.router import Family, Upstream

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

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
"""Headers that a browser applies to the whole origin, or that are set here (`streaming.BROWSER_GUARD`)."""
_IDLE_SECONDS = 4.0
"""Less than the five for which many servers keep a connection: if we close first, no request meets a closed one."""
_HEADER_BYTES = 256 * 1024
"""Maximum length of a header line in an answer."""
_PIECE_BYTES = 1024 * 1024
_SKIPPED_AUTO_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that aiohttp would add by default."""


class UpstreamDisconnectedError(Exception):
    """The upstream ended the connection, or speaks no HTTP, before its answer was complete."""


class UpstreamTimeoutError(Exception):
    """The upstream said nothing for too long."""


class ResponseHeaders(dict[str, str]):
    """An answer's headers by lower-case name, the last of each; `raw` holds all, unchanged."""

    def __init__(self, raw: Headers) -> None:
        super().__init__(
            (name.decode("latin-1").lower(), value.decode("latin-1"))
            for name, value in raw
        )
        self.raw = raw


class UpstreamResponse:
    """The response of an upstream, whose body is still to come. Its user closes it."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status_code = response.status
        self.headers = ResponseHeaders(list(response.raw_headers))
        self._response = response

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        """The body, piece by piece. `UpstreamDisconnectedError` or `UpstreamTimeoutError` where it does not end."""
        content = self._response.content
        try:
            async for piece in content.iter_any():
                yield piece
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            # Data before the end, which aiohttp would keep.
            if remaining_bytes := content._read_nowait(-1):
                yield remaining_bytes
            kind = (
                UpstreamTimeoutError
                if isinstance(error, TimeoutError)
                else UpstreamDisconnectedError
            )
            raise kind(str(error)) from error

    async def aclose(self) -> None:
        """A connection whose answer was not read to its end is closed; one that was is already back in the pool."""
        self._response.close()


class UpstreamClient:
    """Send requests unchanged, with only the headers that the connection needs added."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._endpoints: dict[str, _Endpoint] = {}
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self,
        upstream: Upstream,
        method: str,
        target: bytes,
        headers: Headers,
        content: bytes | AsyncIterator[bytes] | None,
    ) -> UpstreamResponse:
        """The answer, its body still to come. `Refused` where there is none."""
        endpoint = self._endpoint(upstream)
        streamed_body: _StreamedBody | None = None
        fields = [
            (name.decode("latin-1"), _decode_header(value))
            for name, value in headers
            if name != b"content-length"
        ]
        try:
            async with asyncio.timeout(
                self._limits.connect_seconds + self._limits.answer_seconds
            ) as answer_timeout:
                if content is not None and not isinstance(content, bytes):
                    streamed_body = _StreamedBody(
                        content,
                        _read_length(headers),
                        answer_timeout,
                        self._limits.answer_seconds,
                    )
                    if streamed_body.length is not None:
                        fields.append(("content-length", str(streamed_body.length)))
                response = await (await self._open()).request(
                    method,
                    yarl.URL(
                        endpoint.root + upstream.spell_target(target).decode("latin-1"),
                        encoded=True,
                    ),
                    headers=fields,
                    data=_make_payload(content)
                    if streamed_body is None
                    else streamed_body.pieces(),
                    proxy=endpoint.proxy,
                    allow_redirects=False,
                )
        except TimeoutError as error:
            words = f"The upstream {upstream.name} did not answer in time; nothing of the request was lost, try again."
            raise Refused(504, "upstream_timeout", words) from error
        except (aiohttp.ClientError, OSError) as error:
            if streamed_body is not None and streamed_body.failure is not None:
                raise streamed_body.failure from error
            words = f"The upstream {upstream.name} cannot be reached: {_describe_failure(error)}."
            raise Refused(502, "upstream_unreachable", words) from error
        except (
            ValueError
        ) as error:  # a line break in a header, which no parser lets through
            raise Refused(
                400, "invalid_request", f"The request cannot be sent on: {error}."
            ) from error
        if not 200 <= response.status <= 599:
            response.close()
            words = f"The upstream {upstream.name} answered with the status {response.status:03}, which is none."
            raise Refused(502, "upstream_invalid", words)
        return UpstreamResponse(response)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _open(self) -> aiohttp.ClientSession:
        """The session. Certificates are read once, beside the event loop: there are hundreds of them."""
        if self._session is not None:
            return self._session
        context = await asyncio.to_thread(_tls_context)
        if self._session is None:
            timeout = aiohttp.ClientTimeout(
                total=None,
                sock_connect=self._limits.connect_seconds,
                sock_read=self._limits.answer_seconds,
            )
            self._session = aiohttp.ClientSession(
                connector=_Connector(
                    limit=0,
                    keepalive_timeout=_IDLE_SECONDS,
                    ssl=context,
                    resolver=aiohttp.ThreadedResolver(),
                ),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_SKIPPED_AUTO_HEADERS,
                timeout=timeout,
                max_line_size=_HEADER_BYTES,
                max_field_size=_HEADER_BYTES,
            )
        return self._session

    def _endpoint(self, upstream: Upstream) -> _Endpoint:
        endpoint = self._endpoints.get(upstream.root)
        if endpoint is None:
            endpoint = self._endpoints[upstream.root] = _Endpoint.of(upstream.root)
        return endpoint


class _Connector(aiohttp.TCPConnector):
    """Takes a kept connection only if no byte, and no end, came on it since its last answer.

    aiohttp looks for such bytes when a connection is given back, and not when it is taken: an answer to nothing would
    be given to the next request.
    """

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        while (connection := await super()._get(key, traces)) is not None:
            protocol = connection.protocol
            if (
                protocol is not None
                and not protocol.should_close
                and not _has_unread_data(protocol.transport)
            ):
                return connection
            connection.close()
        return None


def _has_unread_data(transport: asyncio.BaseTransport | None) -> bool:
    """Whether something came which the event loop has not read yet."""
    raw_socket = transport.get_extra_info("socket") if transport is not None else None
    if raw_socket is None or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(raw_socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))


class _StreamedBody:
    """A body that is passed on while it arrives, as fast as the upstream takes it.

    Its length must be the stated one: of a shorter body the rest would be taken from the next request.
    """

    def __init__(
        self,
        content: AsyncIterator[bytes],
        length: int | None,
        answer_timeout: asyncio.Timeout,
        seconds: float,
    ) -> None:
        self.length = length
        self.failure: Exception | None = None
        self._content = content
        self._answer_timeout = answer_timeout
        self._seconds = seconds

    async def pieces(self) -> AsyncIterator[bytes]:
        sent_bytes = 0
        try:
            async for piece in self._content:
                sent_bytes += len(piece)
                if self.length is not None and sent_bytes > self.length:
                    break
                # The answer is here already, and its time is its own.
                with contextlib.suppress(RuntimeError):
                    self._answer_timeout.reschedule(
                        asyncio.get_running_loop().time() + self._seconds
                    )
                yield piece
        except Exception as error:
            self.failure = error
            raise
        if self.length is not None and sent_bytes != self.length:
            words = "The request's body has another length than its headers say."
            self.failure = Refused(400, "invalid_length", words)
            raise self.failure


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """The address of an upstream, and the proxy that the environment names for it (`HTTPS_PROXY` and the like)."""

    root: str
    proxy: str | None

    @classmethod
    def of(cls, root: str) -> _Endpoint:
        parts = urlsplit(root)
        proxies = getproxies()
        proxy = proxies.get(parts.scheme) or proxies.get("all")
        return cls(root, None if proxy is None or proxy_bypass(parts.netloc) else proxy)


def drop_hop_by_hop(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers without those of one connection, including the ones named in `connection`."""
    fields = [(name.lower(), value) for name, value in headers]
    connection_value = b",".join(
        value for name, value in fields if name == b"connection"
    )
    dropped_names = _HOP_BY_HOP | {
        word.strip().lower() for word in connection_value.split(b",")
    }
    return [(name, value) for name, value in fields if name not in dropped_names]


def select_client_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers of an upstream's answer that a client gets.

    An upstream says nothing about our own origin: no cookies, no other address for it, no word on which pages may read
    it (`middleware.SitePolicy` decides that), and none of the headers by which the gateway itself speaks.
    """
    return [
        (name, value)
        for name, value in drop_hop_by_hop(headers)
        if name not in _ORIGIN_HEADERS
        and not name.startswith((b"access-control-", _OUR_PREFIX))
    ]


def select_upstream_headers(
    headers: Iterable[tuple[bytes, bytes]],
    upstream: Upstream,
    family: Family,
    *,
    is_trusted: bool,
) -> Headers:
    """Return the headers to send, without gateway keys. `is_trusted`: the client's credential is meant for it."""
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
        outgoing.append(_make_credential_header(family, key))
    return outgoing


def _make_credential_header(family: Family, key: bytes) -> tuple[bytes, bytes]:
    if family == "anthropic":
        return b"x-api-key", key
    return (
        (b"x-goog-api-key", key)
        if family == "gemini"
        else (b"authorization", b"Bearer " + key)
    )


def remove_session_cookies(cookies: bytes) -> bytes:
    """The cookies without those that open our own pages."""
    parts = [part.strip() for part in cookies.split(b";")]
    return b"; ".join(part for part in parts if not part.startswith(b"everthread_"))


def drop_body_headers(headers: Headers) -> Headers:
    """The headers without length and encoding, for a rewritten body, which is not compressed."""
    return [
        (name, value)
        for name, value in headers
        if name not in (b"content-length", b"content-encoding")
    ]


def _read_length(headers: Headers) -> int | None:
    """Return the stated content length; None if the body is chunked."""
    lengths = [value for name, value in headers if name == b"content-length"]
    return int(lengths[0]) if len(lengths) == 1 else None


def _make_payload(content: Any) -> bytes | io.BytesIO | None:
    """A large body is written piece by piece, as the upstream takes it: aiohttp asks for that."""
    return (
        io.BytesIO(content)
        if content is not None and len(content) > _PIECE_BYTES
        else content
    )


def _decode_header(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _tls_context() -> ssl.SSLContext:
    """Return a TLS context with the same trusted authorities as every other client of this package."""
    context = httpx2.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _describe_failure(error: BaseException) -> str:
    """Say why a request failed and what to do, without naming a header."""
    cause: BaseException | None = error
    while cause is not None:
        # Skip aiohttp's own SSL errors: their cause has the message.
        if isinstance(cause, aiohttp.ClientError):
            pass
        elif isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"its certificate is not trusted ({cause.verify_message}). If its authority is your own, name its file "
                "in SSL_CERT_FILE and start the gateway again"
            )
        elif isinstance(cause, ssl.SSLError):
            return f"it speaks no TLS that is known here ({cause.reason or 'no reason given'}); check its address"
        elif isinstance(cause, socket.gaierror):
            return "its name is not known; check its address"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, aiohttp.ClientResponseError):
        return "it speaks no HTTP that is known here; check its address"
    detail: Any = (
        getattr(error, "strerror", None)
        or getattr(error, "message", None)
        or str(error)
    )
    return f"{detail or type(error).__name__}; try again"
