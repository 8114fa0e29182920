"""Load the values of each page from the store, and no more than the page needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from everthread.compaction.history.thread_facts import ThreadState, build_state
from everthread.core.messages import text_of
from everthread.core.recent_dict import RecentDict
from everthread.core.secrets.redaction import redact
from everthread.errors import UnknownIdError
from everthread.gateway.access.quotas import utc_day
from everthread.gateway.dashboard import views
from everthread.gateway.dashboard.access import Viewer
from everthread.gateway.dashboard.headlines import (
    MIN_DOLLARS,
    KeptMessages,
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
from everthread.gateway.dashboard.savings import (
    CostComparison,
    PriceTable,
    compare_thread,
    sum_savings,
)
from everthread.gateway.dashboard.summary_lines import split_summary
from everthread.gateway.dashboard.text import (
    clean,
    format_money,
    highlight,
    message_text,
    one_line_excerpt,
)
from everthread.gateway.dashboard.trials import TrialRequest
from everthread.gateway.dashboard.views import ThreadEntry, WindowSize
from everthread.store.records import CompactionRecord, Session, StoredMessage, ThreadRow
from everthread.store.search_records import SearchHit, SearchQuery
from everthread.store.store import Store
from everthread.store.usage_records import CallRow, ThreadFigures
from everthread.thread.stored_facts import load_title
from everthread.thread.used_window import UsedWindow, load_used_window

THREADS_PER_PAGE = 50
MESSAGES_PER_PAGE = 30
LISTED_MESSAGE_CHARS = 1_500
"""Characters of a message in a list."""
EXCERPT_CHARS = 300
MAX_MESSAGE_CHARS = 100_000
"""Characters of a message on its own page; a longer message is shown in parts."""
MAX_SIDE_MESSAGES = 60
"""Maximum messages shown before or after a compaction: the first and the last ones."""
MAX_HITS = 60
DAY_SECONDS = 86_400.0
MAX_STATE_MESSAGES = 300
"""Number of last messages from which the thread's state is read."""
MAX_CACHED_THREADS = 32
"""Maximum threads whose figures are cached until the thread changes."""


class NotFoundError(Exception):
    """The page does not exist, or this viewer may not see it."""


class WindowSource(Protocol):
    def __call__(self, model: str, learnt: int | None) -> WindowSize: ...


class PageReader:
    """Load the values of a page for a viewer."""

    def __init__(
        self,
        store: Store,
        window: WindowSource,
        *,
        ttl: float = 300.0,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self._find_window = window
        self._cache_seconds = ttl
        self._wall_clock = wall_clock
        self._accounts: RecentDict[str, _ThreadAccount] = RecentDict(MAX_CACHED_THREADS)

    # The list

    async def threads(
        self, viewer: Viewer, page: int
    ) -> tuple[list[ThreadEntry], bool]:
        """Return a page of the list of threads, and whether another page follows."""
        start = (page - 1) * THREADS_PER_PAGE
        rows = await self.store.list_threads(
            tenant=viewer.tenant, limit=THREADS_PER_PAGE + 1, offset=start
        )
        entries = await self._make_entries(rows[:THREADS_PER_PAGE], {})
        return await self._group_branches(entries), len(rows) > THREADS_PER_PAGE

    async def _group_branches(
        self, entries: Sequence[ThreadEntry]
    ) -> list[ThreadEntry]:
        """Put branches under their parent thread. If that is on another page, the branch names it."""
        listed_threads = {entry.row.first.id for entry in entries}
        parents = {
            entry.row.first.id: await self._find_parent_thread(entry.row.first)
            for entry in entries
            if entry.row.first.kind == "branch"
        }
        branches: dict[str, list[ThreadEntry]] = {}
        roots: dict[str, None] = {}
        for entry in entries:
            thread = entry.row.first.id
            root = thread
            while parents.get(root) in listed_threads:
                root = parents[root]
            roots[root] = None
            if root != thread:
                branches.setdefault(root, []).append(entry)
        by_thread = {entry.row.first.id: entry for entry in entries}
        return [
            replace(
                by_thread[root],
                branches=branches.get(root, ()),
                parent=parents.get(root, ""),
            )
            for root in roots
        ]

    async def _find_parent_thread(self, branch: Session) -> str:
        """Return the thread that a branch began in; empty if it was deleted."""
        if branch.parent is None:
            return ""
        try:
            return (await self.store.session(branch.parent)).thread
        except UnknownIdError:
            return ""

    async def search_threads(self, viewer: Viewer, query: str) -> list[ThreadEntry]:
        """Return the threads that match a search, each with its first matches."""
        search_query = SearchQuery(query, tenant=viewer.tenant, limit=MAX_HITS)
        by_thread: dict[str, list[SearchHit]] = {}
        for hit in (await self.store.find(search_query)).hits:
            by_thread.setdefault(hit.thread, []).append(hit)
        listed_hits = [
            hit for thread_hits in by_thread.values() for hit in thread_hits[:3]
        ]
        hit_messages = {hit.message for hit in listed_hits}
        snippets: dict[str, list[views.Snippet]] = {}
        for hit in listed_hits:
            role = f"{hit.role}: {hit.tool}" if hit.tool else hit.role
            line_before, line_after = (
                one_line_excerpt(neighbour.as_line(hit_messages), 120)
                if neighbour
                else ""
                for neighbour in (hit.before, hit.after)
            )
            words = highlight(one_line_excerpt(hit.snippet, 220), query)
            snippet = views.Snippet(
                one_line_excerpt(role, 60), words, hit.message, line_before, line_after
            )
            snippets.setdefault(hit.thread, []).append(snippet)
        rows = [
            row
            for thread in snippets
            if (row := await self._load_row(viewer, thread)) is not None
        ]
        return await self._make_entries(rows[:THREADS_PER_PAGE], snippets)

    async def _load_row(self, viewer: Viewer, thread: str) -> ThreadRow | None:
        try:
            row = await self.store.thread_row(thread)
        except UnknownIdError:
            return None
        return row if viewer.may_see(row.first.tenant) else None

    async def _make_entries(
        self, rows: Sequence[ThreadRow], snippets: Mapping[str, Sequence[views.Snippet]]
    ) -> list[ThreadEntry]:
        ids = [row.first.id for row in rows]
        figures, limits = await asyncio.gather(
            self.store.thread_figures(ids), self._load_learnt_windows()
        )
        compacted_threads = [row.first.id for row in rows if row.compactions]
        used_windows = await self._load_used_windows(rows)
        savings = await self._load_savings(compacted_threads, limits, used_windows)
        untitled_sessions = [
            row.first for row in rows if not (row.tip.title or row.first.title)
        ]
        titles = await asyncio.gather(
            *(
                load_title(self.store, first_session)
                for first_session in untitled_sessions
            )
        )
        titles_by_thread = {
            first_session.id: title
            for first_session, title in zip(untitled_sessions, titles, strict=True)
        }
        items = []
        for row in rows:
            totals = figures.get(row.first.id) or ThreadFigures(row.first.id)
            model = totals.last_model or row.tip.model
            thread = row.first.id
            size = self._find_window_size(model, limits, used_windows[thread])
            title = views.make_thread_title(
                row.first, row.tip, titles_by_thread.get(thread, "")
            )
            items.append(
                ThreadEntry(
                    row,
                    totals,
                    window=size,
                    title=title,
                    comparison=savings.get(thread),
                    snippets=snippets.get(thread, ()),
                )
            )
        return items

    async def _load_learnt_windows(self) -> dict[str, int]:
        """Return the windows that were learnt, by model."""
        windows: dict[str, int] = {}
        for limit in await self.store.limits():
            if limit.kind == "window":
                windows[limit.model] = min(
                    limit.limit, windows.get(limit.model, limit.limit)
                )
        return windows

    async def _load_used_windows(
        self, rows: Sequence[ThreadRow]
    ) -> dict[str, UsedWindow | None]:
        """Return the window that the last call of each thread used."""
        used_windows = await asyncio.gather(
            *(load_used_window(self.store, row) for row in rows)
        )
        return {
            row.first.id: used_window
            for row, used_window in zip(rows, used_windows, strict=True)
        }

    def _find_window_size(
        self, model: str, limits: Mapping[str, int], used_window: UsedWindow | None
    ) -> WindowSize:
        """Return a model's window: the one that the thread used, or else the one known to this process."""
        known_size = self._find_window(model, limits.get(model))
        if used_window is None or used_window.model != model:
            return known_size
        source = used_window.source.rstrip(".")
        if not source:
            is_known = used_window.tokens == known_size.tokens
            source = known_size.source if is_known else "as the last call used it"
        return WindowSize(used_window.tokens, used_window.threshold, source)

    async def _load_savings(
        self,
        threads: Sequence[str],
        limits: Mapping[str, int],
        used_windows: Mapping[str, UsedWindow | None],
    ) -> dict[str, CostComparison]:
        if not threads:
            return {}
        calls, records = await asyncio.gather(
            self.store.call_rows(threads),
            self.store.recent_compactions(threads=threads, limit=100_000),
        )
        by_thread: dict[str, list[CallRow]] = {thread: [] for thread in threads}
        records_by_thread: dict[str, list[CompactionRecord]] = {
            thread: [] for thread in threads
        }
        for call in calls:
            by_thread[call.thread].append(call)
        for record in records:
            records_by_thread[record.thread].append(record)
        return {
            thread: self._compare_costs(
                by_thread[thread],
                records_by_thread[thread],
                limits,
                used_window=used_windows.get(thread),
            )
            for thread in threads
        }

    def _compare_costs(
        self,
        calls: Sequence[CallRow],
        records: Sequence[CompactionRecord],
        limits: Mapping[str, int],
        *,
        used_window: UsedWindow | None,
    ) -> CostComparison:
        windows = {
            call.model: self._find_window_size(call.model, limits, used_window).tokens
            for call in calls
        }
        return compare_thread(
            calls,
            records,
            price=PriceTable(),
            window=windows.__getitem__,
            ttl=self._cache_seconds,
        )

    # A thread

    async def thread(self, viewer: Viewer, thread: str) -> ThreadRow:
        """Return a thread by its own id; raise `NotFoundError` if the viewer may not see it."""
        row = await self._load_row(viewer, thread)
        if row is None or row.first.id != thread:
            raise NotFoundError
        return row

    async def title(self, row: ThreadRow) -> str:
        given_title = row.tip.title or row.first.title
        return views.make_thread_title(
            row.first,
            row.tip,
            "" if given_title else await load_title(self.store, row.first),
        )

    async def thread_page(
        self, viewer: Viewer, thread: str, page: int | None
    ) -> dict[str, Any]:
        row = await self.thread(viewer, thread)
        first_session = row.first
        tip = row.tip
        pages = max(1, -(-row.messages // MESSAGES_PER_PAGE))
        page_number = pages if page is None else max(1, min(page, pages))
        # The last page is a full one.
        start = max(0, row.messages - (pages - page_number + 1) * MESSAGES_PER_PAGE)
        message_count = row.messages - (pages - page_number) * MESSAGES_PER_PAGE - start
        account, side_calls, history, pinned, todo = await asyncio.gather(
            self._load_account(row),
            self._load_side_calls(viewer, row),
            self.store.history(tip.id, start=start, limit=message_count),
            self.store.pins(thread),
            self.store.get_state(thread, "todo"),
        )
        context = await self._load_context(account, tip, history)
        return {
            **account.model,
            "thread": first_session,
            "tip": tip,
            "title": await self.title(row),
            "client": views.name_client(first_session),
            "messages": row.messages,
            "state": _list_state(account.state, todo),
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
            await self._load_row(viewer, child.id)
            for child in started[: -THREADS_PER_PAGE - 1 : -1]
        ]
        return await self._make_entries([side for side in rows if side is not None], {})

    async def _load_context(
        self, account: _ThreadAccount, tip: Session, history: Sequence[StoredMessage]
    ) -> views.ContextView:
        in_view, shortened = await self.store.shown_messages(
            tip.id, [message.id for message in history]
        )
        return views.make_context_view(in_view, shortened, account.summaries)

    async def _load_account(self, row: ThreadRow) -> _ThreadAccount:
        """Return a thread's figures, computed once for each change of the thread."""
        thread = row.first.id
        limits = await self._load_learnt_windows()
        change_mark = (
            f"{await self.store.last_change(thread=thread)} {sorted(limits.items())}"
        )
        account = self._accounts.get(thread)
        if account is None or account.mark != change_mark:
            account = await self._compute_account(row, limits, change_mark)
        self._accounts[thread] = account
        return account

    async def _compute_account(
        self, row: ThreadRow, limits: Mapping[str, int], change_mark: str
    ) -> _ThreadAccount:
        store = self.store
        thread = row.first.id
        tip = row.tip
        (
            (figures, calls, records),
            (heaviest, tools, summaries, recent),
        ) = await asyncio.gather(
            asyncio.gather(
                store.thread_figures([thread]),
                store.call_rows([thread]),
                store.compactions(thread),
            ),
            asyncio.gather(
                store.heaviest_messages(thread, 8),
                store.tool_sizes(thread),
                store.session_summaries(tip.id),
                store.history(
                    tip.id,
                    start=max(0, row.messages - MAX_STATE_MESSAGES),
                    limit=MAX_STATE_MESSAGES,
                ),
            ),
        )
        totals = figures.get(thread) or ThreadFigures(thread)
        model = totals.last_model or tip.model
        used_window = await load_used_window(store, row)
        size = self._find_window_size(model, limits, used_window)
        texts = [text_of(message.body) for message in summaries]
        sizes = views.sum_part_sizes(await store.context_sizes(tip.id), texts)
        window = views.make_window_view(tip.system, sizes, size, calls)
        calls_shown = views.make_calls_view(calls, records, ttl=self._cache_seconds)
        kept_messages = _count_kept(row, records)
        has_saving = kept_messages.compactions > 0
        saving = (
            self._compare_costs(calls, records, limits, used_window=used_window)
            if has_saving
            else None
        )
        page_model = {
            "headline": describe_thread(
                totals, saving, window=size.tokens, kept_messages=kept_messages
            ),
            "model": model,
            "figures": totals,
            "window": window,
            "window_bar": draw_window_bar(window),
            "calls": calls_shown,
            "calls_chart": draw_calls(calls_shown, size),
            "cached": any(call.cache_read for call in calls_shown.calls),
            "causes": [
                (cause, f"{count:,}", f"{tokens:,}")
                for cause, count, tokens in calls_shown.causes
            ],
            "compactions": views.make_compaction_items(records, calls),
            "heaviest": heaviest,
            "tools": [
                (one_line_excerpt(name, 40), f"{count:,}", f"{tokens:,}")
                for name, count, tokens in tools
            ],
        }
        return _ThreadAccount(
            change_mark,
            page_model,
            texts,
            build_state([message.body for message in recent]),
        )

    # A compaction

    async def compaction_page(
        self, viewer: Viewer, thread: str, number: int
    ) -> dict[str, Any]:
        row = await self.thread(viewer, thread)
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
        sides = await self._load_sides(record)
        compaction = record.record
        last_kept = next(
            (
                kept_record
                for kept_record in reversed(records)
                if kept_record.reverted is None
            ),
            None,
        )
        return {
            "thread": row.first,
            "title": await self.title(row),
            "made": item,
            "focus": one_line_excerpt(compaction.focus or "", 200),
            "left": len(sides.removed_ids),
            "may_undo": record is last_kept,
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

    async def _load_sides(self, record: CompactionRecord) -> _CompactionSides:
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
        return _CompactionSides(
            messages_before,
            messages_after[:carried_count],
            covered_ids,
            ids[-1] if ids else None,
        )

    # A message

    async def message_page(
        self, viewer: Viewer, thread: str, number: int, start: int, *, revealed: bool
    ) -> dict[str, Any]:
        row = await self.thread(viewer, thread)
        message = await self.message(viewer, thread, number)
        body = message_text(message.body)
        start = max(0, min(start, len(body)))
        item = views.make_message_row(
            message, chars=MAX_MESSAGE_CHARS, start=start, revealed=revealed
        )
        return {
            "thread": row.first,
            "title": await self.title(row),
            "item": item,
            "size": len(body),
            "start": start,
            "shown": min(MAX_MESSAGE_CHARS, len(body) - start),
            "most": MAX_MESSAGE_CHARS,
            "revealed": revealed,
            "kind": message.kind,
            "may_pin": 0 < len(body.strip()) <= 2_000,
        }

    async def message(self, viewer: Viewer, thread: str, number: int) -> StoredMessage:
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

    async def overview(self, viewer: Viewer, days: int) -> dict[str, Any]:
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
            self._load_learnt_windows(),
        )
        savings = await self._load_period_savings(records, limits, start_time)
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
                        row, savings.saved_by.get(kind, {}).get(row.key, 0.0)
                    )
                    for row in rows
                ],
            )
            for name, kind, rows in groups
            if rows
        ]
        return {
            "days": days,
            "headline": describe_period(insights, savings),
            "has_calls": bool(insights.total.calls or insights.compactions),
            "tables": tables,
            "slowest": slowest,
            "failures": [(failure, f"{count:,}") for failure, count in failures],
            "charts": draw_days(insights.by_day, savings, start_time),
            "beyond": draw_beyond_by_client(savings),
        }

    async def savings(self, start_time: float) -> CostComparison:
        """Return the savings by compactions of all threads since a time."""
        records, limits = await asyncio.gather(
            self.store.recent_compactions(limit=5_000), self._load_learnt_windows()
        )
        return await self._load_period_savings(records, limits, start_time)

    async def _load_period_savings(
        self,
        records: Sequence[CompactionRecord],
        limits: Mapping[str, int],
        start_time: float,
    ) -> CostComparison:
        compacted_threads = list(
            dict.fromkeys(
                record.thread for record in records if record.reverted is None
            )
        )
        savings = await self._load_savings(compacted_threads[:500], limits, {})
        return sum_savings(list(savings.values()), start_time=start_time, day=utc_day)

    # Settings, tried

    async def make_trial_request(
        self, row: ThreadRow, threshold: int, ratio: int
    ) -> TrialRequest:
        model, size = await self.load_window(row)
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

    async def load_window(self, row: ThreadRow) -> tuple[str, WindowSize]:
        """Return a thread's model and its window."""
        thread = row.first.id
        figures, limits, used_window = await asyncio.gather(
            self.store.thread_figures([thread]),
            self._load_learnt_windows(),
            load_used_window(self.store, row),
        )
        model = (
            figures[thread].last_model if thread in figures else ""
        ) or row.tip.model
        return model, self._find_window_size(model, limits, used_window)


@dataclass(frozen=True, slots=True)
class _ThreadAccount:
    """The figures of a thread's page, valid until the thread changes."""

    mark: str
    model: dict[str, Any]
    summaries: Sequence[str]
    state: ThreadState


@dataclass(frozen=True, slots=True)
class _CompactionSides:
    """The messages before and after a compaction, the ids of the removed ones, and the last id before it."""

    before: Sequence[StoredMessage]
    after: Sequence[StoredMessage]
    removed_ids: frozenset[int]
    last_id: int | None


def _make_side_rows(
    messages: Sequence[StoredMessage], removed_ids: frozenset[int]
) -> list[views.MessageRow | None]:
    """Return the messages as short rows; None stands for the messages in the middle, which are not shown."""

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
                place
                for place in (
                    state.directory,
                    state.branch and f"branch {state.branch}",
                )
                if place
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


def _count_kept(row: ThreadRow, records: Sequence[CompactionRecord]) -> KeptMessages:
    """Count the stored messages of a thread, and the messages that compactions removed from the prompt."""
    kept_compactions = [
        compaction.record for compaction in records if compaction.reverted is None
    ]
    return KeptMessages(
        stored_count=row.messages,
        removed_count=len(
            {number for compaction in kept_compactions for number in compaction.covered}
        ),
        compactions=len(kept_compactions),
    )
