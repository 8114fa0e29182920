"""Messages: prepared before a transaction, appended once, read as a session's context or as a thread's history.

Tool outputs kept in full stand beside them: compressed, stored once however often they are cited, verified before they
are cited.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.core.fingerprints import byte_fingerprint, message_fingerprint
from everthread.core.messages import Call, calls_of, results_of
from everthread.core.outputs import output_id
from everthread.errors import InputError, StoreDamagedError, UnknownIdError
from everthread.store.database import LAST, Query, Row, Tx, chunks, clean_text, decode_json, encode_json, placeholders
from everthread.store.models import DEFAULT_TENANT, Lease, NewMessage, StoredMessage, StoredOutput
from everthread.store.sql.sessions import (
    IS_TIP,
    TIP_COLUMNS,
    ThreadTip,
    check_lease,
    find_thread,
    load_session,
    lock_thread,
    session_chain,
)

# --- messages ---------------------------------------------------------------------------------------------------------


MOST_TOKENS = 10**12
"""No message has so many; sums of what is below are exact in every database."""


@dataclass(frozen=True, slots=True)
class PreparedMessage:
    new: NewMessage
    text: str
    role: str
    tool: str
    canonical: str
    byte_order: str
    calls: tuple[Call, ...] = ()
    answers: tuple[str, ...] = ()
    """The calls whose results it holds without saying of which tool."""

    def row(self, thread: str, now: float) -> Row:
        """The values of `MESSAGE_FIELDS`."""
        new = self.new
        return (
            thread, new.event, new.kind, self.role, self.tool, self.text, new.tokens, self.canonical, self.byte_order,
            now if new.created is None else new.created, new.origin,
        )  # fmt: skip


MESSAGE_FIELDS = "thread_id, event, kind, role, tool, body, tokens, canonical, byte_order, created, origin"


def prepare_message(new: NewMessage) -> PreparedMessage:
    body = new.body
    if not isinstance(body, dict):
        raise InputError(f"a message is an object with a role, not {type(body).__name__}")
    tokens: Any = new.tokens  # whatever an import may hold
    if tokens is not None and (type(tokens) is not int or not 0 <= tokens < MOST_TOKENS):
        raise InputError(f"a message cannot have {tokens!r} tokens")
    text = encode_json(body)  # first: it refuses what has no bottom
    calls, results = calls_of(body), results_of(body)
    named = next((result.name for result in results if result.name), "")
    return PreparedMessage(
        new,
        text,
        clean_text(str(body.get("role", ""))),
        clean_text(named or ",".join(dict.fromkeys(call.name for call in calls))),
        message_fingerprint(body),
        byte_fingerprint(body),
        tuple(calls),
        () if named else tuple(result.call_id for result in results if result.call_id),
    )


CALLS_AT_ONCE = 8
"""So many messages with calls are read at once: a result mostly follows its call closely."""


def call_names(calls: Iterable[Call]) -> dict[str, str]:
    return {call.id: call.name for call in calls}


def name_tool(item: PreparedMessage, name_of: Callable[[str], str]) -> PreparedMessage:
    """A message whose results do not name their tools, with the names their calls have."""
    if not item.answers:
        return item
    names = dict.fromkeys(name_of(call_id) for call_id in item.answers)
    return dataclasses.replace(item, tool=clean_text(",".join(filter(None, names))))


MESSAGE_COLUMNS = (
    "m.id, p.session_id, p.seq, m.kind, m.body, m.event, m.tokens, m.canonical, m.byte_order, m.created, m.origin"
)


def as_stored(row: Row) -> StoredMessage:
    return StoredMessage(*[*row[:4], decode_json(row[4]), *row[5:]])


def insert_message(tx: Tx, thread: str, item: PreparedMessage, now: float) -> int | None:
    """The new message's id; None where its event is known already."""
    message_id: int | None = tx.value(
        f"INSERT INTO messages ({MESSAGE_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (thread_id, event) DO NOTHING RETURNING id",
        item.row(thread, now),
    )
    if message_id is not None and item.new.kind == "message":
        tx.run("INSERT INTO unindexed (message_id) VALUES (?)", (message_id,))
    return message_id


def find_by_event(tx: Tx, current: ThreadTip, event: str) -> StoredMessage:
    """The message of an event: where the thread shows it now, else where it was said."""
    [row] = tx.all(
        f"SELECT {MESSAGE_COLUMNS} FROM messages m JOIN places p ON p.message_id = m.id "
        "JOIN sessions s ON s.id = p.session_id "
        f"WHERE m.thread_id = ? AND m.event = ? ORDER BY CASE WHEN s.id = ? THEN 0 ELSE 1 END, {HOME_FIRST} LIMIT 1",
        (current.thread, event, current.id),
    )
    return as_stored(row)


HOME_FIRST = (
    "CASE WHEN s.thread_id = m.thread_id AND s.kind <> 'reverted' AND p.seq >= s.carried THEN 0 ELSE 1 END, "
    "CASE WHEN s.kind <> 'reverted' THEN 0 ELSE 1 END, s.started, p.seq"
)
"""Of all places of a message first the one where it was said, which is in the history; no clock decides that."""


def list_messages(tx: Tx, session_id: str, *, start: int = 0, limit: int | None = None) -> list[StoredMessage]:
    """A session's messages in order: what the model sees."""
    load_session(tx, session_id)
    rows = tx.all(
        f"SELECT {MESSAGE_COLUMNS} FROM places p JOIN messages m ON m.id = p.message_id "
        "WHERE p.session_id = ? AND p.seq >= ? ORDER BY p.seq LIMIT ?",
        (session_id, max(start, 0), LAST if limit is None else limit),
    )
    return [as_stored(row) for row in rows]


def load_message(tx: Tx, message_id: int, *, tenant: str | None = None) -> StoredMessage:
    """One message, at the place where it was said."""
    row = tx.one(
        f"SELECT {MESSAGE_COLUMNS}, s.tenant FROM messages m JOIN places p ON p.message_id = m.id "
        f"JOIN sessions s ON s.id = p.session_id WHERE m.id = ? ORDER BY {HOME_FIRST} LIMIT 1",
        (message_id,),
    )
    if row is None or tenant not in (None, row[-1]):
        raise UnknownIdError(f"there is no message {message_id}")
    return as_stored(row[:-1])


def load_history(tx: Tx, session_id: str, *, start: int = 0, limit: int | None = None) -> list[StoredMessage]:
    """Everything that was said in a thread, in order, once: what a person would read.

    A continuation adds what stands behind what it carried along. A branch begins with its parent's history up to
    where it left. Summaries and derived messages are context, not history.
    """
    messages: list[StoredMessage] = []
    for session, carried in session_chain(tx, find_thread(tx, session_id)):
        if start:
            skipped = tx.value(f"SELECT COUNT(*) {SESSION_MESSAGES}", (session, carried))
            if skipped <= start:
                start -= skipped
                continue
        room = LAST if limit is None else limit - len(messages)
        rows = tx.all(
            f"SELECT {MESSAGE_COLUMNS} {SESSION_MESSAGES} ORDER BY p.seq LIMIT ? OFFSET ?",
            (session, carried, room, max(start, 0)),
        )
        messages += [as_stored(row) for row in rows]
        start = 0
        if limit is not None and len(messages) >= limit:
            break
    return messages


SESSION_MESSAGES = (
    "FROM places p JOIN messages m ON m.id = p.message_id "
    "WHERE p.session_id = ? AND (p.seq < 0 OR p.seq >= ?) AND m.kind = 'message'"
)
"""What a session adds to the history."""
LOCK_THREADS = "SELECT id FROM sessions WHERE id IN (SELECT thread_id FROM sessions WHERE id IN ({})) ORDER BY id {}"
SELECT_TIPS = (
    f"SELECT s.id, {TIP_COLUMNS} FROM sessions s JOIN sessions t ON t.thread_id = s.thread_id "
    f"WHERE s.id IN ({{}}) AND {IS_TIP}"
)
SELECT_EVENTS = (
    "SELECT thread_id, event FROM messages WHERE thread_id = (SELECT thread_id FROM sessions WHERE id = ?) "
    "AND event IN ({})"
)


@dataclass(slots=True)
class AppendRequest:
    """What one caller wants appended."""

    session: str
    """Any session of the thread."""
    new: Sequence[NewMessage]
    now: float
    lease: Lease | None = None
    prepared: Sequence[PreparedMessage] = ()

    def prepare(self) -> None:
        """Compute texts and fingerprints once, before the transaction."""
        self.prepared = [prepare_message(new) for new in self.new]


def append_messages(tx: Tx, requests: Sequence[AppendRequest]) -> list[list[StoredMessage]]:
    """Store and place messages where their threads go on. What is new reopens a thread; a known event stays."""
    view = _lock_and_read(tx, requests)
    threads: dict[str, _ThreadGrowth] = {}
    stored = []
    for request in requests:
        tip = view.tips.get(request.session)
        if tip is None:
            raise UnknownIdError(f"there is no thread or session {request.session!r}")
        if request.lease is not None:
            check_lease(request.lease, tip.thread, view.leases.get(request.lease.thread))
        if tip.thread not in threads:
            threads[tip.thread] = _ThreadGrowth(tx, tip, view)
        stored.append([threads[tip.thread].take(item, request.now) for item in request.prepared])
    _write_growth(tx, list(threads.values()))
    return stored


@dataclass(slots=True)
class _ThreadView:
    """What is known of the threads, which are held until the transaction ends."""

    tips: dict[str, ThreadTip]
    """By the session that was named."""
    leases: dict[str, Row]
    events: set[tuple[str, str]]
    """Thread and event of what is stored already."""
    ids: Iterator[int]
    """For new messages."""


def _lock_and_read(tx: Tx, requests: Sequence[AppendRequest]) -> _ThreadView:
    names = list(dict.fromkeys(request.session for request in requests))
    leased = list(dict.fromkeys(request.lease.thread for request in requests if request.lease is not None))
    count = sum(len(request.prepared) for request in requests)
    if tx.dialect.lock:
        tx.run(LOCK_THREADS.format(placeholders(names), tx.dialect.lock), names)
    fence = f"SELECT fence, holder FROM leases WHERE thread_id = ? {tx.dialect.share}"
    tips, ids, *rest = tx.ask(
        [
            (SELECT_TIPS.format(placeholders(names)), names),
            (tx.dialect.new_ids.format("messages"), (count,)),
            *((fence, (thread,)) for thread in leased),
            *_event_queries(requests),
        ]
    )
    fences = {thread: rows[0] for thread, rows in zip(leased, rest[: len(leased)], strict=True) if rows}
    events = {(row[0], row[1]) for rows in rest[len(leased) :] for row in rows}
    return _ThreadView(
        {row[0]: ThreadTip(*row[1:]) for row in tips}, fences, events, iter([int(row[0]) for row in ids])
    )


def _event_queries(requests: Sequence[AppendRequest]) -> Iterator[Query]:
    """Which of the events are stored already."""
    events: dict[str, dict[str, None]] = {}
    for request in requests:
        events.setdefault(request.session, {}).update(dict.fromkeys(item.new.event for item in request.prepared))
    for session, named in events.items():
        for some in chunks(list(named)):
            yield SELECT_EVENTS.format(placeholders(some)), (session, *some)


@dataclass(slots=True)
class _ThreadGrowth:
    """A thread, and what is added to it."""

    tx: Tx
    tip: ThreadTip
    view: _ThreadView
    stored: dict[str, StoredMessage] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    """New messages, as they are inserted."""
    places: list[tuple[str, int, int]] = field(default_factory=list)
    said: int = field(init=False)
    tokens: int = field(init=False)
    active: float = field(init=False)
    tools: dict[str, str] = field(default_factory=dict)
    """Tool call -> the tool: those of the batch, and, as far back as needed, the stored ones of the session."""
    unread: int | None = LAST
    """The place up to which the session's calls are not read yet; None when all of them are."""

    def __post_init__(self) -> None:
        self.said, self.tokens, self.active = self.tip.said, self.tip.said_tokens, self.tip.active

    def take(self, item: PreparedMessage, now: float) -> StoredMessage:
        """Given in order, as a later call may have an earlier one's id."""
        event = item.new.event
        self.tools |= call_names(item.calls)
        item = name_tool(item, self._find_tool)
        if event not in self.stored:
            is_stored = (self.tip.thread, event) in self.view.events
            self.stored[event] = find_by_event(self.tx, self.tip, event) if is_stored else self._place(item, now)
        return self.stored[event]

    def _find_tool(self, call_id: str) -> str:
        while call_id not in self.tools and self.unread is not None:
            rows = self.tx.all(
                "SELECT p.seq, m.body FROM places p JOIN messages m ON m.id = p.message_id WHERE p.session_id = ? "
                "AND p.seq < ? AND m.role = 'assistant' AND m.tool <> '' ORDER BY p.seq DESC LIMIT ?",
                (self.tip.id, self.unread, CALLS_AT_ONCE),
            )
            for _, body in rows:
                self.tools = call_names(calls_of(decode_json(body))) | self.tools
            self.unread = rows[-1][0] if len(rows) == CALLS_AT_ONCE else None
        return self.tools.get(call_id, "")

    def _place(self, item: PreparedMessage, now: float) -> StoredMessage:
        new, message_id, seq = item.new, next(self.view.ids), self.tip.next_seq + len(self.places)
        created = now if new.created is None else new.created
        self.rows.append((message_id, *item.row(self.tip.thread, now)))
        self.places.append((self.tip.id, seq, message_id))
        if new.kind == "message":
            self.said, self.tokens, self.active = self.said + 1, self.tokens + (new.tokens or 0), created
        return StoredMessage(
            message_id, self.tip.id, seq, new.kind, new.body, new.event, new.tokens, item.canonical, item.byte_order,
            created, new.origin,
        )  # fmt: skip


def _write_growth(tx: Tx, threads: Sequence[_ThreadGrowth]) -> None:
    grown = [thread for thread in threads if thread.rows]
    if not grown:
        return
    rows = [row for thread in grown for row in thread.rows]
    tx.many(f"INSERT INTO messages (id, {MESSAGE_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    tx.many("INSERT INTO unindexed (message_id) VALUES (?)", [(row[0],) for row in rows if row[3] == "message"])
    tx.many(
        "INSERT INTO places (session_id, seq, message_id) VALUES (?, ?, ?)",
        [placed for thread in grown for placed in thread.places],
    )
    tx.many(
        "UPDATE sessions SET next_seq = ?, active = ?, said = ?, said_tokens = ?, ended = NULL, end_reason = NULL "
        "WHERE id = ?",
        [
            (thread.tip.next_seq + len(thread.places), thread.active, thread.said, thread.tokens, thread.tip.id)
            for thread in grown
        ],
    )


# --- stored tool outputs ----------------------------------------------------------------------------------------------


def compress_output(text: str) -> bytes:
    return zlib.compress(text.encode("utf-8", "surrogatepass"), 6)


def put_output(tx: Tx, thread: str, text: str, content: bytes, *, call_id: str, tool: str, now: float) -> StoredOutput:
    thread, key = lock_thread(tx, thread), output_id(text)
    tenant = tx.value("SELECT tenant FROM sessions WHERE id = ?", (thread,))
    # Read with a lock: another process may be about to delete it as uncited.
    while (stored := tx.value(f"{SELECT_CONTENT} {tx.dialect.share}", (tenant, key))) is None:
        tx.run(
            "INSERT INTO outputs (tenant, id, size, content, created) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (tenant, id) DO NOTHING",
            (tenant, key, len(text), content, now),
        )
    if _decompress_output(key, stored) != text:
        raise StoreDamagedError(f"the stored output {key} is not what was given; it was not cited")
    call_id, tool = clean_text(call_id), clean_text(tool)
    tx.run(
        "INSERT INTO citations (thread_id, tenant, output_id, call_id, tool, created) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (thread_id, output_id, call_id) DO NOTHING",
        (thread, tenant, key, call_id, tool, now),
    )
    queue_output(tx, thread, key)
    return StoredOutput(key, thread, call_id, tool, len(text), now)


def queue_output(tx: Tx, thread: str, key: str) -> None:
    """Have an output indexed for a thread that cites it, unless it is or waits already."""
    select = "SELECT 1 FROM {} WHERE thread_id = ? AND output_id = ?"
    if not any(tx.one(select.format(table), (thread, key)) for table in ("unindexed", "pieces")):
        tx.run("INSERT INTO unindexed (thread_id, output_id) VALUES (?, ?)", (thread, key))


def load_output(tx: Tx, key: str, *, tenant: str = DEFAULT_TENANT) -> str:
    content = tx.value(SELECT_CONTENT, (tenant, key))
    if content is None:
        raise UnknownIdError(f"there is no stored output {key!r}")
    return _decompress_output(key, content)


SELECT_CONTENT = "SELECT content FROM outputs WHERE tenant = ? AND id = ?"


def _decompress_output(key: str, content: bytes) -> str:
    """What was stored, if it still is that."""
    try:
        text = zlib.decompress(content).decode("utf-8", "surrogatepass")
    except (zlib.error, UnicodeDecodeError) as error:
        raise StoreDamagedError(f"the stored output {key} cannot be read: {error}") from error
    if output_id(text) != key:
        raise StoreDamagedError(f"the stored output {key} is not what its id was made from")
    return text


def list_outputs(tx: Tx, thread: str) -> list[StoredOutput]:
    rows = tx.all(
        "SELECT c.output_id, c.thread_id, c.call_id, c.tool, o.size, c.created FROM citations c "
        "JOIN outputs o ON o.tenant = c.tenant AND o.id = c.output_id WHERE c.thread_id = ? "
        "ORDER BY c.created, c.output_id, c.call_id",
        (find_thread(tx, thread),),
    )
    return [StoredOutput(*row) for row in rows]
