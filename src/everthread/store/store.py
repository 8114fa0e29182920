"""The store of conversations, on SQLite or PostgreSQL. One thread writes, a few read; texts are indexed later."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Concatenate

from everthread.core.search.query import read_question
from everthread.core.search.search_results import Neighbour
from everthread.core.types import Node, System
from everthread.store.access import P, StoreAccess, T
from everthread.store.database import Database, Tx
from everthread.store.records import (
    CompactionRecord,
    Continuation,
    Lease,
    NewCompaction,
    NewMessage,
    NewSession,
    Session,
    SessionKind,
    StoredMessage,
    StoreHealth,
    ThreadRow,
)
from everthread.store.schema import load_version
from everthread.store.search import neighbours, recall_passages, search_pages, text_search
from everthread.store.search.index_queue import IndexInOtherProcess, has_waiting_entries
from everthread.store.search_records import (
    HitPage,
    RecallPassage,
    RecallQuery,
    SearchHit,
    SearchQuery,
)
from everthread.store.sql import (
    branches,
    compactions,
    consistency,
    deletion,
    export_lines,
    import_lines,
    session_rows,
    stored_messages,
    thread_rows,
)
from everthread.store.sql.export_lines import ExportLine
from everthread.store.topics.api_key_store import ApiKeyStore
from everthread.store.topics.client_history_store import ClientHistoryStore
from everthread.store.topics.lease_store import LeaseStore
from everthread.store.topics.limit_store import LimitStore
from everthread.store.topics.output_store import OutputStore
from everthread.store.topics.overview_store import OverviewStore
from everthread.store.topics.state_store import StateStore
from everthread.store.topics.turn_store import TurnStore
from everthread.store.topics.usage_store import UsageStore
from everthread.store.writer import RETRY_SECONDS


class Store:
    """A store of conversations, made by `open_store`. No call blocks the event loop.

    It has sessions, messages, compactions, search and transfer; every other topic has an object of its own. A thread
    can be named by the id of any of its sessions. State whose scope is a session's id is deleted with the session. The
    functions in `sql/` and `search/` that the methods run have more details.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], float] = time.time,
        retry_seconds: float = RETRY_SECONDS,
        max_silence_seconds: float | None = None,
    ) -> None:
        """Use a database.

        `retry_seconds`: how long failed reads and writes are retried. `max_silence_seconds`: how long a read waits for
        a database that does not answer, or None for as long as `retry_seconds`.
        """
        self.database = database
        self._access = StoreAccess(
            database,
            clock=clock,
            retry_seconds=retry_seconds,
            max_silence_seconds=max_silence_seconds,
        )
        self._listeners: list[threading.Event] = []
        self.keys = ApiKeyStore(self._access)
        self.turns = TurnStore(self._access)
        self.limits = LimitStore(self._access)
        self.leases = LeaseStore(self._access)
        self.usage = UsageStore(self._access)
        self.outputs = OutputStore(self._access)
        self.state = StateStore(self._access)
        self.overview = OverviewStore(self._access)
        self.client_histories = ClientHistoryStore(self._access)

    async def create_session(self, new: NewSession) -> Session:
        """Create a session that begins a new thread; return the stored one if it exists."""
        return await self._access.change_thread(
            new.id, session_rows.create_session, new, self._access.clock()
        )

    async def load_session(self, session_id: str) -> Session:
        return await self._access.read(session_rows.load_session, session_id)

    async def resolve(self, prefix: str, *, tenant: str | None = None) -> Session:
        """Return the session whose id is or begins with `prefix`; raise an error unless there is exactly one."""
        return await self._access.read(session_rows.resolve_session, prefix, tenant=tenant)

    async def list_sessions(
        self,
        *,
        tenant: str | None = None,
        kind: SessionKind | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> list[Session]:
        """Return sessions, the newest first."""
        return await self._access.read(
            session_rows.list_sessions, tenant=tenant, kind=kind, limit=limit, offset=offset
        )

    async def list_threads(
        self, *, tenant: str | None = None, limit: int = 50, offset: int = 0
    ) -> list[ThreadRow]:
        """Return threads, the last used first. Side calls of a conversation are left out."""
        return await self._access.read(
            thread_rows.list_threads, tenant=tenant, limit=limit, offset=offset
        )

    async def count_threads(self, *, tenant: str | None = None) -> int:
        """Count the threads that `list_threads` lists."""
        return await self._access.read(thread_rows.count_threads, tenant=tenant)

    async def list_child_threads(self, thread_id: str) -> list[Session]:
        """Return the first sessions of the threads that began in this one: subagents, side calls and branches."""
        return await self._access.read(session_rows.list_child_threads, thread_id)

    async def list_subagents(self, thread_id: str) -> list[str]:
        """Return the threads of all subagents and side calls of a thread, at any depth."""
        return await self._access.read(session_rows.list_subagents, thread_id)

    async def list_family(self, thread_id: str) -> list[str]:
        """Return a thread, the threads it branched from or works for, and all threads of the same client sessions."""
        return await self._access.read(session_rows.list_family, thread_id)

    async def list_thread_sessions(self, thread_id: str) -> list[Session]:
        """Return every session of a thread, also reverted ones, the oldest first."""
        return await self._access.read(session_rows.list_thread_sessions, thread_id)

    async def end_session(
        self, session_id: str, reason: str, *, lease: Lease | None = None
    ) -> Session:
        """End a thread for good, at the session in which it continues."""
        return await self._access.change_thread(
            session_id,
            compactions.end_session,
            self._access.clock(),
            session_id,
            reason,
            lease=lease,
        )

    async def get_compression_tip(self, session_id: str) -> str:
        """Return the session in which a thread continues, given any session of the thread."""
        return await self._access.read(session_rows.find_tip, session_id)

    async def append(
        self, session_id: str, new: Sequence[NewMessage], *, lease: Lease | None = None
    ) -> list[StoredMessage]:
        """Append messages to the thread. A new message reopens a thread; a known event is not changed."""
        request = stored_messages.AppendRequest(session_id, new, self._access.clock(), lease)
        messages: list[StoredMessage] = await self._access.writer.write_together(
            stored_messages.append_messages,
            request,
            thread_id=session_id,
            prepare=request.prepare,
        )
        self._access.indexer.start()
        return messages

    async def list_messages(
        self, session_id: str, *, start: int = 0, limit: int | None = None
    ) -> list[StoredMessage]:
        """Return a session's messages in order, as the model sees them."""
        return await self._access.read(
            stored_messages.list_messages, session_id, start=start, limit=limit
        )

    async def list_visible_ids(self, thread_id: str) -> list[int]:
        """Return the ids of the messages that a compacted thread still shows, or none if it was never compacted."""
        return await self._access.read(stored_messages.list_visible_ids, thread_id)

    async def load_history(
        self, session_id: str, *, start: int = 0, limit: int | None = None, after_id: int = 0
    ) -> list[StoredMessage]:
        """Return the history of a thread: every message said in it, in order, once.

        `start`: skip this many messages. `after_id`: return only messages with a larger id; not together with `start`.
        """
        return await self._access.read(
            stored_messages.load_history, session_id, start=start, limit=limit, after_id=after_id
        )

    async def load_message(self, message_id: int, *, tenant: str | None = None) -> StoredMessage:
        """Return one message, with its position in the session of origin."""
        return await self._access.read(stored_messages.load_message, message_id, tenant=tenant)

    async def continue_session(
        self,
        session_id: str,
        compacted: Sequence[int | NewMessage],
        *,
        seen_count: int,
        compaction: NewCompaction | None = None,
        system: System = None,
        nodes: Sequence[Node] = (),
        lease: Lease | None = None,
    ) -> Continuation:
        """End a session, and continue in a new one with the compacted messages, followed by messages added since.

        `seen_count`: how many messages of the session were compacted.
        """
        result = await self._access.change_thread(
            session_id,
            compactions.continue_session,
            session_id,
            compacted,
            seen_count=seen_count,
            compaction=compaction,
            system=system,
            nodes=nodes,
            now=self._access.clock(),
            lease=lease,
        )
        self._access.indexer.start()
        return result

    async def list_compactions(self, thread_id: str) -> list[CompactionRecord]:
        return await self._access.read(compactions.list_compactions, thread_id)

    async def undo(self, session_id: str, *, lease: Lease | None = None) -> Session:
        """Undo the thread's last compaction: reopen the session before it, with the messages added since."""
        return await self._access.change_thread(
            session_id, compactions.undo_compaction, self._access.clock(), session_id, lease=lease
        )

    async def branch(
        self, session_id: str, at_message: int, *, new: NewSession | None = None
    ) -> Session:
        """Create a thread that shares this thread's history up to a message, and outlives this thread."""
        return await self._access.change_thread(
            session_id,
            branches.branch_thread,
            self._access.clock(),
            session_id,
            at_message,
            new=new,
        )

    async def delete_thread(self, thread_id: str) -> int:
        """Delete a thread and its subagents; return the number of sessions. Their cost stays in the accounts."""
        return await self._access.change_thread(thread_id, deletion.delete_thread, thread_id)

    async def search(self, query: SearchQuery) -> list[SearchHit]:
        """Return the texts that hold every word of the query, best first."""
        return await self._read_indexed(text_search.search_texts, query)

    async def find(self, query: SearchQuery) -> HitPage:
        """Return a page of messages and passages that match a query, the best first."""
        return await self._read_indexed(search_pages.find_page, query, self._access.clock())

    async def find_neighbours(
        self, shown_texts: Sequence[tuple[int | None, str]]
    ) -> list[tuple[Neighbour | None, Neighbour | None]]:
        """Return the messages before and after each message, with one query. Leave out calls of lookup tools."""
        return await self._access.read(neighbours.find_neighbours, shown_texts)

    async def recall(self, query: RecallQuery) -> list[RecallPassage]:
        """Return passages that may answer a message, the best first."""
        question = read_question(
            query.text,
            self._access.clock() if query.now is None else query.now,
            use_stop_words=query.for_page,
        )
        return await self._read_indexed(recall_passages.recall_passages, query, question)

    async def _read_indexed(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **keywords: P.kwargs
    ) -> T:
        """Run `work` on an index that holds everything appended so far, and return its result."""

        def read_if_indexed(tx: Tx) -> list[T]:
            return [] if has_waiting_entries(tx) else [work(tx, *args, **keywords)]

        results = await self._access.read(read_if_indexed)
        if not results:
            await self._access.indexer.index_all()
            return await self._access.read(work, *args, **keywords)
        return results[0]

    async def index_appended(self) -> None:
        """Index everything that was appended, so that the next search need not."""
        await self._access.indexer.index_all()

    def use_index_process(self, index_in_other_process: IndexInOtherProcess) -> None:
        """From now on, index in the background with `index_in_other_process`; if that fails, in this process."""
        self._access.indexer.use_process(index_in_other_process)

    @property
    def is_unresponsive(self) -> bool:
        """Whether the database did not answer a read a moment ago."""
        return self._access.readers.is_unresponsive

    @property
    def answered_at(self) -> float:
        """When the database last answered in this process, on the monotonic clock."""
        return max(self._access.readers.answered_at, self._access.writer.answered_at)

    def listen(self, on_change: Callable[[str], None]) -> None:
        """Until `close`, call `on_change` in this event loop with each thread whose queue another process changed.

        An empty text means that anything may have changed. Callers must still poll, less often: a change may be missed,
        and SQLite reports none.
        """
        loop = asyncio.get_running_loop()
        stop = threading.Event()

        def forward(thread_id: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(on_change, thread_id)

        self._listeners.append(stop)
        name = "everthread-listener"
        threading.Thread(
            target=self.database.listen, args=(forward, stop), name=name, daemon=True
        ).start()

    async def export(self, thread_id: str) -> list[ExportLine]:
        """Return a thread as lines of JSON. Messages are numbered from 1, independent of the database's ids."""
        return await self._access.read(export_lines.export_thread, thread_id)

    async def salvage(self, thread_id: str) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the readable lines of a thread in a damaged store, and a list of what could not be read."""
        return await self._access.read(export_lines.salvage_thread, self.database, thread_id)

    async def import_lines(self, lines: Sequence[dict[str, Any]]) -> list[str]:
        """Store exported threads and return their ids; raise an error and change nothing if a session exists."""
        imported = await self._access.write(import_lines.import_lines, lines, self._access.clock())
        self._access.indexer.start()
        return imported

    async def check(self) -> StoreHealth:
        """Check the store for damage and inconsistencies."""
        return await self._access.read(self._check_health)

    def _check_health(self, tx: Tx) -> StoreHealth:
        return StoreHealth(
            backend=self.database.dialect.name,
            location=self.database.location,
            schema=load_version(tx),
            size=self.database.size(tx),
            sessions=int(tx.value("SELECT COUNT(*) FROM sessions")),
            messages=int(tx.value("SELECT COUNT(*) FROM messages")),
            problems=(
                *self.database.find_problems(tx),
                *consistency.find_problems(tx),
            ),
        )

    async def backup(self, target: str) -> None:
        """Copy the store into a new file. Other processes may read and write meanwhile."""
        await asyncio.to_thread(self.database.backup, target)

    async def vacuum(self) -> None:
        await asyncio.to_thread(self._vacuum)

    def _vacuum(self) -> None:
        """Vacuum on a separate connection, outside any transaction."""
        try:
            with contextlib.closing(self.database.connect_writer()) as connection:
                self.database.vacuum(connection)
        except Exception as error:
            raise self.database.explain(error) from error

    def fail_all(self) -> None:
        """Make all waiting and running writes fail without retries, because the database does not answer."""
        self._access.writer.fail_all()

    async def close(self) -> None:
        """Write all queued items, then close the database."""
        self._access.indexer.stop()
        for stop in self._listeners:
            stop.set()
        await asyncio.to_thread(self._access.writer.close)
        await asyncio.to_thread(self._access.readers.close)
        await asyncio.to_thread(self.database.close)
