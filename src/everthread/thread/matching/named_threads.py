"""Threads that clients name themselves."""

from __future__ import annotations

from everthread.core.recent_dict import RecentDict
from everthread.errors import UnknownIdError
from everthread.store.store import Store
from everthread.thread.caller.caller_request import PLATFORM
from everthread.thread.matching.link_cache import MAX_LINKS, LinkCache
from everthread.thread.matching.thread_match import ClientScope
from everthread.thread.matching.thread_names import (
    derive_thread_id,
    get_session_name,
    is_thread_named,
)


class NamedThreads:
    """The threads that clients name themselves, and their last links."""

    def __init__(self, store: Store, cache: LinkCache) -> None:
        self._store = store
        self._cache = cache
        self._thread_ids: RecentDict[ClientScope, str] = RecentDict(MAX_LINKS)

    async def find_thread(self, client_scope: ClientScope) -> str | None:
        """Return the id of the thread that a client named, which may be new, or None if it named none."""
        if not is_thread_named(client_scope.session_scope):
            return None
        if client_scope not in self._thread_ids:
            thread_id = derive_thread_id(*client_scope, previous_digest="", digest="")
            try:
                session = await self._store.load_session(
                    get_session_name(client_scope.session_scope)
                )
                if (session.tenant, session.platform) == (client_scope.tenant, PLATFORM):
                    thread_id = session.thread
            except UnknownIdError:
                pass  # the name is not an id but the client's own
            self._thread_ids[client_scope] = thread_id
        return self._thread_ids[client_scope]

    async def find_end(self, thread_id: str, *, uses_memory: bool) -> str:
        """Return the digest of the last link of a named thread, or an empty string if it has none."""
        known_digest = self._cache.find_named_end(thread_id) if uses_memory else None
        if known_digest is not None:
            return known_digest
        end = await self._store.client_histories.load_last_link(thread_id)
        return "" if end is None else end.digest
