"""Fail open: whatever the manager raises, and however long it takes, the client's own request goes through."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from everthread.core.redaction import redact
from everthread.gateway.base import THREAD, Incoming, Manager, Outcome, Outgoing, ProxyTurn, UnmanagedTurn
from everthread.gateway.metrics import Metrics

_LOG = logging.getLogger("everthread.gateway")
T = TypeVar("T")
_HEADER_SECONDS = 1.0
"""Seconds for what an answer's headers say of us."""


class FailOpenManager:
    """The manager, except that it never fails: a failure is logged and counted, and changes nothing."""

    def __init__(self, manager: Manager, metrics: Metrics, seconds: float) -> None:
        self._manager = manager
        self._metrics = metrics
        self._seconds = seconds

    async def prepare(self, incoming: Incoming) -> FailOpenTurn:
        made = await self.attempt("prepare", incoming, self._manager.prepare(incoming))
        if made is None or (incoming.mode != "managed" and made.sent.rewritten):
            made = UnmanagedTurn(incoming)
        return FailOpenTurn(self, incoming, made)

    async def attempt(self, step: str, incoming: Incoming, work: Awaitable[T]) -> T | None:
        """The result of the work; None where it fails or takes too long."""
        try:
            async with asyncio.timeout(self._seconds):
                return await work
        except Exception as error:  # noqa: BLE001  the client must get its answer whatever fails here; it is seen
            self._metrics.count("failed_open", step=step)
            words = _without_credentials(str(error), incoming)
            _LOG.error("%s failed, the original goes: %s: %s", step, type(error).__name__, words)
            return None


class FailOpenTurn:
    """A turn whose steps never fail."""

    def __init__(self, manager: FailOpenManager, incoming: Incoming, turn: ProxyTurn) -> None:
        self._manager = manager
        self._incoming = incoming
        self._turn = turn

    @property
    def sent(self) -> Outgoing:
        return self._turn.sent

    async def recover(self, status: int, body: bytes) -> Outgoing | None:
        if self._incoming.mode != "managed":
            return None
        return await self._manager.attempt("refused", self._incoming, self._turn.recover(status, body))

    async def response_headers(self) -> Mapping[str, str]:
        """No client waits long for it: where it cannot be known now, it is not told."""
        known: Mapping[str, str] | None
        try:
            async with asyncio.timeout(_HEADER_SECONDS):
                known = await self._manager.attempt("headers", self._incoming, self._turn.response_headers())
        except TimeoutError:  # nothing failed: the thread is stored after the answer has begun
            known = None
        return {name: value for name, value in self.sent.headers.items() if name != THREAD} if known is None else known

    async def record(self, outcome: Outcome) -> None:
        await self._manager.attempt("answered", self._incoming, self._turn.record(outcome))


def _without_credentials(words: str, incoming: Incoming) -> str:
    """An error's words for the log: the client's own credential cannot be in them, whatever it looks like."""
    for name in ("authorization", "x-api-key", "api-key"):
        for secret in incoming.headers.get(name, "").split():
            words = words.replace(secret, "[REDACTED]")
    return redact(words)[:300]
