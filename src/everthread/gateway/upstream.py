"""The connection to an upstream: the client's headers as far as they are its business, and bytes as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import httpx2

from everthread.gateway.access import Refused
from everthread.gateway.limits import Limits
from everthread.gateway.routes import Family, Upstream

Headers = list[tuple[bytes, bytes]]

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
_CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"api-key"})
_OURS = b"x-everthread-"


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Without what concerns one connection only, the headers named in `connection` among it."""
    fields = [(name.lower(), value) for name, value in headers]
    named = b",".join(value for name, value in fields if name == b"connection")
    dropped = _HOP_BY_HOP | {word.strip().lower() for word in named.split(b",")}
    return [(name, value) for name, value in fields if name not in dropped]


def for_upstream(
    headers: Iterable[tuple[bytes, bytes]], upstream: Upstream, family: Family, *, trusted: bool
) -> Headers:
    """What goes upstream. `trusted`: the client's credential is meant for it; a key of ours stays here."""
    dropped = {b"host", b"expect"}
    if upstream.api_key is not None or not trusted:
        dropped |= _CREDENTIALS
    kept = [(name, value) for name, value in end_to_end(headers) if name not in dropped and not name.startswith(_OURS)]
    if upstream.api_key is not None:
        key = upstream.api_key.encode()
        kept.append((b"x-api-key", key) if family == "anthropic" else (b"authorization", b"Bearer " + key))
    return kept


def rewritten(headers: Headers, body: bytes) -> Headers:
    """The headers for a body of ours, which is plain."""
    kept = [(name, value) for name, value in headers if name not in (b"content-length", b"content-encoding")]
    return [*kept, (b"content-length", str(len(body)).encode())]


class UpstreamClient:
    """Sends requests as they are given; adds nothing but what the connection needs."""

    def __init__(self, limits: Limits) -> None:
        timeout = httpx2.Timeout(limits.answer_seconds, connect=limits.connect_seconds)
        pool = httpx2.Limits(max_connections=None, max_keepalive_connections=limits.concurrent)
        self._client = httpx2.AsyncClient(timeout=timeout, limits=pool, follow_redirects=False)
        self._timeout = timeout.as_dict()

    async def send(
        self,
        upstream: Upstream,
        method: str,
        target: bytes,
        headers: Headers,
        content: bytes | AsyncIterator[bytes] | None,
    ) -> httpx2.Response:
        """The answer, its body still to come. `Refused` where there is none."""
        url = httpx2.URL(upstream.root + target.decode("ascii", "replace"))
        extensions: dict[str, object] = {"timeout": self._timeout}
        wanted = httpx2.URL(upstream.root).raw_path.rstrip(b"/") + target
        if url.raw_path != wanted:
            extensions["target"] = wanted
        request = httpx2.Request(method, url, headers=headers, content=content, extensions=extensions)
        try:
            return await self._client.send(request, stream=True)
        except httpx2.TimeoutException as error:
            raise Refused(504, "upstream_timeout", _words(upstream, "did not answer in time", error)) from error
        except httpx2.TransportError as error:
            raise Refused(502, "upstream_unreachable", _words(upstream, "cannot be reached", error)) from error

    async def close(self) -> None:
        await self._client.aclose()


def _words(upstream: Upstream, what: str, error: Exception) -> str:
    return f"The upstream {upstream.name} {what} ({type(error).__name__}); nothing of the request was lost, try again."
