"""`store.overview`: figures for pages that show many threads, or one thread in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from everthread.store.access import StoreTopic
from everthread.store.records import CompactionRecord, StoredMessage, ThreadRow
from everthread.store.sql import overview, thread_rows
from everthread.store.usage_records import MessageSize, ThreadFigures, UsageRow


class OverviewStore(StoreTopic):
    """Figures for pages that show many threads, or one thread in parts."""

    async def sum_threads(self, thread_ids: Sequence[str]) -> dict[str, ThreadFigures]:
        """Return the sums of the calls and compactions of each thread; leave out threads without any."""
        return await self._access.read(overview.sum_threads, thread_ids)

    async def list_recent_compactions(
        self, *, tenant: str | None = None, threads: Sequence[str] | None = None, limit: int = 1000
    ) -> list[CompactionRecord]:
        """Return the compactions of a tenant or of some threads, also undone ones, the newest first."""
        return await self._access.read(
            overview.list_recent_compactions, tenant=tenant, threads=threads, limit=limit
        )

    async def sum_usage_by(
        self,
        group: Literal["tenant", "client"],
        *,
        since: float,
        until: float,
        tenant: str | None = None,
        limit: int = 50,
    ) -> list[UsageRow]:
        """Return the sums of a period for each tenant or client, the largest first."""
        return await self._access.read(
            overview.sum_usage_by, group, since=since, until=until, tenant=tenant, limit=limit
        )

    async def list_largest_messages(self, thread_id: str, limit: int = 10) -> list[MessageSize]:
        """Return the largest messages of a thread's own history."""
        return await self._access.read(overview.list_largest_messages, thread_id, limit)

    async def list_tool_sizes(self, thread_id: str) -> list[tuple[str, int, int]]:
        """Return the name, number and tokens of each tool's results, the largest first."""
        return await self._access.read(overview.list_tool_sizes, thread_id)

    async def load_thread_row(self, thread_id: str) -> ThreadRow:
        """Return a thread as a row of the list of threads."""
        return await self._access.read(thread_rows.load_thread_row, thread_id)

    async def list_context_sizes(
        self, session_id: str, *, start: int = 0
    ) -> list[tuple[str, str, bool, int]]:
        """Return the tokens of the messages that a session shows from `start` on."""
        return await self._access.read(overview.list_context_sizes, session_id, start=start)

    async def find_unchanged_and_shortened_ids(
        self, session_id: str, ids: Sequence[int]
    ) -> tuple[set[int], set[int]]:
        """Return the messages among these that a session shows unchanged, and those that it shows shortened."""
        return await self._access.read(overview.find_unchanged_and_shortened_ids, session_id, ids)

    async def list_summaries(self, session_id: str) -> list[StoredMessage]:
        """Return the summaries that a session shows."""
        return await self._access.read(overview.list_summaries, session_id)

    async def load_change_marker(
        self, *, tenant: str | None = None, thread_id: str | None = None
    ) -> str:
        """Return a text that changes with every message, call and compaction, and is cheap to compute."""
        return await self._access.read(
            overview.load_change_marker, tenant=tenant, thread_id=thread_id
        )
