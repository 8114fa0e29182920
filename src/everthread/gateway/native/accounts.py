"""Search, usage and insights: read from the store, within the tenant."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from everthread.gateway.native.asking import Ask
from everthread.gateway.native.desk import TurnDesk
from everthread.gateway.native.replies import Answer
from everthread.gateway.native.views import Hits, InsightsView, UsageView, hit_view, paged
from everthread.store.models import SearchQuery, UsageRecord, UsageRow
from everthread.store.sql.usage import sum_usage, usage_figures, usage_row

_DAY = 86_400
_COUNTS = ("threads", "sessions", "messages", "compactions", "tokens_saved")
_TABLES = ("by_day", "by_model", "by_platform", "by_task")


class AccountPages:
    """What is asked about everything that was said, and what it cost."""

    def __init__(self, desk: TurnDesk, wall: Callable[[], float] = time.time) -> None:
        self._desk = desk
        self._store = desk.store
        self._wall = wall

    async def search_thread(self, ask: Ask) -> Answer:
        first = await self._desk.thread(ask.tenant, ask.thread)
        return await self._search(ask, first.id)

    async def search(self, ask: Ask) -> Answer:
        return await self._search(ask, None)

    async def usage(self, ask: Ask) -> Answer:
        first = await self._desk.thread(ask.tenant, ask.thread)
        own = await self._store.usage(first.id)
        others = [
            record for other in await self._store.subagents(first.id) for record in await self._store.usage(other)
        ]
        parts = {
            "main": [record for record in own if record.task == "main"],
            "auxiliary": [record for record in own if record.task == "auxiliary"],
            "subagents": others,
            "all": [*own, *others],
        }
        return Answer(
            UsageView(thread=first.id, sums={key: usage_figures(_summed(key, part)) for key, part in parts.items()})
        )

    async def insights(self, ask: Ask) -> Answer:
        until = self._wall() + 1
        since = (until // _DAY - ask.query.days + 1) * _DAY
        found = await self._store.insights(since=since, until=until, tenant=ask.tenant)
        shown: dict[str, Any] = {name: getattr(found, name) for name in _COUNTS}
        for name in _TABLES:
            rows: list[UsageRow] = getattr(found, name)
            shown[name] = {row.key: usage_figures(row) for row in rows}
        tools = {row.tool: {"results": row.results, "tokens": row.tokens} for row in found.by_tool}
        return Answer(InsightsView(days=ask.query.days, total=usage_figures(found.total), by_tool=tools, **shown))

    async def _search(self, ask: Ask, thread: str | None) -> Answer:
        query, limit, offset = ask.query, ask.query.limit, ask.query.offset
        asked = SearchQuery(
            query.q, tenant=ask.tenant, thread=thread, role=query.role, tool=query.tool, limit=limit + 1, offset=offset
        )
        rows, following = paged(await self._store.search(asked), limit, offset)
        return Answer(Hits(items=[hit_view(hit) for hit in rows], next=following))


def _summed(key: str, records: Sequence[UsageRecord]) -> UsageRow:
    return sum_usage(key, [usage_row(record) for record in records])
