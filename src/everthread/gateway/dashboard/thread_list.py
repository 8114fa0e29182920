"""Load the list of threads, or the threads that match a search."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from everthread.errors import UnknownIdError
from everthread.gateway.dashboard import views
from everthread.gateway.dashboard.access import Viewer
from everthread.gateway.dashboard.text import highlight, one_line_excerpt
from everthread.gateway.dashboard.thread_costs import ThreadCosts
from everthread.gateway.dashboard.views import ThreadEntry
from everthread.store.records import Session, ThreadRow
from everthread.store.search_records import SearchHit, SearchQuery
from everthread.store.store import Store
from everthread.store.usage_records import ThreadFigures
from everthread.thread.lookup.thread_title import load_title

THREADS_PER_PAGE = 50
MAX_HITS = 60


class ThreadList:
    """The list of threads that a viewer may see."""

    def __init__(self, store: Store, costs: ThreadCosts) -> None:
        self._store = store
        self._costs = costs

    async def load_page(
        self, viewer: Viewer, page: int
    ) -> tuple[list[ThreadEntry], bool]:
        """Return a page of the list of threads, and whether another page follows."""
        start = (page - 1) * THREADS_PER_PAGE
        rows = await self._store.list_threads(
            tenant=viewer.tenant, limit=THREADS_PER_PAGE + 1, offset=start
        )
        entries = await self.make_entries(rows[:THREADS_PER_PAGE], {})
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
            return (await self._store.session(branch.parent)).thread
        except UnknownIdError:
            return ""

    async def search(self, viewer: Viewer, query: str) -> list[ThreadEntry]:
        """Return the threads that match a search, each with its first matches."""
        search_query = SearchQuery(query, tenant=viewer.tenant, limit=MAX_HITS)
        by_thread: dict[str, list[SearchHit]] = {}
        for hit in (await self._store.find(search_query)).hits:
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
            snippet_pieces = highlight(one_line_excerpt(hit.snippet, 220), query)
            snippet = views.Snippet(
                one_line_excerpt(role, 60),
                snippet_pieces,
                hit.message,
                line_before,
                line_after,
            )
            snippets.setdefault(hit.thread, []).append(snippet)
        rows = [
            row
            for thread in snippets
            if (row := await self.load_row(viewer, thread)) is not None
        ]
        return await self.make_entries(rows[:THREADS_PER_PAGE], snippets)

    async def load_row(self, viewer: Viewer, thread: str) -> ThreadRow | None:
        try:
            row = await self._store.thread_row(thread)
        except UnknownIdError:
            return None
        return row if viewer.may_see(row.first.tenant) else None

    async def make_entries(
        self, rows: Sequence[ThreadRow], snippets: Mapping[str, Sequence[views.Snippet]]
    ) -> list[ThreadEntry]:
        ids = [row.first.id for row in rows]
        figures, limits = await asyncio.gather(
            self._store.thread_figures(ids), self._costs.load_learnt_windows()
        )
        compacted_threads = [row.first.id for row in rows if row.compactions]
        used_windows = await self._costs.load_used_windows(rows)
        savings = await self._costs.compare_threads(
            compacted_threads, limits, used_windows
        )
        untitled_sessions = [
            row.first for row in rows if not (row.tip.title or row.first.title)
        ]
        titles = await asyncio.gather(
            *(
                load_title(self._store, first_session)
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
            size = self._costs.find_window_size(model, limits, used_windows[thread])
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
