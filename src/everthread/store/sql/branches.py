"""Branch a thread at a message: a new thread that begins with the same messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from everthread.errors import InputError, UnknownIdError
from everthread.store.database import MAX_ID, Tx, placeholders, split_batches
from everthread.store.records import NewSession, Session
from everthread.store.sql.compactions import place_messages
from everthread.store.sql.session_rows import (
    insert_session,
    list_session_chain,
    load_session,
    lock_thread,
)
from everthread.store.sql.session_state import copy_pins, list_nodes, put_nodes
from everthread.store.sql.stored_messages import FROM_SESSION_HISTORY
from everthread.store.sql.thread_rows import recount_thread
from everthread.store.value_codec import decode_json, unpack_body

OUTPUT_ID_PATTERN = re.compile(r"output:[0-9a-f]{16}")


def branch_thread(
    tx: Tx,
    now: float,
    session_id: str,
    at_message: int,
    *,
    new: NewSession | None = None,
) -> Session:
    """Create a thread that shares this thread's history up to a message, and outlives this thread."""
    thread_id = lock_thread(tx, session_id)
    source_id, context_ids = _find_context(tx, thread_id, at_message)
    source = load_session(tx, source_id)
    branch = new or NewSession(
        platform=source.platform,
        user=source.user,
        title=source.title,
        model=source.model,
        system=source.system,
        client=source.client,
    )
    branch = replace(branch, kind="branch", parent=source.id, tenant=source.tenant)
    if insert_session(tx, branch, thread_id=branch.id, now=now, branched_at=at_message):
        _insert_shared_messages(
            tx, branch.id, context_ids, list_history_ids(tx, thread_id, at_message)
        )
        _copy_citations(tx, thread_id, branch.id)
        # Summaries of shared messages: the context may cite them, and the branch outlives the parent thread.
        shared_nodes = [
            node for node in list_nodes(tx, thread_id) if node.last_message <= at_message
        ]
        put_nodes(tx, [replace(node, thread=branch.id) for node in shared_nodes])
        copy_pins(tx, thread_id, branch.id)
        recount_thread(tx, branch.id)
    stored_session = load_session(tx, branch.id)
    if (stored_session.kind, stored_session.parent, stored_session.branched_at) != (
        "branch",
        source.id,
        at_message,
    ):
        raise InputError(f"the id {branch.id!r} is taken by another session")
    return stored_session


def _find_context(tx: Tx, thread_id: str, at_message: int) -> tuple[str, list[int]]:
    """Return the session to branch from, and the messages it shows up to `at_message`.

    The session is the newest one that shows the message and whose summary covers no later message.
    """
    for session, _ in reversed(list_session_chain(tx, thread_id)):
        row = tx.one(
            "SELECT p.seq FROM places p JOIN messages m ON m.id = p.message_id "
            "WHERE p.session_id = ? AND p.message_id = ? AND m.kind = 'message' ORDER BY p.seq DESC LIMIT 1",
            (session, at_message),
        )
        if row is not None and not _does_summary_cover_later(tx, session, at_message):
            # The session no longer shows the message, but inherited it as a branch: use the inherited messages.
            first_seq = 0 if row[0] >= 0 else -MAX_ID
            rows = tx.all(
                "SELECT message_id FROM places WHERE session_id = ? AND seq >= ? AND seq <= ? ORDER BY seq",
                (session, first_seq, row[0]),
            )
            return session, [message_row[0] for message_row in rows]
    raise UnknownIdError(f"thread {thread_id} has no message {at_message} to branch at")


def _does_summary_cover_later(tx: Tx, session_id: str, at_message: int) -> bool:
    """Return whether the summary at the beginning of a session covers messages after `at_message`."""
    record = tx.value("SELECT record FROM compactions WHERE session_id = ?", (session_id,))
    if record is None:
        return False
    covered_ids = decode_json(record)["covered"]
    later_ids = [message_id for message_id in covered_ids if message_id > at_message]
    return bool(
        tx.all_for_keys("SELECT 1 FROM messages WHERE id IN ({}) AND kind = 'message'", later_ids)
    )


def list_history_ids(tx: Tx, thread_id: str, at_message: int | None) -> list[int]:
    """Return the ids of a thread's history up to a message, or of all its history."""
    ids: list[int] = []
    for session_and_inherited in list_session_chain(tx, thread_id):
        for row in tx.all(
            f"SELECT p.message_id {FROM_SESSION_HISTORY} ORDER BY p.seq",
            session_and_inherited,
        ):
            ids.append(row[0])
            if row[0] == at_message:
                return ids
    if at_message is None:
        return ids
    raise UnknownIdError(f"the history of thread {thread_id} has no message {at_message}")


def _insert_shared_messages(
    tx: Tx, session_id: str, context_ids: Sequence[int], history_ids: Sequence[int]
) -> None:
    """Let the session show these messages, and inherit the history if it holds others."""
    place_messages(tx, session_id, context_ids)
    if list(context_ids) == list(history_ids):
        tx.run("UPDATE sessions SET inherited_count = 0 WHERE id = ?", (session_id,))
        return
    rows = (
        (session_id, seq - len(history_ids), message_id)
        for seq, message_id in enumerate(history_ids)
    )
    tx.run_many("INSERT INTO places (session_id, seq, message_id) VALUES (?, ?, ?)", rows)


def _copy_citations(tx: Tx, thread_id: str, session_id: str) -> None:
    """Let the branch cite the outputs that its shared messages cite, so that they are kept as long as the branch."""
    stored_ids = {
        row[0]
        for row in tx.all(
            "SELECT DISTINCT output_id FROM citations WHERE thread_id = ?", (thread_id,)
        )
    }
    if not stored_ids:
        return
    rows = tx.all(
        "SELECT DISTINCT m.id, m.body FROM places p JOIN messages m ON m.id = p.message_id "
        "WHERE p.session_id = ?",
        (session_id,),
    )
    cited_ids = {key for row in rows for key in OUTPUT_ID_PATTERN.findall(unpack_body(row[1]))}
    for batch in split_batches(sorted(stored_ids & cited_ids)):
        tx.run(
            "INSERT INTO citations (thread_id, tenant, output_id, call_id, tool, created) "
            "SELECT ?, tenant, output_id, call_id, tool, created FROM citations "
            f"WHERE thread_id = ? AND output_id IN ({placeholders(batch)})",
            (session_id, thread_id, *batch),
        )
