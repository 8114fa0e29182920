"""Compaction continues a thread in a new session, and can be undone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from typing import Any

from everthread.core.exchange import System
from everthread.errors import InputError, NothingToUndoError, UnknownIdError
from everthread.store.base import CompactionRecord, Continuation, Lease, NewCompaction, NewSession, Node, Session
from everthread.store.database import Row, Tx
from everthread.store.operations import knowledge, messages, sessions, threads
from everthread.store.operations.appending import Request, append_many
from everthread.store.operations.prepared import Prepared


def continue_session(
    tx: Tx,
    session_id: str,
    compacted: Sequence[int | Prepared],
    *,
    seen: int,
    pending: Sequence[Prepared],
    compaction: NewCompaction,
    system: System,
    nodes: Sequence[Node] = (),
    new_id: str,
    now: float,
    lease: Lease | None,
) -> Continuation:
    """End a session and go on in a new one that holds the compacted messages, then what arrived unseen.

    `seen` is how many messages of the session the compaction knew. Of two processes the second gets the first's tip.
    `nodes`: summaries the compacted messages cite, stored with them or not at all.
    """
    old = sessions.hold_tip(tx, session_id)
    if old.id != session_id:
        first = tx.one("SELECT id FROM sessions WHERE parent_id = ? AND kind = 'continuation'", (session_id,))
        return Continuation(sessions.get(tx, old.id), won=first is not None and first[0] == new_id)
    sessions.check_fence(tx, old.thread, lease)
    if not 0 <= seen <= old.next_seq:
        raise InputError(f"session {session_id} has {old.next_seq} messages, {seen} cannot have been seen")
    if pending:
        append_many(tx, [Request(session_id, (), now, prepared=pending)])
    parent = sessions.get(tx, session_id)
    new = NewSession(
        id=new_id, kind="continuation", parent=session_id, tenant=parent.tenant, platform=parent.platform,
        user=parent.user, title=parent.title, model=parent.model,
        system=parent.system if system is None else system,
    )  # fmt: skip
    if not sessions.insert(tx, new, thread=parent.thread, now=now):
        raise InputError(f"the id {new_id!r} is taken by another session")
    unseen = tx.all("SELECT message_id FROM places WHERE session_id = ? AND seq >= ? ORDER BY seq", (session_id, seen))
    kept = [_message_id(tx, old.thread, entry, now) for entry in compacted]
    carry(tx, new_id, [*kept, *(row[0] for row in unseen)])
    knowledge.put_nodes(tx, [replace(node, thread=old.thread) for node in nodes], lease)
    threads.hand_over(tx, session_id, new_id)
    _end(tx, new_id, parent.ended, parent.end_reason)  # a thread that has ended stays so
    _end(tx, session_id, now, "compression")
    tx.run(
        "INSERT INTO compactions (thread_id, parent_id, session_id, created, tokens_before, tokens_after, record) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            old.thread, session_id, new_id, now, compaction.tokens_before, compaction.tokens_after,
            record_text(compaction),
        ),
    )  # fmt: skip
    return Continuation(sessions.get(tx, new_id), won=True)


def _end(tx: Tx, session_id: str, ended: float | None, reason: str | None) -> None:
    tx.run("UPDATE sessions SET ended = ?, end_reason = ? WHERE id = ?", (ended, reason, session_id))


def _message_id(tx: Tx, thread: str, entry: int | Prepared, now: float) -> int:
    """The id of a message the continuation keeps, or of one made for it."""
    if isinstance(entry, int):
        if not _belongs(tx, thread, entry):
            raise UnknownIdError(f"thread {thread} has no message {entry}; nothing was changed")
        return entry
    if entry.new.kind == "message":
        raise InputError("a compaction makes summaries and derived messages; what was said is appended or pending")
    made = messages.insert(tx, thread, entry, now)
    if made is not None:
        return made
    row = tx.one("SELECT id FROM messages WHERE thread_id = ? AND event = ?", (thread, entry.new.event))
    assert row is not None
    return int(row[0])


def _belongs(tx: Tx, thread: str, message_id: int) -> bool:
    """Whether a message is the thread's own, or came along when it branched."""
    row = tx.one(
        "SELECT 1 FROM messages WHERE id = ? AND (thread_id = ? OR EXISTS "
        "(SELECT 1 FROM places WHERE session_id = ? AND message_id = messages.id))",
        (message_id, thread, thread),
    )
    return row is not None


def carry(tx: Tx, session_id: str, ids: Sequence[int]) -> None:
    """Place messages in a new session, each once; they are what it begins with, not what it adds."""
    unique = list(dict.fromkeys(ids))
    rows = ((session_id, seq, message_id) for seq, message_id in enumerate(unique))
    tx.many("INSERT INTO places (session_id, seq, message_id) VALUES (?, ?, ?)", rows)
    tx.run("UPDATE sessions SET next_seq = ?, carried = ? WHERE id = ?", (len(unique), len(unique), session_id))


def undo(tx: Tx, session_id: str, now: float, lease: Lease | None) -> Session:
    """Take back the thread's last compaction: its parent is live again and gets what was added since."""
    tip = sessions.hold_tip(tx, session_id)
    sessions.check_fence(tx, tip.thread, lease)
    if tip.kind != "continuation" or tip.parent is None:
        raise NothingToUndoError(f"thread {tip.thread} has no compaction that could be undone")
    parent = sessions.get(tx, tip.parent)
    added = tx.all(
        "SELECT p.message_id FROM places p JOIN sessions s ON s.id = p.session_id "
        "WHERE p.session_id = ? AND p.seq >= s.carried ORDER BY p.seq",
        (tip.id,),
    )
    rows = [(parent.id, parent.messages + offset, row[0]) for offset, row in enumerate(added)]
    tx.many("INSERT INTO places (session_id, seq, message_id) VALUES (?, ?, ?)", rows)
    tx.run("UPDATE sessions SET next_seq = ? WHERE id = ?", (parent.messages + len(rows), parent.id))
    tx.run("UPDATE sessions SET kind = 'reverted' WHERE id = ?", (tip.id,))
    threads.hand_over(tx, tip.id, parent.id)
    _end(tx, parent.id, tip.ended, tip.end_reason)
    _end(tx, tip.id, now, "reverted")
    tx.run("UPDATE compactions SET reverted = ? WHERE session_id = ?", (now, tip.id))
    return sessions.get(tx, parent.id)


def compactions(tx: Tx, thread: str) -> list[CompactionRecord]:
    rows = tx.all(
        "SELECT id, thread_id, parent_id, session_id, created, reverted, record FROM compactions "
        "WHERE thread_id = ? ORDER BY id",
        (sessions.thread_of(tx, thread),),
    )
    return [as_compaction(row) for row in rows]


def record(tx: Tx, session_id: str, compaction: NewCompaction, now: float) -> None:
    """Of a compaction that made no new session: what its client sends is compacted, the session stays whole."""
    row = tx.one("SELECT thread_id FROM sessions WHERE id = ?", (session_id,))
    if row is not None:
        sizes = compaction.tokens_before, compaction.tokens_after
        tx.run(
            "INSERT INTO compactions (thread_id, parent_id, session_id, created, tokens_before, tokens_after, record) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (row[0], session_id, session_id, now, *sizes, record_text(compaction)),
        )


def as_compaction(row: Row) -> CompactionRecord:
    return CompactionRecord(*[*row[:6], read_record(sessions.from_json(row[6]))])


def read_record(record: dict[str, Any]) -> NewCompaction:
    cost = None if record["cost"] is None else Decimal(record["cost"])
    return NewCompaction(**{**record, "cost": cost})


def record_text(compaction: NewCompaction) -> str:
    record = asdict(compaction)
    cost = None if compaction.cost is None else str(compaction.cost)
    return sessions.json_text(
        {**record, "covered": list(compaction.covered), "warnings": list(compaction.warnings), "cost": cost}
    )
