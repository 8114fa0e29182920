"""Look up messages of stored threads by words, pattern or id. Excerpts are exact, bounded and redacted.

Used by the tool `recall`, an engine's own tools, and `everthread mcp`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from everthread.core.search.search_results import (
    Excerpt,
    Passage,
    SearchMode,
    SearchPage,
    SearchScope,
)
from everthread.core.types import Node
from everthread.errors import InputError, UnknownIdError
from everthread.store.records import StoredMessage
from everthread.store.search_records import SearchQuery
from everthread.store.store import Store
from everthread.thread.lookup.excerpts import make_excerpt, make_passage
from everthread.thread.lookup.lookup_cache import LookupCache
from everthread.thread.lookup.pattern_search import search_pattern
from everthread.thread.lookup.summary_originals import (
    COMPACTION_ID_PATTERN,
    MESSAGE_ID_PATTERN,
    NODE_ID_PATTERN,
    SummaryOriginals,
)
from everthread.thread.lookup.word_search import search_words

MAX_EXCERPTS_PER_PAGE = 50
"""Excerpts on one page."""
MAX_QUERY_CHARS = 1_000
MAX_PASSAGE_CHARS = 50_000
MAX_PATTERN_THREADS = 200
"""Search by pattern covers this many of a tenant's latest threads."""
_OUTPUT_ID_PATTERN = re.compile(r"output:[0-9a-f]{16}")


class StoreLookup:
    """`Lookup` and `Graph` over a store. Without a thread, or with `reach="all"`, search all threads of the tenant.

    `tenant`: None to search the threads of every tenant.
    """

    def __init__(
        self,
        store: Store,
        tenant: str | None,
        thread: str | None,
        *,
        reach: SearchScope = "thread",
        include_related: bool = False,
        skip_visible: bool = False,
        cache: LookupCache | None = None,
    ) -> None:
        """Set the scope.

        `include_related`: also search the threads of the client's session and those it branched from. `skip_visible`:
        leave out messages that the thread's context still shows, unless a search by words finds nothing else.
        """
        self.store = store
        self.tenant = tenant
        self.thread = thread
        self._reach: SearchScope = reach if thread is not None else "all"
        self._includes_related = include_related and thread is not None
        self._skips_visible = skip_visible
        self.cache = cache or LookupCache()

    async def threads(self) -> list[str]:
        """List the threads that are searched; empty if all threads of the tenant are."""
        if self.thread is None or self._reach == "all":
            return []
        return await self._list_related(self.thread)

    async def _list_related(self, thread: str) -> list[str]:
        """Return the threads that a search from this thread covers: itself, and related ones if included."""
        return await self.store.list_family(thread) if self._includes_related else [thread]

    async def search(
        self,
        text: str,
        *,
        mode: SearchMode = "text",
        scope: SearchScope = "thread",
        role: str | None = None,
        tool: str | None = None,
        path: str | None = None,
        limit: int = 8,
        offset: int = 0,
    ) -> SearchPage:
        """Return a page of exact excerpts: by words the best first, by pattern the earliest first."""
        if scope == "all" and self._reach != "all":
            raise InputError("only this conversation can be searched; leave the scope out")
        if scope == "thread" and self.thread is None:
            raise InputError("no thread was chosen; name one, or search in all")
        if len(text) > MAX_QUERY_CHARS:
            raise InputError(
                f"a query has at most {MAX_QUERY_CHARS:,} characters, not {len(text):,}"
            )
        searched_thread = self.thread if scope == "thread" else None
        page_size = max(1, min(limit, MAX_EXCERPTS_PER_PAGE))
        start = max(0, offset)
        query = SearchQuery(
            text,
            self.tenant,
            searched_thread,
            include_family=self._includes_related and searched_thread is not None,
            role=role,
            tool=tool,
            limit=page_size,
            offset=start,
            path=path,
        )
        if mode == "regex":
            if path:
                raise InputError("a path narrows a search by words, not one by pattern")
            page = await search_pattern(
                self.store, await self._list_searched(query.thread), text, query
            )
            return await self._add_neighbours(page)
        visible_ids = await self._list_visible_ids()
        if visible_ids:
            page = await search_words(
                self.store, self.cache, replace(query, visible_messages=visible_ids)
            )
            if page.excerpts:
                return page
        return await search_words(self.store, self.cache, query)

    async def _list_searched(self, thread: str | None) -> list[str]:
        """List the threads that a search by pattern reads; the earliest first, so that an offset stays valid."""
        if thread is not None:
            return await self._list_related(thread)
        rows = await self.store.list_threads(tenant=self.tenant, limit=MAX_PATTERN_THREADS)
        first_sessions = sorted(
            (row.first for row in rows), key=lambda first: (first.started, first.id)
        )
        return [session.id for session in first_sessions]

    async def _list_visible_ids(self) -> frozenset[int]:
        """List the messages to leave out of a search by words."""
        if self.thread is None or not self._skips_visible:
            return frozenset()
        return frozenset(await self.store.list_visible_ids(self.thread))

    async def _add_neighbours(self, page: SearchPage) -> SearchPage:
        """Return the excerpts with the beginnings of the messages before and after each."""
        id_matches = [
            MESSAGE_ID_PATTERN.fullmatch(found_excerpt.id) for found_excerpt in page.excerpts
        ]
        positions = [
            (id_match and int(id_match[1]), excerpt.text)
            for id_match, excerpt in zip(id_matches, page.excerpts, strict=True)
        ]
        neighbours = await self.store.find_neighbours(positions)
        pairs = zip(page.excerpts, neighbours, strict=True)
        return replace(
            page,
            excerpts=tuple(
                replace(excerpt, before=str(before or ""), after=str(after or ""))
                for excerpt, (before, after) in pairs
            ),
        )

    async def read(self, requested_id: str, *, offset: int = 0, limit: int = 8_000) -> Passage:
        """Return a part of a message or stored output."""
        item_id = requested_id.strip()
        start = max(0, offset)
        max_chars = max(1, min(limit, MAX_PASSAGE_CHARS))
        if _OUTPUT_ID_PATTERN.fullmatch(item_id):
            await self._require_output_in_thread(item_id)
            text = await self.store.outputs.load_output(item_id, tenant=self.tenant)
            return make_passage(
                Excerpt(
                    item_id,
                    self.thread or "",
                    turn=None,
                    role="tool",
                    tool="",
                    created=0.0,
                    text=text,
                ),
                start,
                max_chars,
            )
        id_match = MESSAGE_ID_PATTERN.fullmatch(item_id)
        if id_match is None:
            raise InputError(
                f"{item_id[:80]!r} is no id; use message:123 or output:0123456789abcdef as an answer gave them"
            )
        stored_message, thread = await self._find_message(int(id_match[1]))
        turn = await self.cache.find_turn(self.store, thread, stored_message.id)
        return make_passage(make_excerpt(stored_message, thread, turn), start, max_chars)

    async def _require_output_in_thread(self, output_id: str) -> None:
        if self._reach == "thread" and self.thread is not None:
            lists = [
                await self.store.outputs.list_outputs(thread)
                for thread in await self._list_related(self.thread)
            ]
            if not any(output.id == output_id for outputs in lists for output in outputs):
                raise UnknownIdError(f"this conversation has no stored output {output_id}")

    async def _find_message(self, message_id: int) -> tuple[StoredMessage, str]:
        """Return a message and its thread. Raise `UnknownIdError` if it is out of reach."""
        stored_message = await self.store.load_message(message_id, tenant=self.tenant)
        thread = (await self.store.load_session(stored_message.session)).thread
        if self.thread is None or thread == self.thread:
            return stored_message, thread
        # A branch has its parent's messages too.
        if await self.turn_of(message_id) is not None:
            return stored_message, self.thread
        if self._reach == "all" or thread in await self._list_related(self.thread):
            return stored_message, thread
        raise UnknownIdError(f"this conversation has no message {message_id}")

    async def turn_of(self, message: int) -> int | None:
        """Return the turn of a message of this thread, or None for a message of another."""
        if self.thread is None:
            return None
        return await self.cache.find_turn(self.store, self.thread, message)

    async def nodes(self) -> Sequence[Node]:
        if self.thread is None:
            raise InputError("a node belongs to a thread; name it")
        return await self.store.state.list_nodes(self.thread)

    async def expand(self, requested_id: str, *, offset: int = 0, limit: int = 8_000) -> Passage:
        """Return a part of an original: of a message or output by its id, or of all messages that a summary covers.

        A summary is named as `compaction:12`, by the id of its message, or as a node of the thread's graph.
        """
        item_id = requested_id.strip()
        thread = self.thread
        if thread is None:
            if COMPACTION_ID_PATTERN.fullmatch(item_id) or NODE_ID_PATTERN.fullmatch(item_id):
                raise InputError(f"name the thread of {item_id}")
            return await self.read(item_id, offset=offset, limit=limit)
        originals = SummaryOriginals(self.store, self.tenant, thread, self.cache)
        layout = await originals.find_layout(item_id)
        if layout is None:
            return await self.read(item_id, offset=offset, limit=limit)
        return await originals.read(
            item_id,
            layout,
            start=max(0, offset),
            max_chars=max(1, min(limit, MAX_PASSAGE_CHARS)),
        )
