"""`store.usage`: usage and cost of calls to models."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.store.access import StoreTopic
from everthread.store.sql import accounts
from everthread.store.usage_records import Insights, NewUsage, UsageRecord


class UsageStore(StoreTopic):
    """Usage and cost of calls to models."""

    async def record_usage(self, new_usage: NewUsage, *, return_before_sync: bool = False) -> None:
        """Record a call's usage. `return_before_sync`: do not wait until the record is on the disk."""
        now = self._access.clock()
        await self._access.writer.write(
            lambda tx: accounts.record_usage(tx, new_usage, now),
            thread_id=new_usage.session,
            return_before_sync=return_before_sync,
        )

    async def list_usage(self, thread_id: str) -> list[UsageRecord]:
        """Return every call of a thread, in order. Subagents are separate threads, so their calls are not included."""
        return await self._access.read(accounts.list_usage, thread_id)

    async def list_usage_of_threads(self, threads: Sequence[str]) -> list[UsageRecord]:
        """Return every call of these threads, each thread's calls in order."""
        return await self._access.read(accounts.list_usage_of_threads, threads)

    async def load_insights(
        self, *, since: float, until: float, tenant: str | None = None, platform: str | None = None
    ) -> Insights:
        """Return the sums of a period, computed by the database."""
        return await self._access.read(
            accounts.load_insights, since=since, until=until, tenant=tenant, platform=platform
        )
