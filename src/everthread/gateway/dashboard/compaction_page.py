"""Load the page of one compaction, and list compactions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.secrets.redaction import redact
from everthread.core.text import count_noun
from everthread.gateway.dashboard.context_window import draw_side_bar
from everthread.gateway.dashboard.login import Viewer
from everthread.gateway.dashboard.message_page import MessageRow, make_message_row
from everthread.gateway.dashboard.page_text import clean, message_text, one_line_excerpt
from everthread.gateway.dashboard.savings import PriceTable
from everthread.gateway.dashboard.summary_lines import split_summary
from everthread.gateway.dashboard.thread_reader import NotFoundError, ThreadReader
from everthread.store.records import CompactionRecord, NewCompaction, StoredMessage
from everthread.store.store import Store
from everthread.store.usage_records import UsageRecord
from everthread.thread.policy.compaction_reason import describe_reason

EXCERPT_CHARS = 300
MAX_SIDE_MESSAGES = 60
"""Maximum messages shown before or after a compaction. Of more messages, the first and the last are shown."""

PHASE_LABELS = {
    "prune": "Old tool results shortened to a line",
    "boundaries": "Messages kept word for word",
    "summarise": "Older messages summarised",
}


@dataclass(frozen=True, slots=True)
class CompactionItem:
    """A compaction in a list."""

    stored: CompactionRecord
    number: int
    """Its number among all compactions of the thread, including undone ones."""
    calls_since: int

    @property
    def record(self) -> NewCompaction:
        return self.stored.record

    @property
    def reason(self) -> str:
        return describe_reason(self.record.reason)

    @property
    def share(self) -> float:
        """Return the share of the prompt that the compaction removed."""
        if not self.record.tokens_before:
            return 0.0
        return 1 - self.record.tokens_after / self.record.tokens_before

    @property
    def spared_tokens(self) -> int:
        """Return the tokens that later calls did not send because of the compaction."""
        return self.calls_since * max(0, self.record.tokens_before - self.record.tokens_after)


def make_compaction_items(
    records: Sequence[CompactionRecord], calls: Sequence[UsageRecord] = ()
) -> list[CompactionItem]:
    call_times = [call.created for call in calls if call.task == "main"]
    items = []
    for number, record in enumerate(sorted(records, key=lambda record: record.id), 1):
        calls_since = 0
        if record.reverted_at is None:
            calls_since = sum(call_time > record.created for call_time in call_times)
        items.append(CompactionItem(record, number, calls_since))
    return items


async def load_compaction_page(
    threads: ThreadReader, viewer: Viewer, thread_id: str, compaction_id: int
) -> dict[str, Any]:
    store = threads.store
    row = await threads.load_thread(viewer, thread_id)
    records, calls = await asyncio.gather(
        store.list_compactions(thread_id), store.usage.list_usage(thread_id)
    )
    record = next((record for record in records if record.id == compaction_id), None)
    if record is None:
        raise NotFoundError
    item = next(
        candidate
        for candidate in make_compaction_items(records, calls)
        if candidate.stored is record
    )
    sides = await _load_before_and_after(store, record)
    new_compaction = record.record
    last_compaction = next(
        (later_record for later_record in reversed(records) if later_record.reverted_at is None),
        None,
    )
    return {
        "thread": row.first,
        "title": await threads.load_title(row),
        "compaction": item,
        "focus": one_line_excerpt(new_compaction.focus or "", 200),
        "removed_count": len(sides.removed_ids),
        "may_undo": record is last_compaction,
        "branch_at": sides.last_id,
        "warnings": [clean(redact(text)) for text in new_compaction.warnings],
        "before": _make_side_rows(sides.before, sides.removed_ids),
        "before_more": max(0, len(sides.before) - MAX_SIDE_MESSAGES),
        "after": _make_side_rows(sides.after, frozenset()),
        "after_more": max(0, len(sides.after) - MAX_SIDE_MESSAGES),
        "before_bar": draw_side_bar(sides.before, new_compaction.tokens_before),
        "after_bar": draw_side_bar(sides.after, new_compaction.tokens_before),
        "sections": split_summary(
            new_compaction.summary,
            [
                (message.id, message_text(message.body))
                for message in sides.before
                if message.id in sides.removed_ids
            ],
        ),
        "checks": describe_checks(new_compaction.figures),
        "decision": clean(str(new_compaction.figures.get("decision") or "")),
        "steps": [clean(str(step)) for step in new_compaction.figures.get("steps") or ()],
        "phases": describe_phases(new_compaction.figures),
        "spared_dollars": _estimate_saved_dollars(item, calls),
    }


async def _load_before_and_after(store: Store, record: CompactionRecord) -> _BeforeAndAfter:
    messages_before, messages_after = await asyncio.gather(
        store.list_messages(record.parent), store.list_messages(record.session)
    )
    covered_ids = frozenset(record.record.covered)
    messages_before = [message for message in messages_before if message.created <= record.created]
    kept_count = sum(message.created <= record.created for message in messages_after)
    message_ids = [message.id for message in messages_before if message.kind == "message"]
    return _BeforeAndAfter(
        messages_before,
        messages_after[:kept_count],
        covered_ids,
        message_ids[-1] if message_ids else None,
    )


@dataclass(frozen=True, slots=True)
class _BeforeAndAfter:
    """The messages before and after a compaction, the ids of those it removed, and the last id before it."""

    before: Sequence[StoredMessage]
    after: Sequence[StoredMessage]
    removed_ids: frozenset[int]
    last_id: int | None


def _make_side_rows(
    messages: Sequence[StoredMessage], removed_ids: frozenset[int]
) -> list[MessageRow | None]:
    """Return the first and the last messages as short rows, with None in place of those that are not shown."""

    def make_brief_row(message: StoredMessage) -> MessageRow:
        visibility = ""
        if message.id in removed_ids:
            visibility = "recall"
        elif removed_ids and message.kind == "message":
            visibility = "view"
        return make_message_row(message, chars=EXCERPT_CHARS, visibility=visibility)

    if len(messages) <= MAX_SIDE_MESSAGES:
        return [make_brief_row(message) for message in messages]
    half = MAX_SIDE_MESSAGES // 2
    return [
        *map(make_brief_row, messages[:half]),
        None,
        *map(make_brief_row, messages[-half:]),
    ]


def _estimate_saved_dollars(item: CompactionItem, calls: Sequence[UsageRecord]) -> float | None:
    """Estimate the dollars for the tokens that later calls did not send, at the price of cached tokens if known."""
    later_calls = [
        call for call in calls if call.task == "main" and call.created > item.stored.created
    ]
    if not later_calls:
        return None
    prices = PriceTable()(
        later_calls[-1].model, later_calls[-1].created, later_calls[-1].usage.prompt_tokens
    )
    if prices is None or prices.input is None:
        return None
    token_price = prices.input
    if prices.cache_read and any(call.usage.cache_read_tokens for call in later_calls):
        token_price = prices.cache_read
    return item.spared_tokens * float(token_price) / 1_000_000


def describe_checks(figures: Mapping[str, Any]) -> list[str]:
    """Describe in sentences how a summary was checked."""
    counts = {name: value for name, value in figures.items() if isinstance(value, int)}
    sentences = []
    if counts.get("facts"):
        facts_text = count_noun(counts["facts"], "file, error or other fact")
        if counts["facts"] > 1:
            facts_text = f"{counts['facts']:,} files, errors and other facts"
        present_count = counts.get("present", 0)
        added_count = counts.get("added", 0)
        added_text = f"; {added_count:,} were added" if added_count else ""
        sentences.append(
            f"The summary as written named {present_count:,} of {facts_text}{added_text}."
        )
    if counts.get("checked"):
        names_text = count_noun(counts["checked"], "name")
        unverified_count = counts.get("unverified", 0)
        result_text = "all of them occur in the messages"
        if unverified_count:
            result_text = (
                f"{unverified_count:,} of them occur in no message and are marked (unverified)"
            )
        sentences.append(f"{names_text} and figures were looked up in the messages: {result_text}.")
    return sentences


def describe_phases(figures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the steps of a compaction in plain words, with the tokens before and after."""
    return [
        (
            PHASE_LABELS.get(str(phase.get("name")), clean(str(phase.get("name")))),
            f"{phase.get('before', 0):,}",
            f"{phase.get('after', 0):,}",
        )
        for phase in figures.get("phases") or ()
        if isinstance(phase, dict)
    ]
