"""The connection to an upstream: the client's headers as far as they are its business, and bytes as they are."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Protocol

import httpx2

from everthread.gateway.access import Refused
from everthread.gateway.detour import Detour, is_detoured
from everthread.gateway.limits import Limits
from everthread.gateway.routes import Family, Upstream
from everthread.gateway.wire_pool import Wires
from everthread.gateway.wires import Address, BrokeOffError, Fields, Headers, SlowError

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade".split()
)
_CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"api-key"})
_OURS = b"x-everthread-"
_REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
"""Methods of which twice is as good as once."""


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Without what concerns one connection only, the headers named in `connection` among it."""
    fields = [(name.lower(), value) for name, value in headers]
    named = b",".join(value for name, value in fields if name == b"connection")
    dropped = _HOP_BY_HOP | {word.strip().lower() for word in named.split(b",")}
    return [(name, value) for name, value in fields if name not in dropped]


def for_client(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """What comes back from an upstream. Which pages may read it is said by us (`middleware.SitePolicy`), not by it."""
    return [(name, value) for name, value in end_to_end(headers) if not name.startswith(b"access-control-")]


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


class Answer(Protocol):
    """What an upstream answers, its body still to come. Who has it closes it."""

    status_code: int
    headers: Fields

    def aiter_raw(self) -> AsyncIterator[bytes]:
        """The body, piece by piece. `BrokeOffError` or `SlowError` where it does not come to its end."""
        ...

    async def aclose(self) -> None: ...


class UpstreamClient:
    """Sends requests as they are given; adds nothing but what the connection needs."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._wires = Wires(most=limits.concurrent, connect_seconds=limits.connect_seconds)
        self._places: dict[str, _Place] = {}
        self._detour: Detour | None = None

    async def send(
        self,
        upstream: Upstream,
        method: str,
        target: bytes,
        headers: Headers,
        content: bytes | AsyncIterator[bytes] | None,
    ) -> Answer:
        """The answer, its body still to come. `Refused` where there is none."""
        place = self._place(upstream)
        try:
            if place.detoured:
                self._detour = self._detour or Detour(self._limits)
                return await self._detour.send(upstream.root, method, target, headers, content)
            head = _head(method, place.path + target, place.host, headers, content)
            return await self._wires.send(
                place.address, head, content, bodiless=method == "HEAD", seconds=self._limits.answer_seconds,
                again=method in _REPEATABLE,
            )  # fmt: skip
        except (SlowError, TimeoutError) as error:
            words = f"The upstream {upstream.name} did not answer in time; nothing of the request was lost, try again."
            raise Refused(504, "upstream_timeout", words) from error
        except (BrokeOffError, OSError) as error:
            words = f"The upstream {upstream.name} cannot be reached: {_reason(error)}."
            raise Refused(502, "upstream_unreachable", words) from error

    async def close(self) -> None:
        self._wires.close()
        await asyncio.sleep(0)  # a socket is closed in the loop's next round
        if self._detour is not None:
            await self._detour.close()

    def _place(self, upstream: Upstream) -> _Place:
        known = self._places.get(upstream.root)
        if known is None:
            known = self._places[upstream.root] = _Place.of(upstream.root)
        return known


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an upstream is."""

    address: Address
    host: bytes
    """For the header of that name."""
    path: bytes
    """Before every other."""
    detoured: bool

    @classmethod
    def of(cls, root: str) -> _Place:
        url = httpx2.URL(root)
        encrypted = url.scheme == "https"
        address = (url.raw_host.decode("ascii"), url.port or (443 if encrypted else 80), encrypted)
        return cls(address, url.netloc, url.raw_path.rstrip(b"/"), is_detoured(url))


def _reason(error: BaseException) -> str:
    """Why, and what to do, in words that name no header."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"its certificate is not trusted ({cause.verify_message}). If its authority is your own, name its file "
                "in SSL_CERT_FILE and start the gateway again"
            )
        if isinstance(cause, ssl.SSLError):
            return f"it speaks no TLS that is known here ({cause.reason or 'no reason given'}); check its address"
        if isinstance(cause, socket.gaierror):
            return "its name is not known; check its address"
        cause = cause.__cause__ or cause.__context__
    detail = error.strerror if isinstance(error, OSError) else str(error)
    return f"{detail or type(error).__name__}; try again"


def _head(
    method: str, target: bytes, host: bytes, headers: Headers, content: bytes | AsyncIterator[bytes] | None
) -> bytes:
    """The first lines. The length of a body that is there is counted, never believed."""
    stated = [value for name, value in headers if name == b"content-length"]
    fields = [(b"host", host), *((name, value) for name, value in headers if name != b"content-length")]
    if isinstance(content, bytes):
        fields.append((b"content-length", str(len(content)).encode()))
    elif content is None:
        if stated or method in ("POST", "PUT", "PATCH"):
            fields.append((b"content-length", b"0"))
    elif len(stated) == 1:
        fields.append((b"content-length", stated[0]))
    else:
        fields.append((b"transfer-encoding", b"chunked"))
    lines = [method.encode("ascii") + b" " + target + b" HTTP/1.1", *(name + b": " + value for name, value in fields)]
    if any(b"\n" in line or b"\r" in line for line in lines):
        raise Refused(
            400, "invalid_header", "A header of the request has a line break in it, which no header can have."
        )
    return b"\r\n".join([*lines, b"", b""])
