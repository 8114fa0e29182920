"""Track links of threads (ends of requests and answers) that are not in the store yet."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from everthread.thread.matching.history import History
from everthread.thread.matching.thread_match import ClientScope, LinkKey, ThreadMatch


class PendingLink:
    """The end of a request or answer that will be stored, and its thread once it is stored."""

    def __init__(self, key: LinkKey) -> None:
        self.key = key
        self.finished = asyncio.Event()
        """Set when the link is stored or storing it has failed."""
        self.thread_id: str | None = None
        """The thread that holds the link. It is None until the link is stored, and if storing it has failed."""
        self.is_answer = False
        self.waits_for_request = False
        """Whether this is an answer whose request is still being stored; that request may wait for other answers."""
        self.store_now: Callable[[], object] | None = None
        """Stores the link at once, if storing it is delayed."""


class PendingLinks:
    """The links that requests of this process are about to store."""

    def __init__(self) -> None:
        self._pending: dict[LinkKey, PendingLink] = {}
        self._unread_counts = Counter[ClientScope]()
        """For each session, the number of answered requests that are not read yet and so have no link."""
        self._request_read = asyncio.Event()

    def expect_link(self, match: ThreadMatch, history: History) -> tuple[PendingLink, bool]:
        """Announce the link at the end of a history. Return the link, and whether it is new."""
        pending = PendingLink((*match.client_scope, history.digest(len(history))))
        adds_messages = len(history) > match.matched_count or match.is_new
        is_new = not match.is_inside and adds_messages and pending.key not in self._pending
        if is_new:
            self._pending[pending.key] = pending
        return pending, is_new

    def finish_link(self, pending: PendingLink, thread_id: str | None) -> bool:
        """Stop expecting a link, which is now stored in `thread_id`. Return False if the link was not expected."""
        if self._pending.get(pending.key) is not pending:
            return False
        del self._pending[pending.key]
        pending.thread_id = thread_id
        pending.finished.set()
        return True

    def is_previous_pending(self, match: ThreadMatch) -> bool:
        """Return whether the link that a history continues is not stored yet."""
        return (*match.client_scope, match.previous_digest) in self._pending

    async def wait_for_previous(self, match: ThreadMatch) -> bool:
        """Wait for the link that a history continues; return whether it is in the expected thread."""
        pending = self._pending.get((*match.client_scope, match.previous_digest))
        if pending is None:
            return True
        if pending.store_now is not None:
            pending.store_now()
        await pending.finished.wait()
        return pending.thread_id == match.source or (
            match.is_named and pending.thread_id is not None
        )

    @contextmanager
    def hold_session_while_reading(self, client_scope: ClientScope) -> Iterator[None]:
        """Make `wait_for_answers` wait while an answered request is still being read."""
        self._unread_counts[client_scope] += 1
        try:
            yield
        finally:
            self._unread_counts[client_scope] -= 1
            if not self._unread_counts[client_scope]:
                del self._unread_counts[client_scope]
            self._request_read.set()
            self._request_read = asyncio.Event()

    async def wait_for_answers(
        self, client_scope: ClientScope, *, is_request_pending: bool
    ) -> None:
        """Wait until the pending answers of a client's session are stored.

        `is_request_pending`: whether the waiting request is announced itself. Answers whose own requests are being
        stored may wait for it, so it must not wait for them.
        """
        while client_scope in self._unread_counts:
            await self._request_read.wait()
        answers = [
            pending
            for pending in self._pending.values()
            if pending.is_answer
            and pending.key[:2] == tuple(client_scope)
            and not (is_request_pending and pending.waits_for_request)
        ]
        for pending in answers:
            await pending.finished.wait()
