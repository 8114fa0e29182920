"""Find the stored rewrite of a history: the messages that replace its beginning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from everthread.compaction.summary.summary_message import make_tools_key, split_tools_key
from everthread.store.rewrite_records import Rewrite, RewriteSearchState
from everthread.store.store import Store
from everthread.thread.caller.caller_request import CallerHistory, CallSettings
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.caller.start_replacement import rename_reading_tools
from everthread.thread.events import Drifted, Listener
from everthread.thread.matching.history import History


def rewrite_key(rewrite: Rewrite) -> str:
    """Return the key that distinguishes a rewrite from others of the same thread.

    The key stays the same in another process, when the client re-words its answers, and when the tools change.
    """
    return f"{rewrite.replaced_count} {rewrite.loose_digest} {rewrite.strength} {rewrite.depth}"


class FoundRewrite(NamedTuple):
    """The result of a search for the rewrite of a history."""

    rewrite: Rewrite | None
    """The longest rewrite that fits, or None if the history has none."""
    states: Sequence[Any | None]
    """The stored states that were requested with it."""
    search_state: RewriteSearchState | None
    """The state from which the thread's next search continues."""


class RewriteFinder:
    """Find the rewrites of callers' histories in the store.

    `engine_key`: identifies the engine and its options. A rewrite is used only with the engine that made it.
    """

    def __init__(self, store: Store, listener: Listener, engine_key: str) -> None:
        self._store = store
        self._listener = listener
        self._engine_key = engine_key

    def list_engine_keys(self, settings: CallSettings) -> list[str]:
        """List the keys to search rewrites by, the preferred first.

        A key names the engine, and the client's tools that read earlier messages, which the summaries mention. If the
        client gets our recall tool, the second key finds rewrites made before the tool was offered.
        """
        engine_key = f"{settings.api} {self._engine_key}"
        named_tools_key = make_tools_key(settings.request_with_recall.tools)
        earlier_keys = [] if settings.recall_tool is None else [engine_key]
        return [f"{engine_key}{named_tools_key}", *earlier_keys]

    async def find(
        self, call: PreparedCall, state_keys: Sequence[tuple[str, str]] = ()
    ) -> FoundRewrite:
        """Find the longest rewrite that fits a call's history, and load the requested states.

        `state_keys`: scope and key of each stored state to load as well.
        """
        memory = call.memory
        engine_keys = self.list_engine_keys(call.settings)
        found = await self._search(call.caller_history, engine_keys, memory.last_search, state_keys)
        memory.last_search = found.search_state
        if memory.last_engine_keys == engine_keys or not call.match.matched_count:
            return found
        memory.last_engine_keys = engine_keys
        adopted_rewrite = await self._adopt_longer(call, engine_keys[0], found.rewrite)
        return found if adopted_rewrite is None else found._replace(rewrite=adopted_rewrite)

    async def _search(
        self,
        caller_history: CallerHistory,
        engine_keys: Sequence[str],
        last_search: RewriteSearchState | None = None,
        state_keys: Sequence[tuple[str, str]] = (),
    ) -> FoundRewrite:
        """Find the longest rewrite that fits a history, from the first of the engines that has one."""
        history = caller_history.history
        candidates, search_state, states = await self._store.client_histories.match_rewrites(
            caller_history.client_scope.tenant,
            engine_keys,
            history.digests,
            history.loose_digests,
            last_search,
            state_keys=state_keys,
        )
        for exact_rewrites, similar_rewrites in candidates:
            longest = exact_rewrites[0].replaced_count if exact_rewrites else 0
            trimmed_rewrites = await self._find_client_trimmed(similar_rewrites, history, longest)
            best_rewrite = next(iter([*trimmed_rewrites, *exact_rewrites]), None)
            if best_rewrite is not None:
                return FoundRewrite(best_rewrite, states, search_state)
        return FoundRewrite(None, states, search_state)

    async def _adopt_longer(
        self, call: PreparedCall, engine_key: str, known_rewrite: Rewrite | None
    ) -> Rewrite | None:
        """Return a rewrite longer than the known one that was made when the client had other reading tools.

        A copy that names the present tools is stored under their key.
        """
        length = known_rewrite.replaced_count if known_rewrite else 0
        engine, names = split_tools_key(engine_key)
        adopted = None
        for other_key in await self._store.client_histories.list_rewrite_engines(call.match.source):
            other_engine, other_names = split_tools_key(other_key)
            if other_engine != engine or not names or other_names in ((), names):
                continue
            rewrite = (await self._search(call.caller_history, [other_key])).rewrite
            if rewrite is not None and rewrite.replaced_count > length:
                length = rewrite.replaced_count
                text = rewrite.replacement.decode()
                renamed = rename_reading_tools(text, other_names, names)
                adopted = replace(rewrite, engine=engine_key, replacement=renamed.encode())
        return None if adopted is None else await self._store.client_histories.put_rewrite(adopted)

    async def _find_client_trimmed(
        self, candidates: Sequence[Rewrite], history: History, longest: int
    ) -> list[Rewrite]:
        """Find longer rewrites that fit although the client cleared results or thinking; store copies that match."""
        rewrites = []
        for candidate in candidates:
            length = history.loose_digests.index(candidate.loose_digest) + 1
            if length > longest and history.equals_except_cleared(candidate.results, length):
                trimmed_rewrite = replace(
                    candidate,
                    digest=history.digest(length),
                    replaced_count=length,
                    results=history.join_result_hashes(0, length),
                )
                rewrites.append(await self._store.client_histories.put_rewrite(trimmed_rewrite))
                self._listener(Drifted(candidate.thread, length))
        return sorted(rewrites, key=lambda rewrite: (-rewrite.replaced_count, -rewrite.strength))
