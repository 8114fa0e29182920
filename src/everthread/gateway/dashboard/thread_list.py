"""Load the list of threads, or the threads that match a search."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from everthread.errors import UnknownIdError
from everthread.gateway.dashboard.context_window import WindowSize
from everthread.gateway.dashboard.headlines import describe_difference
from everthread.gateway.dashboard.login import Viewer
from everthread.gateway.dashboard.page_text import highlight, one_line_excerpt
from everthread.gateway.dashboard.savings import CostComparison
from everthread.gateway.dashboard.thread_costs import ThreadCosts
from everthread.gateway.dashboard.thread_reader import ThreadReader
from everthread.store.records import Session, ThreadRow
from everthread.store.search_records import SearchHit, SearchQuery
from everthread.store.usage_records import ThreadFigures

THREADS_PER_PAGE = 50
MAX_HITS = 60
CLIENT_NAMES = {
    "claude-cli": "Claude Code",
    "codex_cli_rs": "Codex",
    "codex_exec": "Codex",
    "GeminiCLI": "Gemini CLI",
    "QwenCode": "Qwen Code",
    "Anthropic": "Anthropic SDK",
    "AsyncAnthropic": "Anthropic SDK",
    "OpenAI": "OpenAI SDK",
    "AsyncOpenAI": "OpenAI SDK",
    "gateway": "other clients",
    "terminal": "terminal agent",
}
"""Display names of client programs, by the names that they send."""


def get_client_name(session: Session) -> str:
    """Return the client's name, or else the platform by which its messages arrived."""
    return translate_client_name(session.client or session.platform or "library")


def translate_client_name(name: str) -> str:
    return CLIENT_NAMES.get(name) or one_line_excerpt(name, 40)


@dataclass(frozen=True, slots=True)
class Snippet:
    """A match of a search, with lines of the messages before and after it."""

    role: str
    pieces: Sequence[tuple[bool, str]]
    """Pairs that say whether a piece of the text was searched for, and hold the piece."""
    message_id: int | None
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ThreadEntry:
    """A thread in the list."""

    row: ThreadRow
    figures: ThreadFigures
    window: WindowSize
    title: str
    comparison: CostComparison | None
    """Comparison with the cost of the whole history; None if there was no compaction."""
    snippets: Sequence[Snippet]
    """Matches of a search."""
    branches: Sequence[ThreadEntry] = ()
    parent_id: str = ""
    """The id of the parent thread, for a branch whose parent is not listed on the page."""

    @property
    def client(self) -> str:
        return get_client_name(self.row.first)

    @property
    def difference(self) -> str:
        """Describe the dollars saved or lost compared with the whole history; empty if unknown."""
        figure = self.comparison and describe_difference(self.comparison)
        return f"{figure.value} {figure.label.partition(',')[0]}" if figure else ""

    @property
    def model(self) -> str:
        return self.figures.last_model or self.row.tip.model


class ThreadList:
    """The list of threads that a viewer may see."""

    def __init__(self, threads: ThreadReader, costs: ThreadCosts) -> None:
        self.threads = threads
        self.costs = costs
        self._store = threads.store

    async def load_page(self, viewer: Viewer, page: int) -> tuple[list[ThreadEntry], bool]:
        """Return a page of the list of threads, and whether another page follows."""
        start = (page - 1) * THREADS_PER_PAGE
        rows = await self._store.list_threads(
            tenant=viewer.tenant, limit=THREADS_PER_PAGE + 1, offset=start
        )
        entries = await self.make_entries(rows[:THREADS_PER_PAGE], {})
        return await self._group_branches(entries), len(rows) > THREADS_PER_PAGE

    async def _group_branches(self, entries: Sequence[ThreadEntry]) -> list[ThreadEntry]:
        """Put branches under their parent thread. A branch whose parent is on another page gets the parent's id."""
        listed_thread_ids = {entry.row.first.id for entry in entries}
        parent_id_by_branch_id = {
            entry.row.first.id: await self._find_parent_thread_id(entry.row.first)
            for entry in entries
            if entry.row.first.kind == "branch"
        }
        branches_by_root_id: dict[str, list[ThreadEntry]] = {}
        root_ids: dict[str, None] = {}
        for entry in entries:
            thread_id = entry.row.first.id
            root_id = thread_id
            while parent_id_by_branch_id.get(root_id) in listed_thread_ids:
                root_id = parent_id_by_branch_id[root_id]
            root_ids[root_id] = None
            if root_id != thread_id:
                branches_by_root_id.setdefault(root_id, []).append(entry)
        entry_by_thread_id = {entry.row.first.id: entry for entry in entries}
        return [
            replace(
                entry_by_thread_id[root_id],
                branches=branches_by_root_id.get(root_id, ()),
                parent_id=parent_id_by_branch_id.get(root_id, ""),
            )
            for root_id in root_ids
        ]

    async def _find_parent_thread_id(self, branch: Session) -> str:
        """Return the id of the thread in which a branch began; empty if it was deleted."""
        if branch.parent is None:
            return ""
        try:
            return (await self._store.load_session(branch.parent)).thread
        except UnknownIdError:
            return ""

    async def search(self, viewer: Viewer, query: str) -> list[ThreadEntry]:
        """Return the threads that match a search, each with its first matches."""
        search_query = SearchQuery(query, tenant=viewer.tenant, limit=MAX_HITS)
        hits_by_thread_id: dict[str, list[SearchHit]] = {}
        for hit in (await self._store.find(search_query)).hits:
            hits_by_thread_id.setdefault(hit.thread, []).append(hit)
        listed_hits = [hit for thread_hits in hits_by_thread_id.values() for hit in thread_hits[:3]]
        hit_message_ids = {hit.message for hit in listed_hits}
        snippets_by_thread_id: dict[str, list[Snippet]] = {}
        for hit in listed_hits:
            role = f"{hit.role}: {hit.tool}" if hit.tool else hit.role
            line_before, line_after = (
                one_line_excerpt(neighbour.as_line(hit_message_ids), 120) if neighbour else ""
                for neighbour in (hit.before, hit.after)
            )
            snippet_pieces = highlight(one_line_excerpt(hit.snippet, 220), query)
            snippet = Snippet(
                one_line_excerpt(role, 60),
                snippet_pieces,
                hit.message,
                line_before,
                line_after,
            )
            snippets_by_thread_id.setdefault(hit.thread, []).append(snippet)
        rows = [
            row
            for thread_id in snippets_by_thread_id
            if (row := await self.threads.find_thread(viewer, thread_id)) is not None
        ]
        return await self.make_entries(rows[:THREADS_PER_PAGE], snippets_by_thread_id)

    async def make_entries(
        self, rows: Sequence[ThreadRow], snippets_by_thread_id: Mapping[str, Sequence[Snippet]]
    ) -> list[ThreadEntry]:
        thread_ids = [row.first.id for row in rows]
        figures_by_thread_id, learnt_windows = await asyncio.gather(
            self._store.overview.sum_threads(thread_ids), self.costs.load_learnt_windows()
        )
        compacted_thread_ids = [row.first.id for row in rows if row.compaction_count]
        used_windows = await self.costs.load_used_windows(rows)
        comparison_by_thread_id = await self.costs.compare_threads(
            compacted_thread_ids, learnt_windows, used_windows
        )
        titles = await asyncio.gather(*map(self.threads.load_title, rows))
        entries = []
        for row, title in zip(rows, titles, strict=True):
            thread_id = row.first.id
            figures = figures_by_thread_id.get(thread_id) or ThreadFigures(thread_id)
            model = figures.last_model or row.tip.model
            entries.append(
                ThreadEntry(
                    row,
                    figures,
                    window=self.costs.find_window_size(
                        model, learnt_windows, used_windows[thread_id]
                    ),
                    title=title,
                    comparison=comparison_by_thread_id.get(thread_id),
                    snippets=snippets_by_thread_id.get(thread_id, ()),
                )
            )
        return entries
