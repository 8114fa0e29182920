"""Send one request upstream, and pass its answer on to the client through the filters."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any, TypeVar

from everthread.core.types import Api
from everthread.gateway.answers import Answer, make_answer
from everthread.gateway.contracts import GatewayLimits, IncomingRequest
from everthread.gateway.error_answers import make_error_event
from everthread.gateway.fail_open import FailOpen
from everthread.gateway.features import Feature, Filter
from everthread.gateway.header_selection import (
    Headers,
    drop_body_headers,
    select_upstream_headers,
)
from everthread.gateway.keep_alive import StreamKeepAlive
from everthread.gateway.monitoring.log_lines import read_error_reason
from everthread.gateway.monitoring.metrics import Metrics
from everthread.gateway.request.body_limits import Upload
from everthread.gateway.request.body_reading import MAX_LOOP_BYTES, run_in_thread_if_large
from everthread.gateway.request.request_head import RequestHead
from everthread.gateway.response_writer import ResponseWriter
from everthread.gateway.router import Upstream, find_provider
from everthread.gateway.upstream import UpstreamClient, UpstreamResponse
from everthread.thread.caller.caller_request import Outcome

T = TypeVar("T")


class PendingWork:
    """Work that runs after answers, such as storing records. The gateway waits for it before it ends."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start some work in the background."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def charge_when_measured(
        self, size: int, measure: Callable[[], T], charge: Callable[[T], None]
    ) -> None:
        """Measure and charge a call, in the background if measuring has to read a large request of `size` bytes."""
        if size <= MAX_LOOP_BYTES:
            charge(measure())
        else:
            self.start(self._charge_later(size, measure, charge))

    async def wait(self) -> None:
        """Wait until all work is done."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _charge_later(
        self, size: int, measure: Callable[[], T], charge: Callable[[T], None]
    ) -> None:
        charge(await run_in_thread_if_large(size, measure))


@dataclass(frozen=True, slots=True)
class ProxyServices:
    """The parts of the proxy that every exchange uses."""

    client: UpstreamClient
    fail_open: FailOpen
    metrics: Metrics
    limits: GatewayLimits
    features: Sequence[Feature]
    pending_work: PendingWork


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """A request as it goes upstream."""

    headers: Headers
    body: bytes | AsyncIterator[bytes] | None
    is_changed: bool = False
    """Whether the body is not the client's own, so that its length and encoding headers no longer fit."""
    is_plain: bool = False
    """Whether to ask for an uncompressed answer, because the gateway will change it."""


@dataclass(frozen=True, slots=True)
class ExchangeRequest:
    """A client's request, and the upstream that answers it."""

    head: RequestHead
    upstream: Upstream
    model: str | None
    body: bytes | Upload | None = None
    """The client's own body; None if there is none, or if the manager decides which body to send."""
    notice_headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that tell the client why the request is not managed."""


class Exchange:
    """A request and its answer.

    `run` passes both on unmanaged. A `ManagedExchange` owns an exchange and takes its steps itself.
    """

    incoming: IncomingRequest | None
    """The request in the form for the manager and features; None if none of them needs to read it."""

    def __init__(
        self,
        services: ProxyServices,
        request: ExchangeRequest,
        writer: ResponseWriter,
        *,
        incoming: IncomingRequest | None = None,
    ) -> None:
        self.services = services
        self.request = request
        self.writer = writer
        self.incoming = incoming
        self.status = 0
        """The status of the upstream's last response; 0 if there is none yet."""
        self.filters: list[Filter] = []
        # Not a method: the cycle would keep the bodies in memory for longer.
        accepts_comments = functools.partial(_accepts_comments, request.head, incoming)
        self.keep_alive = StreamKeepAlive(
            writer, services.limits, services.metrics, accepts_comments
        )
        self._response: UpstreamResponse | None = None

    async def run(self) -> None:
        """Send the request and pass its answer on."""
        self.begin_filters(feature.make_filter(self) for feature in self.services.features)
        try:
            response = await self.send(self._make_request())
            if response.status_code >= 400:
                self.count_upstream_error(str(response.status_code))
            await self.relay(make_answer(response))
        finally:
            try:  # first what the features do at the end: closing may be cancelled
                self.end_filters()
            finally:
                await self.close()

    def begin_filters(self, filters: Iterable[Filter | None]) -> None:
        """Send the request and its answer through these filters; None if the exchange does not concern a feature."""
        self.filters = [each_filter for each_filter in filters if each_filter is not None]

    def _make_request(self) -> UpstreamRequest:
        """Return the client's own request."""
        body = self.request.body
        headers = self.make_headers(self.request.head.client_api)
        return UpstreamRequest(headers, body.pieces() if isinstance(body, Upload) else body)

    async def send(self, request: UpstreamRequest) -> UpstreamResponse:
        """Send a request upstream, through the filters, and close the previous response."""
        for each_filter in self.filters:
            request = each_filter.change_request(request)
        headers = request.headers
        if request.is_plain:
            headers = [(name, value) for name, value in headers if name != b"accept-encoding"]
            headers.append((b"accept-encoding", b"identity"))
        if request.is_changed:
            headers = drop_body_headers(headers)
        await self.close()
        head = self.request.head
        response = await self.services.client.send(
            self.request.upstream, head.method, head.target, headers, request.body
        )
        self._response = response
        self.status = response.status_code
        return response

    def make_headers(self, api: Api) -> Headers:
        """Return the client's headers for an upstream of this protocol."""
        head = self.request.head
        return select_upstream_headers(
            head.raw_headers,
            self.request.upstream,
            find_provider(api),
            is_trusted=head.caller.is_passthrough,
        )

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work of the gateway, and keep the client's connection alive meanwhile; return the result."""
        return await self.keep_alive.wait_for_gateway(work)

    async def relay(
        self,
        answer: Answer,
        make_own_headers: Callable[[], Awaitable[Mapping[str, str]]] | None = None,
    ) -> None:
        """Pass an answer on to the client, through the filters.

        `make_own_headers`: makes the gateway's headers for the client; None to send the request's notices.
        """
        if answer.status >= 400 and not answer.is_own:
            await self._log_error_reason(answer)
        for each_filter in reversed(self.filters):
            answer = await each_filter.change_answer(answer)
        if self.keep_alive.has_started:
            # The stream was started early, so that an error can only be sent as an event.
            if not answer.is_stream or answer.status >= 300:
                await self.end_with_error(answer.status, await answer.read_error() or b"")
                return
        else:
            own_headers = answer.own_headers
            if own_headers is None:
                own_headers = self.request.notice_headers
                if make_own_headers is not None:
                    own_headers = await make_own_headers()
            await self.writer.start(answer.status, answer.client_headers, own_headers)
            self.keep_alive.has_started = answer.is_stream
        await self._send_pieces(answer)

    async def _send_pieces(self, answer: Answer) -> None:
        """Send the body of an answer through the filters."""
        async for piece in answer.body.pieces():
            converted_piece = piece
            for each_filter in reversed(self.filters):
                converted_piece = each_filter.convert_piece(converted_piece)
            if converted_piece:
                await self.writer.body(converted_piece)
            for each_filter in self.filters:
                each_filter.read_piece(piece)
        last_bytes = b""
        for each_filter in reversed(self.filters):
            last_bytes = (
                each_filter.convert_piece(last_bytes) if last_bytes else b""
            ) + each_filter.release_held_bytes()
        await self.writer.end(last_bytes)

    async def _log_error_reason(self, answer: Answer) -> None:
        """Add the upstream's reason for a refusal to the log line of the request."""
        error = await answer.read_error()
        if error:
            self.writer.note(reason=read_error_reason(error))

    async def end_with_error(self, status: int, body: bytes) -> None:
        """End a stream that was started early with an error in the client's protocol."""
        head = self.request.head
        api = head.conversation_api or head.client_api
        await self.writer.end(make_error_event(api, status, body))

    def end_filters(self) -> Outcome:
        """End the filters and return the outcome of the exchange.

        Drop the filters: they refer to the exchange, and the cycle would keep the bodies in memory for longer.
        """
        outcome = Outcome(self.status)
        ended_filters = self.filters
        self.filters = []
        for each_filter in reversed(ended_filters):
            outcome = each_filter.finish(outcome)
        return outcome

    async def close(self) -> None:
        """Close the upstream's last response."""
        if self._response is not None:
            await self._response.close()

    def count_upstream_error(self, status: str) -> None:
        name = self.request.upstream.name
        self.services.metrics.count("upstream_errors", upstream=name, status=status)


def _accepts_comments(head: RequestHead, incoming: IncomingRequest | None) -> bool:
    """Return whether the client asked for a stream and ignores its comments; Google's SDK reads them as data."""
    if incoming is None or head.conversation_api in (None, "gemini"):
        return False
    return incoming.body.outer.wants_stream
