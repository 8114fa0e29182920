"""Messages appended, any number for any threads at once: a few statements, however many callers wait for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.errors import UnknownIdError
from everthread.store.base import Lease, NewMessage, StoredMessage
from everthread.store.database import Question, Row, Tx
from everthread.store.operations import sessions
from everthread.store.operations.messages import by_event
from everthread.store.operations.prepared import Prepared, prepare
from everthread.store.operations.sessions import Tip, placeholders
from everthread.store.operations.tools import CallNames

HOLD = "SELECT id FROM sessions WHERE id IN (SELECT thread_id FROM sessions WHERE id IN ({})) ORDER BY id {}"
TIPS = (
    f"SELECT s.id, {sessions.TIP} FROM sessions s JOIN sessions t ON t.thread_id = s.thread_id "
    f"WHERE s.id IN ({{}}) AND {sessions.IS_TIP}"
)
KNOWN = (
    "SELECT thread_id, event FROM messages WHERE thread_id = (SELECT thread_id FROM sessions WHERE id = ?) "
    "AND event IN ({})"
)
CHUNK = 500
"""So many events are asked for at once."""


@dataclass(slots=True)
class Request:
    """What one caller wants appended."""

    session: str
    """Any session of the thread."""
    new: Sequence[NewMessage]
    now: float
    lease: Lease | None = None
    prepared: Sequence[Prepared] = ()

    def prepare(self) -> None:
        self.prepared = [prepare(new) for new in self.new]


def append_many(tx: Tx, requests: Sequence[Request]) -> list[list[StoredMessage]]:
    """Store and place messages where their threads go on. What is new reopens a thread; a known event stays."""
    seen = _look(tx, requests)
    threads: dict[str, _Growing] = {}
    stored = []
    for request in requests:
        tip = seen.tips.get(request.session)
        if tip is None:
            raise UnknownIdError(f"there is no thread or session {request.session!r}")
        if request.lease is not None:
            sessions.check_lease(request.lease, tip.thread, seen.leases.get(request.lease.thread))
        if tip.thread not in threads:
            threads[tip.thread] = _Growing(tx, tip, seen)
        stored.append([threads[tip.thread].take(item, request.now) for item in request.prepared])
    _write(tx, list(threads.values()))
    return stored


@dataclass(slots=True)
class _Seen:
    """What is known of the threads, which are held until the transaction ends."""

    tips: dict[str, Tip]
    """By the session that was named."""
    leases: dict[str, Row]
    events: set[tuple[str, str]]
    """Thread and event of what is stored already."""
    ids: Iterator[int]
    """For new messages."""


def _look(tx: Tx, requests: Sequence[Request]) -> _Seen:
    names = list(dict.fromkeys(request.session for request in requests))
    leased = list(dict.fromkeys(request.lease.thread for request in requests if request.lease is not None))
    count = sum(len(request.prepared) for request in requests)
    if tx.dialect.lock:
        tx.run(HOLD.format(placeholders(names), tx.dialect.lock), names)
    fence = f"SELECT fence, holder FROM leases WHERE thread_id = ? {tx.dialect.share}"
    tips, ids, *rest = tx.ask(
        [
            (TIPS.format(placeholders(names)), names),
            (tx.dialect.new_ids.format("messages"), (count,)),
            *((fence, (thread,)) for thread in leased),
            *_known(requests),
        ]
    )
    fences = {thread: rows[0] for thread, rows in zip(leased, rest[: len(leased)], strict=True) if rows}
    events = {(row[0], row[1]) for rows in rest[len(leased) :] for row in rows}
    return _Seen({row[0]: Tip(*row[1:]) for row in tips}, fences, events, iter([int(row[0]) for row in ids]))


def _known(requests: Sequence[Request]) -> Iterator[Question]:
    """Which of the events are stored already."""
    events: dict[str, dict[str, None]] = {}
    for request in requests:
        events.setdefault(request.session, {}).update(dict.fromkeys(item.new.event for item in request.prepared))
    for session, named in events.items():
        every = list(named)
        for start in range(0, len(every), CHUNK):
            some = every[start : start + CHUNK]
            yield KNOWN.format(placeholders(some)), (session, *some)


@dataclass(slots=True)
class _Growing:
    """A thread, and what is added to it."""

    tx: Tx
    tip: Tip
    seen: _Seen
    stored: dict[str, StoredMessage] = field(default_factory=dict)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    """New messages, as they are inserted."""
    places: list[tuple[str, int, int]] = field(default_factory=list)
    said: int = 0
    tokens: int = 0
    active: float = 0.0
    calls: CallNames = field(init=False)

    def __post_init__(self) -> None:
        self.calls = CallNames(self.tx, self.tip.id)
        self.said, self.tokens, self.active = self.tip.said, self.tip.said_tokens, self.tip.active

    def take(self, item: Prepared, now: float) -> StoredMessage:
        event = item.new.event
        item = self.calls.named(item)
        if event not in self.stored:
            known = (self.tip.thread, event) in self.seen.events
            self.stored[event] = by_event(self.tx, self.tip, event) if known else self._place(item, now)
        return self.stored[event]

    def _place(self, item: Prepared, now: float) -> StoredMessage:
        new, message_id, seq = item.new, next(self.seen.ids), self.tip.next_seq + len(self.places)
        created = now if new.created is None else new.created
        self.rows.append(
            (
                message_id, self.tip.thread, new.event, new.kind, item.role, item.tool, item.text, new.tokens,
                item.canonical, item.byte_order, created, new.origin,
            )
        )  # fmt: skip
        self.places.append((self.tip.id, seq, message_id))
        if new.kind == "message":
            self.said, self.tokens, self.active = self.said + 1, self.tokens + (new.tokens or 0), created
        return StoredMessage(
            message_id, self.tip.id, seq, new.kind, new.body, new.event, new.tokens, item.canonical, item.byte_order,
            created, new.origin,
        )  # fmt: skip


def _write(tx: Tx, threads: Sequence[_Growing]) -> None:
    grown = [thread for thread in threads if thread.rows]
    if not grown:
        return
    rows = [row for thread in grown for row in thread.rows]
    tx.many(
        "INSERT INTO messages (id, thread_id, event, kind, role, tool, body, tokens, canonical, byte_order, created, "
        "origin) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )
    tx.many("INSERT INTO unindexed (message_id) VALUES (?)", [(row[0],) for row in rows if row[3] == "message"])
    tx.many(
        "INSERT INTO places (session_id, seq, message_id) VALUES (?, ?, ?)",
        [place for thread in grown for place in thread.places],
    )
    tx.many(
        "UPDATE sessions SET next_seq = ?, active = ?, said = ?, said_tokens = ?, ended = NULL, end_reason = NULL "
        "WHERE id = ?",
        [
            (thread.tip.next_seq + len(thread.places), thread.active, thread.said, thread.tokens, thread.tip.id)
            for thread in grown
        ],
    )
