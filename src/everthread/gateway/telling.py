"""What the manager tells, for who runs the gateway: a line in the log, and figures for `/metrics`."""

from __future__ import annotations

import logging

from everthread.conversation.events import CompactionFailed, CompactionVoid, Event, UsageRecorded
from everthread.gateway.events import RecordFailed, Rewritten
from everthread.gateway.logs import log_fields
from everthread.gateway.metrics import Metrics

_LOG = logging.getLogger("everthread.gateway")
_REASONS = ("error", "why", "text", "action", "source")
"""Fields that say why, in words of ours."""


class Teller:
    """A listener. It never tells what was said."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def __call__(self, event: Event) -> None:
        self._count(event)
        failed = isinstance(event, CompactionFailed | RecordFailed)
        level = logging.WARNING if failed else logging.DEBUG if isinstance(event, UsageRecorded) else logging.INFO
        if not _LOG.isEnabledFor(level):
            return
        told = event.as_dict()
        why = next((told[name] for name in _REASONS if isinstance(told.get(name), str)), "")
        session = told.pop("session")
        log_fields(_LOG, level, f"{event.kind} in {session}{f': {why}' if why else ''}", {"thread": session, **told})

    def _count(self, event: Event) -> None:
        count = self._metrics.count
        if isinstance(event, Rewritten):
            count("compactions", author=event.author, background=str(event.background).lower())
            count("compaction_tokens", event.tokens_before, side="before")
            count("compaction_tokens", event.tokens_after, side="after")
        elif isinstance(event, CompactionVoid | CompactionFailed):
            count("compaction_failures", kind="failed" if isinstance(event, CompactionFailed) else "void")
        elif isinstance(event, RecordFailed):
            count("failed_open", step="record")
        elif isinstance(event, UsageRecorded):
            if event.cost is not None:
                count("cost_dollars", float(event.cost), task=event.task)
            if event.task == "auxiliary":
                for bucket in ("input", "output", "cache_read", "cache_write"):
                    count("tokens", getattr(event.usage, f"{bucket}_tokens"), bucket=bucket, task="auxiliary")
