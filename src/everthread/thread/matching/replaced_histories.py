"""Which history a provider's compaction, or one of our own items, replaces in later requests."""

from __future__ import annotations

from everthread.core.recent_dict import RecentDict
from everthread.store.rewrite_records import ThreadLink
from everthread.store.store import Store
from everthread.thread.matching.history import History
from everthread.thread.matching.link_cache import MAX_LINKS
from everthread.thread.matching.thread_match import ClientScope, LinkKey
from everthread.thread.matching.thread_names import derive_thread_id

_REPLACEMENTS_STATE = "gateway.replacements"


class ReplacedHistories:
    """The histories that compactions replace, by the names of the compactions."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._digests: RecentDict[LinkKey, str] = RecentDict(MAX_LINKS)
        """By the name of a compaction, the digest of the history that it replaces."""
        self._unstored_keys: list[LinkKey] = []

    def expect(self, client_scope: ClientScope, history: History, name: str) -> None:
        """Remember that the compaction of this name replaces a history, until `store_expected` stores it."""
        key = (*client_scope, name)
        self._digests[key] = history.digest(len(history))
        self._unstored_keys.append(key)

    async def store_expected(self) -> None:
        """Store which history each announced compaction replaces, so that other processes find the thread."""
        keys = self._unstored_keys
        self._unstored_keys = []
        for key in keys:
            await self._store.state.put_state(
                _REPLACEMENTS_STATE, _make_state_key(key), self._digests[key]
            )

    async def find_link(self, client_scope: ClientScope, name: str) -> ThreadLink | None:
        """Return the link at the end of the history that a compaction replaces, or None if that is not stored."""
        key = (*client_scope, name)
        digest = self._digests.get(key) or await self._store.state.get_state(
            _REPLACEMENTS_STATE, _make_state_key(key)
        )
        if not digest:
            return None
        link_match = await self._store.client_histories.find_link(*client_scope, [digest])
        return None if link_match is None else link_match.link


def _make_state_key(key: LinkKey) -> str:
    """Return the key under which the digest of a replaced history is stored."""
    tenant, scope, digest = key
    # No link has this digest, so that the key differs from the id of every thread.
    return derive_thread_id(tenant, scope, previous_digest="replaced", digest=digest)
