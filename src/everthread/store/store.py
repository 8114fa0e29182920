"""The store of conversations, on SQLite or PostgreSQL. One thread writes, a few read; texts are indexed later."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from everthread.core.recent_dict import RecentDict
from everthread.core.search.query import read_question
from everthread.core.types import Node, System
from everthread.core.utc_days import DAY_SECONDS
from everthread.store.database import Database, Tx
from everthread.store.reader_pool import ReaderPool
from everthread.store.records import (
    Continuation,
    LearntLimits,
    Lease,
    LimitKey,
    ModelLimit,
    NewCompaction,
    NewMessage,
    NewSession,
    Session,
    StoredMessage,
    StoredOutput,
    StoreHealth,
)
from everthread.store.rewrite_records import (
    NewRewrite,
    NewThreadLink,
    Rewrite,
    RewriteSearch,
    ThreadLink,
)
from everthread.store.schema import load_version
from everthread.store.search import neighbours as neighbour_sql
from everthread.store.search import recall_passages as recall_sql
from everthread.store.search import search_pages as page_sql
from everthread.store.search import text_search as search_sql
from everthread.store.search.background_indexer import BackgroundIndexer
from everthread.store.search.index_queue import IndexInOtherProcess, has_waiting_entries
from everthread.store.search_records import (
    HitPage,
    RecallPassage,
    RecallQuery,
    SearchHit,
    SearchQuery,
)
from everthread.store.sql import accounts as usage_sql
from everthread.store.sql import api_keys as key_sql
from everthread.store.sql import branches as branch_sql
from everthread.store.sql import client_links as link_sql
from everthread.store.sql import client_rewrites as rewrite_sql
from everthread.store.sql import compactions as compaction_sql
from everthread.store.sql import consistency as consistency_sql
from everthread.store.sql import deletion as deletion_sql
from everthread.store.sql import export_lines as export_sql
from everthread.store.sql import import_lines as import_sql
from everthread.store.sql import learnt_limits as limit_sql
from everthread.store.sql import leases as lease_sql
from everthread.store.sql import overview as overview_sql
from everthread.store.sql import session_rows as session_sql
from everthread.store.sql import session_state as state_sql
from everthread.store.sql import side_calls as side_call_sql
from everthread.store.sql import stored_messages as message_sql
from everthread.store.sql import stored_outputs as output_sql
from everthread.store.sql import thread_rows as thread_sql
from everthread.store.sql import turn_queue as turn_sql
from everthread.store.turn_records import (
    NewQueuedTurn,
    QueuedTurn,
    TurnClaim,
    TurnState,
)
from everthread.store.usage_records import NewUsage
from everthread.store.writer import RETRY_SECONDS, StoreWriter

P = ParamSpec("P")
T = TypeVar("T")

MAX_REMEMBERED_PROMPTS = 10_000
"""Maximum number of keys and days whose largest prompt is remembered, so that only a larger one is written."""
MAX_PREPARED_BY_WRITER = 32
"""More messages than this are prepared for the database outside the writing thread."""


def make_read_method(
    query: Callable[Concatenate[Tx, P], T],
) -> Callable[Concatenate[Store, P], Coroutine[Any, Any, T]]:
    """Return a method of the store that runs `query` in one snapshot and returns its result."""

    @functools.wraps(query)
    async def method(self: Store, /, *args: P.args, **keywords: P.kwargs) -> T:
        return await self._read(query, *args, **keywords)

    return method


def make_write_method(
    change: Callable[Concatenate[Tx, float, P], T],
) -> Callable[Concatenate[Store, P], Coroutine[Any, Any, T]]:
    """Return a method of the store that runs `change` at the current time and returns its result.

    It returns once the changes are on the disk.
    """

    @functools.wraps(change)
    async def method(self: Store, /, *args: P.args, **keywords: P.kwargs) -> T:
        return await self._write(change, self._clock(), *args, **keywords)

    return method


def make_thread_write_method(
    change: Callable[Concatenate[Tx, float, str, P], T],
) -> Callable[Concatenate[Store, str, P], Coroutine[Any, Any, T]]:
    """Like `make_write_method`, for a change of the thread that is named by the first argument."""

    @functools.wraps(change)
    async def method(self: Store, thread: str, /, *args: P.args, **keywords: P.kwargs) -> T:
        now = self._clock()
        return await self._change(thread, change, now, thread, *args, **keywords)

    return method


class Store:
    """A store of conversations, made by `open_store`. No call blocks the event loop.

    A thread can be named by the id of any of its sessions. State whose scope is a session's id is deleted with the
    session. Methods made from functions of `sql/` and `search/` are documented there.
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
        a database that does not answer; None: as long as `retry_seconds`.
        """
        self.database = database
        self._clock = clock
        self._writer = StoreWriter(database, retry_seconds=retry_seconds)
        self._readers = ReaderPool(
            database,
            retry_seconds=retry_seconds,
            max_silence_seconds=max_silence_seconds,
        )
        self._indexer = BackgroundIndexer(database, readers=self._readers, writer=self._writer)
        self._listeners: list[threading.Event] = []
        self._largest_prompts: RecentDict[tuple[LimitKey, int], int] = RecentDict(
            MAX_REMEMBERED_PROMPTS
        )
        """The largest prompt accepted for each key and day."""

    async def _read(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **keywords: P.kwargs
    ) -> T:
        """Run `work` in one snapshot, and return its result."""
        return await self._readers.read(lambda tx: work(tx, *args, **keywords))

    async def _write(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **keywords: P.kwargs
    ) -> T:
        """Run `work`, which changes no thread, and return its result once the changes are on the disk."""
        result: T = await self._writer.write(lambda tx: work(tx, *args, **keywords))
        return result

    async def _change(
        self,
        thread: str | None,
        work: Callable[Concatenate[Tx, P], T],
        *args: P.args,
        **keywords: P.kwargs,
    ) -> T:
        """Run `work`, which changes a thread, and return its result once the changes are on the disk."""
        result: T = await self._writer.write(lambda tx: work(tx, *args, **keywords), session=thread)
        return result

    # Sessions

    async def create_session(self, new: NewSession) -> Session:
        """Create a session that begins a new thread; return the stored one if it exists."""
        return await self._change(new.id, session_sql.create_session, new, self._clock())

    session = make_read_method(session_sql.load_session)
    resolve = make_read_method(session_sql.resolve_session)
    list_sessions = make_read_method(session_sql.list_sessions)
    list_threads = make_read_method(thread_sql.list_threads)
    count_threads = make_read_method(thread_sql.count_threads)
    threads_started_by = make_read_method(session_sql.list_child_threads)
    subagents = make_read_method(session_sql.list_subagents)
    family = make_read_method(session_sql.list_family)
    thread_sessions = make_read_method(session_sql.list_thread_sessions)

    end_session = make_thread_write_method(compaction_sql.end_session)
    get_compression_tip = make_read_method(session_sql.find_tip)

    # Messages

    async def append(
        self, session_id: str, new: Sequence[NewMessage], *, lease: Lease | None = None
    ) -> list[StoredMessage]:
        """Append messages to the thread. A new message reopens a thread; a known event is not changed."""
        request = message_sql.AppendRequest(session_id, new, self._clock(), lease)
        stored_messages: list[StoredMessage] = await self._writer.write_together(
            message_sql.append_messages,
            request,
            session=session_id,
            prepare=request.prepare,
        )
        self._indexer.start()
        return stored_messages

    messages = make_read_method(message_sql.list_messages)
    visible_ids = make_read_method(message_sql.list_visible_ids)
    history = make_read_method(message_sql.load_history)
    message = make_read_method(message_sql.load_message)

    # Compaction

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
        result = await self._change(
            session_id,
            compaction_sql.continue_session,
            session_id,
            compacted,
            seen_count=seen_count,
            compaction=compaction,
            system=system,
            nodes=nodes,
            now=self._clock(),
            lease=lease,
        )
        self._indexer.start()
        return result

    compactions = make_read_method(compaction_sql.list_compactions)

    undo = make_thread_write_method(compaction_sql.undo_compaction)
    branch = make_thread_write_method(branch_sql.branch_thread)

    async def delete_thread(self, thread: str) -> int:
        """Delete a thread and its subagents; return the number of sessions. Their cost stays in the accounts."""
        return await self._change(thread, deletion_sql.delete_thread, thread)

    # Leases

    async def acquire(self, thread: str, holder: str, seconds: float) -> Lease | None:
        """Acquire the right to write to a thread; return None while another holder has it."""
        return await self._change(thread, lease_sql.acquire_lease, thread, holder, seconds)

    async def renew(self, lease: Lease, seconds: float) -> Lease:
        """Extend a lease. An expired one may be renewed unless another holder took it."""
        return await self._change(lease.thread, lease_sql.renew_lease, lease, seconds)

    async def release(self, lease: Lease) -> None:
        await self._change(lease.thread, lease_sql.release_lease, lease)

    # Usage

    async def record_usage(self, new: NewUsage, *, return_before_sync: bool = False) -> None:
        """Record a call's usage. `return_before_sync`: do not wait until the record is on the disk."""
        now = self._clock()
        await self._writer.write(
            lambda tx: usage_sql.record_usage(tx, new, now),
            session=new.session,
            return_before_sync=return_before_sync,
        )

    usage = make_read_method(usage_sql.list_usage)
    insights = make_read_method(usage_sql.load_insights)

    # Stored tool outputs

    async def put_output(
        self, thread: str, text: str, *, call_id: str = "", tool: str = ""
    ) -> StoredOutput:
        """Store a tool output, read it back to verify it, and then let the thread cite it."""
        content = await asyncio.to_thread(output_sql.compress_output, text)
        output = await self._change(
            thread,
            output_sql.put_output,
            thread,
            text,
            content,
            call_id=call_id,
            tool=tool,
            now=self._clock(),
        )
        self._indexer.start()
        return output

    output = make_read_method(output_sql.load_output)
    outputs = make_read_method(output_sql.list_outputs)

    # Search and recall

    async def search(self, query: SearchQuery) -> list[SearchHit]:
        """Return the texts that hold every word of the query, best first."""
        return await self._read_indexed(search_sql.search_texts, query)

    async def find(self, query: SearchQuery) -> HitPage:
        """Return a page of hits; see `find_page`."""
        return await self._read_indexed(page_sql.find_page, query, self._clock())

    neighbours = make_read_method(neighbour_sql.find_neighbours)

    async def recall(self, query: RecallQuery) -> list[RecallPassage]:
        """Return passages that may answer a message, the best first."""
        question = read_question(
            query.text,
            self._clock() if query.now is None else query.now,
            use_stop_words=query.for_page,
        )
        return await self._read_indexed(recall_sql.recall_passages, query, question)

    async def _read_indexed(
        self, work: Callable[Concatenate[Tx, P], T], *args: P.args, **keywords: P.kwargs
    ) -> T:
        """Run `work` on an index that holds everything appended so far, and return its result."""

        def read_if_indexed(tx: Tx) -> list[T]:
            return [] if has_waiting_entries(tx) else [work(tx, *args, **keywords)]

        results = await self._read(read_if_indexed)
        if not results:
            await self._indexer.index_all()
            return await self._read(work, *args, **keywords)
        return results[0]

    async def index_appended(self) -> None:
        """Index everything that was appended, so that the next search need not."""
        await self._indexer.index_all()

    def use_index_process(self, index_in_other_process: IndexInOtherProcess) -> None:
        """From now on, index in the background with `index_in_other_process`; if that fails, in this process."""
        self._indexer.use_process(index_in_other_process)

    # Learnt limits, state, summary nodes

    learn_limit = make_write_method(limit_sql.learn_limit)

    async def load_limits(self, key: LimitKey) -> LearntLimits:
        """Return a tenant's limits: its own, else those that two credentials met."""
        return await self._read(limit_sql.load_limits, key, self._clock())

    async def limits(self) -> list[ModelLimit]:
        return await self._read(limit_sql.list_limits, self._clock())

    async def forget_limits(self, *, base_url: str | None = None, model: str | None = None) -> int:
        """Delete the learnt limits of an address or a model, or all limits; return the number of deleted limits."""
        return await self._write(limit_sql.forget_limits, base_url=base_url, model=model)

    async def record_success(self, key: LimitKey, prompt_tokens: int) -> None:
        """Record that a provider accepted a prompt of this size. Written only if it is the day's largest so far."""
        now = self._clock()
        key_and_day = (key, int(now // DAY_SECONDS))
        if prompt_tokens > self._largest_prompts.get(key_and_day, 0):
            self._largest_prompts[key_and_day] = prompt_tokens
            await self._writer.write(
                lambda tx: limit_sql.record_success(tx, key, prompt_tokens, now),
                can_sync_later=True,
            )

    put_pin = make_thread_write_method(state_sql.put_pin)
    pins = make_read_method(state_sql.list_pins)

    async def delete_pin(self, thread: str, pin: str) -> None:
        """Delete a pin; raise `UnknownIdError` if there is none with this id."""
        await self._change(thread, state_sql.delete_pin, thread, pin)

    add_failures = make_write_method(state_sql.add_failures)
    failures = make_read_method(state_sql.sum_failures)

    put_state = make_write_method(state_sql.put_state)
    get_state = make_read_method(state_sql.get_state)

    nodes = make_read_method(state_sql.list_nodes)

    # Other processes

    @property
    def is_unresponsive(self) -> bool:
        """Whether the database did not answer a read a moment ago."""
        return self._readers.is_unresponsive

    @property
    def answered_at(self) -> float:
        """When the database last answered in this process, on the monotonic clock."""
        return max(self._readers.answered_at, self._writer.answered_at)

    def listen(self, on_change: Callable[[str], None]) -> None:
        """Until `close`, call `on_change` in this event loop with each thread whose queue another process changed.

        An empty text means that anything may have changed. Callers must still poll, less often: a change may be missed,
        and SQLite reports none.
        """
        loop = asyncio.get_running_loop()
        stop = threading.Event()

        def forward(thread: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(on_change, thread)

        self._listeners.append(stop)
        name = "everthread-listener"
        threading.Thread(
            target=self.database.listen, args=(forward, stop), name=name, daemon=True
        ).start()

    # Clients that send their whole history each time

    async def extend_thread(
        self,
        thread: str,
        new_links: Sequence[NewThreadLink],
        usage: Sequence[NewUsage] = (),
        thread_state: tuple[str, Any] | None = None,
    ) -> list[ThreadLink | None]:
        """Store links that follow each other, their messages, usage and the thread's state in one transaction.

        Return the stored link for each, up to the first that was stored before. A link is None if the thread no longer
        ends at the link that it follows; if this is the first one, nothing is stored at all. Usage and state go to the
        thread of the first link. A new thread is on the disk when this returns, a continued one a moment later.
        """
        now = self._clock()
        prepared_links = [
            link_sql.PreparedLink(
                new, message_sql.AppendRequest(new.link.thread, new.messages, now)
            )
            for new in new_links
        ]
        extension = link_sql.ThreadExtension(thread, prepared_links, usage, thread_state)
        is_continuation = not new_links or (
            bool(new_links[0].link.previous) and new_links[0].branch_of is None
        )
        is_long = sum(len(new.messages) for new in new_links) > MAX_PREPARED_BY_WRITER
        # The writing thread is shared: a long history would delay other callers.
        if is_long:
            await asyncio.to_thread(extension.prepare)
        links: list[ThreadLink | None] = await self._writer.write(
            lambda tx: extension.store(tx, now),
            session=thread,
            prepare=None if is_long else extension.prepare,
            return_before_sync=is_continuation,
        )
        if new_links:
            self._indexer.start()
        return links

    find_link = make_read_method(link_sql.find_link)
    last_link = make_read_method(link_sql.load_last_link)
    find_conversation = make_read_method(side_call_sql.find_conversation)
    conversation_end = make_read_method(link_sql.load_conversation_end)
    continues_other_thread = make_read_method(link_sql.continues_other_thread)
    find_links_by_skeleton = make_read_method(link_sql.find_links_by_skeleton)

    put_rewrite = make_write_method(rewrite_sql.put_rewrite)

    async def commit_rewrite(self, new: NewRewrite) -> Rewrite:
        """Continue a thread with a compacted context; return the stored rewrite, which may be another process's."""
        rewrite = await self._change(
            new.rewrite.thread, rewrite_sql.commit_rewrite, new, self._clock()
        )
        self._indexer.start()
        return rewrite

    async def match_rewrites(
        self,
        tenant: str,
        engines: Sequence[str],
        digests: Sequence[str],
        skeletons: Sequence[str],
        last_search: RewriteSearch | None = None,
        *,
        state_keys: Sequence[tuple[str, str]] = (),
    ) -> tuple[rewrite_sql.RewriteMatches, RewriteSearch | None, list[Any | None]]:
        """Return the rewrites of a history, and the states under these keys, in one snapshot.

        `state_keys`: scope and key of each state. `last_search`: the search for a beginning of the history. A long
        history without one is not searched on the event loop.
        """

        def work(
            tx: Tx,
        ) -> tuple[rewrite_sql.RewriteMatches, RewriteSearch | None, list[Any | None]]:
            stored_states = [state_sql.get_state(tx, scope, key) for scope, key in state_keys]
            matches, search = rewrite_sql.match_rewrites(
                tx, tenant, engines, digests, skeletons, last_search=last_search
            )
            return matches, search, stored_states

        is_long = last_search is None and len(digests) > link_sql.MAX_DIGESTS_PER_QUERY
        read = self._readers.read if is_long else self._readers.read_short
        return await read(work)

    list_rewrite_engines = make_read_method(rewrite_sql.list_rewrite_engines)

    # Keys of the gateway. A day is written 2026-01-31.

    create_key = make_write_method(key_sql.create_key)
    find_key = make_read_method(key_sql.find_key)
    list_keys = make_read_method(key_sql.list_keys)

    revoke_key = make_write_method(key_sql.revoke_key)
    count_use = make_write_method(key_sql.add_use)

    async def shared_secret(self, name: str) -> bytes:
        """Return the random 256-bit secret of this name, which every process on the store shares."""
        secret = await self._read(key_sql.find_secret, name)
        if secret is not None:
            return secret
        return await self._write(key_sql.load_or_store_secret, name, secrets.token_bytes(32))

    # Turns that wait

    async def queue_turn(self, new: NewQueuedTurn, *, max_waiting: int) -> QueuedTurn | None:
        """Queue a turn, and return it, or the stored turn with the same key; None if `max_waiting` turns wait."""
        return await self._change(new.thread, turn_sql.queue_turn, new, max_waiting, self._clock())

    turn = make_read_method(turn_sql.load_turn)
    turns = make_read_method(turn_sql.list_turns)

    async def begin_turn(self, lease: Lease) -> TurnClaim:
        """Begin the first waiting turn. If the process of a running turn is gone, return lost turns instead.

        The caller must end lost turns first.
        """
        return await self._change(lease.thread, turn_sql.begin_turn, lease, self._clock())

    async def end_turn(
        self, turn_id: str, state: TurnState, result: Mapping[str, Any], *, lease: Lease
    ) -> QueuedTurn:
        """Record how a running turn ended; a turn that has ended is not changed."""
        return await self._change(
            lease.thread,
            turn_sql.end_turn,
            turn_id,
            state,
            result=result,
            lease=lease,
            now=self._clock(),
        )

    cancel_turn = make_write_method(turn_sql.cancel_turn)
    list_idle_queues = make_read_method(turn_sql.list_idle_queues)

    # Pages that show many threads

    thread_figures = make_read_method(overview_sql.sum_threads)
    call_rows = make_read_method(overview_sql.list_calls)
    recent_compactions = make_read_method(overview_sql.list_recent_compactions)
    sum_usage_by = make_read_method(overview_sql.sum_usage_by)
    heaviest_messages = make_read_method(overview_sql.list_largest_messages)
    tool_sizes = make_read_method(overview_sql.list_tool_sizes)
    thread_row = make_read_method(thread_sql.load_thread_row)
    context_sizes = make_read_method(overview_sql.list_context_sizes)
    shown_messages = make_read_method(overview_sql.find_unchanged_and_shortened_ids)
    session_summaries = make_read_method(overview_sql.list_summaries)
    last_change = make_read_method(overview_sql.make_change_marker)

    # The whole

    export = make_read_method(export_sql.export_thread)

    async def salvage(self, thread: str) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the readable lines of a thread in a damaged store, and a list of what could not be read."""
        return await self._read(export_sql.salvage_thread, self.database, thread)

    async def import_lines(self, lines: Sequence[dict[str, Any]]) -> list[str]:
        """Store exported threads and return their ids; raise an error and change nothing if a session exists."""
        imported = await self._write(import_sql.import_lines, lines, self._clock())
        self._indexer.start()
        return imported

    async def check(self) -> StoreHealth:
        """Check the store for damage and inconsistencies."""
        return await self._read(self._check_health)

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
                *consistency_sql.find_problems(tx),
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
        self._writer.fail_all()

    async def close(self) -> None:
        """Write all queued items, then close the database."""
        self._indexer.stop()
        for stop in self._listeners:
            stop.set()
        await asyncio.to_thread(self._writer.close)
        await asyncio.to_thread(self._readers.close)
        await asyncio.to_thread(self.database.close)
