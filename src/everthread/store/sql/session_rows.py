"""Store and list sessions, and find the threads and families that they form."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from everthread.core.types import System
from everthread.errors import AmbiguousIdError, InputError, UnknownIdError
from everthread.store.database import Row, Tx, make_equality_condition, placeholders
from everthread.store.records import NewSession, Session, SessionKind
from everthread.store.value_codec import clean_text, decode_json, encode_json

SESSION_COLUMNS = (
    "s.id, s.thread_id, s.parent_id, s.kind, s.tenant, s.platform, s.user_name, s.title, s.model, t.body, "
    "s.started, s.ended, s.end_reason, s.next_seq, s.branched_at, s.client, s.client_session"
)
SELECT_SESSION = (
    f"SELECT {SESSION_COLUMNS} FROM sessions s LEFT JOIN texts t ON t.hash = s.system_hash"
)

SELECT_THREAD_NUMBERS = "SELECT number FROM sessions WHERE id IN ({})"
"""The numbers of threads, used instead of their ids in the table `chunks`."""


def decode_session(row: Row) -> Session:
    system: System = decode_json(row[9]) if row[9] is not None else None
    return Session(*[*row[:9], system, *row[10:]])


def load_session(tx: Tx, session_id: str) -> Session:
    row = tx.one(f"{SELECT_SESSION} WHERE s.id = ?", (session_id,))
    if row is None:
        raise UnknownIdError(f"there is no session {session_id!r}")
    return decode_session(row)


def find_thread(tx: Tx, session_id: str) -> str:
    """Return the thread of a session. A thread can be named by the id of any of its sessions."""
    thread_id: str | None = tx.value("SELECT thread_id FROM sessions WHERE id = ?", (session_id,))
    if thread_id is None:
        raise UnknownIdError(f"there is no thread or session {session_id!r}")
    return thread_id


def lock_thread(tx: Tx, session_id: str) -> str:
    """Lock the thread of a session until the transaction ends, and return the thread.

    Every change of a thread takes this lock, which is on the row of its first session.
    """
    thread_id: str | None = tx.value(
        f"SELECT id FROM sessions WHERE id = (SELECT thread_id FROM sessions WHERE id = ?) {tx.dialect.for_update}",
        (session_id,),
    )
    if thread_id is None:
        raise UnknownIdError(f"there is no thread or session {session_id!r}")
    return thread_id


def find_threads(tx: Tx, session_ids: Sequence[str]) -> dict[str, str]:
    """Return the thread of each session that exists."""
    return dict(tx.all_for_keys("SELECT id, thread_id FROM sessions WHERE id IN ({})", session_ids))


def resolve_session(tx: Tx, prefix: str, *, tenant: str | None = None) -> Session:
    """Return the session whose id is or begins with `prefix`; raise an error unless there is exactly one."""
    where, values = make_equality_condition({"s.tenant": tenant})
    upper_bound = prefix + "\U0010ffff"  # sorts after every id with this prefix
    sql = f"{SELECT_SESSION} WHERE s.id >= ? AND s.id < ? AND {where} ORDER BY s.id LIMIT 4"
    rows = tx.all(sql, (prefix, upper_bound, *values)) if prefix else []
    sessions = [decode_session(row) for row in rows]
    if not sessions:
        raise UnknownIdError(f"no session's id begins with {prefix!r}")
    # An id that equals the prefix is the first.
    if len(sessions) > 1 and sessions[0].id != prefix:
        examples = ", ".join(session.id[: len(prefix) + 6] for session in sessions[:3])
        raise AmbiguousIdError(
            f"several sessions begin with {prefix!r} ({examples} …): give more of the id"
        )
    return sessions[0]


def list_sessions(
    tx: Tx,
    *,
    tenant: str | None = None,
    kind: SessionKind | None = None,
    limit: int = 50,
    offset: int = 0,
) -> list[Session]:
    """Return sessions, the newest first."""
    where, values = make_equality_condition({"s.tenant": tenant, "s.kind": kind})
    sql = f"{SELECT_SESSION} WHERE {where} ORDER BY s.started DESC, s.id LIMIT ? OFFSET ?"
    return [decode_session(row) for row in tx.all(sql, (*values, limit, offset))]


def list_thread_sessions(tx: Tx, thread_id: str) -> list[Session]:
    """Return every session of a thread, also reverted ones, the oldest first."""
    rows = tx.all(
        f"{SELECT_SESSION} WHERE s.thread_id = ? ORDER BY s.started, s.id",
        (find_thread(tx, thread_id),),
    )
    return [decode_session(row) for row in rows]


def list_child_threads(tx: Tx, thread_id: str) -> list[Session]:
    """Return the first sessions of the threads that began in this one: subagents, side calls and branches."""
    rows = tx.all(
        f"{SELECT_SESSION} WHERE s.thread_id <> ? AND s.parent_id IN (SELECT id FROM sessions WHERE thread_id = ?) "
        "ORDER BY s.started, s.id",
        (thread_id, thread_id),
    )
    return [decode_session(row) for row in rows]


def list_subagents(tx: Tx, thread_id: str) -> list[str]:
    """Return the threads of all subagents and side calls of a thread, at any depth."""
    threads = [thread_id]
    unread_threads = [thread_id]
    while unread_threads:
        children = list_child_threads(tx, unread_threads.pop())
        new_threads = [
            child.id
            for child in children
            if child.kind in ("subagent", "side") and child.id not in threads
        ]
        threads += new_threads
        unread_threads += new_threads
    return threads[1:]


def list_session_chain(tx: Tx, thread_id: str) -> list[tuple[str, int]]:
    """Return the sessions of a thread from the first to the last, each with the number of messages it inherited."""
    rows = tx.all(
        "SELECT id, parent_id, kind, inherited_count FROM sessions WHERE thread_id = ?",
        (thread_id,),
    )
    inherited_counts = {row[0]: row[3] for row in rows}
    continuations = {row[1]: row[0] for row in rows if row[2] == "continuation"}
    chain: list[tuple[str, int]] = []
    session_id = thread_id if thread_id in inherited_counts else None
    while session_id is not None:
        chain.append((session_id, inherited_counts[session_id]))
        session_id = continuations.get(session_id)
    return chain


IS_TIP = (
    "t.kind <> 'reverted' AND NOT EXISTS "
    "(SELECT 1 FROM sessions c WHERE c.parent_id = t.id AND c.kind = 'continuation')"
)
"""SQL condition for the session in which a thread continues: it is neither reverted nor continued."""


def find_tip(tx: Tx, session_id: str) -> str:
    """Return the session in which a thread continues, given any session of the thread."""
    tip: str | None = tx.value(
        f"SELECT t.id FROM sessions s JOIN sessions t ON t.thread_id = s.thread_id WHERE s.id = ? AND {IS_TIP}",
        (session_id,),
    )
    if tip is None:
        raise UnknownIdError(f"there is no session {session_id!r}")
    return tip


TIP_COLUMNS = (
    "t.id, t.thread_id, t.kind, t.parent_id, t.ended, t.end_reason, "
    "t.next_seq, t.last_active, t.message_count, t.token_count"
)


@dataclass(frozen=True, slots=True)
class ThreadTip:
    """The last session of a locked thread."""

    id: str
    thread_id: str
    kind: SessionKind
    parent_id: str | None
    ended_at: float | None
    end_reason: str | None
    next_seq: int
    last_active: float
    message_count: int
    token_count: int


def lock_tip(tx: Tx, session_id: str) -> ThreadTip:
    """Lock the thread of a session, and return the session in which it continues."""
    sql = f"SELECT {TIP_COLUMNS} FROM sessions t WHERE t.thread_id = ? AND {IS_TIP}"
    [row] = tx.all(sql, (lock_thread(tx, session_id),))
    return ThreadTip(*row)


def insert_session(
    tx: Tx, new: NewSession, *, thread_id: str, now: float, branched_at: int | None = None
) -> bool:
    """Insert a session and return True; return False and change nothing if it exists."""
    started = now if new.started is None else new.started
    values = (
        new.id,
        thread_id,
        new.parent,
        new.kind,
        new.tenant,
        new.platform,
        new.user,
        clean_text(new.title),
        new.model,
        store_system_prompt(tx, new.system),
        started,
        started,
        branched_at,
        clean_text(new.client),
        clean_text(new.client_session),
    )
    row = tx.one(
        "INSERT INTO sessions (id, thread_id, parent_id, kind, tenant, platform, user_name, title, model, system_hash, "
        f"started, last_active, branched_at, client, client_session) VALUES ({placeholders(values)}) "
        "ON CONFLICT (id) DO NOTHING RETURNING id",
        values,
    )
    return row is not None


def create_session(tx: Tx, new: NewSession, now: float) -> Session:
    if new.kind not in CREATABLE_KINDS:
        raise InputError(
            f"a session of kind {new.kind!r} is not created: `continue_session` and `branch` make those"
        )
    if (
        new.parent is not None
        and load_session(tx, lock_thread(tx, new.parent)).tenant != new.tenant
    ):
        raise UnknownIdError(f"tenant {new.tenant!r} has no session {new.parent!r}")
    insert_session(tx, new, thread_id=new.id, now=now)
    stored_session = load_session(tx, new.id)
    if (stored_session.kind, stored_session.parent, stored_session.tenant) != (
        new.kind,
        new.parent,
        new.tenant,
    ):
        raise InputError(f"the id {new.id!r} is taken by another session")
    return stored_session


CREATABLE_KINDS = frozenset({"main", "subagent", "side"})


def store_system_prompt(tx: Tx, system: System) -> str | None:
    """Store a system prompt and return its hash. Equal prompts are stored once."""
    if system is None:
        return None
    body = encode_json(system)
    prompt_hash = hashlib.sha256(body.encode()).hexdigest()
    # Read with a lock, because another process may be deleting the prompt as unused.
    while (
        tx.one(f"SELECT 1 FROM texts WHERE hash = ? {tx.dialect.for_share}", (prompt_hash,)) is None
    ):
        tx.run(
            "INSERT INTO texts VALUES (?, ?) ON CONFLICT (hash) DO NOTHING",
            (prompt_hash, body),
        )
    return prompt_hash


MAX_FAMILY_THREADS = 200
"""Maximum threads of a client's session to list, the last used ones."""


def list_family(tx: Tx, thread_id: str) -> list[str]:
    """Return a thread, the threads it branched from or works for, and all threads of the same client sessions.

    Only threads of the same platform count: users of two frameworks may give their sessions the same name.
    """
    ancestors: dict[str, None] = {}
    family: dict[str, None] = {}
    current: str | None = thread_id
    while current is not None and current not in ancestors:
        first_session = load_session(tx, load_session(tx, current).thread)
        ancestors |= {current: None, first_session.id: None}
        family |= dict.fromkeys([first_session.id, *_list_client_threads(tx, first_session)])
        current = first_session.parent
    return list(family)


def _list_client_threads(tx: Tx, session: Session) -> list[str]:
    rows = tx.all(
        "SELECT id FROM sessions WHERE tenant = ? AND client_session = ? AND client_session <> '' AND platform = ? "
        "AND id = thread_id ORDER BY last_active DESC, id LIMIT ?",
        (session.tenant, session.client_session, session.platform, MAX_FAMILY_THREADS),
    )
    return [row[0] for row in rows]
