"""The HTTP client for upstreams, built on aiohttp: bodies and headers pass unchanged in both directions.

aiohttp handles connections, framing and hop-by-hop rules; this module makes the decisions of a proxy. aiohttp cannot
send a header value unchanged that is not UTF-8; such a value is read as Latin-1 and sent as UTF-8.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import select
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx2
import yarl

from everthread.gateway.contracts import GatewayLimits
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.header_selection import Headers, ResponseHeaders
from everthread.gateway.router import Upstream

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

_IDLE_TIMEOUT_SECONDS = 4.0
"""Seconds for which an idle connection is kept. Many servers close one after five, perhaps during a request."""
_MAX_HEADER_LINE_BYTES = 256 * 1024
"""Maximum length of a header line in an answer."""
_PIECE_BYTES = 1024 * 1024
_SKIPPED_AUTO_HEADERS = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")
"""Headers that aiohttp would add by default."""


class UpstreamDisconnectedError(Exception):
    """The upstream closed the connection or sent invalid HTTP before its answer was complete."""


class UpstreamTimeoutError(Exception):
    """The upstream sent nothing for too long."""


class UpstreamResponse:
    """The response of an upstream, whose body is not read yet. The user must close it."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status_code = response.status
        self.headers = ResponseHeaders(list(response.raw_headers))
        self._response = response

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body's pieces. Raise `UpstreamDisconnectedError` or `UpstreamTimeoutError` if it breaks off."""
        content = self._response.content
        try:
            async for piece in content.iter_any():
                yield piece
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            # Yield data that arrived before the error, which aiohttp would drop.
            if remaining_bytes := content._read_nowait(-1):
                yield remaining_bytes
            if isinstance(error, TimeoutError):
                raise UpstreamTimeoutError(str(error)) from error
            raise UpstreamDisconnectedError(str(error)) from error

    async def close(self) -> None:
        """Close the response. Its connection is closed unless the whole body was read."""
        self._response.close()


class UpstreamClient:
    """Sends requests unchanged; only headers that the connection needs are added."""

    def __init__(self, limits: GatewayLimits) -> None:
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
        """Send a request and return the response, whose body is unread. Raise `RequestRefused` if there is none."""
        seconds = self._limits.connect_seconds + self._limits.max_answer_gap_seconds
        answer_timeout = asyncio.timeout(seconds)
        body: bytes | _StreamedBody | None
        if content is None or isinstance(content, bytes):
            body = content
        else:
            length = _read_length(headers)
            wait_seconds = self._limits.max_answer_gap_seconds
            body = _StreamedBody(content, length, answer_timeout, wait_seconds)
        try:
            async with answer_timeout:
                response = await self._request(
                    upstream,
                    method,
                    target,
                    headers=headers,
                    body=body,
                )
        except TimeoutError as error:
            message = (
                f"The upstream {upstream.name} did not answer in time; "
                "nothing of the request was lost, try again."
            )
            raise RequestRefused(504, "upstream_timeout", message) from error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(body, _StreamedBody) and body.failure is not None:
                raise body.failure from error
            message = f"The upstream {upstream.name} cannot be reached: {_describe_failure(error)}."
            raise RequestRefused(502, "upstream_unreachable", message) from error
        except ValueError as error:
            # A line break in a header, which no parser lets through.
            message = f"The request cannot be sent on: {error}."
            raise RequestRefused(400, "invalid_request", message) from error
        return _check_response(upstream, response)

    async def _request(
        self,
        upstream: Upstream,
        method: str,
        target: bytes,
        *,
        headers: Headers,
        body: bytes | _StreamedBody | None,
    ) -> aiohttp.ClientResponse:
        fields = [
            (name.decode("latin-1"), _decode_header(value))
            for name, value in headers
            if name != b"content-length"
        ]
        data: Any
        if isinstance(body, _StreamedBody):
            data = body.pieces()
            if body.length is not None:
                fields.append(("content-length", str(body.length)))
        else:
            data = _make_payload(body)
        endpoint = self._find_endpoint(upstream)
        url = endpoint.root + upstream.adapt_target(target).decode("latin-1")
        session = await self._open_session()
        return await session.request(
            method,
            yarl.URL(url, encoded=True),
            headers=fields,
            data=data,
            proxy=endpoint.proxy,
            allow_redirects=False,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _open_session(self) -> aiohttp.ClientSession:
        """Return the session. Read the certificates on first use, in a thread, because there are hundreds of them."""
        if self._session is not None:
            return self._session
        context = await asyncio.to_thread(_make_tls_context)
        if self._session is None:
            timeout = aiohttp.ClientTimeout(
                total=None,
                sock_connect=self._limits.connect_seconds,
                sock_read=self._limits.max_answer_gap_seconds,
            )
            self._session = aiohttp.ClientSession(
                connector=_Connector(
                    limit=0,
                    keepalive_timeout=_IDLE_TIMEOUT_SECONDS,
                    ssl=context,
                    resolver=aiohttp.ThreadedResolver(),
                ),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_SKIPPED_AUTO_HEADERS,
                timeout=timeout,
                max_line_size=_MAX_HEADER_LINE_BYTES,
                max_field_size=_MAX_HEADER_LINE_BYTES,
            )
        return self._session

    def _find_endpoint(self, upstream: Upstream) -> _Endpoint:
        endpoint = self._endpoints.get(upstream.root_url)
        if endpoint is None:
            endpoint = self._endpoints[upstream.root_url] = _Endpoint.of(upstream.root_url)
        return endpoint


def _check_response(upstream: Upstream, response: aiohttp.ClientResponse) -> UpstreamResponse:
    """Return a response if its status is valid; otherwise raise `RequestRefused`."""
    if not 200 <= response.status <= 599:
        response.close()
        message = (
            f"The upstream {upstream.name} answered with the invalid status {response.status:03}."
        )
        raise RequestRefused(502, "upstream_invalid", message)
    return UpstreamResponse(response)


class _Connector(aiohttp.TCPConnector):
    """Reuse a connection only if nothing was received on it since its last answer.

    aiohttp checks this when a connection is returned to the pool, but not when it is taken from there. An unexpected
    answer would be used for the next request.
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
    """Return whether the socket has data or an end of file that the event loop has not read yet."""
    raw_socket = transport.get_extra_info("socket") if transport is not None else None
    if raw_socket is None or not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(raw_socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))


class _StreamedBody:
    """A body that is passed on while it arrives, as fast as the upstream reads it.

    It must have the stated length; otherwise the upstream would read the next request as a part of it.
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
                # Rescheduling fails if the answer has already arrived, which then has its own time limit.
                with contextlib.suppress(RuntimeError):
                    self._answer_timeout.reschedule(
                        asyncio.get_running_loop().time() + self._seconds
                    )
                yield piece
        except Exception as error:
            self.failure = error
            raise
        if self.length is not None and sent_bytes != self.length:
            message = "The request's body does not have the length that its headers state."
            self.failure = RequestRefused(400, "invalid_length", message)
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


def _read_length(headers: Headers) -> int | None:
    """Return the stated content length, or None if the body is chunked."""
    lengths = [value for name, value in headers if name == b"content-length"]
    return int(lengths[0]) if len(lengths) == 1 else None


def _make_payload(content: Any) -> bytes | io.BytesIO | None:
    """Return the body in the form for aiohttp, which writes a large body piece by piece from a file object."""
    return io.BytesIO(content) if content is not None and len(content) > _PIECE_BYTES else content


def _decode_header(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _make_tls_context() -> ssl.SSLContext:
    """Return a TLS context that trusts the same authorities as all other HTTP clients of this package."""
    context = httpx2.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _describe_failure(error: BaseException) -> str:
    """Describe why a request failed and what to do, without quoting a header."""
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
            return f"its TLS is not supported here ({cause.reason or 'no reason given'}); check its address"
        elif isinstance(cause, socket.gaierror):
            return "its host name is unknown; check its address"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, aiohttp.ClientResponseError):
        return "it does not answer in HTTP; check its address"
    detail: Any = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error)
    return f"{detail or type(error).__name__}; try again"
