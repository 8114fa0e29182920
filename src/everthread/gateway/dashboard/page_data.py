"""Reads from the store what a page needs, and hands it to the views. Never more than a page's worth."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from everthread.compaction.thread_facts import ThreadState, state_of
from everthread.core.messages import Message, text_of
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
    total_savings,
)
from everthread.gateway.dashboard.summary_lines import summary_sections
from everthread.gateway.dashboard.text import (
    body_text,
    clean,
    highlight,
    line_of,
    money,
)
from everthread.gateway.dashboard.views import ThreadEntry, WindowSize
from everthread.store.records import (
    CallRow,
    CompactionRecord,
    SearchHit,
    SearchQuery,
    Session,
    StoredMessage,
    ThreadFigures,
    ThreadRow,
)
from everthread.store.store import Store
from everthread.thread.facts import load_title
from everthread.thread.used_window import UsedWindow, load_used_window

THREADS_PER_PAGE = 50
MESSAGES_PER_PAGE = 30
MESSAGE_CHARS = 1_500
"""Characters of a message in a list."""
EXCERPT_CHARS = 300
MAX_MESSAGE_CHARS = 100_000
"""Characters of a message on its own page; a longer one is shown in parts."""
MAX_SIDE_MESSAGES = 60
"""Messages of one side of a compaction: the first and the last of them."""
MAX_HITS = 60
DAY_SECONDS = 86_400.0
STATE_MESSAGES = 300
"""Number of last messages from which the thread's state is read."""
MAX_CACHED_THREADS = 32
"""Threads whose figures are held until they change."""


class NotFoundError(Exception):
    """The page does not exist, or this viewer may not see it."""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """A stored thread, to be replayed with other settings."""

    source: str
    model: str
    window: int
    system: Any
    said: Sequence[tuple[Message, float]]
    threshold: float
    ratio: float


@dataclass(frozen=True, slots=True)
class TrialRun:
    """How a replay went."""

    name: str
    prompts: Sequence[int]
    compactions: Sequence[int]
    """Before which calls."""
    cost: float | None
    facts: tuple[int, int, int] | None = None
    """In view at the end, found by search, lost."""
    refused: bool = False


@dataclass(frozen=True, slots=True)
class TrialResult:
    runs: Sequence[TrialRun]
    """As it is configured, with the settings tried, and the whole history without compaction."""
    notes: Sequence[str] = ()


Trial = Callable[[TrialRequest], Awaitable[TrialResult]]


class WindowSource(Protocol):
    def __call__(self, model: str, learnt: int | None) -> WindowSize: ...


class PageReader:
    """What pages show, for one viewer at a time."""

    def __init__(
        self,
        store: Store,
        window: WindowSource,
        *,
        ttl: float = 300.0,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self._window = window
        self._ttl = ttl
        self._wall = wall
        self._accounts: RecentDict[str, _Account] = RecentDict(MAX_CACHED_THREADS)

    # The list

    async def threads(
        self, viewer: Viewer, page: int
    ) -> tuple[list[ThreadEntry], bool]:
        """A page of the list, and whether there are more."""
        start = (page - 1) * THREADS_PER_PAGE
        rows = await self.store.list_threads(
            tenant=viewer.tenant, limit=THREADS_PER_PAGE + 1, offset=start
        )
        entries = await self._items(rows[:THREADS_PER_PAGE], {})
        return await self._group_branches(entries), len(rows) > THREADS_PER_PAGE

    async def _group_branches(
        self, entries: Sequence[ThreadEntry]
    ) -> list[ThreadEntry]:
        """Put branches under the thread they began in; one whose thread is on another page names it."""
        listed = {entry.row.first.id for entry in entries}
        parents = {
            entry.row.first.id: await self._parent_thread(entry.row.first)
            for entry in entries
            if entry.row.first.kind == "branch"
        }
        branches: dict[str, list[ThreadEntry]] = {}
        roots: dict[str, None] = {}
        for entry in entries:
            thread = entry.row.first.id
            root = thread
            while parents.get(root) in listed:
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

    async def _parent_thread(self, branch: Session) -> str:
        """Return the thread that a branch began in; empty if it is gone."""
        if branch.parent is None:
            return ""
        try:
            return (await self.store.session(branch.parent)).thread
        except UnknownIdError:
            return ""

    async def search_threads(self, viewer: Viewer, query: str) -> list[ThreadEntry]:
        """Return the threads that match a search, each with its first matches."""
        wanted = SearchQuery(query, tenant=viewer.tenant, limit=MAX_HITS)
        by_thread: dict[str, list[SearchHit]] = {}
        for hit in (await self.store.find(wanted)).hits:
            by_thread.setdefault(hit.thread, []).append(hit)
        listed = [hit for some in by_thread.values() for hit in some[:3]]
        hit_messages = {hit.message for hit in listed}
        snippets: dict[str, list[views.Snippet]] = {}
        for hit in listed:
            role = f"{hit.role}: {hit.tool}" if hit.tool else hit.role
            before, after = (
                line_of(one.as_line(hit_messages), 120) if one else ""
                for one in (hit.before, hit.after)
            )
            words = highlight(line_of(hit.snippet, 220), query)
            shown = views.Snippet(line_of(role, 60), words, hit.message, before, after)
            snippets.setdefault(hit.thread, []).append(shown)
        rows = [
            row
            for thread in snippets
            if (row := await self._row(viewer, thread)) is not None
        ]
        return await self._items(rows[:THREADS_PER_PAGE], snippets)

    async def _row(self, viewer: Viewer, thread: str) -> ThreadRow | None:
        try:
            row = await self.store.thread_row(thread)
        except UnknownIdError:
            return None
        return row if viewer.sees(row.first.tenant) else None

    async def _items(
        self, rows: Sequence[ThreadRow], snippets: Mapping[str, Sequence[views.Snippet]]
    ) -> list[ThreadEntry]:
        ids = [row.first.id for row in rows]
        figures, limits = await asyncio.gather(
            self.store.thread_figures(ids), self._limits()
        )
        compacted = [row.first.id for row in rows if row.compactions]
        used = await self._used_windows(rows)
        savings = await self._savings(compacted, limits, used)
        untitled = [row.first for row in rows if not (row.tip.title or row.first.title)]
        words = await asyncio.gather(
            *(load_title(self.store, first) for first in untitled)
        )
        openings = {
            first.id: title for first, title in zip(untitled, words, strict=True)
        }
        items = []
        for row in rows:
            totals = figures.get(row.first.id) or ThreadFigures(row.first.id)
            model = totals.model or row.tip.model
            thread = row.first.id
            size = self._size(model, limits, used[thread])
            title = views.thread_title(row.first, row.tip, openings.get(thread, ""))
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

    async def _limits(self) -> dict[str, int]:
        """Windows that were learnt, by model."""
        windows: dict[str, int] = {}
        for limit in await self.store.limits():
            if limit.kind == "window":
                windows[limit.model] = min(
                    limit.limit, windows.get(limit.model, limit.limit)
                )
        return windows

    async def _used_windows(
        self, rows: Sequence[ThreadRow]
    ) -> dict[str, UsedWindow | None]:
        """Return the window that the last call of each thread used."""
        used = await asyncio.gather(
            *(load_used_window(self.store, row) for row in rows)
        )
        return {row.first.id: one for row, one in zip(rows, used, strict=True)}

    def _size(
        self, model: str, limits: Mapping[str, int], used: UsedWindow | None
    ) -> WindowSize:
        """Return a model's window: as the thread used it, else as it is known here."""
        known = self._window(model, limits.get(model))
        if used is None or used.model != model:
            return known
        source = used.source.rstrip(".")
        if not source:
            is_known = used.tokens == known.tokens
            source = known.source if is_known else "as the last call used it"
        return WindowSize(used.tokens, used.threshold, source)

    async def _savings(
        self,
        threads: Sequence[str],
        limits: Mapping[str, int],
        used: Mapping[str, UsedWindow | None],
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
            thread: self._saving(
                by_thread[thread],
                records_by_thread[thread],
                limits,
                used=used.get(thread),
            )
            for thread in threads
        }

    def _saving(
        self,
        calls: Sequence[CallRow],
        records: Sequence[CompactionRecord],
        limits: Mapping[str, int],
        *,
        used: UsedWindow | None,
    ) -> CostComparison:
        windows = {
            call.model: self._size(call.model, limits, used).tokens for call in calls
        }
        return compare_thread(
            calls,
            records,
            price=PriceTable(),
            window=windows.__getitem__,
            ttl=self._ttl,
        )

    # A thread

    async def thread(self, viewer: Viewer, thread: str) -> ThreadRow:
        """A thread by its own id. `NotFoundError` if the viewer may not see it."""
        row = await self._row(viewer, thread)
        if row is None or row.first.id != thread:
            raise NotFoundError
        return row

    async def title(self, row: ThreadRow) -> str:
        named = row.tip.title or row.first.title
        return views.thread_title(
            row.first, row.tip, "" if named else await load_title(self.store, row.first)
        )

    async def thread_page(
        self, viewer: Viewer, thread: str, page: int | None
    ) -> dict[str, Any]:
        row = await self.thread(viewer, thread)
        first = row.first
        tip = row.tip
        pages = max(1, -(-row.messages // MESSAGES_PER_PAGE))
        page_number = pages if page is None else max(1, min(page, pages))
        # The last page is a full one.
        start = max(0, row.messages - (pages - page_number + 1) * MESSAGES_PER_PAGE)
        most = row.messages - (pages - page_number) * MESSAGES_PER_PAGE - start
        account, side_calls, history, pinned, todo = await asyncio.gather(
            self._account(row),
            self._side_calls(viewer, row),
            self.store.history(tip.id, start=start, limit=most),
            self.store.pins(thread),
            self.store.get_state(thread, "todo"),
        )
        context = await self._context(account, tip, history)
        return {
            **account.model,
            "thread": first,
            "tip": tip,
            "title": await self.title(row),
            "client": views.client_name(first),
            "messages": row.messages,
            "state": _state(account.state, todo),
            "pins": [replace(pin, text=clean(pin.text)) for pin in pinned],
            "conversation": [
                views.message_view(
                    message, chars=MESSAGE_CHARS, fate=context.fate(message)
                )
                for message in history
            ],
            "page": page_number,
            "pages": pages,
            "side_calls": side_calls,
        }

    async def _side_calls(self, viewer: Viewer, row: ThreadRow) -> list[ThreadEntry]:
        """Return the side calls of a conversation, newest first."""
        if not row.side_calls:
            return []
        started = [
            child
            for child in await self.store.started_by(row.first.id)
            if child.kind == "side"
        ]
        rows = [
            await self._row(viewer, child.id)
            for child in started[: -THREADS_PER_PAGE - 1 : -1]
        ]
        return await self._items([side for side in rows if side is not None], {})

    async def _context(
        self, account: _Account, tip: Session, history: Sequence[StoredMessage]
    ) -> views.ContextView:
        in_view, shortened = await self.store.shown_of(
            tip.id, [message.id for message in history]
        )
        return views.context_view(in_view, shortened, account.summaries)

    async def _account(self, row: ThreadRow) -> _Account:
        """A thread's figures, reckoned once for each change of the thread."""
        thread = row.first.id
        limits = await self._limits()
        mark = f"{await self.store.last_change(thread=thread)} {sorted(limits.items())}"
        account = self._accounts.get(thread)
        if account is None or account.mark != mark:
            account = await self._compute_account(row, limits, mark)
        self._accounts[thread] = account
        return account

    async def _compute_account(
        self, row: ThreadRow, limits: Mapping[str, int], mark: str
    ) -> _Account:
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
                    start=max(0, row.messages - STATE_MESSAGES),
                    limit=STATE_MESSAGES,
                ),
            ),
        )
        totals = figures.get(thread) or ThreadFigures(thread)
        model = totals.model or tip.model
        used = await load_used_window(store, row)
        size = self._size(model, limits, used)
        texts = [text_of(message.body) for message in summaries]
        sizes = views.stored_sizes(await store.context_sizes(tip.id), texts)
        window = views.window_view(tip.system, sizes, size, calls)
        calls_shown = views.calls_view(calls, records, ttl=self._ttl)
        kept = _count_kept(row, records)
        has_saving = kept.compactions > 0
        saving = self._saving(calls, records, limits, used=used) if has_saving else None
        page_model = {
            "headline": describe_thread(totals, saving, window=size.tokens, kept=kept),
            "model": model,
            "figures": totals,
            "window": window,
            "window_bar": draw_window_bar(window),
            "calls": calls_shown,
            "calls_chart": draw_calls(calls_shown, size),
            "cached": any(call.read for call in calls_shown.calls),
            "causes": [
                (cause, f"{count:,}", f"{tokens:,}")
                for cause, count, tokens in calls_shown.causes
            ],
            "compactions": views.compaction_items(records, calls),
            "heaviest": heaviest,
            "tools": [
                (line_of(name, 40), f"{count:,}", f"{tokens:,}")
                for name, count, tokens in tools
            ],
        }
        return _Account(
            mark, page_model, texts, state_of([message.body for message in recent])
        )

    # A compaction

    async def compaction_page(
        self, viewer: Viewer, thread: str, number: int
    ) -> dict[str, Any]:
        row = await self.thread(viewer, thread)
        records, calls = await asyncio.gather(
            self.store.compactions(thread), self.store.call_rows([thread])
        )
        record = next((one for one in records if one.id == number), None)
        if record is None:
            raise NotFoundError
        item = next(
            one
            for one in views.compaction_items(records, calls)
            if one.stored is record
        )
        sides = await self._load_sides(record)
        compaction = record.record
        last = next((one for one in reversed(records) if one.reverted is None), None)
        return {
            "thread": row.first,
            "title": await self.title(row),
            "made": item,
            "focus": line_of(compaction.focus or "", 200),
            "left": len(sides.left),
            "may_undo": record is last,
            "branch_at": sides.last,
            "warnings": [clean(redact(text)) for text in compaction.warnings],
            "before": _side(sides.before, sides.left),
            "before_more": max(0, len(sides.before) - MAX_SIDE_MESSAGES),
            "after": _side(sides.after, frozenset()),
            "after_more": max(0, len(sides.after) - MAX_SIDE_MESSAGES),
            "before_bar": draw_side_bar(sides.before, compaction.tokens_before),
            "after_bar": draw_side_bar(sides.after, compaction.tokens_before),
            "sections": summary_sections(
                compaction.summary,
                [
                    (one.id, body_text(one.body))
                    for one in sides.before
                    if one.id in sides.left
                ],
            ),
            "checks": views.describe_checks(compaction.figures),
            "decision": clean(str(compaction.figures.get("decision") or "")),
            "steps": [
                clean(str(step)) for step in compaction.figures.get("steps") or ()
            ],
            "phases": views.describe_phases(compaction.figures),
            "spared_dollars": _saved_dollars(item, calls),
        }

    async def _load_sides(self, record: CompactionRecord) -> _Sides:
        before, after = await asyncio.gather(
            self.store.messages(record.parent), self.store.messages(record.session)
        )
        covered = frozenset(record.record.covered)
        before = [message for message in before if message.created <= record.created]
        carried = sum(message.created <= record.created for message in after)
        ids = [one.id for one in before if one.kind == "message"]
        return _Sides(before, after[:carried], covered, ids[-1] if ids else None)

    # A message

    async def message_page(
        self, viewer: Viewer, thread: str, number: int, start: int, *, revealed: bool
    ) -> dict[str, Any]:
        row = await self.thread(viewer, thread)
        message = await self.message(viewer, thread, number)
        body = body_text(message.body)
        start = max(0, min(start, len(body)))
        item = views.message_view(
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
        """A message that one of the thread's sessions shows or showed."""
        try:
            message = await self.store.message(number, tenant=viewer.tenant)
            owner = await self.store.session(message.session)
        except UnknownIdError:
            raise NotFoundError from None
        if owner.thread == thread:
            return message
        # A branch shares messages with its parent.
        in_view, _ = await self.store.shown_of(thread, [number])
        if number not in in_view:
            raise NotFoundError
        return message

    # The overview

    async def overview(self, viewer: Viewer, days: int) -> dict[str, Any]:
        until = self._wall() + 1
        since = (until // DAY_SECONDS - days + 1) * DAY_SECONDS
        tenant = viewer.tenant
        insights, clients, failures, records, limits = await asyncio.gather(
            self.store.insights(since=since, until=until, tenant=tenant),
            self.store.usage_by("client", since=since, until=until, tenant=tenant),
            self.store.failures(since=since, tenant=tenant),
            self.store.recent_compactions(tenant=tenant, limit=5_000),
            self._limits(),
        )
        savings = await self._period_savings(records, limits, since)
        recent = [record for record in records if record.created >= since]
        slowest = sorted(
            views.compaction_items(recent), key=lambda item: -item.record.duration
        )[:8]
        groups = [("model", "model", insights.by_model), ("client", "client", clients)]
        if tenant is None:
            tenants = await self.store.usage_by("tenant", since=since, until=until)
            groups += [("tenant", "tenant", tenants)] if len(tenants) > 1 else []
        groups.append(("day", "day", list(reversed(insights.by_day))[:31]))
        tables = [
            (
                name,
                [
                    _sum_row(row, savings.by.get(kind, {}).get(row.key, 0.0))
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
            "failures": [(what, f"{count:,}") for what, count in failures],
            "charts": draw_days(insights.by_day, savings, since),
            "beyond": draw_beyond_by_client(savings),
        }

    async def savings(self, since: float) -> CostComparison:
        """What compactions saved from a time on, all threads together."""
        records, limits = await asyncio.gather(
            self.store.recent_compactions(limit=5_000), self._limits()
        )
        return await self._period_savings(records, limits, since)

    async def _period_savings(
        self,
        records: Sequence[CompactionRecord],
        limits: Mapping[str, int],
        since: float,
    ) -> CostComparison:
        compacted = list(
            dict.fromkeys(
                record.thread for record in records if record.reverted is None
            )
        )
        savings = await self._savings(compacted[:500], limits, {})
        return total_savings(list(savings.values()), since=since, day=utc_day)

    # Settings, tried

    async def trial_request(
        self, row: ThreadRow, threshold: int, ratio: int
    ) -> TrialRequest:
        model, size = await self.window_of(row)
        history = await self.store.history(row.tip.id)
        messages = [(message.body, message.created) for message in history]
        first = row.first
        return TrialRequest(
            first.id,
            model,
            window=size.tokens,
            system=first.system,
            said=messages,
            threshold=threshold / 100,
            ratio=ratio / 100,
        )

    async def window_of(self, row: ThreadRow) -> tuple[str, WindowSize]:
        """A thread's model and its window."""
        thread = row.first.id
        figures, limits, used = await asyncio.gather(
            self.store.thread_figures([thread]),
            self._limits(),
            load_used_window(self.store, row),
        )
        model = (figures[thread].model if thread in figures else "") or row.tip.model
        return model, self._size(model, limits, used)


@dataclass(frozen=True, slots=True)
class _Account:
    """The figures of a thread's page, valid until the thread changes."""

    mark: str
    model: dict[str, Any]
    summaries: Sequence[str]
    state: ThreadState


@dataclass(frozen=True, slots=True)
class _Sides:
    """The two sides of a compaction, what left between them, and the last message before."""

    before: Sequence[StoredMessage]
    after: Sequence[StoredMessage]
    left: frozenset[int]
    last: int | None


def _side(
    messages: Sequence[StoredMessage], hidden: frozenset[int]
) -> list[views.MessageRow | None]:
    """Return brief messages; None replaces those in the middle that are not shown."""

    def brief(message: StoredMessage) -> views.MessageRow:
        fate = (
            "recall"
            if message.id in hidden
            else "view"
            if hidden and message.kind == "message"
            else ""
        )
        return views.message_view(message, chars=EXCERPT_CHARS, fate=fate)

    if len(messages) <= MAX_SIDE_MESSAGES:
        return [brief(message) for message in messages]
    half = MAX_SIDE_MESSAGES // 2
    return [*map(brief, messages[:half]), None, *map(brief, messages[-half:])]


def _sum_row(row: Any, saved: float) -> tuple[str, ...]:
    share = row.cache_share
    is_priced = row.unpriced < row.calls
    return (
        views.known_client(row.key) if row.key else "–",
        f"{row.calls:,}",
        f"{row.prompt:,}",
        "–" if share is None else f"{share:.1%}",
        f"{row.output:,}",
        money(row.cost) if is_priced else "unknown",
        money(saved) if abs(saved) >= MIN_DOLLARS else "–",
    )


def _saved_dollars(
    item: views.CompactionItem, calls: Sequence[CallRow]
) -> float | None:
    """Dollars of the tokens that later calls did not carry, at the price their cache would have read them for."""
    later = [
        call
        for call in calls
        if call.task == "main" and call.created > item.stored.created
    ]
    if not later:
        return None
    prices = PriceTable()(later[-1].model, later[-1].created, later[-1].prompt)
    if prices is None or prices.input is None:
        return None
    cached = any(call.read for call in later) and prices.cache_read is not None
    return (
        item.spared
        * float(prices.cache_read if cached and prices.cache_read else prices.input)
        / 1_000_000
    )


def _state(state: ThreadState, todo: Any) -> list[tuple[str, list[str]]]:
    """List the state of the work: directory, files, commands with their last outcome, open errors, to-do list."""
    listed = todo if isinstance(todo, list) and todo else state.todo
    commands = [
        f"{line_of(name, 120)} {one.outcome and '→ '}{one.outcome}".rstrip()
        for name, one in state.commands.items()
    ]
    groups = [
        (
            "Where",
            [
                where
                for where in (
                    state.directory,
                    state.branch and f"branch {state.branch}",
                )
                if where
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
                f"[{one.get('status', '')}] {one.get('text', '')}"
                for one in listed
                if isinstance(one, dict)
            ],
        ),
    ]
    return [
        (name, [line_of(line, 240) for line in lines])
        for name, lines in groups
        if lines
    ]


def _count_kept(row: ThreadRow, records: Sequence[CompactionRecord]) -> KeptMessages:
    """Count the stored messages of a thread, and those that compactions in force took out of the prompt."""
    in_force = [one.record for one in records if one.reverted is None]
    return KeptMessages(
        stored=row.messages,
        removed=len({number for one in in_force for number in one.covered}),
        compactions=len(in_force),
    )
