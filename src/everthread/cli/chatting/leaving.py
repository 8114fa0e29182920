"""What is said at the end: what the thread used and cost, from the store, and how to come back."""

from __future__ import annotations

from rich.text import Text

from everthread.cli.output import counted, share, short
from everthread.cli.usage import cost_text
from everthread.store.sql.usage import sum_usage, usage_row
from everthread.store.store import Store


async def farewell(store: Store, thread: str) -> Text | None:
    """The exit summary; None for a thread in which nothing was said."""
    if not await store.history(thread, limit=1):
        return None
    records = [*await store.usage(thread)]
    for other in await store.subagents(thread):
        records += await store.usage(other)
    row = sum_usage("all", [usage_row(record) for record in records])
    taken = [record for record in await store.compactions(thread) if record.reverted is None]
    told = [counted(row.calls, "call"), f"{row.prompt:,} tokens read", f"{row.output:,} written"]
    if row.prompt:
        told.append(f"{share(row.cache_read, row.prompt)} from the cache")
    told.append(f"cost {cost_text(row)}" if row.calls else "no cost")
    if taken:
        told.append(counted(len(taken), "compaction"))
    return Text.assemble(
        (", ".join(told), "dim"), ("\nGo on with: ", "dim"), (f"everthread chat --resume {short(thread)}", "bold")
    )
