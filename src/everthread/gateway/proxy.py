"""The proxy: receive a request, decide whether it is managed, and start its exchange with an upstream.

`exchange.py` sends requests and relays answers; `managed_exchange.py` does so for conversations; features are
in `filters/`.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Awaitable, Callable, Sequence

from starlette.types import Receive, Scope, Send

from everthread.core.types import Api
from everthread.gateway.admission import Admission
from everthread.gateway.contracts import (
    NOTICE_HEADER,
    GatewayLimits,
    IncomingRequest,
    RequestManager,
)
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.exchange import Exchange, ExchangeRequest, PendingWork, ProxyServices
from everthread.gateway.fail_open import FailOpen
from everthread.gateway.features import Feature
from everthread.gateway.managed_exchange import ManagedExchange
from everthread.gateway.monitoring.event_reports import FailureLog
from everthread.gateway.monitoring.metrics import Metrics
from everthread.gateway.monitoring.store_watch import StoreWatch
from everthread.gateway.request.body_cache import BodyOrigin
from everthread.gateway.request.body_limits import Upload, read_body
from everthread.gateway.request.body_reading import (
    BodyLocator,
    RequestBody,
    read_request,
)
from everthread.gateway.request.client_connection import ClientGone, run_while_connected
from everthread.gateway.request.request_head import RequestHead, find_model_in_path
from everthread.gateway.response_writer import ResponseWriter
from everthread.gateway.router import Routes, Upstream, find_provider
from everthread.gateway.upstream import (
    UpstreamClient,
    UpstreamDisconnectedError,
    UpstreamTimeoutError,
)

_LOG = logging.getLogger("everthread.gateway")
ARRIVING_BODIES_FACTOR = 4
"""The number of bodies that may be arriving at the same time, divided by the limit of concurrent requests."""
BUFFERED_BYTES_FACTOR = 32
"""The number of bytes of all bodies in memory, divided by the limit of one body."""


FlushRecords = Callable[[], Awaitable[None]]


async def _flush_nothing() -> None:
    """Do nothing: the default for a manager that delays no records."""


class Proxy:
    """Answer requests of conversations, and pass all other requests on to an upstream."""

    def __init__(  # noqa: PLR0913 - the parts of a proxy, each by its name
        self,
        routes: Routes,
        manager: RequestManager,
        *,
        features: Sequence[Feature] = (),
        limits: GatewayLimits | None = None,
        metrics: Metrics | None = None,
        store_watch: StoreWatch | None = None,
        failures: FailureLog | None = None,
        flush_records: FlushRecords | None = None,
    ) -> None:
        """`features`: from the client's side to the upstream's; see `make_features` in `factory/gateways.py`.

        `flush_records`: makes all delayed records of the manager now.
        """
        self.limits = limits or GatewayLimits()
        self.metrics = metrics or Metrics()
        self.feature_paths = frozenset[str]().union(*(feature.paths for feature in features))
        """Paths without a conversation whose requests are read because a feature needs them."""
        self.flush_records = flush_records or _flush_nothing
        self._routes = routes
        self._reader = manager.reader
        self._services = ProxyServices(
            client=UpstreamClient(self.limits),
            fail_open=FailOpen(
                manager,
                self.metrics,
                self.limits.manage_seconds,
                store_watch=store_watch,
                failures=failures,
            ),
            metrics=self.metrics,
            limits=self.limits,
            features=features,
            pending_work=PendingWork(),
        )
        self._admission = Admission(self.limits.concurrent)
        self._arrivals = Admission(ARRIVING_BODIES_FACTOR * self.limits.concurrent)
        """Limits the bodies that are arriving, separately, so that slow ones do not block complete requests."""
        self._buffered_bytes = Admission(BUFFERED_BYTES_FACTOR * self.limits.body_bytes, "bytes")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request whose head `GatewayApp` has put into the scope's state."""
        head: RequestHead = scope["state"]["head"]
        writer = ResponseWriter(send, head, self.metrics, self.limits.write_seconds)
        try:
            head.caller.admit()
            await self._serve(head, scope, receive, writer=writer)
        except RequestRefused as refused:
            with contextlib.suppress(ClientGone):
                await writer.refuse(refused)
        except ClientGone:
            _LOG.info("%s %s: the client left", head.method, head.path)
        except (UpstreamDisconnectedError, UpstreamTimeoutError) as error:
            # An answer that has begun is broken off too, so that a part does not look like the whole.
            self.metrics.count("upstream_errors", upstream="", status=type(error).__name__)
            _LOG.warning(
                "%s %s: the upstream broke off (%s)",
                head.method,
                head.path,
                type(error).__name__,
            )
            with contextlib.suppress(ClientGone):
                await writer.refuse(
                    RequestRefused(502, "upstream_broke_off", "The upstream broke off; try again.")
                )
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            location = f"{frame.filename}:{frame.lineno}"  # not its words, which may be a client's
            _LOG.error(
                "%s %s failed in the gateway: %s at %s",
                head.method,
                head.path,
                type(error).__name__,
                location,
            )
            raise
        finally:
            self.metrics.set_in_flight(self._admission.count)
            writer.log()

    async def close(self) -> None:
        """Wait until pending records are stored, then close the HTTP client."""
        await self.flush_records()
        await self._services.pending_work.wait()
        await self._services.client.close()

    async def _serve(
        self,
        head: RequestHead,
        scope: Scope,
        receive: Receive,
        *,
        writer: ResponseWriter,
    ) -> None:
        """Stream a body to the upstream, or read it first, within the limits of the caller's group."""
        admission_group = head.caller.admission_group
        if not self._should_read(head):
            upload = Upload(receive, head, self.limits.body_seconds)
            body = upload if upload.has_body else None
            exchange = self._make_path_exchange(
                head, find_model_in_path(head.path), writer, body=body
            )
            with self._arrivals.enter(admission_group):
                await run_while_connected(exchange.run(), scope)
            return
        with self._buffered_bytes.reserve(admission_group) as reserve_bytes:
            with self._arrivals.enter(admission_group):
                raw = await read_body(receive, head, self.limits, reserve_bytes)
            with self._admission.enter(admission_group):
                self.metrics.set_in_flight(self._admission.count)
                await run_while_connected(self._answer(head, raw, writer), scope)

    def _should_read(self, head: RequestHead) -> bool:
        """Return whether the gateway needs the body, for a conversation, a feature or the choice of the upstream."""
        is_routed_by_model = self._routes.has_several and head.is_json
        return (
            head.conversation_api is not None
            or head.path in self.feature_paths
            or is_routed_by_model
        )

    async def _answer(self, head: RequestHead, raw: bytes, writer: ResponseWriter) -> None:
        """Answer a request whose body has arrived."""
        if head.conversation_api is not None:
            conversation = await self._make_conversation_exchange(
                head, head.conversation_api, raw, writer=writer
            )
            await conversation.run()
        else:
            exchange = await self._make_read_exchange(head, raw, writer)
            await exchange.run()

    async def _make_conversation_exchange(
        self, head: RequestHead, api: Api, raw: bytes, *, writer: ResponseWriter
    ) -> Exchange | ManagedExchange:
        """Return the exchange of a conversation: managed, unless a setting or its size forbids that."""
        locator = None
        if self._reader is not None and (head.caller.mode or self._routes.mode) != "off":
            origin = BodyOrigin.of(api, head.caller.tenant, head.headers)
            locator = BodyLocator(self._reader, origin, self.metrics)
        body = await self._read(head, raw, locator)
        upstream = self._choose_upstream(head, body.model)
        mode = head.caller.mode or upstream.mode
        if mode == "off":
            request = ExchangeRequest(head, upstream, body.model, raw)
            return Exchange(self._services, request, writer)
        if body.excess_reason:
            self._services.fail_open.warn_unmanaged(body.excess_reason)
            writer.note(reason=f"unmanaged: {body.excess_reason}")
            notice_headers = {NOTICE_HEADER: f"passed on unmanaged: {body.excess_reason}"}
            request = ExchangeRequest(head, upstream, body.model, raw, notice_headers)
            return Exchange(self._services, request, writer)
        return ManagedExchange(
            self._services,
            ExchangeRequest(head, upstream, body.model),
            writer,
            incoming=IncomingRequest(head, body, api, upstream.root_url, mode),
        )

    async def _make_read_exchange(
        self, head: RequestHead, raw: bytes, writer: ResponseWriter
    ) -> Exchange:
        """Return the exchange of a request that is not a conversation but is read, for its model or for a feature."""
        body = await self._read(head, raw)
        model = body.model or find_model_in_path(head.path)
        if head.path not in self.feature_paths or not body.plain:
            return self._make_path_exchange(head, model, writer, body=raw)
        upstream = self._choose_upstream(head, model)
        mode = head.caller.mode or upstream.mode
        return Exchange(
            self._services,
            ExchangeRequest(head, upstream, model, raw),
            writer,
            incoming=IncomingRequest(head, body, head.client_api, upstream.root_url, mode),
        )

    def _make_path_exchange(
        self,
        head: RequestHead,
        model: str | None,
        writer: ResponseWriter,
        *,
        body: bytes | Upload | None,
    ) -> Exchange:
        """Return the exchange of a request to a path that is not managed. Count it and add a notice if it is a POST."""
        notice_headers = {}
        if head.method == "POST":
            self.metrics.count("unmanaged", why="path")
            notice_headers = {NOTICE_HEADER: "passed on unmanaged: this path is not managed"}
        upstream = self._choose_upstream(head, model)
        request = ExchangeRequest(head, upstream, model, body, notice_headers)
        return Exchange(self._services, request, writer)

    def _choose_upstream(self, head: RequestHead, model: str | None) -> Upstream:
        return self._routes.choose(
            model, find_provider(head.client_api), has_chatgpt_login=head.has_chatgpt_login
        )

    async def _read(
        self, head: RequestHead, raw: bytes, locator: BodyLocator | None = None
    ) -> RequestBody:
        return await read_request(
            raw,
            head.headers.get("content-encoding", ""),
            self.limits.body_bytes,
            locator=locator,
            path=head.path,
        )
