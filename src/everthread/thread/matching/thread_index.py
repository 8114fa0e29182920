"""Find the thread a request belongs to, in memory or in the store.

A thread is identified by its messages (`thread/matching/history.py`). It is a sequence of links, each
at the end of a request or an answer. A request that continues the last link continues the
thread; a request that differs after an earlier link is a branch (`thread/matching/history_relations.py`). Ids
are derived from owner, session and digests, so two processes that see the same request
choose the same thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from everthread.store.rewrite_records import ThreadLinkMatch
from everthread.store.store import Store
from everthread.store.usage_records import NewUsage
from everthread.thread.caller.caller_request import CallerHistory, CallSettings
from everthread.thread.matching.assistant_roles import ThreadRoles
from everthread.thread.matching.client_summaries import ClientSummaryMatcher
from everthread.thread.matching.history import History
from everthread.thread.matching.history_relations import (
    KnownLink,
    find_longest_link,
    relate_remainder,
)
from everthread.thread.matching.link_cache import LinkCache
from everthread.thread.matching.named_threads import NamedThreads
from everthread.thread.matching.pending_links import PendingLink, PendingLinks
from everthread.thread.matching.reminders import ReminderMatcher
from everthread.thread.matching.replaced_histories import ReplacedHistories
from everthread.thread.matching.thread_match import (
    ClientScope,
    StoredSteps,
    ThreadMatch,
    ThreadStep,
    count_opening_messages,
)
from everthread.thread.matching.thread_names import derive_thread_id
from everthread.thread.matching.thread_query import ThreadQuery
from everthread.thread.wire_messages import encode_messages

_OTHER_ANSWERS_STATE = "gateway.other_answers"
_MAX_OTHER_ANSWERS = 100
_EXTRA_STORED_MESSAGES = 20
"""Without a shared link, read twice as many stored messages as the history has, and this many more."""


class ThreadIndex:
    """Find threads, and append to them."""

    def __init__(self, store: Store, pending_links: PendingLinks) -> None:
        self.replaced_histories = ReplacedHistories(store)
        self._store = store
        self._cache = LinkCache()
        self._pending = pending_links
        self._roles = ThreadRoles(store)
        self._named_threads = NamedThreads(store, self._cache)
        self._reminders = ReminderMatcher(store, self._cache)
        self._client_summaries = ClientSummaryMatcher(store, pending_links)

    async def find_match(
        self, caller_history: CallerHistory, settings: CallSettings, *, uses_memory: bool = True
    ) -> ThreadMatch:
        """Find the thread that a history belongs to. Try, in this order:

        - the thread that the client names;
        - the thread of the compaction that the history begins with;
        - the longest beginning of the history that is stored, or that was stored with a reminder removed since; a call
          with another role for the assistant gets a thread beside that one;
        - the thread whose words a summary of the client's own repeats.

        The memory may be outdated; the store then refuses the next append.
        """
        query = ThreadQuery(caller_history, settings, uses_memory)
        thread_id = await self._named_threads.find_thread(caller_history.client_scope)
        if thread_id is not None:
            return await self._match_named(query, thread_id)
        match = await self._match_by_history(query)
        self._roles.remember(match.thread_id, settings.request)
        return match

    def match_end(
        self, caller_history: CallerHistory, thread_id: str, length: int
    ) -> ThreadMatch | None:
        """Match a history that continues a thread after its first `length` messages.

        Return None unless the thread is known to end with these messages. The caller has compared them, the system
        prompt and the tools with the thread's last call.
        """
        digest = caller_history.history.digest(length)
        if not digest or not self._cache.ends_at(caller_history.client_scope, thread_id, digest):
            return None
        return _match_at(caller_history.client_scope, thread_id, digest, length)

    async def _match_by_history(self, query: ThreadQuery) -> ThreadMatch:
        """Match a history by its longest known link."""
        client_scope = query.client_scope
        history = query.history
        known_link = await self._find_link(query)
        replaced_match = await self._match_replaced(query, known_link)
        if replaced_match is not None:
            return replaced_match
        if known_link is None:
            return await self._match_unknown(query)
        link = known_link.link_match.link
        match = _match_at(client_scope, link.thread, link.digest, known_link.length)
        relation = known_link.relate_history(history)
        if relation != "repeats" and await self._is_side_call(query, known_link):
            return _make_side_match(match, history)
        if relation != "branches":
            return match
        inner_match = await self._match_remainder(query, match, link.last_message_id)
        if inner_match is not None or link.last_message_id is None:
            return inner_match or match
        return _make_branch(match, history, link.last_message_id)

    async def _match_replaced(
        self, query: ThreadQuery, known_link: KnownLink | None
    ) -> ThreadMatch | None:
        """Match a history that begins with a compaction, by the messages that it replaces.

        `known_link`: the longest known link of the history as sent.
        """
        compaction = query.caller_history.leading_compaction
        if compaction is None or (known_link and known_link.length > compaction.message_count):
            return None
        link = await self.replaced_histories.find_link(query.client_scope, compaction.key)
        if link is None or link.last_message_id is None:
            return None
        match = _match_at(query.client_scope, link.thread, link.digest, compaction.message_count)
        inner_match = await self._match_remainder(query, match, link.last_message_id)
        return inner_match or _make_branch(match, query.history, link.last_message_id)

    async def _is_side_call(self, query: ThreadQuery, known_link: KnownLink) -> bool:
        """Return whether a request has a conversation's history but gives the assistant another role.

        Clients also send a conversation's history for side calls, to get suggestions or facts worth remembering.
        """
        caller_history = query.caller_history
        thread_id = known_link.link_match.link.thread
        request = query.settings.request
        if not caller_history.has_one_role or self._roles.has_last_prompt(thread_id, request):
            return False
        if known_link.length <= count_opening_messages(caller_history.wire_messages):
            return False
        return not await self._roles.may_belong(thread_id, request)

    async def _match_unknown(self, query: ThreadQuery) -> ThreadMatch:
        """Return a match with a new thread, which may continue a thread that the client compacted itself."""
        client_scope = query.client_scope
        history = query.history
        opening = count_opening_messages(query.caller_history.wire_messages)
        thread_id = derive_thread_id(
            *client_scope, previous_digest="", digest=history.digest(opening)
        )
        continued = await self._client_summaries.find_continued(query)
        return ThreadMatch(client_scope, thread_id, branch_of=continued)

    async def _match_named(self, query: ThreadQuery, thread_id: str) -> ThreadMatch:
        """Match a history with the thread that the client named; the whole history belongs to it."""
        # Read the end first: if another link is stored from now on, the store refuses the append.
        end_digest = await self._named_threads.find_end(thread_id, uses_memory=query.uses_memory)
        known_link = await self._find_link(query)
        match = ThreadMatch(query.client_scope, thread_id, expected_end_digest=end_digest)
        message_id: int | None = 0
        if known_link is not None:
            link = known_link.link_match.link
            match = replace(match, matched_count=known_link.length, previous_digest=link.digest)
            message_id = link.last_message_id
        if (
            match.matched_count == len(query.history)
            or match.previous_digest == match.expected_end_digest
        ):
            return match
        return await self._match_remainder(query, match, message_id) or match

    async def _find_link(self, query: ThreadQuery) -> KnownLink | None:
        """Find the longest known link of a history, also with a removed reminder put back."""
        known_link = (
            self._cache.find_link(query.client_scope, query.history) if query.uses_memory else None
        )
        known_link = known_link or await self._find_stored_link(query)
        if known_link is None:
            known_link = self._cache.find_by_last_messages(query.client_scope, query.history)
        matched_length = known_link.length if known_link else 0
        reminded_link = await self._reminders.find(query, matched_length)
        return reminded_link or known_link

    async def _find_stored_link(self, query: ThreadQuery) -> KnownLink | None:
        """Find the longest link of a history in the store."""
        history = query.history
        exact_match = await self._store.client_histories.find_link(
            *query.client_scope, history.digests
        )
        matched_length = history.digests.index(exact_match.link.digest) + 1 if exact_match else 0
        similar_matches: Sequence[ThreadLinkMatch] = ()
        if matched_length < len(history):
            similar_matches = await self._store.client_histories.find_links_by_loose_digest(
                *query.client_scope, history.loose_digests_after(matched_length)
            )
        return find_longest_link(history, exact_match, similar_matches)

    async def _match_remainder(
        self, query: ThreadQuery, match: ThreadMatch, message_id: int | None
    ) -> ThreadMatch | None:
        """Match the rest of a history with the messages stored after a link. Return None if they differ.

        `message_id`: the last stored message of the link.
        """
        end = await self._store.client_histories.load_last_link(match.thread_id)
        if end is None or end.last_message_id is None or message_id is None:
            return None
        remaining_messages = query.caller_history.wire_messages[match.matched_count :]
        limit = None if message_id else 2 * len(remaining_messages) + _EXTRA_STORED_MESSAGES
        stored_messages = await self._store.load_history(match.thread_id, limit=limit)
        bodies = [
            stored_message.body
            for stored_message in stored_messages
            if message_id < stored_message.id <= end.last_message_id
        ]
        other_answers = set(
            await self._store.state.get_state(match.thread_id, _OTHER_ANSWERS_STATE) or ()
        )

        def is_model_answer(index: int) -> bool:
            return query.history.digest(match.matched_count + index + 1) in other_answers

        relation, shared_count = relate_remainder(
            query.settings.api,
            remaining_messages,
            stored=_encode_stored(query.settings, bodies),
            is_model_answer=is_model_answer,
            reaches_thread_end=len(stored_messages) != limit,
        )
        if relation == "repeats":
            return replace(match, matched_count=len(query.history), is_inside=True)
        if relation == "continues":
            return replace(
                match,
                matched_count=match.matched_count + shared_count,
                previous_digest=end.digest,
                expected_end_digest=end.digest,
            )
        return None

    def expect_history(self, match: ThreadMatch, history: History) -> PendingLink:
        """Announce a history before it is stored, so that a request that continues it is matched."""
        pending, is_new = self._pending.expect_link(match, history)
        if is_new:
            self._cache.remember(match.make_link(history), history)
        return pending

    def finish_pending(self, pending: PendingLink, thread_id: str | None) -> None:
        """Note that a link is now stored in `thread_id`, or could not be stored if `thread_id` is None."""
        if self._pending.finish_link(pending, thread_id) and thread_id is None:
            self._cache.forget(pending.key[2])

    def is_previous_pending(self, match: ThreadMatch) -> bool:
        """Return whether the link that a history continues is not stored yet."""
        return self._pending.is_previous_pending(match)

    async def wait_for_others(self, match: ThreadMatch) -> bool:
        """Wait for the links a request depends on; return whether its match still holds."""
        is_certain = await self._pending.wait_for_previous(match)
        if match.is_new and match.session_scope:
            # A subagent belongs to the answer that called it, which the client has already received.
            await self._pending.wait_for_answers(match.client_scope, is_request_pending=True)
        return is_certain

    async def store(
        self,
        match: ThreadMatch,
        request_steps: Sequence[ThreadStep] = (),
        answer_step: ThreadStep | None = None,
        *,
        usage: Sequence[NewUsage] = (),
        state: tuple[str, Any] | None = None,
    ) -> StoredSteps:
        """Store consecutive steps of a thread, with usage and state, in one transaction.

        Storing ends with the first step that another process has stored, and before the first step that no longer
        fits, because another writer has extended the thread. If the very first step does not fit, nothing is stored.
        """
        steps = [*request_steps, *([] if answer_step is None else [answer_step])]
        new_links = []
        end_match = match
        for step in steps:
            new_links.append(step.make_new_link(end_match))
            end_match = end_match.advance_to(step.history)
        links = await self._store.client_histories.extend_thread(
            match.thread_id, new_links, usage, state
        )
        stored_links = [link for link in links if link is not None]
        next_digests = [*(link.digest for link in stored_links[1:]), ""]
        for step, link, next_digest in zip(steps, stored_links, next_digests, strict=False):
            if not next_digest or not self._cache.update_earlier_link(link, next_digest):
                self._cache.remember(link, step.history)
        request_end: ThreadMatch | None = match
        if len(stored_links) < len(request_steps):
            request_end = None
        elif request_steps:
            thread_id = stored_links[len(request_steps) - 1].thread
            request_end = replace(match.advance_to(request_steps[-1].history), thread_id=thread_id)
        is_answer_stored = answer_step is not None and len(stored_links) == len(steps)
        return StoredSteps(
            request_end=request_end,
            answer_thread_id=stored_links[-1].thread if is_answer_stored else None,
            has_stored_usage=bool(stored_links) or not steps,
        )

    def forget_links(self, match: ThreadMatch) -> None:
        """Forget remembered links that the store contradicts."""
        self._cache.forget(match.previous_digest)
        self._cache.forget_thread(match.thread_id)

    async def note_other_answer(self, match: ThreadMatch, history: History) -> None:
        """Store the digest of an answer that is not in its thread. A client that continues this answer branches."""
        digests = await self._store.state.get_state(match.thread_id, _OTHER_ANSWERS_STATE) or []
        digest = history.digest(len(history))
        if digest not in digests:
            await self._store.state.put_state(
                match.thread_id,
                _OTHER_ANSWERS_STATE,
                [*digests, digest][-_MAX_OTHER_ANSWERS:],
            )


def _match_at(
    client_scope: ClientScope, thread_id: str, digest: str, matched_count: int
) -> ThreadMatch:
    """Return the match of a history that continues a thread after the link of this digest."""
    return ThreadMatch(
        client_scope,
        thread_id,
        matched_count=matched_count,
        previous_digest=digest,
        expected_end_digest=digest,
    )


def _make_branch(match: ThreadMatch, history: History, message_id: int) -> ThreadMatch:
    """Return the match of a history that differs after a stored message."""
    thread_id = derive_thread_id(
        *match.client_scope,
        previous_digest=match.previous_digest,
        digest=history.digest(len(history)),
    )
    return replace(
        match, thread_id=thread_id, expected_end_digest="", branch_of=(match.thread_id, message_id)
    )


def _make_side_match(match: ThreadMatch, history: History) -> ThreadMatch:
    """Return the match of a side call: a new thread beside the matched conversation."""
    digest = history.digest(len(history))
    thread_id = derive_thread_id(
        *match.client_scope, previous_digest=match.previous_digest, digest=digest
    )
    return replace(match, thread_id=thread_id, expected_end_digest="", side_of=match.thread_id)


def _encode_stored(settings: CallSettings, messages: Sequence[Any]) -> list[Any]:
    """Return stored messages in the form of the client's protocol."""
    if not messages or messages[0]["role"] != "assistant":
        return encode_messages(settings.api, messages, settings.model)
    # No protocol lets a conversation begin with an assistant's message.
    conversation = [{"role": "user", "content": "."}, *messages]
    return encode_messages(settings.api, conversation, settings.model)[1:]
