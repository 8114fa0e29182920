"""The usage of a thread and its subagents."""

from __future__ import annotations

from everthread.store.store import Store
from everthread.store.usage_records import UsageRecord


async def load_thread_usage(store: Store, thread: str) -> dict[str, list[UsageRecord]]:
    """Return the usage records of a thread by kind: `main`, `auxiliary`, `subagents` and `all`."""
    own_records = await store.usage.list_usage(thread)
    subagent_records = [
        record
        for subagent in await store.list_subagents(thread)
        for record in await store.usage.list_usage(subagent)
    ]
    parts = {
        task: [record for record in own_records if record.task == task]
        for task in ("main", "auxiliary")
    }
    return parts | {
        "subagents": subagent_records,
        "all": [*own_records, *subagent_records],
    }
