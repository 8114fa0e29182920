"""Send one request upstream, and pass its answer on to the client through the filters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from everthread.core.types import Api
from everthread.gateway.contracts import Incoming, Limits, ManagedCall
from everthread.gateway.error_answers import Refused
from everthread.gateway.fail_open import FailOpenManager
from everthread.gateway.features import Feature, Filter
from everthread.gateway.monitoring.log_lines import read_error_reason
from everthread.gateway.monitoring.metrics import Metrics
from everthread.gateway.request.body_limits import Upload
from everthread.gateway.request.encoding import decode_body
from everthread.gateway.request.request_head import RequestHead
from everthread.gateway.router import Upstream, find_family
from everthread.gateway.streaming import Pieces, ResponseWriter
from everthread.gateway.upstream import (
    Headers,
    ResponseHeaders,
    UpstreamClient,
    UpstreamResponse,
    drop_body_headers,
    select_client_headers,
    select_upstream_headers,
)
from everthread.gateway.work_after_answers import PendingWork
from everthread.thread.caller.sent_history import Outcome

MAX_ERROR_BYTES = 1024 * 1024
"""A longer error of an upstream is passed on unread."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProxyServices:
    """The parts of the proxy that every exchange uses."""

    client: UpstreamClient
    manager: FailOpenManager
    metrics: Metrics
    limits: Limits
    features: Sequence[Feature]
    pending: PendingWork


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
class Answer:
    """An answer on its way to the client."""

    status: int
    headers: ResponseHeaders
    pieces: Pieces
    is_changed: bool = False
    """Whether the body is not the upstream's own, so that its stated length no longer fits."""
    own_headers: Mapping[str, str] | None = None
    """Set if the gateway answers in place of the upstream: its headers for the client."""

    @property
    def is_own(self) -> bool:
        """Whether the gateway answers in place of the upstream."""
        return self.own_headers is not None

    @property
    def streams(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def is_plain(self) -> bool:
        """Whether the body is uncompressed."""
        return self.headers.get("content-encoding", "identity") == "identity"

    @property
    def client_headers(self) -> Headers:
        headers = select_client_headers(self.headers.raw)
        if not self.is_changed:
            return headers
        return [(name, value) for name, value in headers if name != b"content-length"]

    async def read_error(self) -> bytes | None:
        """Return the whole decoded body; None if it is too long or its encoding is unknown."""
        raw = await self.pieces.read_all(MAX_ERROR_BYTES)
        try:
            return (
                decode_body(
                    raw, self.headers.get("content-encoding", ""), MAX_ERROR_BYTES
                )
                if raw
                else raw
            )
        except Refused:
            return None


def make_answer(response: UpstreamResponse) -> Answer:
    """Return an upstream's response as the answer for the client."""
    return Answer(response.status_code, response.headers, Pieces(response.aiter_raw()))


class Exchange:
    """An unmanaged request and its answer; `run` does all steps."""

    def __init__(  # noqa: PLR0913 - the parts of an exchange, each by its name
        self,
        services: ProxyServices,
        head: RequestHead,
        upstream: Upstream,
        writer: ResponseWriter,
        *,
        model: str | None,
        body: bytes | Upload | None = None,
        incoming: Incoming | None = None,
        notice_headers: Mapping[str, str] | None = None,
    ) -> None:
        """`incoming`: the request in the form for the manager and features; None if none of them needs to read it.

        `notice_headers`: headers that tell the client why the request is not managed.
        """
        self.services = services
        self.head = head
        self.upstream = upstream
        self.writer = writer
        self.model = model
        self.body = body
        self.incoming = incoming
        self._notice_headers = notice_headers or {}
        self.status = 0
        """The status of the upstream's last response; 0 if there is none yet."""
        self.filters: list[Filter] = []
        self._response: UpstreamResponse | None = None

    @property
    def managed_call(self) -> ManagedCall | None:
        """The managed request; None if the request is not managed."""
        return None

    @property
    def wants_stream(self) -> bool:
        """Whether the client asked for a stream; False if the body was not read."""
        return False

    async def run(self) -> None:
        """Send the request and pass its answer on."""
        self.begin_filters()
        try:
            response = await self.send()
            if response.status_code >= 400:
                self.count_upstream_error(str(response.status_code))
            await self.relay(make_answer(response))
        finally:
            try:  # first what the features do at the end: closing may be cancelled
                self.finish()
            finally:
                await self.close()

    def begin_filters(self) -> None:
        filters = (feature.begin(self) for feature in self.services.features)
        self.filters = [each for each in filters if each is not None]

    async def send(self, *, is_plain: bool = False) -> UpstreamResponse:
        """Send the request upstream, and close the previous response. `is_plain`: ask for an uncompressed answer."""
        request = self.make_request()
        if is_plain:
            request = replace(request, is_plain=True)
        for each_filter in self.filters:
            request = each_filter.request(request)
        headers = request.headers
        if request.is_plain:
            headers = [
                (name, value) for name, value in headers if name != b"accept-encoding"
            ]
            headers.append((b"accept-encoding", b"identity"))
        if request.is_changed:
            headers = drop_body_headers(headers)
        await self.close()
        head = self.head
        response = await self.services.client.send(
            self.upstream, head.method, head.target, headers, request.body
        )
        self._response = response
        self.status = response.status_code
        return response

    def make_request(self) -> UpstreamRequest:
        """Return the request for the upstream, before the filters."""
        content = self.body.pieces() if isinstance(self.body, Upload) else self.body
        return UpstreamRequest(self.make_headers(self.head.client_api), content)

    def make_headers(self, api: Api) -> Headers:
        """Return the client's headers for an upstream of this protocol."""
        head = self.head
        return select_upstream_headers(
            head.raw_headers,
            self.upstream,
            find_family(api),
            is_trusted=head.caller.is_passthrough,
        )

    async def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work of the gateway for which the client has to wait; return its result."""
        return await work

    async def relay(self, answer: Answer) -> None:
        """Pass an answer on to the client, through the filters."""
        if answer.status >= 400 and not answer.is_own:
            await self._note_error_reason(answer)
        for each_filter in reversed(self.filters):
            answer = await each_filter.answer(answer)
        if not await self.start(answer):
            return
        # Filters that do nothing at these moments are left out: a stream has many pieces.
        convert_functions = [
            each_filter.event
            for each_filter in reversed(self.filters)
            if type(each_filter).event is not Filter.event
        ]
        read_functions = [
            each_filter.seen
            for each_filter in self.filters
            if type(each_filter).seen is not Filter.seen
        ]
        async for piece in answer.pieces.all():
            converted_piece = piece
            for convert in convert_functions:
                converted_piece = convert(converted_piece)
            if converted_piece:
                await self.writer.body(converted_piece)
            for read in read_functions:
                read(piece)
        last_bytes = b""
        for each_filter in reversed(self.filters):
            last_bytes = (
                each_filter.event(last_bytes) if last_bytes else b""
            ) + each_filter.end()
        await self.writer.end(last_bytes)

    async def _note_error_reason(self, answer: Answer) -> None:
        """Add the upstream's reason for a refusal to the log line of the request."""
        error = await answer.read_error()
        if error:
            self.writer.note(reason=read_error_reason(error))

    async def start(self, answer: Answer) -> bool:
        """Send the status and headers of an answer. Return False if the answer is complete after that."""
        own_headers = (
            self._notice_headers if answer.own_headers is None else answer.own_headers
        )
        await self.writer.start(answer.status, answer.client_headers, own_headers)
        return True

    def finish(self) -> Outcome:
        """End the filters and return the outcome of the exchange.

        Drop the filters: they refer to the exchange, and the cycle would keep the bodies in memory for longer.
        """
        outcome = Outcome(self.status)
        ended_filters = self.filters
        self.filters = []
        for each_filter in reversed(ended_filters):
            outcome = each_filter.done(outcome)
        return outcome

    async def close(self) -> None:
        """Close the upstream's last response."""
        if self._response is not None:
            await self._response.aclose()

    def count_upstream_error(self, status: str) -> None:
        self.services.metrics.count(
            "upstream_errors", upstream=self.upstream.name, status=status
        )
