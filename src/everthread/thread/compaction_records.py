"""The record of a compaction, and the event that reports it."""

from __future__ import annotations

from dataclasses import asdict
from decimal import Decimal

from everthread.compaction.compaction_result import Compaction
from everthread.store.records import NewCompaction
from everthread.thread.events import CompactionDone
from everthread.thread.managed_prompt import CompactionOrder


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
        reason=order.reason.value,
        focus=order.focus,
        duration=compaction.duration,
        cost=cost,
    )


def make_done_event(
    compaction: Compaction,
    record: NewCompaction,
    *,
    session: str,
    previous: str,
    messages_before: int,
    messages_after: int,
    number: int,
    covered_count: int,
    is_background: bool,
) -> CompactionDone:
    """Return the event that reports a stored compaction. `number`: its number in the thread."""
    return CompactionDone(
        session,
        previous,
        reason=record.reason,
        tokens_before=compaction.tokens_before,
        tokens_after=compaction.tokens_after,
        messages_before=messages_before,
        messages_after=messages_after,
        author=compaction.author,
        count=number,
        verification=compaction.verification,
        duration=compaction.duration,
        cost=record.cost,
        steps=compaction.steps,
        warnings=compaction.warnings,
        decision=record.figures["decision"],
        covered_count=covered_count,
        is_background=is_background,
    )
