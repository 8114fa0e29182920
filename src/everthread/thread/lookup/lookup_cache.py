"""Cache facts about recently used threads for their lookups."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from everthread.core.recent_dict import RecentDict
from everthread.core.turns import is_user_message
from everthread.store.store import Store

MESSAGES_PER_QUERY = 200
MAX_CACHED_THREADS = 64
MAX_CACHED_LAYOUTS = 256


@dataclass(frozen=True, slots=True)
class OriginalsLayout:
    """The originals of a summary, in order: their ids and their sizes in characters."""

    ids: tuple[int, ...]
    sizes: tuple[int, ...]


class LookupCache:
    """A cache of facts about recently used threads, for one conversation or a whole server.

    It contains threads of all tenants; callers check access first.
    """

    def __init__(self) -> None:
        self._turns: RecentDict[str, dict[int, int]] = RecentDict(MAX_CACHED_THREADS)
        self.layouts: RecentDict[tuple[str, str], OriginalsLayout] = RecentDict(MAX_CACHED_LAYOUTS)
        """The layouts by thread and id of the summary."""

    def _get_cached_turns(self, thread: str) -> dict[int, int]:
        """Return the turns of a thread's messages that have been read so far, in order."""
        turns = self._turns.get(thread, {})
        self._turns[thread] = turns
        return turns

    async def load_turns(
        self, store: Store, thread: str, *, needed_ids: Collection[int] = ()
    ) -> Mapping[int, int]:
        """Return the turn of every message, in order. If the cache has all of `needed_ids`, return only the cache.

        Stored messages do not change, so only those added since the last call are read.
        """
        turn_by_message = self._get_cached_turns(thread)
        has_more = not needed_ids or any(
            message_id not in turn_by_message for message_id in needed_ids
        )
        while has_more:
            start = len(turn_by_message)
            turn = max(turn_by_message.values(), default=0)
            page = await store.load_history(thread, start=start, limit=MESSAGES_PER_QUERY)
            for stored_message in page:
                turn += is_user_message(stored_message.body)
                turn_by_message[stored_message.id] = turn
            has_more = len(page) == MESSAGES_PER_QUERY
        return turn_by_message

    async def find_turn(self, store: Store, thread: str, message: int) -> int | None:
        """Return the turn of a message, or None if the thread does not have it."""
        turns = await self.load_turns(store, thread, needed_ids=(message,))
        return turns.get(message) or None
