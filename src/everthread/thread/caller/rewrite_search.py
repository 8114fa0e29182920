"""Find the stored rewrite of a history: the messages that replace its beginning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.compaction.summary.summary_message import split_tools_key
from everthread.store.rewrite_records import Rewrite, RewriteSearch
from everthread.store.store import Store
from everthread.thread.caller.caller_request import CallerHistory
from everthread.thread.caller.start_replacement import (
    rename_reading_tools,
)
from everthread.thread.events import (
    Drifted,
    Listener,
)
from everthread.thread.matching.history import History


def rewrite_key(rewrite: Rewrite) -> str:
    """Return the key that distinguishes a rewrite from others of the same thread.

    The key stays the same in another process, when the client re-words its answers, and when the tools change.
    """
    return f"{rewrite.replaced_count} {rewrite.skeleton} {rewrite.strength} {rewrite.depth}"


@dataclass(frozen=True, slots=True)
class FoundRewrite:
    """The result of a search for rewrites."""

    rewrite: Rewrite | None
    search: RewriteSearch | None
    """The state of the search, which speeds up the thread's next search."""
    requested_states: Sequence[Any | None]
    """The stored states that were requested."""


class RewriteFinder:
    """Find the rewrites of callers' histories in the store."""

    def __init__(self, store: Store, listener: Listener) -> None:
        self._store = store
        self._listener = listener

    async def find(
        self,
        caller_history: CallerHistory,
        engine_keys: Sequence[str],
        last_search: RewriteSearch | None,
        *,
        state_keys: Sequence[tuple[str, str]] = (),
    ) -> FoundRewrite:
        """Return the longest stored rewrite that fits the history, from the first of the engines that has one.

        `state_keys`: scope and key of each stored state to load as well.
        """
        history = caller_history.history
        candidates, search, stored_states = await self._store.client_histories.match_rewrites(
            caller_history.client_scope.tenant,
            engine_keys,
            history.digests,
            history.skeletons,
            last_search,
            state_keys=state_keys,
        )
        for exact_rewrites, similar_rewrites in candidates:
            longest = exact_rewrites[0].replaced_count if exact_rewrites else 0
            drifted_rewrites = await self._find_drifted(similar_rewrites, history, longest)
            best_rewrite = next(iter([*drifted_rewrites, *exact_rewrites]), None)
            if best_rewrite is not None:
                return FoundRewrite(best_rewrite, search, stored_states)
        return FoundRewrite(None, search, stored_states)

    async def adopt_longer(
        self, caller_history: CallerHistory, thread: str, engine_key: str, length: int
    ) -> Rewrite | None:
        """Return a rewrite longer than `length` that was made when the client had other reading tools.

        A copy that names the present tools is stored under their key.
        """
        engine, names = split_tools_key(engine_key)
        adopted = None
        for other_key in await self._store.client_histories.list_rewrite_engines(thread):
            other_engine, other_names = split_tools_key(other_key)
            if other_engine != engine or not names or other_names in ((), names):
                continue
            rewrite = (await self.find(caller_history, [other_key], None)).rewrite
            if rewrite is not None and rewrite.replaced_count > length:
                length = rewrite.replaced_count
                text = rewrite.replacement.decode()
                renamed = rename_reading_tools(text, other_names, names)
                adopted = replace(rewrite, engine=engine_key, replacement=renamed.encode())
        return None if adopted is None else await self._store.client_histories.put_rewrite(adopted)

    async def _find_drifted(
        self, candidates: Sequence[Rewrite], history: History, longest: int
    ) -> list[Rewrite]:
        """Find longer rewrites that fit although the client cleared results or thinking; store copies that match."""
        rewrites = []
        for candidate in candidates:
            length = history.skeletons.index(candidate.skeleton) + 1
            if length > longest and history.equals_except_cleared(candidate.results, length):
                drifted_rewrite = replace(
                    candidate,
                    digest=history.digest(length),
                    replaced_count=length,
                    results=history.join_result_hashes(0, length),
                )
                rewrites.append(await self._store.client_histories.put_rewrite(drifted_rewrite))
                self._listener(Drifted(candidate.thread, length))
        return sorted(rewrites, key=lambda rewrite: (-rewrite.replaced_count, -rewrite.strength))
