"""Prepare, append and read messages, as the context of a session or the history of a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from everthread.core.messages import ToolCall, calls_of, results_of
from everthread.core.turns import is_user_message
from everthread.errors import InputError, UnknownIdError
from everthread.store.database import (
    MAX_ID,
    Row,
    SqlQuery,
    Tx,
    placeholders,
    read_ids,
    split_batches,
)
from everthread.store.records import Lease, NewMessage, StoredMessage
from everthread.store.sql.leases import require_newest_lease
from everthread.store.sql.session_rows import (
    IS_TIP,
    TIP_COLUMNS,
    ThreadTip,
    find_thread,
    find_tip,
    list_session_chain,
    load_session,
)
from everthread.store.value_codec import (
    checksum,
    clean_text,
    decode_body,
    encode_json,
    pack_body,
)

MAX_MESSAGE_TOKENS = 10**12
"""More tokens than any message has. Sums of figures below this are exact in every database."""


class PreparedMessage(NamedTuple):
    """A message with the values of its row, computed before the transaction."""

    new: NewMessage
    body: bytes
    chars: int
    """Characters of its JSON."""
    role: str
    tool: str
    opens_turn: bool = False
    """Whether this is a message of the user, which begins a turn."""
    calls: tuple[ToolCall, ...] = ()
    answered_calls: tuple[str, ...] = ()
    """Ids of the calls whose results the message holds, if the results do not name their tools."""

    def make_row(self, thread_id: str, now: float) -> Row:
        """Return the values of `INSERT_COLUMNS`."""
        new = self.new
        return (
            thread_id,
            new.event,
            new.kind,
            self.role,
            self.tool,
            new.tokens,
            now if new.created is None else new.created,
            new.origin,
            int(self.opens_turn),
            self.chars,
            checksum(self.body),
            self.body,
        )


INSERT_COLUMNS = (
    "thread_id, event, kind, role, tool, tokens, created, origin, opens_turn, chars, checksum, body"
)


def prepare_message(new: NewMessage) -> PreparedMessage:
    body = new.body
    if not isinstance(body, dict):
        raise InputError(f"a message is an object with a role, not {type(body).__name__}")
    tokens: Any = new.tokens  # callers may pass any value
    if tokens is not None and (type(tokens) is not int or not 0 <= tokens < MAX_MESSAGE_TOKENS):
        raise InputError(f"a message cannot have {tokens!r} tokens")
    text = encode_json(body)  # first: it refuses endless nesting
    calls = calls_of(body)
    results = results_of(body)
    result_name = next((result.tool_name for result in results if result.tool_name), "")
    tool = result_name or ",".join(dict.fromkeys(call.name for call in calls))
    unnamed_calls = () if result_name else (result.call_id for result in results if result.call_id)
    return PreparedMessage(
        new,
        pack_body(text),
        chars=len(text),
        role=clean_text(str(body.get("role", ""))),
        tool=clean_text(tool),
        opens_turn=new.kind == "message" and is_user_message(body),
        calls=tuple(calls),
        answered_calls=tuple(unnamed_calls),
    )


CALLS_PER_READ = 8
"""Messages with calls to read at once; a result usually follows its call closely."""


def map_calls_to_tools(calls: Iterable[ToolCall]) -> dict[str, str]:
    return {call.id: call.name for call in calls}


def add_tool_names(
    message: PreparedMessage, find_tool_name: Callable[[str], str]
) -> PreparedMessage:
    """Return a message with the tool names of its calls, if its results do not name their tools."""
    if not message.answered_calls:
        return message
    names = dict.fromkeys(find_tool_name(call_id) for call_id in message.answered_calls)
    return message._replace(tool=clean_text(",".join(filter(None, names))))


MESSAGE_COLUMNS = (
    "m.id, p.session_id, p.seq, m.kind, m.body, m.event, m.tokens, m.created, m.origin"
)


def decode_message(row: Row) -> StoredMessage:
    return StoredMessage(*[*row[:4], decode_body(row[4]), *row[5:]])


def insert_message(tx: Tx, thread_id: str, message: PreparedMessage, now: float) -> int | None:
    """Return the new message's id, or None if its event is already stored."""
    message_id: int | None = tx.value(
        f"INSERT INTO messages ({INSERT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (thread_id, event) DO NOTHING RETURNING id",
        message.make_row(thread_id, now),
    )
    if message_id is not None and message.new.kind == "message":
        tx.run("INSERT INTO unindexed (message_id) VALUES (?)", (message_id,))
    return message_id


def load_by_event(tx: Tx, current: ThreadTip, event: str) -> StoredMessage:
    """Return the message of an event, with its position in the current session or else in the session of origin."""
    [row] = tx.all(
        f"SELECT {MESSAGE_COLUMNS} FROM messages m JOIN places p ON p.message_id = m.id "
        "JOIN sessions s ON s.id = p.session_id "
        "WHERE m.thread_id = ? AND m.event = ? "
        f"ORDER BY CASE WHEN s.id = ? THEN 0 ELSE 1 END, {ORIGINAL_PLACE_FIRST} LIMIT 1",
        (current.thread_id, event, current.id),
    )
    return decode_message(row)


ORIGINAL_PLACE_FIRST = (
    "CASE WHEN s.thread_id = m.thread_id AND s.kind <> 'reverted' AND p.seq >= s.inherited_count THEN 0 ELSE 1 END, "
    "CASE WHEN s.kind <> 'reverted' THEN 0 ELSE 1 END, s.started, p.seq"
)
"""Order the places of a message: first the one in the history, where it was said. Clocks do not matter for that."""


def list_messages(
    tx: Tx, session_id: str, *, start: int = 0, limit: int | None = None
) -> list[StoredMessage]:
    """Return a session's messages in order, as the model sees them."""
    load_session(tx, session_id)
    rows = tx.all(
        f"SELECT {MESSAGE_COLUMNS} FROM places p JOIN messages m ON m.id = p.message_id "
        "WHERE p.session_id = ? AND p.seq >= ? ORDER BY p.seq LIMIT ?",
        (session_id, max(start, 0), MAX_ID if limit is None else limit),
    )
    return [decode_message(row) for row in rows]


def list_visible_ids(tx: Tx, thread_id: str) -> list[int]:
    """Return the ids of the messages that a compacted thread still shows, or none if it was never compacted."""
    rows = tx.all(
        "SELECT p.message_id FROM places p JOIN sessions s ON s.id = p.session_id "
        "WHERE s.id = ? AND s.kind = 'continuation' AND p.seq >= 0",
        (find_tip(tx, thread_id),),
    )
    return [row[0] for row in rows]


def load_message(tx: Tx, message_id: int, *, tenant: str | None = None) -> StoredMessage:
    """Return one message, with its position in the session of origin."""
    row = tx.one(
        f"SELECT {MESSAGE_COLUMNS}, s.tenant FROM messages m JOIN places p ON p.message_id = m.id "
        f"JOIN sessions s ON s.id = p.session_id WHERE m.id = ? ORDER BY {ORIGINAL_PLACE_FIRST} LIMIT 1",
        (message_id,),
    )
    if row is None or tenant not in (None, row[-1]):
        raise UnknownIdError(f"there is no message {message_id}")
    return decode_message(row[:-1])


def load_history(
    tx: Tx,
    session_id: str,
    *,
    start: int = 0,
    limit: int | None = None,
    after_id: int = 0,
) -> list[StoredMessage]:
    """Return the history of a thread: every message said in it, in order, once.

    `start`: skip this many messages. `after_id`: return only messages with a larger id; not together with `start`.

    A continuation adds the messages after those it inherited. A branch begins with its parent's history up to the
    message at which it branched. Summaries and derived messages are context, not history.
    """
    messages: list[StoredMessage] = []
    for session, inherited_count in list_session_chain(tx, find_thread(tx, session_id)):
        if start:
            skipped = tx.value(
                f"SELECT COUNT(*) {FROM_SESSION_HISTORY}", (session, inherited_count)
            )
            if skipped <= start:
                start -= skipped
                continue
        row_limit = MAX_ID if limit is None else limit - len(messages)
        rows = tx.all(
            f"SELECT {MESSAGE_COLUMNS} {FROM_SESSION_HISTORY} AND m.id > ? ORDER BY p.seq LIMIT ? OFFSET ?",
            (session, inherited_count, after_id, row_limit, max(start, 0)),
        )
        messages += [decode_message(row) for row in rows]
        start = 0
        if limit is not None and len(messages) >= limit:
            break
    return messages


FROM_SESSION_HISTORY = (
    "FROM places p JOIN messages m ON m.id = p.message_id "
    "WHERE p.session_id = ? AND (p.seq < 0 OR p.seq >= ?) AND m.kind = 'message'"
)
"""The messages that a session adds to the history."""
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
    """The messages that one caller wants to append."""

    session_id: str
    """Any session of the thread."""
    new: Sequence[NewMessage]
    now: float
    lease: Lease | None = None
    prepared: Sequence[PreparedMessage] = ()

    def prepare(self) -> None:
        """Compute the rows once, before the transaction."""
        self.prepared = [prepare_message(new) for new in self.new]


def append_messages(tx: Tx, requests: Sequence[AppendRequest]) -> list[list[StoredMessage]]:
    """Append messages to their threads, and reopen threads that ended. Skip messages whose events are stored."""
    locked_threads = _lock_and_read(tx, requests)
    appends_by_thread: dict[str, _ThreadAppend] = {}
    stored_messages = []
    for request in requests:
        tip = locked_threads.tips_by_session.get(request.session_id)
        if tip is None:
            raise UnknownIdError(f"there is no thread or session {request.session_id!r}")
        if request.lease is not None:
            require_newest_lease(
                request.lease,
                tip.thread_id,
                locked_threads.leases_by_thread.get(request.lease.thread),
            )
        if tip.thread_id not in appends_by_thread:
            appends_by_thread[tip.thread_id] = _ThreadAppend(tx, tip, locked_threads)
        stored_messages.append(
            [
                appends_by_thread[tip.thread_id].add(message, request.now)
                for message in request.prepared
            ]
        )
    _write_new_rows(tx, list(appends_by_thread.values()))
    return stored_messages


@dataclass(slots=True)
class _LockedThreads:
    """The state of threads that are locked until the transaction ends."""

    tips_by_session: dict[str, ThreadTip]
    """The last session of each thread, by the session that the caller named."""
    leases_by_thread: dict[str, Row]
    """Number and holder of the newest lease on each thread."""
    stored_events: set[tuple[str, str]]
    """Thread and event of each message that is already stored."""
    new_ids: Iterator[int]
    """Ids for new messages."""


def _lock_and_read(tx: Tx, requests: Sequence[AppendRequest]) -> _LockedThreads:
    session_ids = list(dict.fromkeys(request.session_id for request in requests))
    leased_threads = list(
        dict.fromkeys(request.lease.thread for request in requests if request.lease is not None)
    )
    message_count = sum(len(request.prepared) for request in requests)
    if tx.dialect.for_update:
        tx.run(
            LOCK_THREADS.format(placeholders(session_ids), tx.dialect.for_update),
            session_ids,
        )
    select_lease = f"SELECT fence, holder FROM leases WHERE thread_id = ? {tx.dialect.for_share}"
    tips, ids, *other_rows = tx.all_of_each(
        [
            (SELECT_TIPS.format(placeholders(session_ids)), session_ids),
            (tx.dialect.select_new_ids.format("messages"), (message_count,)),
            *((select_lease, (thread,)) for thread in leased_threads),
            *_make_event_queries(requests),
        ]
    )
    newest_leases = {
        thread: rows[0]
        for thread, rows in zip(leased_threads, other_rows[: len(leased_threads)], strict=True)
        if rows
    }
    events = {(row[0], row[1]) for rows in other_rows[len(leased_threads) :] for row in rows}
    return _LockedThreads(
        {row[0]: ThreadTip(*row[1:]) for row in tips},
        newest_leases,
        events,
        iter(read_ids(ids, message_count)),
    )


def _make_event_queries(requests: Sequence[AppendRequest]) -> Iterator[SqlQuery]:
    """Yield queries for the events that are stored already."""
    events_by_session: dict[str, dict[str, None]] = {}
    for request in requests:
        events_by_session.setdefault(request.session_id, {}).update(
            dict.fromkeys(message.new.event for message in request.prepared)
        )
    for session, session_events in events_by_session.items():
        for batch in split_batches(list(session_events)):
            yield SELECT_EVENTS.format(placeholders(batch)), (session, *batch)


@dataclass(slots=True)
class _ThreadAppend:
    """The rows that one batch of requests appends to a thread."""

    tx: Tx
    tip: ThreadTip
    locked_threads: _LockedThreads
    stored_by_event: dict[str, StoredMessage] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    """The rows of new messages."""
    added_messages: list[StoredMessage] = field(default_factory=list)
    tools_by_call: dict[str, str] = field(default_factory=dict)
    """The tool of each call, by call id: calls of the batch, and stored calls as far back as needed."""
    first_read_seq: int | None = MAX_ID
    """The session's stored calls were read back to this position, or None if all were read."""

    def add(self, message: PreparedMessage, now: float) -> StoredMessage:
        """Add a message, or return the stored one of the same event.

        Messages must be added in order: a result belongs to the latest call of its id, and ids may repeat.
        """
        event = message.new.event
        self.tools_by_call |= map_calls_to_tools(message.calls)
        message = add_tool_names(message, self._find_tool)
        if event in self.stored_by_event:
            return self.stored_by_event[event]
        if (self.tip.thread_id, event) in self.locked_threads.stored_events:
            stored_message = load_by_event(self.tx, self.tip, event)
        else:
            stored_message = self._place_message(message, now)
        self.stored_by_event[event] = stored_message
        return stored_message

    def _find_tool(self, call_id: str) -> str:
        while call_id not in self.tools_by_call and self.first_read_seq is not None:
            rows = self.tx.all(
                "SELECT p.seq, m.body FROM places p JOIN messages m ON m.id = p.message_id WHERE p.session_id = ? "
                "AND p.seq < ? AND m.role = 'assistant' AND m.tool <> '' ORDER BY p.seq DESC LIMIT ?",
                (self.tip.id, self.first_read_seq, CALLS_PER_READ),
            )
            for _, body in rows:
                self.tools_by_call = (
                    map_calls_to_tools(calls_of(decode_body(body))) | self.tools_by_call
                )
            self.first_read_seq = rows[-1][0] if len(rows) == CALLS_PER_READ else None
        return self.tools_by_call.get(call_id, "")

    def _place_message(self, message: PreparedMessage, now: float) -> StoredMessage:
        new = message.new
        added_message = StoredMessage(
            next(self.locked_threads.new_ids),
            self.tip.id,
            seq=self.tip.next_seq + len(self.added_messages),
            kind=new.kind,
            body=new.body,
            event=new.event,
            tokens=new.tokens,
            created=now if new.created is None else new.created,
            origin=new.origin,
        )
        self.added_messages.append(added_message)
        self.rows.append((added_message.id, *message.make_row(self.tip.thread_id, now)))
        return added_message

    def make_session_values(self) -> Row:
        """Return the values of `UPDATE_ACTIVITY`."""
        history = [each for each in self.added_messages if each.kind == "message"]
        return (
            self.tip.next_seq + len(self.added_messages),
            history[-1].created if history else self.tip.last_active,
            self.tip.message_count + len(history),
            self.tip.token_count + sum(each.tokens or 0 for each in history),
            self.tip.id,
        )


UPDATE_ACTIVITY = (
    "UPDATE sessions SET next_seq = ?, last_active = ?, message_count = ?, token_count = ?, ended = NULL, "
    "end_reason = NULL WHERE id = ?"
)


def _write_new_rows(tx: Tx, threads: Sequence[_ThreadAppend]) -> None:
    changed_threads = [thread for thread in threads if thread.rows]
    if not changed_threads:
        return
    tx.run_many(
        f"INSERT INTO messages (id, {INSERT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [row for thread in changed_threads for row in thread.rows],
    )
    messages = [each for thread in changed_threads for each in thread.added_messages]
    tx.run_many(
        "INSERT INTO unindexed (message_id) VALUES (?)",
        [(message.id,) for message in messages if message.kind == "message"],
    )
    tx.run_many(
        "INSERT INTO places (session_id, seq, message_id) VALUES (?, ?, ?)",
        [(message.session, message.seq, message.id) for message in messages],
    )
    tx.run_many(UPDATE_ACTIVITY, [thread.make_session_values() for thread in changed_threads])
