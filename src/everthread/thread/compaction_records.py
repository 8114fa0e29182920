"""Store a compaction: its record, and the outputs that its messages cite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from decimal import Decimal

from everthread.compaction.compaction_result import Compaction
from everthread.core.messages import Message, calls_of
from everthread.core.tool_outputs import OutputToStore
from everthread.store.records import NewCompaction
from everthread.store.store import Store
from everthread.thread.thread_context import CompactionOrder


def make_compaction_record(
    compaction: Compaction, order: CompactionOrder, cost: Decimal | None
) -> NewCompaction:
    """Return the record of a compaction, without the messages that it covers."""
    figures = asdict(compaction.verification) | {
        "phases": [asdict(phase) for phase in compaction.phases],
        "steps": list(compaction.steps),
        "decision": order.decision,
    }
    return NewCompaction(
        tokens_before=compaction.tokens_before,
        tokens_after=compaction.tokens_after,
        summary=compaction.summary,
        author=compaction.author,
        figures=figures,
        warnings=compaction.warnings,
        reason=order.reason,
        focus=order.focus,
        duration=compaction.duration,
        cost=cost,
    )


async def store_outputs(
    store: Store,
    thread: str,
    outputs: Sequence[OutputToStore],
    messages: Iterable[Message],
) -> None:
    """Store outputs before they are cited. `messages`: have the calls whose tools the outputs come from."""
    tools = {call.id: call.name for message in messages for call in calls_of(message)}
    for output in outputs:
        await store.put_output(
            thread,
            output.text,
            call_id=output.call_id,
            tool=tools.get(output.call_id, ""),
        )
