"""An answer on its way to the client: written as it comes, kept alive, held where it may fail, read for its usage."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, cast

from starlette.types import Send

from everthread.core.pricing import CanonicalUsage, normalize_usage
from everthread.core.types import Api, Reply, StreamDelta
from everthread.errors import WireError
from everthread.gateway.base import Limits
from everthread.gateway.body import OuterFields, peek_field
from everthread.gateway.deadlines import run_beside, run_within
from everthread.gateway.encoding import UNREADABLE, decoder
from everthread.gateway.errors import Refused, error_body, error_headers
from everthread.gateway.observability import Metrics, log_fields
from everthread.gateway.requests import ClientGone, RequestHead
from everthread.gateway.upstream import Headers
from everthread.wire.codecs import CODECS
from everthread.wire.common import SseParser, SseSplitter

_LOG = logging.getLogger("everthread.gateway")


class ResponseWriter:
    """Writes one response. `ClientGone` when the client takes too long to read a piece."""

    def __init__(self, send: Send, call: RequestHead, metrics: Metrics, seconds: float) -> None:
        self._send = send
        self._call = call
        self._metrics = metrics
        self._seconds = seconds
        self._started_at = time.monotonic()
        self.status: int | None = None
        self._left = -1
        """Bytes of the stated length that are to come; negative: none is stated."""
        self._is_complete = False
        self._own_headers: Mapping[str, str] = {}
        self._facts: dict[str, Any] = {}

    async def start(self, status: int, headers: Headers, own_headers: Mapping[str, str] | None = None) -> None:
        self.status, self._own_headers = status, dict(own_headers or {})
        self._metrics.count("requests", api=self._call.conversation or "other", status=str(status))
        self._metrics.observe_first_byte(time.monotonic() - self._started_at)
        ours = [
            (name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in self._own_headers.items()
        ]
        lengths = [int(value) for name, value in headers if name == b"content-length" and value.isdigit()]
        self._left = lengths[0] if len(lengths) == 1 else -1
        await self._put({"type": "http.response.start", "status": status, "headers": [*headers, *ours]})

    async def send_late_headers(self, headers: Mapping[str, str]) -> None:
        """Send headers that were not known in time, as comments of the stream, which clients ignore."""
        late = {name: value for name, value in headers.items() if self._own_headers.get(name) != value}
        self._own_headers = {**self._own_headers, **late}
        if late:
            lines = "".join(f": {name}: {' '.join(value.split())}\n" for name, value in late.items())
            await self.body(f"{lines}\n".encode())

    async def body(self, data: bytes) -> None:
        """Send a piece; with the last of the stated length the response is complete."""
        self._left -= len(data)
        self._is_complete = self._left == 0
        await self._put({"type": "http.response.body", "body": data, "more_body": not self._is_complete})

    async def end(self, data: bytes = b"") -> None:
        if not self._is_complete:
            await self._put({"type": "http.response.body", "body": data, "more_body": False})

    async def refuse(self, refused: Refused) -> None:
        """An error of ours, in the client's protocol; where the answer has begun it can only break off."""
        if self.status is not None:
            return
        body = error_body(self._call.speaks, refused)
        await self.start(refused.status, error_headers(refused, body))
        await self.end(body)

    def note(self, **facts: Any) -> None:
        """What else the request's line in the log says; nothing of what was said."""
        self._facts |= facts

    def log(self) -> None:
        """One line for a request that was answered, or not."""
        if not _LOG.isEnabledFor(logging.INFO):
            return
        call, seconds, status = self._call, time.monotonic() - self._started_at, self.status or 0
        fields = {
            "method": call.method, "path": call.path, "status": status, "seconds": round(seconds, 4),
            "tenant": call.caller.tenant, "key": call.caller.key_id, **self._facts,
        }  # fmt: skip
        filled = {name: value for name, value in fields.items() if value or name in self._facts}
        log_fields(_LOG, logging.INFO, f"{call.method} {call.path} {status or 'unanswered'} in {seconds:.3f} s", filled)

    async def _put(self, message: dict[str, object]) -> None:
        try:
            await run_within(self._seconds, cast("Coroutine[Any, Any, None]", self._send(message)))
        except TimeoutError:
            raise ClientGone from None


_MOST = 64 * 1024 * 1024


class UsageReader:
    """Reads reply and usage from one response, fed piece by piece; what it cannot read is logged."""

    def __init__(self, api: Api, status: int, headers: Mapping[str, str], *, model: str | None = None) -> None:
        self._api = api
        self._model = model
        self._decoder = decoder(headers.get("content-encoding", ""), _MOST) if status < 300 else None
        self.streams = headers.get("content-type", "").startswith("text/event-stream")
        self._parser = SseParser()
        self._stream = CODECS[api].stream_decoder(model=model)
        self._pieces: list[bytes] = []
        self._has_events = False

    def feed(self, chunk: bytes) -> list[StreamDelta]:
        """What a piece of a stream says; nothing for pieces of a whole answer."""
        if self._decoder is None:
            return []
        try:
            data = self._decoder.feed(chunk)
            if not self.streams:
                self._pieces.append(data)
                return []
            return self._read_deltas(data)
        except (WireError, Refused, *UNREADABLE) as error:
            self._give_up(error)
            return []

    def end(self) -> Reply | None:
        """The reply as far as it came; None where nothing could be read."""
        if self._decoder is None and not self._has_events:
            return None
        try:
            if self.streams:
                return self._stream.reply() if self._has_events else None
            body: Any = json.loads(b"".join(self._pieces))
            return CODECS[self._api].decode_reply(body, model=self._model)
        except (WireError, ValueError, RecursionError) as error:
            self._give_up(error)
            return None

    def _read_deltas(self, data: bytes) -> list[StreamDelta]:
        deltas: list[StreamDelta] = []
        for event in self._parser.feed(data):
            deltas += self._stream.feed(event)
            self._has_events = True
        return deltas

    def _give_up(self, error: Exception) -> None:
        self._decoder = None
        _LOG.warning("an answer could not be read on its way (%s); it is forwarded all the same", type(error).__name__)


def usage_of(api: Api, reply: Reply | None) -> CanonicalUsage | None:
    """What the provider reported, in one form; None where it reported nothing, or a prompt of no tokens."""
    usage = normalize_usage(reply.usage, api=api) if reply is not None and reply.usage else None
    return usage if usage is not None and usage.prompt_tokens else None


_LONGEST = 1024 * 1024
"""An event longer than this is no event; it goes on as it is."""
_CONTENT = frozenset({"text", "reasoning", "refusal", "call", "stop"})


def ask_for_usage(body: bytes, outer: OuterFields | None = None) -> bytes | None:
    """A chat request that streams, asking for the usage too; None where the client said what it wants.

    `outer`: its fields, where they were read before.
    """
    find = outer.find if outer is not None else functools.partial(peek_field, body)
    stream = find("stream")
    if stream is None or stream.value is not True:
        return None
    options = find("stream_options")
    if options is None:
        text = body.rstrip()
        return text[:-1] + b',"stream_options":{"include_usage":true}}' if text.endswith(b"}") else None
    if not isinstance(options.value, dict) or "include_usage" in options.value or options.at < 0:
        return None
    rest = b"," if options.value else b""
    return body[: options.at + 1] + b'"include_usage":true' + rest + body[options.at + 1 :]


class UsageChunkFilter:
    """A chat stream without the extra chunk at its end: the client did not ask for it."""

    def __init__(self) -> None:
        self._events = SseSplitter()

    def feed(self, chunk: bytes) -> bytes:
        """The complete events; the beginning of one waits for its end."""
        events = [event for event in self._events.feed(chunk) if not _is_extra(event)]
        if len(self._events.rest) > _LONGEST:
            events.append(self.end())
        return b"".join(events)

    def end(self) -> bytes:
        return self._events.end()


class StreamFilter(Protocol):
    """Changes a stream on its way."""

    def feed(self, chunk: bytes) -> bytes: ...
    def end(self) -> bytes: ...


class Filters:
    """Filters one behind the other; without any, every piece goes on as it came."""

    def __init__(self, filters: Sequence[StreamFilter]) -> None:
        self._filters = filters

    def feed(self, chunk: bytes) -> bytes:
        for one in self._filters:
            chunk = one.feed(chunk)
        return chunk

    def end(self) -> bytes:
        rest = b""
        for one in self._filters:
            rest = (one.feed(rest) if rest else b"") + one.end()
        return rest


def _is_extra(event: bytes) -> bool:
    if b'"usage"' not in event or not event.startswith(b"data:"):
        return False
    try:
        chunk: Any = json.loads(event[5:])
    except (ValueError, RecursionError):
        return False
    return isinstance(chunk, dict) and chunk.get("choices") == [] and isinstance(chunk.get("usage"), dict)


class Pieces:
    """The pieces of a body as they come, of which some were looked at before they go on."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source
        self._buffer: list[bytes] = []
        self._next: asyncio.Task[bytes | None] | None = None

    async def read_all(self, most: int) -> bytes | None:
        """The whole body; None where it has more than `most` bytes."""
        while sum(map(len, self._buffer)) <= most:
            piece = await anext(self._source, None)
            if piece is None:
                return b"".join(self._buffer)
            self._buffer.append(piece)
        return None

    async def peek_error(self, usage_reader: UsageReader, seconds: float) -> StreamDelta | None:
        """Buffer the stream until its first words, at most so long; its error if it begins with one."""
        ends = asyncio.get_running_loop().time() + seconds
        while True:
            self._next = asyncio.ensure_future(_next_piece(self._source))
            remaining = ends - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait({self._next}, timeout=max(0.0, remaining))
            if not done:
                return None
            piece, self._next = await self._next, None
            if piece is None:
                return None
            self._buffer.append(piece)
            deltas = usage_reader.feed(piece)
            error = next((delta for delta in deltas if delta.kind == "error"), None)
            if error is not None or any(delta.kind in _CONTENT for delta in deltas):
                return error

    async def drop(self) -> None:
        """Stop reading; the rest is dropped."""
        if self._next is not None:
            self._next.cancel()
            await asyncio.wait({self._next})

    async def after_buffer(self) -> AsyncIterator[bytes]:
        """The pieces behind the buffered ones."""
        if self._next is not None:
            piece = await self._next
            self._next = None
            if piece is None:
                return
            yield piece
        async for piece in self._source:
            yield piece

    async def all(self) -> AsyncIterator[bytes]:
        """All pieces, the buffered ones first."""
        for piece in self._buffer:
            yield piece
        async for piece in self.after_buffer():
            yield piece

    @property
    def buffered(self) -> list[bytes]:
        return self._buffer


async def _next_piece(source: AsyncIterator[bytes]) -> bytes | None:
    return await anext(source, None)


T = TypeVar("T")
COMMENT = b": everthread is waiting\n\n"
_OWN: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The first lines of an answer."""

    status: int = 200
    headers: Headers = field(default_factory=lambda: list(_OWN))
    own_headers: Mapping[str, str] = field(default_factory=dict)


class StreamKeepAlive:
    """Keeps the connection of a waiting client alive with comments."""

    def __init__(self, writer: ResponseWriter, limits: Limits, metrics: Metrics, streams: Callable[[], bool]) -> None:
        self._writer = writer
        self._limits = limits
        self._metrics = metrics
        self._streams = streams
        """Whether the client asked for a stream; looked up only when somebody waits."""
        self.has_started = False
        """The answer's first lines are sent, and nothing but comments behind them."""

    async def wait_for_gateway(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work of the gateway, before the upstream has answered."""
        first = self._limits.keepalive_seconds if self.has_started else self._limits.silence_seconds
        return await self._run_with_beats(work, first, ResponseHead)

    async def wait_for_words(self, work: Coroutine[Any, Any, T], head: ResponseHead | None) -> T:
        """Wait for the first words of a stream; None: it is compressed, and a comment would break it."""
        return await self._run_with_beats(work, self._limits.keepalive_seconds, lambda: head)

    async def _run_with_beats(
        self, work: Coroutine[Any, Any, T], first: float, head: Callable[[], ResponseHead | None]
    ) -> T:
        async def beat() -> None:
            while await self._beat(head()):  # noqa: ASYNC110  a comment at each interval
                await asyncio.sleep(self._limits.keepalive_seconds)

        return await run_beside(work, beat, after=first)

    async def _beat(self, head: ResponseHead | None) -> bool:
        """Send one comment; False where the response cannot carry one."""
        if not self.has_started:
            if head is None or not self._streams():
                return False
            self.has_started = True
            await self._writer.start(head.status, head.headers, head.own_headers)
        self._metrics.count("keepalives")
        await self._writer.body(COMMENT)
        return True
