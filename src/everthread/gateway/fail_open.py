"""Forward the client's own bytes if the manager fails, takes too long or cannot read a request (fail open)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from everthread.core.secrets.redaction import redact
from everthread.errors import WireError
from everthread.gateway.contracts import (
    CREDENTIAL_HEADERS,
    IncomingRequest,
    RequestHandler,
    RequestManager,
)
from everthread.gateway.monitoring.event_reports import FORWARDED, FailureLog
from everthread.gateway.monitoring.log_lines import make_printable
from everthread.gateway.monitoring.metrics import Metrics
from everthread.gateway.monitoring.store_watch import StoreWatch
from everthread.gateway.request.json_slices import ExcessError

_LOG = logging.getLogger("everthread.gateway")
T = TypeVar("T")
MIN_SECRET_CHARS = 8
"""Minimum length of values in a credential header that are redacted; shorter ones could be part of any word."""
MAX_LOGGED_CHARS = 300


class FailOpen:
    """Runs steps of the manager so that a failure is logged and counted instead of raised."""

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

    def forward_first(self, incoming: IncomingRequest) -> RequestHandler | None:
        """Return the handler of a request that can be forwarded before it is read, or None if it cannot."""
        try:
            return self._manager.forward_first(incoming)
        except Exception as error:  # noqa: BLE001  counted and logged; the request is read first
            self._report("forward", incoming, error)
            return None

    async def prepare(self, incoming: IncomingRequest) -> tuple[RequestHandler | None, str]:
        """Return the handler of a request, or None if it is forwarded unmanaged, and the reason to give the client."""
        result = await self.attempt("prepare", incoming, self._prepare(incoming))
        if result is None:
            return None, "the gateway failed"
        handler, _ = result
        if incoming.mode != "managed" and handler is not None and handler.outgoing.is_rewritten:
            return None, ""
        return result

    async def _prepare(self, incoming: IncomingRequest) -> tuple[RequestHandler | None, str]:
        """Let the manager prepare a handler. Forward an unreadable request, which the upstream may accept or refuse."""
        try:
            return await self._manager.prepare(incoming), ""
        except WireError as error:
            reason = str(error) if isinstance(error, ExcessError) else "it cannot be read here"
            kind = "excess" if isinstance(error, ExcessError) else "unreadable"
            self.warn_unmanaged(_redact_credentials(str(error), incoming), kind=kind)
            return None, make_printable(reason)

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
        incoming: IncomingRequest,
        work: Coroutine[Any, Any, T],
        *,
        is_awaited: bool = True,
    ) -> T | None:
        """Return the result of the work, or None if it fails or takes too long.

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

    def _report(self, step: str, incoming: IncomingRequest, error: Exception) -> None:
        self._metrics.count("failed_open", step=step)
        if self.failures is not None:
            self.failures.record(FORWARDED, tenant=incoming.head.caller.tenant)
        text = _redact_credentials(str(error), incoming)
        _LOG.error(
            "%s failed, the original request is forwarded: %s: %s",
            step,
            type(error).__name__,
            text,
        )


def _redact_credentials(text: str, incoming: IncomingRequest) -> str:
    """Return an error's text for the log, without the client's own credential."""
    for name in CREDENTIAL_HEADERS:
        for secret in incoming.head.headers.get(name, "").split():
            if len(secret) >= MIN_SECRET_CHARS:
                text = text.replace(secret, "[REDACTED]")
    return redact(text)[:MAX_LOGGED_CHARS]
