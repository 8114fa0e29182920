"""A request as it arrives: who sends it, where it wants to go, and its body within the limits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.types import Message, Receive, Scope

from everthread.core.types import Api
from everthread.gateway.base import Limits
from everthread.gateway.deadlines import StartedCoroutine, run_within
from everthread.gateway.encoding import too_large
from everthread.gateway.errors import Refused
from everthread.gateway.router import LOGIN_HEADER, PATHS

if TYPE_CHECKING:
    from everthread.gateway.auth import Caller


KEY_PREFIX = "et_"
KEY = re.compile(KEY_PREFIX + r"([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
"""A key of this gateway; see `auth`."""
_CHARACTER, _LINE = rb"(?:[A-Za-z0-9_-]|%[2-7][0-9A-Fa-f])", rb"(?:_|%5[Ff])"
_KEY_BYTES = re.compile(rb"(?:e|%65)(?:t|%74)" + _LINE + _CHARACTER + rb"{12}" + _LINE + _CHARACTER + rb"{43}")
"""The same, each character as it is or percent-encoded: a server reads both."""


DISCONNECT = "everthread.disconnect"
"""An extension of the scope: the `DisconnectWatchers` of its connection."""
T = TypeVar("T")


class DisconnectWatchers:
    """What is called when the client of a connection leaves."""

    def __init__(self) -> None:
        self._watchers: set[Callable[[], None]] = set()
        self._is_ended = False

    def add(self, watcher: Callable[[], None]) -> None:
        self._watchers.add(watcher)
        if self._is_ended:
            asyncio.get_running_loop().call_soon(self.end)

    def discard(self, watcher: Callable[[], None]) -> None:
        self._watchers.discard(watcher)

    def end(self) -> None:
        """The client has left."""
        self._is_ended = True
        while self._watchers:
            self._watchers.pop()()


class ClientGone(Exception):  # noqa: N818  not an error: a client may leave
    """The client left before it had said everything."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The first lines of a request."""

    method: str
    path: str
    target: bytes
    """Path and query as they came."""
    raw_headers: list[tuple[bytes, bytes]]
    headers: Mapping[str, str]
    """With lower-case names; of several of one name, the last."""
    caller: Caller

    @classmethod
    def of(cls, scope: Scope, caller: Caller) -> RequestHead:
        query: bytes = scope["query_string"]
        target: bytes = scope["raw_path"] + (b"?" + query if query else b"")
        if not caller.passthrough:
            target = without_keys(target)
        return cls(scope["method"], scope["path"], target, scope["headers"], header_map(scope), caller)

    @property
    def speaks(self) -> Api:
        return client_protocol(self.path, self.headers)

    @property
    def conversation(self) -> Api | None:
        """The protocol where this asks for an answer to a whole conversation."""
        return PATHS.get(self.path.rstrip("/")) if self.method == "POST" else None

    @property
    def has_login(self) -> bool:
        """Whether it carries a login with ChatGPT in the place of a key."""
        return LOGIN_HEADER in self.headers

    @property
    def is_json(self) -> bool:
        return self.method == "POST" and self.headers.get("content-type", "").startswith("application/json")


def without_keys(text: bytes) -> bytes:
    """A header's value or a query in which no key of ours stands."""
    return _KEY_BYTES.sub(b"", text) if KEY_PREFIX.encode() in text or b"%" in text else text


def client_protocol(path: str, headers: Mapping[str, str]) -> Api:
    """The protocol a client speaks, by the path and, where that tells nothing, by its headers."""
    if path.startswith("/v1/messages") or "anthropic-version" in headers:
        return "anthropic"
    return "openai_responses" if path.startswith("/v1/responses") else "openai_chat"


def header_map(scope: Scope) -> dict[str, str]:
    """A request's headers by their names, which a server gives in lower case."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _ignore_size(size: int) -> None:
    """Nobody counts it."""


async def read_body(
    receive: Receive, call: RequestHead, limits: Limits, count: Callable[[int], None] = _ignore_size
) -> bytes:
    """The whole body of a request. `Refused` where it is too large or too slow; `count` is told each piece's size."""
    stated = call.headers.get("content-length", "0")
    if stated.isdecimal() and int(stated) > limits.body_bytes:
        raise too_large()
    try:
        return await run_within(limits.body_seconds, collect_body(receive, limits.body_bytes, count))
    except TimeoutError:
        raise _too_slow(limits.body_seconds) from None


async def collect_body(receive: Receive, most: int, count: Callable[[int], None] = _ignore_size) -> bytes:
    """All pieces of a body. `Refused` where they are more than so many bytes."""
    pieces: list[bytes] = []
    size = 0
    async for piece in body_pieces(receive):
        size += len(piece)
        if size > most:
            raise too_large()
        count(len(piece))
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """What an application receives that reads the body itself, after it was read here."""
    is_given = False

    async def receive_again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def _too_slow(seconds: float) -> Refused:
    return Refused(408, "request_timeout", f"The request's body did not arrive within {seconds:g} seconds.")


async def body_pieces(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        if message.get("body"):
            yield message["body"]
        if not message.get("more_body"):
            return


class Upload:
    """A body that goes on as it comes."""

    def __init__(self, receive: Receive, call: RequestHead, seconds: float) -> None:
        self._receive = receive
        self._seconds = seconds
        self.size = 0
        """Bytes that came so far."""
        self.is_there = "content-length" in call.headers or "transfer-encoding" in call.headers

    async def pieces(self) -> AsyncIterator[bytes]:
        """Piece by piece. `Refused` where the next one does not come in time: who stalls holds a place."""
        source = body_pieces(self._receive)
        while True:
            try:
                async with asyncio.timeout(self._seconds):
                    piece = await anext(source, None)
            except TimeoutError:
                raise _too_slow(self._seconds) from None
            if piece is None:
                break
            self.size += len(piece)
            yield piece


async def run_while_connected(work: Coroutine[Any, Any, T], scope: Scope) -> T:
    """The result of the work. `ClientGone` where the client leaves first; that ends the work too."""
    started = StartedCoroutine(work)
    if started.is_done:
        return started.result
    watchers: DisconnectWatchers = scope["extensions"][DISCONNECT]
    limit = asyncio.timeout(None)

    def end() -> None:
        limit.reschedule(0.0)

    try:
        async with limit:
            watchers.add(end)
            return await started
    except TimeoutError:
        if limit.expired():
            raise ClientGone from None
        raise
    finally:
        watchers.discard(end)
