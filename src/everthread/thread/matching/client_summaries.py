"""Recognise a summary that the client wrote itself, by the words it shares with the conversation before it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
from collections.abc import Sequence
from typing import Any

from everthread.core.messages import text_of
from everthread.core.user_words import remove_volatile_elements
from everthread.store.store import Store
from everthread.thread.matching.pending_links import PendingLinks
from everthread.thread.matching.thread_names import get_session_name
from everthread.thread.matching.thread_query import ThreadQuery

_MAX_ANSWER_WAIT_SECONDS = 5.0
"""Maximum wait for a session's answers that are being stored; without them a client's own summary is not recognised."""
_MAX_COMPARED_MESSAGES = 40
"""Number of last messages of a conversation that are searched for the client's own summary."""
_WORDS_PER_RUN = 6
_MIN_REPEATED_RUNS = 20
_MIN_REPEATED_SHARE = 0.25
"""Minimum share of the runs of words that a client's own summary has in common with the answer it was taken from.

Unrelated conversations of one project share at most 0.12 of the runs of their first messages (measured on eight
recorded sessions).
"""
_WORD_PATTERN = re.compile(r"\w+")


class ClientSummaryMatcher:
    """Find threads that the client compacted itself, by its summary at the beginning of a new history."""

    def __init__(self, store: Store, pending_links: PendingLinks) -> None:
        self._store = store
        self._pending = pending_links

    async def find_continued(self, query: ThreadQuery) -> tuple[str, int] | None:
        """Find a thread that the client compacted itself; return it and its last message.

        The client's summary was an answer in the same session, so its words are at the end of that conversation.
        """
        client_scope = query.client_scope
        if not client_scope.session_scope or not query.caller_history.is_conversation:
            return None
        runs = _list_opening_runs(query.caller_history.wire_messages)
        if len(runs) < _MIN_REPEATED_RUNS:
            return None
        # The client has received its summary, which may not be stored yet.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MAX_ANSWER_WAIT_SECONDS):
                await self._pending.wait_for_answers(
                    client_scope, is_request_pending=not query.uses_memory
                )
        session = get_session_name(client_scope.session_scope)
        end = await self._store.client_histories.load_conversation_end(
            client_scope.tenant,
            session,
            query.caller_history.client.platform,
            _MAX_COMPARED_MESSAGES,
        )
        if end is None or not _repeats_stored_words(runs, end.last_bodies):
            return None
        return end.thread, end.last_message_id


def _list_opening_runs(wire_messages: Sequence[Any]) -> set[tuple[str, ...]]:
    """Return the runs of words in a client's messages before the first answer."""
    opening = itertools.takewhile(
        lambda value: isinstance(value, dict) and value.get("role") != "assistant",
        wire_messages,
    )
    return _list_word_runs(remove_volatile_elements("\n".join(text_of(value) for value in opening)))


def _repeats_stored_words(runs: set[tuple[str, ...]], bodies: Sequence[Any]) -> bool:
    """Return whether the stored messages contain many of an opening's runs of words.

    If so, the opening is a summary that the model wrote in the stored conversation: the client compacted its history
    itself.
    """
    stored_runs = set().union(*(_list_word_runs(text_of(body)) for body in bodies))
    return len(runs & stored_runs) >= max(_MIN_REPEATED_RUNS, _MIN_REPEATED_SHARE * len(runs))


def _list_word_runs(text: str) -> set[tuple[str, ...]]:
    """Return all sequences of `_WORDS_PER_RUN` adjacent words in a text."""
    words = _WORD_PATTERN.findall(text.lower())
    return set(zip(*(words[start:] for start in range(_WORDS_PER_RUN)), strict=False))
