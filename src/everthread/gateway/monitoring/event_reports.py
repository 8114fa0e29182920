"""Count and log the events of threads, and failures after which a request was still served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from everthread.core.costs.prices import make_missing_price_notice
from everthread.errors import EverthreadError
from everthread.gateway.monitoring.log_lines import log_fields
from everthread.gateway.monitoring.metrics import Metrics
from everthread.thread.events import (
    CompactionDone,
    CompactionFailed,
    CompactionVoid,
    Event,
    RecordFailed,
    Unmanaged,
    UsageRecorded,
)

_LOG = logging.getLogger("everthread.gateway")
_REASON_FIELDS = ("error", "why", "text", "action", "source")
"""Fields of events that contain our own explanations."""
FORWARDED = "a decision failed, the original was forwarded"
REFUSED = "an upstream answered with an error"


class FailureLog:
    """Counts failures by tenant and day in the store, for the dashboard.

    Counts that cannot be stored now are stored together with the next failure.
    """

    def __init__(
        self, add: Callable[[Mapping[tuple[str, str, str], int]], Awaitable[None]]
    ) -> None:
        self._add = add
        self._counts: dict[tuple[str, str, str], int] = {}
        self._storing: asyncio.Task[None] | None = None

    def record(self, failure: str, *, tenant: str = "", thread: str = "") -> None:
        self._counts[tenant, thread, failure] = self._counts.get((tenant, thread, failure), 0) + 1
        if self._storing is None or self._storing.done():
            self._storing = asyncio.get_running_loop().create_task(self._store())

    async def close(self) -> None:
        if self._storing is not None:
            await self._storing

    async def _store(self) -> None:
        while self._counts:
            counts = self._counts
            self._counts = {}
            try:
                await self._add(counts)
            except EverthreadError as error:
                for key, count in counts.items():
                    self._counts[key] = self._counts.get(key, 0) + count
                _LOG.warning("failures are not stored yet: %s", error)
                return


MAX_UNPRICED_MODELS = 100
"""Maximum models for which a missing price is logged, because clients choose the names."""


class EventReporter:
    """Counts and logs the events of threads, never the content of messages."""

    def __init__(self, metrics: Metrics, failures: FailureLog | None) -> None:
        self._metrics = metrics
        self._unpriced_models: set[str] = set()
        self._failures = failures

    def __call__(self, event: Event) -> None:
        self._count(event)
        level = logging.INFO
        if isinstance(event, CompactionFailed | RecordFailed):
            level = logging.WARNING
        elif isinstance(event, UsageRecorded):
            level = logging.DEBUG
        if not _LOG.isEnabledFor(level):
            return
        fields = event.as_dict()
        reason = next(
            (fields[name] for name in _REASON_FIELDS if isinstance(fields.get(name), str)), ""
        )
        session = fields.pop("session")
        log_fields(
            level,
            f"{event.kind} in {session}{f': {reason}' if reason else ''}",
            {"thread": session, **fields},
        )

    def _warn_about_missing_price(self, model: str) -> None:
        """Log once that a model has no known price, with the key that sets one."""
        if model not in self._unpriced_models and len(self._unpriced_models) < MAX_UNPRICED_MODELS:
            self._unpriced_models.add(model)
            _LOG.warning("%s", make_missing_price_notice(model))

    def _count(self, event: Event) -> None:
        count = self._metrics.count
        if isinstance(event, CompactionDone):
            count(
                "compactions",
                author=event.author,
                background=str(event.is_background).lower(),
            )
            count("compaction_tokens", event.tokens_before, side="before")
            count("compaction_tokens", event.tokens_after, side="after")
        elif isinstance(event, CompactionVoid | CompactionFailed):
            failed = isinstance(event, CompactionFailed)
            count("compaction_failures", kind="failed" if failed else "void")
            if self._failures is not None:
                failure = "a compaction failed" if failed else "a compaction came to nothing"
                self._failures.record(failure, thread=event.session)
        elif isinstance(event, Unmanaged):
            count("unmanaged", why=event.reason)
        elif isinstance(event, RecordFailed):
            count("failed_open", step="record")
        elif isinstance(event, UsageRecorded):
            if event.cost is not None:
                count("cost_dollars", float(event.cost), task=event.task)
            elif not event.is_estimated:
                self._warn_about_missing_price(event.model)
            if event.task == "auxiliary":
                for bucket in ("input", "output", "cache_read", "cache_write"):
                    count(
                        "tokens",
                        getattr(event.usage, f"{bucket}_tokens"),
                        bucket=bucket,
                        task="auxiliary",
                    )
