"""Upstreams that are reached through a proxy which the environment names (`HTTPS_PROXY` and the like)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.request import getproxies, proxy_bypass

import httpx2

from everthread.gateway.limits import Limits
from everthread.gateway.wires import BrokeOffError, Fields, Headers, SlowError


def is_detoured(url: httpx2.URL) -> bool:
    """Whether such a proxy is meant for this address."""
    proxies = getproxies()
    return bool(proxies.get(url.scheme) or proxies.get("all")) and not proxy_bypass(url.netloc.decode("ascii"))


class DetourAnswer:
    """`gateway.upstream.Answer`."""

    def __init__(self, response: httpx2.Response) -> None:
        self.status_code = response.status_code
        self.headers = Fields(response.headers.raw)
        self._response = response

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._response.aiter_raw():
                yield piece
        except httpx2.TimeoutException as error:
            raise SlowError(str(error)) from error
        except httpx2.HTTPError as error:
            raise BrokeOffError(str(error)) from error

    async def aclose(self) -> None:
        await self._response.aclose()


class Detour:
    """A client that knows proxies."""

    def __init__(self, limits: Limits) -> None:
        timeout = httpx2.Timeout(limits.answer_seconds, connect=limits.connect_seconds)
        pool = httpx2.Limits(max_connections=None, max_keepalive_connections=limits.concurrent)
        self._client = httpx2.AsyncClient(timeout=timeout, limits=pool, follow_redirects=False)
        self._timeout = timeout.as_dict()

    async def send(
        self, root: str, method: str, target: bytes, headers: Headers, content: bytes | AsyncIterator[bytes] | None
    ) -> DetourAnswer:
        url = httpx2.URL(root + target.decode("ascii", "replace"))
        extensions: dict[str, object] = {"timeout": self._timeout}
        wanted = httpx2.URL(root).raw_path.rstrip(b"/") + target
        if url.raw_path != wanted:
            extensions["target"] = wanted
        request = httpx2.Request(method, url, headers=headers, content=content, extensions=extensions)
        try:
            return DetourAnswer(await self._client.send(request, stream=True))
        except httpx2.TimeoutException as error:
            raise SlowError(str(error)) from error
        except httpx2.TransportError as error:
            raise BrokeOffError(str(error)) from error

    async def close(self) -> None:
        await self._client.aclose()
