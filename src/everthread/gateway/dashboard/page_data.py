"""Load the values of each page from the store, and no more than the page needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.compaction.history.thread_facts import ThreadState, build_state
from everthread.core.messages import text_of
from everthread.core.recent_dict import RecentDict
from everthread.core.secrets.redaction import redact
from everthread.errors import UnknownIdError
from everthread.gateway.dashboard import views
from everthread.gateway.dashboard.access import Viewer
from everthread.gateway.dashboard.calls_view import make_calls_view
from everthread.gateway.dashboard.headlines import (
    MIN_DOLLARS,
    StoredAndRemovedCounts,
    describe_period,
    describe_thread,
)
from everthread.gateway.dashboard.page_charts import (
    draw_beyond_by_client,
    draw_calls,
    draw_days,
    draw_side_bar,
    draw_window_bar,
)
from everthread.gateway.dashboard.savings import CostComparison, PriceTable
from everthread.gateway.dashboard.summary_lines import split_summary
from everthread.gateway.dashboard.text import (
    clean,
    format_money,
    message_text,
    one_line_excerpt,
)
from everthread.gateway.dashboard.thread_costs import ThreadCosts, WindowSource
from everthread.gateway.dashboard.thread_list import THREADS_PER_PAGE, ThreadList
from everthread.gateway.dashboard.trials import TrialRequest
from everthread.gateway.dashboard.views import ThreadEntry
from everthread.store.records import CompactionRecord, Session, StoredMessage, ThreadRow
from everthread.store.store import Store
from everthread.store.usage_records import CallRow, ThreadFigures
from everthread.thread.lookup.thread_title import load_title
from everthread.thread.used_window import load_used_window

MESSAGES_PER_PAGE = 30
LISTED_MESSAGE_CHARS = 1_500
"""Characters of a message in a list."""
EXCERPT_CHARS = 300
MAX_MESSAGE_CHARS = 100_000
"""Characters of a message on its own page; a longer message is shown in parts."""
MAX_SIDE_MESSAGES = 60
"""Maximum messages shown before or after a compaction: the first and the last ones."""
DAY_SECONDS = 86_400.0
MAX_STATE_MESSAGES = 300
"""Number of last messages from which the thread's state is read."""
MAX_CACHED_THREADS = 32
"""Maximum threads whose figures are cached until the thread changes."""


class NotFoundError(Exception):
    """The page does not exist, or this viewer may not see it."""


class PageReader:
    """Load the values of a page for a viewer."""

    def __init__(
        self,
        store: Store,
        find_window: WindowSource,
        *,
        cache_seconds: float = 300.0,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.costs = ThreadCosts(store, find_window, cache_seconds=cache_seconds)
        self.thread_list = ThreadList(store, self.costs)
        self._cache_seconds = cache_seconds
        self._wall_clock = wall_clock
        self._cached_threads: RecentDict[str, _ThreadData] = RecentDict(
            MAX_CACHED_THREADS
        )

    # A thread

    async def load_thread(self, viewer: Viewer, thread: str) -> ThreadRow:
        """Return a thread by its own id; raise `NotFoundError` if the viewer may not see it."""
        row = await self.thread_list.load_row(viewer, thread)
        if row is None or row.first.id != thread:
            raise NotFoundError
        return row

    async def load_title(self, row: ThreadRow) -> str:
        given_title = row.tip.title or row.first.title
        return views.make_thread_title(
            row.first,
            row.tip,
            "" if given_title else await load_title(self.store, row.first),
        )

    async def load_thread_page(
        self, viewer: Viewer, thread: str, page: int | None
    ) -> dict[str, Any]:
        row = await self.load_thread(viewer, thread)
        first_session = row.first
        tip = row.tip
        pages = max(1, -(-row.messages // MESSAGES_PER_PAGE))
        page_number = pages if page is None else max(1, min(page, pages))
        # The last page is a full one.
        start = max(0, row.messages - (pages - page_number + 1) * MESSAGES_PER_PAGE)
        message_count = row.messages - (pages - page_number) * MESSAGES_PER_PAGE - start
        thread_data, side_calls, history, pinned, todo = await asyncio.gather(
            self._load_thread_data(row),
            self._load_side_calls(viewer, row),
            self.store.history(tip.id, start=start, limit=message_count),
            self.store.pins(thread),
            self.store.get_state(thread, "todo"),
        )
        context = await self._load_context(thread_data, tip, history)
        return {
            **thread_data.page_fields,
            "thread": first_session,
            "tip": tip,
            "title": await self.load_title(row),
            "client": views.name_client(first_session),
            "messages": row.messages,
            "state": _list_state(thread_data.state, todo),
            "pins": [replace(pin, text=clean(pin.text)) for pin in pinned],
            "conversation": [
                views.make_message_row(
                    message,
                    chars=LISTED_MESSAGE_CHARS,
                    visibility=context.visibility(message),
                )
                for message in history
            ],
            "page": page_number,
            "pages": pages,
            "side_calls": side_calls,
        }

    async def _load_side_calls(
        self, viewer: Viewer, row: ThreadRow
    ) -> list[ThreadEntry]:
        """Return the side calls of a conversation, newest first."""
        if not row.side_calls:
            return []
        started = [
            child
            for child in await self.store.threads_started_by(row.first.id)
            if child.kind == "side"
        ]
        rows = [
            await self.thread_list.load_row(viewer, child.id)
            for child in started[: -THREADS_PER_PAGE - 1 : -1]
        ]
        return await self.thread_list.make_entries(
            [side for side in rows if side is not None], {}
        )

    async def _load_context(
        self, thread_data: _ThreadData, tip: Session, history: Sequence[StoredMessage]
    ) -> views.ContextView:
        in_view, shortened = await self.store.shown_messages(
            tip.id, [message.id for message in history]
        )
        return views.make_context_view(in_view, shortened, thread_data.summaries)

    async def _load_thread_data(self, row: ThreadRow) -> _ThreadData:
        """Return the data of a thread's page, computed once for each change of the thread."""
        thread = row.first.id
        limits = await self.costs.load_learnt_windows()
        change_mark = (
            f"{await self.store.last_change(thread=thread)} {sorted(limits.items())}"
        )
        thread_data = self._cached_threads.get(thread)
        if thread_data is None or thread_data.change_mark != change_mark:
            thread_data = await self._compute_thread_data(row, limits, change_mark)
        self._cached_threads[thread] = thread_data
        return thread_data

    async def _compute_thread_data(
        self, row: ThreadRow, limits: Mapping[str, int], change_mark: str
    ) -> _ThreadData:
        store = self.store
        thread = row.first.id
        tip = row.tip
        first_state_message = max(0, row.messages - MAX_STATE_MESSAGES)
        heaviest, tools, summaries, recent, part_rows = await asyncio.gather(
            store.heaviest_messages(thread, 8),
            store.tool_sizes(thread),
            store.session_summaries(tip.id),
            store.history(tip.id, start=first_state_message, limit=MAX_STATE_MESSAGES),
            store.context_sizes(tip.id),
        )
        summary_texts = [text_of(message.body) for message in summaries]
        part_sizes = views.sum_part_sizes(part_rows, summary_texts)
        page_fields = {
            **await self._load_call_fields(row, limits, part_sizes),
            "heaviest": heaviest,
            "tools": [
                (one_line_excerpt(name, 40), f"{count:,}", f"{tokens:,}")
                for name, count, tokens in tools
            ],
        }
        state = build_state([message.body for message in recent])
        return _ThreadData(change_mark, page_fields, summary_texts, state)

    async def _load_call_fields(
        self,
        row: ThreadRow,
        limits: Mapping[str, int],
        part_sizes: Mapping[str, int],
    ) -> dict[str, Any]:
        """Return the fields of a thread's page about its calls, its window and its compactions."""
        store = self.store
        thread = row.first.id
        figures, calls, records, used_window = await asyncio.gather(
            store.thread_figures([thread]),
            store.call_rows([thread]),
            store.compactions(thread),
            load_used_window(store, row),
        )
        totals = figures.get(thread) or ThreadFigures(thread)
        model = totals.last_model or row.tip.model
        size = self.costs.find_window_size(model, limits, used_window)
        window = views.make_window_view(row.tip.system, part_sizes, size, calls)
        calls_view = make_calls_view(calls, records, ttl=self._cache_seconds)
        kept_messages = _count_stored_and_removed(row, records)
        comparison = None
        if kept_messages.compactions:
            comparison = self.costs.compare_costs(
                calls, records, limits, used_window=used_window
            )
        return {
            "headline": describe_thread(
                totals, comparison, window=size.tokens, kept_messages=kept_messages
            ),
            "model": model,
            "figures": totals,
            "window": window,
            "window_bar": draw_window_bar(window),
            "calls": calls_view,
            "calls_chart": draw_calls(calls_view, size),
            "cached": any(call.cache_read for call in calls_view.calls),
            "causes": [
                (cause, f"{count:,}", f"{tokens:,}")
                for cause, count, tokens in calls_view.causes
            ],
            "compactions": views.make_compaction_items(records, calls),
        }

    # A compaction

    async def load_compaction_page(
        self, viewer: Viewer, thread: str, number: int
    ) -> dict[str, Any]:
        row = await self.load_thread(viewer, thread)
        records, calls = await asyncio.gather(
            self.store.compactions(thread), self.store.call_rows([thread])
        )
        record = next((record for record in records if record.id == number), None)
        if record is None:
            raise NotFoundError
        item = next(
            candidate
            for candidate in views.make_compaction_items(records, calls)
            if candidate.stored is record
        )
        sides = await self._load_before_and_after(record)
        compaction = record.record
        last_compaction = next(
            (
                other_record
                for other_record in reversed(records)
                if other_record.reverted is None
            ),
            None,
        )
        return {
            "thread": row.first,
            "title": await self.load_title(row),
            "made": item,
            "focus": one_line_excerpt(compaction.focus or "", 200),
            "left": len(sides.removed_ids),
            "may_undo": record is last_compaction,
            "branch_at": sides.last_id,
            "warnings": [clean(redact(text)) for text in compaction.warnings],
            "before": _make_side_rows(sides.before, sides.removed_ids),
            "before_more": max(0, len(sides.before) - MAX_SIDE_MESSAGES),
            "after": _make_side_rows(sides.after, frozenset()),
            "after_more": max(0, len(sides.after) - MAX_SIDE_MESSAGES),
            "before_bar": draw_side_bar(sides.before, compaction.tokens_before),
            "after_bar": draw_side_bar(sides.after, compaction.tokens_before),
            "sections": split_summary(
                compaction.summary,
                [
                    (message.id, message_text(message.body))
                    for message in sides.before
                    if message.id in sides.removed_ids
                ],
            ),
            "checks": views.describe_checks(compaction.figures),
            "decision": clean(str(compaction.figures.get("decision") or "")),
            "steps": [
                clean(str(step)) for step in compaction.figures.get("steps") or ()
            ],
            "phases": views.describe_phases(compaction.figures),
            "spared_dollars": _estimate_saved_dollars(item, calls),
        }

    async def _load_before_and_after(self, record: CompactionRecord) -> _BeforeAndAfter:
        messages_before, messages_after = await asyncio.gather(
            self.store.messages(record.parent), self.store.messages(record.session)
        )
        covered_ids = frozenset(record.record.covered)
        messages_before = [
            message for message in messages_before if message.created <= record.created
        ]
        carried_count = sum(
            message.created <= record.created for message in messages_after
        )
        ids = [message.id for message in messages_before if message.kind == "message"]
        return _BeforeAndAfter(
            messages_before,
            messages_after[:carried_count],
            covered_ids,
            ids[-1] if ids else None,
        )

    # A message

    async def load_message_page(
        self, viewer: Viewer, thread: str, number: int, start: int, *, revealed: bool
    ) -> dict[str, Any]:
        row = await self.load_thread(viewer, thread)
        message = await self.load_message(viewer, thread, number)
        body = message_text(message.body)
        start = max(0, min(start, len(body)))
        item = views.make_message_row(
            message, chars=MAX_MESSAGE_CHARS, start=start, revealed=revealed
        )
        return {
            "thread": row.first,
            "title": await self.load_title(row),
            "item": item,
            "size": len(body),
            "start": start,
            "shown": min(MAX_MESSAGE_CHARS, len(body) - start),
            "most": MAX_MESSAGE_CHARS,
            "revealed": revealed,
            "kind": message.kind,
            "may_pin": 0 < len(body.strip()) <= 2_000,
        }

    async def load_message(
        self, viewer: Viewer, thread: str, number: int
    ) -> StoredMessage:
        """Return a message that one of the thread's sessions shows or showed."""
        try:
            message = await self.store.message(number, tenant=viewer.tenant)
            owner = await self.store.session(message.session)
        except UnknownIdError:
            raise NotFoundError from None
        if owner.thread == thread:
            return message
        # A branch shares messages with its parent.
        in_view, _ = await self.store.shown_messages(thread, [number])
        if number not in in_view:
            raise NotFoundError
        return message

    # The overview

    async def load_overview(self, viewer: Viewer, days: int) -> dict[str, Any]:
        end_time = self._wall_clock() + 1
        start_time = (end_time // DAY_SECONDS - days + 1) * DAY_SECONDS
        tenant = viewer.tenant
        insights, clients, failures, records, limits = await asyncio.gather(
            self.store.insights(since=start_time, until=end_time, tenant=tenant),
            self.store.sum_usage_by(
                "client", since=start_time, until=end_time, tenant=tenant
            ),
            self.store.failures(since=start_time, tenant=tenant),
            self.store.recent_compactions(tenant=tenant, limit=5_000),
            self.costs.load_learnt_windows(),
        )
        load_savings = await self.costs.compare_period(records, limits, start_time)
        recent = [record for record in records if record.created >= start_time]
        slowest = sorted(
            views.make_compaction_items(recent), key=lambda item: -item.record.duration
        )[:8]
        groups = [("model", "model", insights.by_model), ("client", "client", clients)]
        if tenant is None:
            tenants = await self.store.sum_usage_by(
                "tenant", since=start_time, until=end_time
            )
            groups += [("tenant", "tenant", tenants)] if len(tenants) > 1 else []
        groups.append(("day", "day", list(reversed(insights.by_day))[:31]))
        tables = [
            (
                name,
                [
                    _make_usage_row(
                        row, load_savings.saved_by.get(kind, {}).get(row.key, 0.0)
                    )
                    for row in rows
                ],
            )
            for name, kind, rows in groups
            if rows
        ]
        return {
            "days": days,
            "headline": describe_period(insights, load_savings),
            "has_calls": bool(insights.total.calls or insights.compactions),
            "tables": tables,
            "slowest": slowest,
            "failures": [(failure, f"{count:,}") for failure, count in failures],
            "charts": draw_days(insights.by_day, load_savings, start_time),
            "beyond": draw_beyond_by_client(load_savings),
        }

    async def load_savings(self, start_time: float) -> CostComparison:
        """Return the savings by compactions of all threads since a time."""
        records, limits = await asyncio.gather(
            self.store.recent_compactions(limit=5_000), self.costs.load_learnt_windows()
        )
        return await self.costs.compare_period(records, limits, start_time)

    # Settings, tried

    async def make_trial_request(
        self, row: ThreadRow, threshold: int, ratio: int
    ) -> TrialRequest:
        model, size = await self.costs.load_window(row)
        history = await self.store.history(row.tip.id)
        messages = [(message.body, message.created) for message in history]
        first_session = row.first
        return TrialRequest(
            first_session.id,
            model,
            window=size.tokens,
            system=first_session.system,
            messages=messages,
            threshold=threshold / 100,
            ratio=ratio / 100,
        )


@dataclass(frozen=True, slots=True)
class _ThreadData:
    """The data of a thread's page, valid until the thread changes."""

    change_mark: str
    """A text that differs after every change of the thread."""
    page_fields: dict[str, Any]
    summaries: Sequence[str]
    state: ThreadState


@dataclass(frozen=True, slots=True)
class _BeforeAndAfter:
    """The messages before and after a compaction, the ids of the removed ones, and the last id before it."""

    before: Sequence[StoredMessage]
    after: Sequence[StoredMessage]
    removed_ids: frozenset[int]
    last_id: int | None


def _make_side_rows(
    messages: Sequence[StoredMessage], removed_ids: frozenset[int]
) -> list[views.MessageRow | None]:
    """Return the first and the last messages as short rows, with None in place of those that are not shown."""

    def make_brief_row(message: StoredMessage) -> views.MessageRow:
        visibility = (
            "recall"
            if message.id in removed_ids
            else "view"
            if removed_ids and message.kind == "message"
            else ""
        )
        return views.make_message_row(
            message, chars=EXCERPT_CHARS, visibility=visibility
        )

    if len(messages) <= MAX_SIDE_MESSAGES:
        return [make_brief_row(message) for message in messages]
    half = MAX_SIDE_MESSAGES // 2
    return [
        *map(make_brief_row, messages[:half]),
        None,
        *map(make_brief_row, messages[-half:]),
    ]


def _make_usage_row(row: Any, saved: float) -> tuple[str, ...]:
    share = row.cache_share
    is_priced = row.unpriced_calls < row.calls
    return (
        views.translate_client_name(row.key) if row.key else "–",
        f"{row.calls:,}",
        f"{row.prompt:,}",
        "–" if share is None else f"{share:.1%}",
        f"{row.output:,}",
        format_money(row.cost) if is_priced else "unknown",
        format_money(saved) if abs(saved) >= MIN_DOLLARS else "–",
    )


def _estimate_saved_dollars(
    item: views.CompactionItem, calls: Sequence[CallRow]
) -> float | None:
    """Return the dollars for the tokens that later calls did not send, at the price of cached tokens if possible."""
    later_calls = [
        call
        for call in calls
        if call.task == "main" and call.created > item.stored.created
    ]
    if not later_calls:
        return None
    prices = PriceTable()(
        later_calls[-1].model, later_calls[-1].created, later_calls[-1].prompt
    )
    if prices is None or prices.input is None:
        return None
    uses_cache_price = (
        any(call.cache_read for call in later_calls) and prices.cache_read is not None
    )
    return (
        item.spared
        * float(
            prices.cache_read
            if uses_cache_price and prices.cache_read
            else prices.input
        )
        / 1_000_000
    )


def _list_state(state: ThreadState, todo: Any) -> list[tuple[str, list[str]]]:
    """List the state of the work: directory, files, commands with their last outcome, open errors, to-do list."""
    todo_items = todo if isinstance(todo, list) and todo else state.todo
    commands = [
        f"{one_line_excerpt(name, 120)} {entry.outcome and '→ '}{entry.outcome}".rstrip()
        for name, entry in state.commands.items()
    ]
    groups = [
        (
            "Where",
            [
                location
                for location in (
                    state.directory,
                    state.branch and f"branch {state.branch}",
                )
                if location
            ],
        ),
        ("Changed files", state.changed_files()[-12:]),
        ("Last outcome of each command", commands[-8:]),
        (
            "Open errors",
            [
                f"{error.source}: {' '.join(error.lines)}"
                for error in state.open_errors()
            ],
        ),
        ("Running", state.processes),
        (
            "To do",
            [
                f"[{entry.get('status', '')}] {entry.get('text', '')}"
                for entry in todo_items
                if isinstance(entry, dict)
            ],
        ),
    ]
    return [
        (name, [one_line_excerpt(line, 240) for line in lines])
        for name, lines in groups
        if lines
    ]


def _count_stored_and_removed(
    row: ThreadRow, records: Sequence[CompactionRecord]
) -> StoredAndRemovedCounts:
    """Count the stored messages of a thread, and the messages that compactions removed from the prompt."""
    unreverted_compactions = [
        compaction.record for compaction in records if compaction.reverted is None
    ]
    return StoredAndRemovedCounts(
        stored_count=row.messages,
        removed_count=len(
            {
                number
                for compaction in unreverted_compactions
                for number in compaction.covered
            }
        ),
        compactions=len(unreverted_compactions),
    )
