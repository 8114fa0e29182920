"""A thread of its own that begins with a part of another one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from everthread.errors import InputError, UnknownIdError
from everthread.store.base import NewSession, Session
from everthread.store.database import Tx
from everthread.store.operations import knowledge, messages, sessions, threads
from everthread.store.operations.continuation import carry
from everthread.store.operations.sessions import from_json, placeholders

OUTPUT = re.compile(r"output:[0-9a-f]{16}")


def branch(tx: Tx, session_id: str, at_message: int, new: NewSession | None, fresh_id: str, now: float) -> Session:
    """A thread that shares everything through a message with this one, and outlives it."""
    thread = sessions.hold(tx, session_id)
    source_id, context = _context(tx, thread, at_message)
    source = sessions.get(tx, source_id)
    made = new or NewSession(
        id=fresh_id, platform=source.platform, user=source.user, title=source.title, model=source.model,
        system=source.system,
    )  # fmt: skip
    made = replace(made, kind="branch", parent=source.id, tenant=source.tenant)
    if sessions.insert(tx, made, thread=made.id, now=now, branched_at=at_message):
        _share(tx, made.id, context, _said(tx, thread, at_message))
        _cite(tx, thread, made.id)
        _take_nodes(tx, thread, made.id, at_message)
        threads.recount(tx, made.id)
    known = sessions.get(tx, made.id)
    if (known.kind, known.parent, known.branched_at) != ("branch", source.id, at_message):
        raise InputError(f"the id {made.id!r} is taken by another session")
    return known


def _context(tx: Tx, thread: str, at_message: int) -> tuple[str, list[int]]:
    """The session to branch from, and what it shows up to the message.

    The newest session that shows it serves, unless that session's summary tells of what came later.
    """
    for session, _ in reversed(sessions.chain(tx, thread)):
        row = tx.one(
            "SELECT p.seq FROM places p JOIN messages m ON m.id = p.message_id "
            "WHERE p.session_id = ? AND p.message_id = ? AND m.kind = 'message' ORDER BY p.seq DESC LIMIT 1",
            (session, at_message),
        )
        if row is not None and not _tells_of_later(tx, session, at_message):
            # Not shown any more, only part of what an earlier branch took over: that is the context then.
            first = 0 if row[0] >= 0 else -sessions.LAST
            shown = tx.all(
                "SELECT message_id FROM places WHERE session_id = ? AND seq >= ? AND seq <= ? ORDER BY seq",
                (session, first, row[0]),
            )
            return session, [entry[0] for entry in shown]
    raise UnknownIdError(f"thread {thread} has no message {at_message} to branch at")


def _tells_of_later(tx: Tx, session: str, at_message: int) -> bool:
    """Whether the summary a session begins with covers something that was said after a message."""
    row = tx.one("SELECT record FROM compactions WHERE session_id = ?", (session,))
    later = [covered for covered in from_json(row[0])["covered"] if covered > at_message] if row else []
    return any(tx.one("SELECT 1 FROM messages WHERE id = ? AND kind = 'message'", (each,)) for each in later)


def _said(tx: Tx, thread: str, at_message: int) -> list[int]:
    """Ids of the history through a message."""
    found: list[int] = []
    for link in sessions.chain(tx, thread):
        for row in tx.all(f"SELECT p.message_id {messages.SAID} ORDER BY p.seq", link):
            found.append(row[0])
            if row[0] == at_message:
                return found
    raise UnknownIdError(f"the history of thread {thread} has no message {at_message}")


def _share(tx: Tx, session_id: str, context: Sequence[int], said: Sequence[int]) -> None:
    """Place the context, and before it the history where that is more."""
    carry(tx, session_id, context)
    if list(context) == list(said):
        tx.run("UPDATE sessions SET carried = 0 WHERE id = ?", (session_id,))
        return
    rows = ((session_id, seq - len(said), message_id) for seq, message_id in enumerate(said))
    tx.many("INSERT INTO places (session_id, seq, message_id) VALUES (?, ?, ?)", rows)


def _cite(tx: Tx, thread: str, session_id: str) -> None:
    """Stored outputs that the shared messages cite live as long as the branch, too."""
    kept = tx.all("SELECT DISTINCT output_id FROM citations WHERE thread_id = ?", (thread,))
    cited = sorted({row[0] for row in kept} & set(_cited(tx, session_id))) if kept else []
    for start in range(0, len(cited), 500):
        some = cited[start : start + 500]
        tx.run(
            "INSERT INTO citations (thread_id, tenant, output_id, call_id, tool, created) "
            "SELECT ?, tenant, output_id, call_id, tool, created FROM citations "
            f"WHERE thread_id = ? AND output_id IN ({placeholders(some)})",
            (session_id, thread, *some),
        )


def _take_nodes(tx: Tx, thread: str, session_id: str, at_message: int) -> None:
    """Summaries of what is shared: the context may cite them, and the branch outlives the thread they came from."""
    shared = [node for node in knowledge.nodes(tx, thread) if node.last_message <= at_message]
    knowledge.put_nodes(tx, [replace(node, thread=session_id) for node in shared], None)


def _cited(tx: Tx, session_id: str) -> Iterator[str]:
    for row in tx.all(
        "SELECT DISTINCT m.id, m.body FROM places p JOIN messages m ON m.id = p.message_id "
        "WHERE p.session_id = ? AND m.body LIKE ?",
        (session_id, "%output:%"),
    ):
        yield from OUTPUT.findall(row[1])
