"""`store.client_histories`: threads of clients that send their whole history each time: links and rewrites."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from everthread.store.access import StoreTopic
from everthread.store.database import Tx
from everthread.store.rewrite_records import (
    ConversationEnd,
    NewRewrite,
    NewThreadLink,
    Rewrite,
    RewriteSearchState,
    ThreadLink,
    ThreadLinkMatch,
)
from everthread.store.sql import (
    client_links,
    client_rewrites,
    session_state,
    side_calls,
    stored_messages,
)
from everthread.store.usage_records import NewUsage

MAX_PREPARED_BY_WRITER = 32
"""More messages than this are prepared for the database outside the writing thread."""


class ClientHistoryStore(StoreTopic):
    """Threads of clients that send their whole history each time: links and rewrites."""

    async def extend_thread(
        self,
        thread_id: str,
        new_links: Sequence[NewThreadLink],
        usage: Sequence[NewUsage] = (),
        thread_state: tuple[str, Any] | None = None,
    ) -> list[ThreadLink | None]:
        """Store links that follow each other, their messages, usage and the thread's state in one transaction.

        Return the stored link for each, up to the first that was stored before. A link is None if the thread no longer
        ends at the link that it follows; if this is the first one, nothing is stored at all. Usage and state go to the
        thread of the first link. A new thread is on the disk when this returns, a continued one a moment later.
        """
        now = self._access.clock()
        prepared_links = [
            client_links.PreparedLink(
                new, stored_messages.AppendRequest(new.link.thread, new.messages, now)
            )
            for new in new_links
        ]
        extension = client_links.ThreadExtension(thread_id, prepared_links, usage, thread_state)
        is_continuation = not new_links or (
            bool(new_links[0].link.previous) and new_links[0].branch_of is None
        )
        is_long = sum(len(new.messages) for new in new_links) > MAX_PREPARED_BY_WRITER
        # The writing thread is shared: a long history would delay other callers.
        if is_long:
            await asyncio.to_thread(extension.prepare)
        links: list[ThreadLink | None] = await self._access.writer.write(
            lambda tx: extension.store(tx, now),
            thread_id=thread_id,
            prepare=None if is_long else extension.prepare,
            return_before_sync=is_continuation,
        )
        if new_links:
            self._access.indexer.start()
        return links

    async def find_link(
        self, tenant: str, scope: str, digests: Sequence[str]
    ) -> ThreadLinkMatch | None:
        """Find the longest stored beginning of a history. `digests`: those of all beginnings, the shortest first."""
        return await self._access.read(client_links.find_link, tenant, scope, digests)

    async def load_last_link(self, thread_id: str) -> ThreadLink | None:
        """Return the last link of a thread, or None if the thread has no links."""
        return await self._access.read(client_links.load_last_link, thread_id)

    async def find_conversation(
        self, tenant: str, client_session: str, platform: str
    ) -> str | None:
        """Return the last used conversation of a client's session, to which its side calls belong, or None."""
        return await self._access.read(
            side_calls.find_conversation, tenant, client_session, platform
        )

    async def load_conversation_end(
        self, tenant: str, client_session: str, platform: str, max_messages: int
    ) -> ConversationEnd | None:
        """Return the end of a client's conversation, or None if there is none or if results of calls are missing."""
        return await self._access.read(
            client_links.load_conversation_end, tenant, client_session, platform, max_messages
        )

    async def continues_other_thread(self, thread_id: str) -> bool:
        """Return whether a thread continues another one whose messages its client no longer sends."""
        return await self._access.read(client_links.continues_other_thread, thread_id)

    async def find_links_by_loose_digest(
        self, tenant: str, scope: str, loose_digests: Sequence[str]
    ) -> list[ThreadLinkMatch]:
        """Return the links with the longest stored loose digest among these."""
        return await self._access.read(
            client_links.find_links_by_loose_digest, tenant, scope, loose_digests
        )

    async def put_rewrite(self, new: Rewrite) -> Rewrite:
        """Store a rewrite; return the stored one, which another process may have made first."""
        return await self._access.write(client_rewrites.put_rewrite, self._access.clock(), new)

    async def commit_rewrite(self, new: NewRewrite) -> Rewrite:
        """Continue a thread with a compacted context; return the stored rewrite, which may be another process's."""
        rewrite = await self._access.change_thread(
            new.rewrite.thread, client_rewrites.commit_rewrite, new, self._access.clock()
        )
        self._access.indexer.start()
        return rewrite

    async def match_rewrites(
        self,
        tenant: str,
        engines: Sequence[str],
        digests: Sequence[str],
        loose_digests: Sequence[str],
        last_search: RewriteSearchState | None = None,
        *,
        state_keys: Sequence[tuple[str, str]] = (),
    ) -> tuple[client_rewrites.RewriteMatches, RewriteSearchState | None, list[Any | None]]:
        """Return the rewrites of a history, and the states under these keys, in one snapshot.

        `state_keys`: scope and key of each state. `last_search`: the search for a beginning of the history. A long
        history without one is not searched on the event loop.
        """

        def work(
            tx: Tx,
        ) -> tuple[client_rewrites.RewriteMatches, RewriteSearchState | None, list[Any | None]]:
            stored_states = [session_state.get_state(tx, scope, key) for scope, key in state_keys]
            matches, search = client_rewrites.match_rewrites(
                tx, tenant, engines, digests, loose_digests, last_search=last_search
            )
            return matches, search, stored_states

        is_long = last_search is None and len(digests) > client_links.MAX_DIGESTS_PER_QUERY
        read = self._access.readers.read if is_long else self._access.readers.read_short
        return await read(work)

    async def list_rewrite_engines(self, thread_id: str) -> list[str]:
        """Return the engines, each with its options and tools, whose rewrites a thread has."""
        return await self._access.read(client_rewrites.list_rewrite_engines, thread_id)
