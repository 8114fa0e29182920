"""The page of one thread."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.compaction.history.thread_state import ThreadState, build_state
from everthread.core.messages import text_of
from everthread.core.recent_dict import RecentDict
from everthread.gateway.dashboard.call_history import draw_calls, make_calls_view
from everthread.gateway.dashboard.compaction_page import make_compaction_items
from everthread.gateway.dashboard.context_window import (
    draw_window_bar,
    make_window_view,
    sum_part_sizes,
)
from everthread.gateway.dashboard.headlines import (
    StoredAndRemovedCounts,
    describe_thread,
)
from everthread.gateway.dashboard.login import Viewer
from everthread.gateway.dashboard.message_page import (
    ContextView,
    make_context_view,
    make_message_row,
)
from everthread.gateway.dashboard.page_text import clean, one_line_excerpt
from everthread.gateway.dashboard.thread_list import (
    THREADS_PER_PAGE,
    ThreadEntry,
    ThreadList,
    get_client_name,
)
from everthread.store.records import CompactionRecord, Session, StoredMessage, ThreadRow
from everthread.store.usage_records import ThreadFigures
from everthread.thread.used_window import load_used_window

MESSAGES_PER_PAGE = 30
LISTED_MESSAGE_CHARS = 1_500
"""Maximum characters shown of a message in a list."""
MAX_STATE_MESSAGES = 300
"""Number of newest messages from which the thread's state is read."""
MAX_CACHED_THREADS = 32
"""Maximum threads whose figures are cached until the thread changes."""


class ThreadPages:
    """The pages of threads. Their figures are cached until the thread changes."""

    def __init__(self, thread_list: ThreadList) -> None:
        self._thread_list = thread_list
        self._threads = thread_list.threads
        self._costs = thread_list.costs
        self._cached_threads: RecentDict[str, _ThreadData] = RecentDict(MAX_CACHED_THREADS)

    async def load(self, viewer: Viewer, thread_id: str, page: int | None) -> dict[str, Any]:
        row = await self._threads.load_thread(viewer, thread_id)
        first_session = row.first
        last_session = row.tip
        page_count = max(1, -(-row.message_count // MESSAGES_PER_PAGE))
        page_number = page_count if page is None else max(1, min(page, page_count))
        # The last page is always full, so that the newest messages are never on a short page.
        start = max(0, row.message_count - (page_count - page_number + 1) * MESSAGES_PER_PAGE)
        message_count = row.message_count - (page_count - page_number) * MESSAGES_PER_PAGE - start
        thread_data, side_calls, history, pins, todo = await asyncio.gather(
            self._load_thread_data(row),
            self._load_side_calls(viewer, row),
            self._threads.store.load_history(last_session.id, start=start, limit=message_count),
            self._threads.store.state.list_pins(thread_id),
            self._threads.store.state.get_state(thread_id, "todo"),
        )
        context = await self._load_context(thread_data, last_session, history)
        return {
            **thread_data.page_fields,
            "thread": first_session,
            "tip": last_session,
            "title": await self._threads.load_title(row),
            "client": get_client_name(first_session),
            "messages": row.message_count,
            "state": _list_state(thread_data.state, todo),
            "pins": [replace(pin, text=clean(pin.text)) for pin in pins],
            "conversation": [
                make_message_row(
                    message,
                    chars=LISTED_MESSAGE_CHARS,
                    visibility=context.find_visibility(message),
                )
                for message in history
            ],
            "page": page_number,
            "pages": page_count,
            "side_calls": side_calls,
        }

    async def _load_side_calls(self, viewer: Viewer, row: ThreadRow) -> list[ThreadEntry]:
        """Return the side calls of a conversation, newest first."""
        if not row.side_call_count:
            return []
        side_sessions = [
            child
            for child in await self._threads.store.list_child_threads(row.first.id)
            if child.kind == "side"
        ]
        rows = [
            await self._threads.find_thread(viewer, child.id)
            for child in side_sessions[: -THREADS_PER_PAGE - 1 : -1]
        ]
        visible_rows = [side_row for side_row in rows if side_row is not None]
        return await self._thread_list.make_entries(visible_rows, {})

    async def _load_context(
        self, thread_data: _ThreadData, last_session: Session, history: Sequence[StoredMessage]
    ) -> ContextView:
        overview = self._threads.store.overview
        unchanged_ids, shortened_ids = await overview.find_unchanged_and_shortened_ids(
            last_session.id, [message.id for message in history]
        )
        return make_context_view(unchanged_ids, shortened_ids, thread_data.summaries)

    async def _load_thread_data(self, row: ThreadRow) -> _ThreadData:
        """Return the data of a thread's page, which is computed again only if the thread has changed."""
        thread_id = row.first.id
        learnt_windows = await self._costs.load_learnt_windows()
        change_marker = await self._threads.store.overview.load_change_marker(thread_id=thread_id)
        data_version = f"{change_marker} {sorted(learnt_windows.items())}"
        thread_data = self._cached_threads.get(thread_id)
        if thread_data is None or thread_data.data_version != data_version:
            thread_data = await self._compute_thread_data(row, learnt_windows, data_version)
        self._cached_threads[thread_id] = thread_data
        return thread_data

    async def _compute_thread_data(
        self, row: ThreadRow, learnt_windows: Mapping[str, int], data_version: str
    ) -> _ThreadData:
        store = self._threads.store
        thread_id = row.first.id
        last_session = row.tip
        first_state_message = max(0, row.message_count - MAX_STATE_MESSAGES)
        largest_messages, tool_sizes, summaries, recent_messages, part_rows = await asyncio.gather(
            store.overview.list_largest_messages(thread_id, 8),
            store.overview.list_tool_sizes(thread_id),
            store.overview.list_summaries(last_session.id),
            store.load_history(
                last_session.id, start=first_state_message, limit=MAX_STATE_MESSAGES
            ),
            store.overview.list_context_sizes(last_session.id),
        )
        summary_texts = [text_of(message.body) for message in summaries]
        part_sizes = sum_part_sizes(part_rows, summary_texts)
        page_fields = {
            **await self._load_call_fields(row, learnt_windows, part_sizes),
            "heaviest": largest_messages,
            "tools": [
                (one_line_excerpt(name, 40), f"{count:,}", f"{tokens:,}")
                for name, count, tokens in tool_sizes
            ],
        }
        state = build_state([message.body for message in recent_messages])
        return _ThreadData(data_version, page_fields, summary_texts, state)

    async def _load_call_fields(
        self,
        row: ThreadRow,
        learnt_windows: Mapping[str, int],
        part_sizes: Mapping[str, int],
    ) -> dict[str, Any]:
        """Return the fields of a thread's page about its calls, its window and its compactions."""
        store = self._threads.store
        thread_id = row.first.id
        figures_by_thread_id, calls, records, used_window = await asyncio.gather(
            store.overview.sum_threads([thread_id]),
            store.usage.list_usage(thread_id),
            store.list_compactions(thread_id),
            load_used_window(store, row),
        )
        thread_figures = figures_by_thread_id.get(thread_id) or ThreadFigures(thread_id)
        model = thread_figures.last_model or row.tip.model
        size = self._costs.find_window_size(model, learnt_windows, used_window)
        window = make_window_view(row.tip.system, part_sizes, size, calls)
        calls_view = make_calls_view(calls, records, ttl=self._costs.cache_seconds)
        message_counts = _count_stored_and_removed(row, records)
        comparison = None
        if message_counts.compaction_count:
            comparison = self._costs.compare_costs(
                calls, records, learnt_windows, used_window=used_window
            )
        return {
            "headline": describe_thread(
                thread_figures, comparison, window=size.tokens, counts=message_counts
            ),
            "model": model,
            "figures": thread_figures,
            "window": window,
            "window_bar": draw_window_bar(window),
            "calls": calls_view,
            "calls_chart": draw_calls(calls_view, size),
            "cached": any(call.usage.cache_read_tokens for call in calls_view.calls),
            "causes": [
                (cause, f"{count:,}", f"{tokens:,}") for cause, count, tokens in calls_view.causes
            ],
            "compactions": make_compaction_items(records, calls),
        }


@dataclass(frozen=True, slots=True)
class _ThreadData:
    """The data of a thread's page, valid until the thread changes."""

    data_version: str
    """A text that differs after every change of the thread."""
    page_fields: dict[str, Any]
    summaries: Sequence[str]
    state: ThreadState


def _list_state(state: ThreadState, todo: Any) -> list[tuple[str, list[str]]]:
    """List the state of the work in groups of lines, each with its heading."""
    todo_items = todo if isinstance(todo, list) and todo else state.todo
    branch = f"branch {state.branch}" if state.branch else ""
    commands = []
    for command, run in state.commands.items():
        outcome = f" → {run.outcome}" if run.outcome else ""
        commands.append(f"{one_line_excerpt(command, 120)}{outcome}")
    groups: list[tuple[str, list[str]]] = [
        ("Where", [place for place in (state.directory, branch) if place]),
        ("Changed files", state.list_changed_files()[-12:]),
        ("Last outcome of each command", commands[-8:]),
        (
            "Open errors",
            [f"{error.source}: {' '.join(error.lines)}" for error in state.list_open_errors()],
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
    shown_groups = []
    for name, lines in groups:
        if lines:
            shown_groups.append((name, [one_line_excerpt(line, 240) for line in lines]))
    return shown_groups


def _count_stored_and_removed(
    row: ThreadRow, records: Sequence[CompactionRecord]
) -> StoredAndRemovedCounts:
    """Count the stored messages of a thread, and the messages that compactions removed from the prompt."""
    unreverted_compactions = [
        compaction.record for compaction in records if compaction.reverted_at is None
    ]
    return StoredAndRemovedCounts(
        stored_count=row.message_count,
        removed_count=len(
            {
                message_id
                for compaction in unreverted_compactions
                for message_id in compaction.covered
            }
        ),
        compaction_count=len(unreverted_compactions),
    )
