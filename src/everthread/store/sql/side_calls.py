"""Attach the side calls of a client, such as the call for a title, to its conversations."""

from __future__ import annotations

from dataclasses import replace

from everthread.core.messages import calls_of
from everthread.store.database import Tx
from everthread.store.records import NewSession
from everthread.store.value_codec import clean_text, decode_body


def find_conversation(tx: Tx, tenant: str, client_session: str, platform: str) -> str | None:
    """Return the last used conversation of a client's session, to which its side calls belong, or None."""
    thread_id: str | None = tx.value(
        "SELECT id FROM sessions WHERE tenant = ? AND client_session = ? AND client_session <> '' AND platform = ? "
        "AND kind IN ('main', 'branch') AND id = thread_id ORDER BY last_active DESC, started DESC, id DESC LIMIT 1",
        (tenant, clean_text(client_session), platform),
    )
    return thread_id


def has_open_calls(tx: Tx, thread_id: str) -> bool:
    """Return whether the last message of a thread has tool calls, so that their results are still missing."""
    sql = "SELECT body FROM messages WHERE thread_id = ? AND kind = 'message' ORDER BY id DESC LIMIT 1"
    return bool(calls_of(decode_body(tx.value(sql, (thread_id,)) or b"{}")))


def place_side_call(tx: Tx, new: NewSession, client_parent: str) -> NewSession:
    """Return the new thread as a side call of its client's conversation, unless it is a conversation itself.

    A client may use one session for many conversations. So a thread of kind `main` becomes a side call only while the
    conversation waits for the results of its calls.
    """
    conversation = find_conversation(tx, new.tenant, client_parent, new.platform)
    if conversation is not None and (new.kind != "main" or has_open_calls(tx, conversation)):
        return replace(new, kind="side", parent=conversation)
    return replace(new, kind="side") if new.kind == "subagent" else new


def adopt_side_calls(tx: Tx, thread_id: str) -> None:
    """Make this conversation the parent of its client's side calls that have no parent."""
    tx.run(
        "UPDATE sessions SET parent_id = ? WHERE kind = 'side' AND parent_id IS NULL AND client_session <> '' "
        "AND (tenant, client_session, platform) = (SELECT tenant, client_session, platform FROM sessions WHERE id = ?)",
        (thread_id, thread_id),
    )


def promote_side_call(tx: Tx, thread_id: str, parent_id: str | None) -> None:
    """Make a conversation of a side call that continues, unless its parent waits for results."""
    if parent_id is None or not has_open_calls(tx, parent_id):
        tx.run(
            "UPDATE sessions SET kind = 'main', parent_id = NULL WHERE id = ?",
            (thread_id,),
        )
        adopt_side_calls(tx, thread_id)
