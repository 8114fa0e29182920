"""Load threads and messages for a viewer, who may see only those of one tenant."""

from __future__ import annotations

from everthread.errors import UnknownIdError
from everthread.gateway.dashboard.login import Viewer
from everthread.gateway.dashboard.page_text import one_line_excerpt
from everthread.store.records import StoredMessage, ThreadRow
from everthread.store.store import Store
from everthread.thread.lookup.thread_title import load_title


class NotFoundError(Exception):
    """The page does not exist, or this viewer may not see it."""


class ThreadReader:
    """Loads the threads and messages of a store that a viewer may see."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def find_thread(self, viewer: Viewer, thread_id: str) -> ThreadRow | None:
        """Return a thread by any of its ids; None if there is none that the viewer may see."""
        try:
            row = await self.store.overview.load_thread_row(thread_id)
        except UnknownIdError:
            return None
        return row if viewer.may_see(row.first.tenant) else None

    async def load_thread(self, viewer: Viewer, thread_id: str) -> ThreadRow:
        """Return a thread by its own id; raise `NotFoundError` if the viewer may not see it."""
        row = await self.find_thread(viewer, thread_id)
        if row is None or row.first.id != thread_id:
            raise NotFoundError
        return row

    async def load_title(self, row: ThreadRow) -> str:
        """Return a thread's title, or else the user's first words or the beginning of its id."""
        title = row.tip.title or row.first.title
        if not title:
            title = await load_title(self.store, row.first)
        return one_line_excerpt(title, 90) or row.first.id[:12]

    async def load_message(self, viewer: Viewer, thread_id: str, message_id: int) -> StoredMessage:
        """Return a message that is or was in the context of one of the thread's sessions."""
        try:
            message = await self.store.load_message(message_id, tenant=viewer.tenant)
            session = await self.store.load_session(message.session)
        except UnknownIdError:
            raise NotFoundError from None
        if session.thread == thread_id:
            return message
        # A branch shares messages with its parent.
        ids_in_view, _ = await self.store.overview.find_unchanged_and_shortened_ids(
            thread_id, [message_id]
        )
        if message_id not in ids_in_view:
            raise NotFoundError
        return message
