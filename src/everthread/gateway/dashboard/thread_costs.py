"""Find the windows of threads, and compare their cost with the cost of sending the whole history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from everthread.core.utc_days import format_utc_day
from everthread.gateway.dashboard.context_window import WindowSize
from everthread.gateway.dashboard.savings import (
    CostComparison,
    PriceTable,
    compare_thread,
    sum_savings,
)
from everthread.store.records import CompactionRecord, ThreadRow
from everthread.store.store import Store
from everthread.store.usage_records import UsageRecord
from everthread.thread.used_window import UsedWindow, load_used_window

FindWindow = Callable[[str, int | None], WindowSize]
"""Return the window of a model, given the window learnt from its provider, if any."""


class ThreadCosts:
    """Loads the windows of threads, and compares costs with and without compaction."""

    def __init__(
        self, store: Store, find_window: FindWindow, *, cache_seconds: float = 300.0
    ) -> None:
        self.store = store
        self._find_window = find_window
        self.cache_seconds = cache_seconds

    async def load_learnt_windows(self) -> dict[str, int]:
        """Return the windows that were learnt from providers, by model."""
        window_by_model: dict[str, int] = {}
        for limit in await self.store.limits.list_limits():
            if limit.kind == "window":
                window_by_model[limit.model] = min(
                    limit.limit, window_by_model.get(limit.model, limit.limit)
                )
        return window_by_model

    async def load_used_windows(self, rows: Sequence[ThreadRow]) -> dict[str, UsedWindow | None]:
        """Return the window that the last call of each thread used."""
        used_windows = await asyncio.gather(*(load_used_window(self.store, row) for row in rows))
        return {
            row.first.id: used_window for row, used_window in zip(rows, used_windows, strict=True)
        }

    def find_window_size(
        self, model: str, learnt_windows: Mapping[str, int], used_window: UsedWindow | None
    ) -> WindowSize:
        """Return the window that the thread used with a model, or else the one known to this process."""
        known_size = self._find_window(model, learnt_windows.get(model))
        if used_window is None or used_window.model != model:
            return known_size
        source = used_window.source.rstrip(".")
        if not source:
            is_known = used_window.tokens == known_size.tokens
            source = known_size.source if is_known else "as the last call used it"
        return WindowSize(used_window.tokens, used_window.threshold, source)

    async def compare_threads(
        self,
        thread_ids: Sequence[str],
        learnt_windows: Mapping[str, int],
        used_windows: Mapping[str, UsedWindow | None],
    ) -> dict[str, CostComparison]:
        if not thread_ids:
            return {}
        calls, records = await asyncio.gather(
            self.store.usage.list_usage_of_threads(thread_ids),
            self.store.overview.list_recent_compactions(threads=thread_ids, limit=100_000),
        )
        calls_by_thread_id: dict[str, list[UsageRecord]] = {
            thread_id: [] for thread_id in thread_ids
        }
        records_by_thread_id: dict[str, list[CompactionRecord]] = {
            thread_id: [] for thread_id in thread_ids
        }
        for call in calls:
            calls_by_thread_id[call.thread].append(call)
        for record in records:
            records_by_thread_id[record.thread].append(record)
        return {
            thread_id: self.compare_costs(
                calls_by_thread_id[thread_id],
                records_by_thread_id[thread_id],
                learnt_windows,
                used_window=used_windows.get(thread_id),
            )
            for thread_id in thread_ids
        }

    def compare_costs(
        self,
        calls: Sequence[UsageRecord],
        records: Sequence[CompactionRecord],
        learnt_windows: Mapping[str, int],
        *,
        used_window: UsedWindow | None,
    ) -> CostComparison:
        window_by_model = {
            call.model: self.find_window_size(call.model, learnt_windows, used_window).tokens
            for call in calls
        }
        return compare_thread(
            calls,
            records,
            find_prices=PriceTable(),
            find_window=window_by_model.__getitem__,
            ttl=self.cache_seconds,
        )

    async def load_savings(self, start_time: float) -> CostComparison:
        """Return what compactions of all threads saved since a time."""
        records, learnt_windows = await asyncio.gather(
            self.store.overview.list_recent_compactions(limit=5_000), self.load_learnt_windows()
        )
        return await self.compare_period(records, learnt_windows, start_time)

    async def compare_period(
        self,
        records: Sequence[CompactionRecord],
        learnt_windows: Mapping[str, int],
        start_time: float,
    ) -> CostComparison:
        compacted_thread_ids = list(
            dict.fromkeys(record.thread for record in records if record.reverted_at is None)
        )
        savings = await self.compare_threads(compacted_thread_ids[:500], learnt_windows, {})
        return sum_savings(list(savings.values()), start_time=start_time, format_day=format_utc_day)

    async def load_window(self, row: ThreadRow) -> tuple[str, WindowSize]:
        """Return a thread's model and its window."""
        thread_id = row.first.id
        figures_by_thread_id, learnt_windows, used_window = await asyncio.gather(
            self.store.overview.sum_threads([thread_id]),
            self.load_learnt_windows(),
            load_used_window(self.store, row),
        )
        model = (
            figures_by_thread_id[thread_id].last_model if thread_id in figures_by_thread_id else ""
        ) or row.tip.model
        return model, self.find_window_size(model, learnt_windows, used_window)
