"""Forward the client's own bytes if the manager fails, takes too long or cannot read a request (fail open)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from everthread.core.secrets.redaction import redact
from everthread.core.types import Reply
from everthread.errors import WireError
from everthread.gateway.contracts import (
    CREDENTIAL_HEADERS,
    NOTICE_HEADER,
    THREAD_HEADER,
    Incoming,
    Outgoing,
    RequestHandler,
    RequestManager,
    UnmanagedHandler,
)
from everthread.gateway.monitoring.event_reports import FORWARDED, FailureLog
from everthread.gateway.monitoring.log_lines import make_printable
from everthread.gateway.monitoring.metrics import Metrics
from everthread.gateway.monitoring.store_watch import StoreWatch
from everthread.gateway.request.json_slices import ExcessError
from everthread.thread.caller.caller_request import Outcome

_LOG = logging.getLogger("everthread.gateway")
T = TypeVar("T")
MAX_HEADER_WAIT_SECONDS = 1.0
"""Maximum wait of an answer for the headers that the handler adds."""
MIN_SECRET_CHARS = 8
"""Minimum length of values in a credential header that are redacted; shorter ones could be part of any word."""
MAX_LOGGED_CHARS = 300


class FailOpenManager:
    """Wrap the manager so that a failure is logged and counted, and the client's own bytes are forwarded."""

    def __init__(
        self,
        manager: RequestManager,
        metrics: Metrics,
        seconds: float,
        store_watch: StoreWatch | None = None,
        failures: FailureLog | None = None,
    ) -> None:
        self._manager = manager
        self.failures = failures
        self._metrics = metrics
        self._seconds = seconds
        self._store_watch = store_watch
        self._warned: set[str] = set()
        """Kinds of unmanaged requests for which a warning was logged."""

    def forward_first(self, incoming: Incoming) -> FailOpenHandler | None:
        """Return the handler of a request that can be forwarded before it is read; None if it cannot."""
        try:
            handler = self._manager.forward_first(incoming)
        except Exception as error:  # noqa: BLE001  counted and logged; the request is read first
            self._report("forward", incoming, error)
            return None
        return None if handler is None else FailOpenHandler(self, incoming, handler)

    async def prepare(self, incoming: Incoming) -> FailOpenHandler:
        """Return the handler of a request; one that forwards it unchanged if the manager fails."""
        handler = await self.attempt("prepare", incoming, self._prepare(incoming))
        if handler is None or (incoming.mode != "managed" and handler.outgoing.is_rewritten):
            reason = "the gateway failed" if handler is None else ""
            handler = _make_unmanaged_handler(incoming, reason)
        return FailOpenHandler(self, incoming, handler)

    async def _prepare(self, incoming: Incoming) -> RequestHandler:
        """Let the manager prepare a handler. Forward an unreadable request, which the upstream may accept or refuse."""
        try:
            return await self._manager.prepare(incoming)
        except WireError as error:
            reason = str(error) if isinstance(error, ExcessError) else "it cannot be read here"
            kind = "excess" if isinstance(error, ExcessError) else "unreadable"
            self.warn_unmanaged(_redact_credentials(str(error), incoming), kind=kind)
            return _make_unmanaged_handler(incoming, make_printable(reason))

    def warn_unmanaged(self, reason: str, *, kind: str = "") -> None:
        """Count a request that is passed on unmanaged, and log it; the first one of each kind as a warning.

        `kind`: the name of the count; the reason itself if empty.
        """
        kind = kind or reason
        self._metrics.count("unmanaged", why=kind)
        level = logging.INFO if kind in self._warned else logging.WARNING
        self._warned.add(kind)
        _LOG.log(level, "a request is passed on unmanaged: %s", reason)

    async def attempt(
        self,
        step: str,
        incoming: Incoming,
        work: Coroutine[Any, Any, T],
        *,
        is_awaited: bool = True,
    ) -> T | None:
        """Return the result of the work; None if it fails or takes too long.

        `is_awaited`: whether a client waits; then also return None as soon as the store is known to be unreachable.
        """
        try:
            watched_work = (
                self._store_watch.run_with_store(work)
                if self._store_watch is not None and is_awaited
                else work
            )
            async with asyncio.timeout(self._seconds):
                return await watched_work
        except Exception as error:  # noqa: BLE001  counted and logged; the client gets its answer all the same
            self._report(step, incoming, error)
            return None

    def _report(self, step: str, incoming: Incoming, error: Exception) -> None:
        self._metrics.count("failed_open", step=step)
        if self.failures is not None:
            self.failures.record(FORWARDED, tenant=incoming.tenant)
        text = _redact_credentials(str(error), incoming)
        _LOG.error(
            "%s failed, the original request is forwarded: %s: %s",
            step,
            type(error).__name__,
            text,
        )


class FailOpenHandler:
    """Wrap a handler so that a failing step falls back to the client's own bytes."""

    def __init__(
        self, manager: FailOpenManager, incoming: Incoming, handler: RequestHandler
    ) -> None:
        self._manager = manager
        self._incoming = incoming
        self._handler = handler

    @property
    def thread(self) -> str:
        return self._handler.thread

    @property
    def outgoing(self) -> Outgoing:
        return self._handler.outgoing

    async def recover(self, status: int, body: bytes) -> Outgoing | None:
        if self._incoming.mode != "managed":
            return None
        return await self._manager.attempt(
            "refused", self._incoming, self._handler.recover(status, body)
        )

    async def resume_after_recall(self, reply: Reply) -> Outgoing | None:
        return await self._manager.attempt(
            "recall", self._incoming, self._handler.resume_after_recall(reply)
        )

    async def retry_without_recall(self, reply: Reply) -> Outgoing | None:
        return await self._manager.attempt(
            "recall", self._incoming, self._handler.retry_without_recall(reply)
        )

    async def response_headers(self) -> Mapping[str, str]:
        """Return the headers for the client, without the thread id if the store does not answer in time."""
        if THREAD_HEADER in self.outgoing.headers:
            return self.outgoing.headers
        headers: Mapping[str, str] | None
        try:
            async with asyncio.timeout(MAX_HEADER_WAIT_SECONDS):
                headers = await self._manager.attempt(
                    "headers", self._incoming, self._handler.response_headers()
                )
        except TimeoutError:
            # Not a failure: the thread is stored after the answer has begun.
            headers = None
        return self.outgoing.headers if headers is None else headers

    async def record(self, outcome: Outcome) -> None:
        await self._manager.attempt(
            "answered", self._incoming, self._handler.record(outcome), is_awaited=False
        )


def _make_unmanaged_handler(incoming: Incoming, reason: str) -> UnmanagedHandler:
    """Return a handler that forwards the client's own bytes, with a notice if there is a reason."""
    handler = UnmanagedHandler(incoming)
    if reason:
        handler.outgoing = replace(
            handler.outgoing, headers={NOTICE_HEADER: f"passed on unmanaged: {reason}"}
        )
    return handler


def _redact_credentials(text: str, incoming: Incoming) -> str:
    """Return an error's text for the log, without the client's own credential."""
    for name in CREDENTIAL_HEADERS:
        for secret in incoming.headers.get(name, "").split():
            if len(secret) >= MIN_SECRET_CHARS:
                text = text.replace(secret, "[REDACTED]")
    return redact(text)[:MAX_LOGGED_CHARS]
