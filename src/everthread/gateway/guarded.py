"""Fail open: whatever the manager raises, and however long it takes, the client's own request goes through."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from everthread.core.redaction import redact
from everthread.gateway.base import Incoming, Manager, Outcome, Outgoing
from everthread.gateway.metrics import Metrics
from everthread.gateway.sending import THREAD

_LOG = logging.getLogger("everthread.gateway")
T = TypeVar("T")
_TELLING = 1.0
"""Seconds for what an answer's headers say of us."""


class Guarded:
    """The manager, except that it never fails: a failure is logged and counted, and changes nothing."""

    def __init__(self, manager: Manager, metrics: Metrics, seconds: float) -> None:
        self._manager = manager
        self._metrics = metrics
        self._seconds = seconds

    async def prepare(self, incoming: Incoming) -> Outgoing:
        made = await self._tried("prepare", incoming, self._manager.prepare(incoming))
        if made is None or (incoming.mode != "managed" and made.rewritten):
            return Outgoing(incoming.raw)
        return made

    async def refused(self, incoming: Incoming, sent: Outgoing, status: int, body: bytes) -> Outgoing | None:
        if incoming.mode != "managed":
            return None
        return await self._tried("refused", incoming, self._manager.refused(incoming, sent, status, body))

    async def tells(self, incoming: Incoming, sent: Outgoing) -> Mapping[str, str]:
        """No client waits long for it: where it cannot be known now, it is not told."""
        told = await self._tried("tells", incoming, self._manager.tells(incoming, sent), _TELLING)
        return {name: value for name, value in sent.told.items() if name != THREAD} if told is None else told

    async def answered(self, incoming: Incoming, sent: Outgoing, outcome: Outcome) -> None:
        await self._tried("answered", incoming, self._manager.answered(incoming, sent, outcome))

    async def _tried(self, step: str, incoming: Incoming, work: Awaitable[T], seconds: float | None = None) -> T | None:
        try:
            async with asyncio.timeout(seconds or self._seconds):
                return await work
        except Exception as error:  # noqa: BLE001  the client must get its answer whatever fails here; it is seen
            self._metrics.count("failed_open", step=step)
            words = _without_credentials(str(error), incoming)
            _LOG.error("%s failed, the original goes: %s: %s", step, type(error).__name__, words)
            return None


def _without_credentials(words: str, incoming: Incoming) -> str:
    """An error's words for the log: the client's own credential cannot be in them, whatever it looks like."""
    for name in ("authorization", "x-api-key", "api-key"):
        for secret in incoming.headers.get(name, "").split():
            words = words.replace(secret, "[REDACTED]")
    return redact(words)[:300]
