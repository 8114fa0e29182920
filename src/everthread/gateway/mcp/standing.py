"""How a thread stands, in words: its size, what was compacted, what it cost, what is pinned."""

from __future__ import annotations

from everthread.conversation.pins import list_pins
from everthread.core.found import moment
from everthread.core.redaction import redact
from everthread.store.models import UsageRow
from everthread.store.sql.usage import sum_usage, usage_row
from everthread.store.store import Store

LISTED = 10


async def status_text(store: Store, thread: str) -> str:
    """One thread."""
    tip = await store.session(await store.get_compression_tip(thread))
    history, context = await store.history(thread), await store.messages(tip.id)
    records = [record for record in await store.compactions(thread) if record.reverted is None]
    total = sum_usage("all", [usage_row(record) for record in await store.usage(thread)])
    lines = [f"Thread {thread}{f', {tip.title}' if tip.title else ''}"]
    lines.append(f"- {len(history):,} messages{_tokens(sum(item.tokens or 0 for item in history))}")
    if records:
        lines.append(f"- in view now: {len(context):,} messages{_tokens(sum(item.tokens or 0 for item in context))}")
    lines.append(f"- {len(records):,} compactions")
    for record in records[-LISTED:]:
        made = record.record
        lines.append(
            f"  - compaction:{record.id}, {moment(record.created)}: {len(made.covered):,} messages covered, "
            f"{made.tokens_before:,} → {made.tokens_after:,} tokens"
        )
    lines.append(f"- {total.calls:,} calls: {total.prompt:,} tokens in, {total.output:,} out, cost {_cost(total)}")
    lines += (f"- pinned as {note.id}: {_line(note.text)}" for note in await list_pins(store, thread))
    return redact("\n".join(lines))


async def latest_text(store: Store, tenant: str) -> str:
    """The latest threads of a tenant."""
    rows = await store.list_threads(tenant=tenant, limit=LISTED)
    if not rows:
        return "Nothing was said yet: there is no thread."
    lines = ["The latest threads:"]
    for row in rows:
        title = f", {_line(row.tip.title)}" if row.tip.title else ""
        lines.append(
            f"- {row.first.id}{title}: {row.messages:,} messages{_tokens(row.tokens)}, {row.compactions:,} "
            f"compactions, last used {moment(row.active)}"
        )
    return redact("\n".join(lines))


def _tokens(count: int) -> str:
    return f", {count:,} tokens" if count else ""


def _cost(row: UsageRow) -> str:
    if not row.unpriced:
        return f"${row.cost:.4f}"
    return "unknown" if row.unpriced == row.calls else f"${row.cost:.4f} + unknown"


def _line(text: str, width: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
