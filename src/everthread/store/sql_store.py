"""The store over any SQL database: one thread writes, a few read, one keeps the search index up to date."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from everthread.core.exchange import System
from everthread.core.questions import read_question
from everthread.errors import EverthreadError, StoreClosedError
from everthread.store import schema
from everthread.store.base import (
    DEFAULT_TENANT,
    CompactionRecord,
    Continuation,
    Health,
    Hit,
    Insights,
    Lease,
    ModelLimit,
    NewCompaction,
    NewMessage,
    NewSession,
    NewUsage,
    Node,
    SearchQuery,
    Session,
    SessionKind,
    StoredMessage,
    StoredOutput,
    ThreadRow,
    UsageRecord,
    new_id,
)
from everthread.store.database import Connection, Database, Tx
from everthread.store.operations import (
    accounts,
    appending,
    branching,
    consistency,
    continuation,
    deletion,
    exporting,
    importing,
    indexing,
    knowledge,
    leases,
    links,
    messages,
    outputs,
    recalling,
    rewrites,
    search,
    sessions,
    threads,
)
from everthread.store.operations.prepared import Prepared, prepare
from everthread.store.operations.turns import Turns
from everthread.store.proxied import FoundLink, Link, NewLink, Rewrite
from everthread.store.readers import Readers
from everthread.store.recalled import Passage, RecallQuery
from everthread.store.sql_keys import SqlKeys
from everthread.store.sql_overviews import SqlOverviews
from everthread.store.sql_queue import SqlQueue
from everthread.store.writer import PATIENCE, Writer

T = TypeVar("T")
log = logging.getLogger(__name__)

INDEX_DELAY = 0.2
"""Seconds: what is appended within this time is indexed together."""


class SqlStore(SqlQueue, SqlKeys, SqlOverviews):
    """`Store` over a database. Made by `open_store`."""

    def __init__(
        self, database: Database, *, clock: Callable[[], float] = time.time, patience: float = PATIENCE
    ) -> None:
        self.database = database
        self._clock = clock
        self._writer = Writer(database, patience=patience)
        self._readers = Readers(database, patience=patience)
        self._indexing: asyncio.Task[None] | None = None
        self._index_turn: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._turns = Turns()

    async def _write(self, work: Callable[[Tx], T], *, session: str | None = None) -> T:
        result: T = await self._writer.write(work, session=session)
        return result

    async def _read(self, work: Callable[[Tx], T]) -> T:
        return await self._readers.read(work)

    # Sessions

    async def create_session(self, new: NewSession) -> Session:
        now = self._clock()
        return await self._write(lambda tx: sessions.create(tx, new, now), session=new.id)

    async def session(self, session_id: str) -> Session:
        return await self._read(lambda tx: sessions.get(tx, session_id))

    async def resolve(self, prefix: str, *, tenant: str | None = None) -> Session:
        return await self._read(lambda tx: sessions.resolve(tx, prefix, tenant))

    async def list_sessions(
        self, *, tenant: str | None = None, kind: SessionKind | None = None, limit: int = 50, offset: int = 0
    ) -> list[Session]:
        return await self._read(lambda tx: sessions.listed(tx, tenant, kind, limit, offset))

    async def list_threads(self, *, tenant: str | None = None, limit: int = 50, offset: int = 0) -> list[ThreadRow]:
        return await self._read(lambda tx: threads.listed(tx, tenant, limit, offset))

    async def children(self, session_id: str) -> list[Session]:
        return await self._read(lambda tx: sessions.children(tx, session_id))

    async def thread_sessions(self, thread: str) -> list[Session]:
        return await self._read(lambda tx: sessions.of_thread(tx, sessions.thread_of(tx, thread)))

    async def set_title(self, thread: str, title: str) -> None:
        await self._write(lambda tx: sessions.set_title(tx, thread, title), session=thread)

    async def end_session(self, session_id: str, reason: str, *, lease: Lease | None = None) -> Session:
        now = self._clock()
        return await self._write(lambda tx: sessions.end(tx, session_id, reason, now, lease), session=session_id)

    async def get_compression_tip(self, session_id: str) -> str:
        return await self._read(lambda tx: sessions.tip(tx, session_id))

    # Messages

    async def append(
        self, session_id: str, new: Sequence[NewMessage], *, lease: Lease | None = None
    ) -> list[StoredMessage]:
        request = appending.Request(session_id, new, self._clock(), lease)
        stored: list[StoredMessage] = await self._writer.write_together(
            appending.append_many, request, session=session_id, prepare=request.prepare
        )
        self._index_soon()
        return stored

    async def messages(self, session_id: str, *, start: int = 0, limit: int | None = None) -> list[StoredMessage]:
        return await self._read(lambda tx: messages.of_session(tx, session_id, start, limit))

    async def history(self, session_id: str, *, start: int = 0, limit: int | None = None) -> list[StoredMessage]:
        return await self._read(lambda tx: messages.history(tx, session_id, start, limit))

    async def message(self, message_id: int, *, tenant: str | None = None) -> StoredMessage:
        return await self._read(lambda tx: messages.get(tx, message_id, tenant))

    # Compaction

    async def continue_session(
        self,
        session_id: str,
        compacted: Sequence[int | NewMessage],
        *,
        seen: int,
        pending: Sequence[NewMessage] = (),
        compaction: NewCompaction | None = None,
        system: System = None,
        nodes: Sequence[Node] = (),
        new: str | None = None,
        lease: Lease | None = None,
    ) -> Continuation:
        now, fresh, made, waiting = self._clock(), new or new_id(), PreparedBatch(compacted), PreparedBatch(pending)

        def prepare() -> None:
            made.prepare()
            waiting.prepare()

        def work(tx: Tx) -> Continuation:
            return continuation.continue_session(
                tx, session_id, made.entries, seen=seen, pending=waiting.ready,
                compaction=compaction or NewCompaction(), system=system, nodes=nodes, new_id=fresh, now=now,
                lease=lease,
            )  # fmt: skip

        result: Continuation = await self._writer.write(work, session=session_id, prepare=prepare)
        self._index_soon()
        return result

    async def compactions(self, thread: str) -> list[CompactionRecord]:
        return await self._read(lambda tx: continuation.compactions(tx, thread))

    async def undo(self, session_id: str, *, lease: Lease | None = None) -> Session:
        now = self._clock()
        return await self._write(lambda tx: continuation.undo(tx, session_id, now, lease), session=session_id)

    async def branch(self, session_id: str, at_message: int, *, new: NewSession | None = None) -> Session:
        now, fresh = self._clock(), new_id()
        return await self._write(
            lambda tx: branching.branch(tx, session_id, at_message, new, fresh, now), session=session_id
        )

    async def delete_thread(self, thread: str) -> int:
        deleted = await self._write(lambda tx: deletion.delete_thread(tx, self.database, thread), session=thread)
        self._turns.forget()
        return deleted

    # Leases

    async def acquire(self, thread: str, holder: str, seconds: float) -> Lease | None:
        return await self._write(lambda tx: leases.acquire(tx, thread, holder, seconds), session=thread)

    async def renew(self, lease: Lease, seconds: float) -> Lease:
        return await self._write(lambda tx: leases.renew(tx, lease, seconds), session=lease.thread)

    async def release(self, lease: Lease) -> None:
        await self._write(lambda tx: leases.release(tx, lease), session=lease.thread)

    # Usage

    async def record_usage(self, new: NewUsage) -> None:
        now = self._clock()
        await self._write(lambda tx: accounts.record(tx, new, now), session=new.session)

    async def usage(self, thread: str) -> list[UsageRecord]:
        return await self._read(lambda tx: accounts.of_thread(tx, thread))

    async def insights(
        self, *, since: float, until: float, tenant: str | None = None, platform: str | None = None
    ) -> Insights:
        return await self._read(
            lambda tx: accounts.insights(tx, since=since, until=until, tenant=tenant, platform=platform)
        )

    # Stored tool outputs

    async def put_output(self, thread: str, text: str, *, call_id: str = "", tool: str = "") -> StoredOutput:
        now = self._clock()
        content = await asyncio.to_thread(outputs.compress, text)
        stored = await self._write(
            lambda tx: outputs.put(tx, thread, text, content, call_id=call_id, tool=tool, now=now), session=thread
        )
        self._index_soon()
        return stored

    async def output(self, output_id: str, *, tenant: str = DEFAULT_TENANT) -> str:
        return await self._read(lambda tx: outputs.get(tx, output_id, tenant))

    async def outputs(self, thread: str) -> list[StoredOutput]:
        return await self._read(lambda tx: outputs.of_thread(tx, thread))

    # Search

    async def search(self, query: SearchQuery) -> list[Hit]:
        """What matches. Everything that was appended before is indexed first."""
        await self._index_all()
        return await self._read(lambda tx: search.search(tx, self.database, query))

    async def recall(self, query: RecallQuery) -> list[Passage]:
        """What may answer a message. Everything that was appended before is indexed first."""
        question = read_question(query.text, self._clock() if query.now is None else query.now)
        await self._index_all()
        return await self._read(lambda tx: recalling.recall(tx, self.database, query, question, self._turns))

    def _index_soon(self) -> None:
        """Start indexing in the background, unless it is under way."""
        if self._indexing is None or self._indexing.done():
            self._indexing = asyncio.get_running_loop().create_task(self._index_later())

    async def _index_later(self) -> None:
        await asyncio.sleep(INDEX_DELAY)
        try:
            await self._index_all()
        except StoreClosedError:
            log.debug("the store was closed; what is not indexed yet will be by the next search")
        except EverthreadError as error:
            log.warning("indexing is put off: %s", error)

    async def _index_all(self) -> None:
        """Index all that waits. One at a time: who comes while another is at it would only do the same work."""
        loop = asyncio.get_running_loop()
        if self._index_turn is None or self._index_turn[0] is not loop:
            self._index_turn = loop, asyncio.Lock()
        async with self._index_turn[1]:
            # Read into terms in a reading thread, so that no write waits for it.
            while batches := await self._read(indexing.prepare):
                for parts in batches:
                    await self._write(functools.partial(indexing.index, database=self.database, parts=parts))

    # Limits, state, nodes

    async def learn_limit(self, base_url: str, model: str, limit: int, *, source: str, headers: str = "") -> ModelLimit:
        now = self._clock()
        return await self._write(lambda tx: knowledge.learn_limit(tx, base_url, model, limit, source, headers, now))

    async def limit_for(self, base_url: str, model: str, *, headers: str = "") -> ModelLimit | None:
        now = self._clock()
        return await self._read(lambda tx: knowledge.limit_for(tx, base_url, model, headers, now))

    async def limits(self) -> list[ModelLimit]:
        now = self._clock()
        return await self._read(lambda tx: knowledge.limits(tx, now))

    async def forget_limits(
        self, *, base_url: str | None = None, model: str | None = None, below: int | None = None
    ) -> int:
        return await self._write(lambda tx: knowledge.forget_limits(tx, base_url, model, below))

    async def put_state(self, scope: str, key: str, value: Any) -> None:
        now = self._clock()
        await self._write(lambda tx: knowledge.put_state(tx, scope, key, value, now))

    async def get_state(self, scope: str, key: str) -> Any | None:
        return await self._read(lambda tx: knowledge.get_state(tx, scope, key))

    async def put_nodes(self, nodes: Sequence[Node], *, lease: Lease | None = None) -> None:
        await self._write(lambda tx: knowledge.put_nodes(tx, nodes, lease), session=nodes[0].thread if nodes else None)

    async def nodes(self, thread: str) -> list[Node]:
        return await self._read(lambda tx: knowledge.nodes(tx, thread))

    # Clients that send their whole history each time

    async def extend_link(self, new: NewLink) -> Link | None:
        now = self._clock()
        request = appending.Request(new.link.thread, new.messages, now)
        link: Link | None = await self._writer.write(
            lambda tx: links.extend(tx, new, request, now), session=new.link.thread, prepare=request.prepare
        )
        self._index_soon()
        return link

    async def find_link(self, tenant: str, scope: str, digests: Sequence[str]) -> FoundLink | None:
        return await self._read(lambda tx: links.find(tx, tenant, scope, digests))

    async def find_skeletons(self, tenant: str, scope: str, skeletons: Sequence[str]) -> list[FoundLink]:
        return await self._read(lambda tx: links.find_skeletons(tx, tenant, scope, skeletons))

    async def put_rewrite(self, new: Rewrite, compaction: NewCompaction | None = None) -> Rewrite:
        now = self._clock()
        return await self._write(lambda tx: rewrites.put(tx, new, now, compaction))

    async def find_rewrites(self, tenant: str, engine: str, digests: Sequence[str]) -> list[Rewrite]:
        return await self._read(lambda tx: rewrites.find(tx, tenant, engine, digests))

    async def find_similar_rewrites(self, tenant: str, engine: str, skeletons: Sequence[str]) -> list[Rewrite]:
        return await self._read(lambda tx: rewrites.find_similar(tx, tenant, engine, skeletons))

    # The whole

    async def export(self, thread: str) -> list[dict[str, Any]]:
        return await self._read(lambda tx: list(exporting.export(tx, thread)))

    async def import_lines(self, lines: Sequence[dict[str, Any]]) -> list[str]:
        now = self._clock()
        imported = await self._write(lambda tx: importing.import_lines(tx, lines, now))
        self._index_soon()
        return imported

    async def check(self) -> Health:
        return await self._read(self._examine)

    def _examine(self, tx: Tx) -> Health:
        counts = [tx.one(f"SELECT COUNT(*) FROM {table}") for table in ("sessions", "messages")]
        return Health(
            backend=self.database.dialect.name,
            location=self.database.location,
            schema=schema.current(tx),
            size=self.database.size(tx),
            sessions=int(counts[0][0]) if counts[0] else 0,
            messages=int(counts[1][0]) if counts[1] else 0,
            problems=(*self.database.problems(tx), *consistency.problems(tx)),
        )

    async def backup(self, target: str) -> None:
        await asyncio.to_thread(self._with_connection, lambda connection: self.database.backup(connection, target))

    async def vacuum(self) -> None:
        await asyncio.to_thread(self._with_connection, self.database.vacuum)

    def _with_connection(self, work: Callable[[Connection], None]) -> None:
        """Work that needs a connection of its own, outside any transaction."""
        try:
            connection = self.database.connect_writer()
            try:
                work(connection)
            finally:
                connection.close()
        except EverthreadError:
            raise
        except Exception as error:
            raise self.database.explain(error) from error

    async def close(self) -> None:
        """Write what is queued, then let go of the database."""
        if self._indexing is not None:
            self._indexing.cancel()
        await asyncio.to_thread(self._writer.close)
        await asyncio.to_thread(self._readers.close)
        await asyncio.to_thread(self.database.close)


class PreparedBatch:
    """Messages whose text and fingerprints are computed in the writing thread, once, before its transaction."""

    def __init__(self, entries: Sequence[int | NewMessage]) -> None:
        self._given = entries
        self.entries: list[int | Prepared] = []

    def prepare(self) -> None:
        self.entries = [entry if isinstance(entry, int) else prepare(entry) for entry in self._given]

    @property
    def ready(self) -> list[Prepared]:
        return [entry for entry in self.entries if not isinstance(entry, int)]
