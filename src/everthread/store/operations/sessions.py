"""Sessions and threads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.exchange import System
from everthread.errors import AmbiguousIdError, InputError, LeaseLostError, StoreDamagedError, UnknownIdError
from everthread.store.base import Lease, NewSession, Session, SessionKind
from everthread.store.database import Row, Tx

COLUMNS = (
    "s.id, s.thread_id, s.parent_id, s.kind, s.tenant, s.platform, s.user_name, s.title, s.model, t.body, "
    "s.started, s.ended, s.end_reason, s.next_seq, s.branched_at"
)
SELECT = f"SELECT {COLUMNS} FROM sessions s LEFT JOIN texts t ON t.hash = s.system_hash"


def as_session(row: Row) -> Session:
    system: System = from_json(row[9]) if row[9] is not None else None
    return Session(*[*row[:9], system, *row[10:]])


def get(tx: Tx, session_id: str) -> Session:
    row = tx.one(f"{SELECT} WHERE s.id = ?", (session_id,))
    if row is None:
        raise UnknownIdError(f"there is no session {session_id!r}")
    return as_session(row)


def thread_of(tx: Tx, session_id: str) -> str:
    """The thread of a session. Wherever a thread is named, any of its sessions' ids will do."""
    row = tx.one("SELECT thread_id FROM sessions WHERE id = ?", (session_id,))
    if row is None:
        raise UnknownIdError(f"there is no thread or session {session_id!r}")
    return str(row[0])


def hold(tx: Tx, session_id: str) -> str:
    """The thread of a session, held: its first session's row is locked until the transaction ends.

    Everything that changes a thread holds it, so what is read of it afterwards stays true.
    """
    row = tx.one(
        f"SELECT id FROM sessions WHERE id = (SELECT thread_id FROM sessions WHERE id = ?) {tx.dialect.lock}",
        (session_id,),
    )
    if row is None:
        raise UnknownIdError(f"there is no thread or session {session_id!r}")
    return str(row[0])


def threads_of(tx: Tx, session_ids: Sequence[str]) -> dict[str, str]:
    """The threads of those sessions that are there."""
    if not session_ids:
        return {}
    return dict(tx.all(f"SELECT id, thread_id FROM sessions WHERE id IN ({placeholders(session_ids)})", session_ids))


def resolve(tx: Tx, prefix: str, tenant: str | None) -> Session:
    """The session whose id is this or begins like this, if there is exactly one."""
    where, values = ("", ()) if tenant is None else (" AND s.tenant = ?", (tenant,))
    exact = tx.all(f"{SELECT} WHERE s.id = ?{where}", (prefix, *values))
    after = prefix + "\U0010ffff"  # sorts behind whatever begins like this
    begun = f"{SELECT} WHERE s.id >= ? AND s.id < ?{where} ORDER BY s.id LIMIT 4"
    rows = exact or (tx.all(begun, (prefix, after, *values)) if prefix else [])
    found = [as_session(row) for row in rows]
    if not found:
        raise UnknownIdError(f"no session's id begins with {prefix!r}")
    if len(found) > 1:
        some = ", ".join(session.id[: len(prefix) + 6] for session in found[:3])
        raise AmbiguousIdError(f"several sessions begin with {prefix!r} ({some} …): give more of the id")
    return found[0]


def listed(tx: Tx, tenant: str | None, kind: SessionKind | None, limit: int, offset: int) -> list[Session]:
    """The newest first."""
    where, values = ["1 = 1"], []
    for column, value in (("tenant", tenant), ("kind", kind)):
        if value is not None:
            where.append(f"s.{column} = ?")
            values.append(value)
    sql = f"{SELECT} WHERE {' AND '.join(where)} ORDER BY s.started DESC, s.id LIMIT ? OFFSET ?"
    return [as_session(row) for row in tx.all(sql, (*values, limit, offset))]


def children(tx: Tx, session_id: str) -> list[Session]:
    return [
        as_session(row) for row in tx.all(f"{SELECT} WHERE s.parent_id = ? ORDER BY s.started, s.id", (session_id,))
    ]


def of_thread(tx: Tx, thread: str) -> list[Session]:
    """Every session of a thread, reverted ones too, oldest first."""
    return [as_session(row) for row in tx.all(f"{SELECT} WHERE s.thread_id = ? ORDER BY s.started, s.id", (thread,))]


def chain(tx: Tx, thread: str) -> list[tuple[str, int]]:
    """The thread's sessions from the first to the tip, each continuing the one before, with how much each carried."""
    rows = tx.all("SELECT id, parent_id, kind, carried FROM sessions WHERE thread_id = ?", (thread,))
    following = {parent: (key, carried) for key, parent, kind, carried in rows if kind == "continuation"}
    link = next(((key, carried) for key, _, _, carried in rows if key == thread), None)
    found: list[tuple[str, int]] = []
    while link is not None:
        found.append(link)
        link = following.get(link[0])
    return found


IS_TIP = (
    "t.kind <> 'reverted' AND NOT EXISTS "
    "(SELECT 1 FROM sessions c WHERE c.parent_id = t.id AND c.kind = 'continuation')"
)
"""Where a thread goes on: the session that is neither reverted nor continued."""


def tip(tx: Tx, session_id: str) -> str:
    """Where a thread goes on, from any of its ids."""
    row = tx.one(
        f"SELECT t.id FROM sessions s JOIN sessions t ON t.thread_id = s.thread_id WHERE s.id = ? AND {IS_TIP}",
        (session_id,),
    )
    if row is None:
        raise UnknownIdError(f"there is no session {session_id!r}")
    return str(row[0])


TIP = "t.id, t.thread_id, t.kind, t.parent_id, t.ended, t.end_reason, t.next_seq, t.active, t.said, t.said_tokens"


@dataclass(frozen=True, slots=True)
class Tip:
    """The session where a thread that is held goes on."""

    id: str
    thread: str
    kind: SessionKind
    parent: str | None
    ended: float | None
    end_reason: str | None
    next_seq: int
    active: float
    said: int
    said_tokens: int


def hold_tip(tx: Tx, session_id: str) -> Tip:
    """Hold a thread, whichever of its ids was given, and see where it goes on."""
    row = tx.one(f"SELECT {TIP} FROM sessions t WHERE t.thread_id = ? AND {IS_TIP}", (hold(tx, session_id),))
    assert row is not None, "a thread goes on somewhere"
    return Tip(*row)


def insert(tx: Tx, new: NewSession, *, thread: str, now: float, branched_at: int | None = None) -> bool:
    """Whether the session is new; one that is there stays as it is."""
    started = now if new.started is None else new.started
    row = tx.one(
        "INSERT INTO sessions (id, thread_id, parent_id, kind, tenant, platform, user_name, title, model, system_hash, "
        "started, active, branched_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (id) DO NOTHING RETURNING id",
        (
            new.id, thread, new.parent, new.kind, new.tenant, new.platform, new.user, plain(new.title), new.model,
            put_system(tx, new.system), started, started, branched_at,
        ),
    )  # fmt: skip
    return row is not None


def create(tx: Tx, new: NewSession, now: float) -> Session:
    """A session that begins a thread of its own; one made before is returned."""
    if new.kind not in BEGINNINGS:
        raise InputError(f"a session of kind {new.kind!r} is not created: `continue_session` and `branch` make those")
    if new.parent is not None and get(tx, hold(tx, new.parent)).tenant != new.tenant:
        raise UnknownIdError(f"tenant {new.tenant!r} has no session {new.parent!r}")
    insert(tx, new, thread=new.id, now=now)
    made = get(tx, new.id)
    if (made.kind, made.parent, made.tenant) != (new.kind, new.parent, new.tenant):
        raise InputError(f"the id {new.id!r} is taken by another session")
    return made


BEGINNINGS = frozenset({"main", "subagent"})


def put_system(tx: Tx, system: System) -> str | None:
    """The hash under which a system prompt is kept: equal prompts are stored once."""
    if system is None:
        return None
    body = json_text(system)
    key = hashlib.sha256(body.encode()).hexdigest()
    # Read with a lock: another process may be about to delete it as unused.
    while tx.one(f"SELECT 1 FROM texts WHERE hash = ? {tx.dialect.share}", (key,)) is None:
        tx.run("INSERT INTO texts VALUES (?, ?) ON CONFLICT (hash) DO NOTHING", (key, body))
    return key


def set_title(tx: Tx, thread: str, title: str) -> None:
    tx.run("UPDATE sessions SET title = ? WHERE thread_id = ?", (plain(title), hold(tx, thread)))


def end(tx: Tx, session_id: str, reason: str, now: float, lease: Lease | None) -> Session:
    """A real end. A session that was continued meanwhile ends at its tip."""
    if reason in OWN_REASONS:
        raise InputError(f"the end reason {reason!r} is the store's own; give another")
    current = hold_tip(tx, session_id)
    check_fence(tx, current.thread, lease)
    tx.run("UPDATE sessions SET ended = ?, end_reason = ? WHERE id = ? AND ended IS NULL", (now, reason, current.id))
    return get(tx, current.id)


OWN_REASONS = frozenset({"compression", "reverted"})


def check_fence(tx: Tx, thread: str, lease: Lease | None) -> None:
    """Refuse a write under a lease that somebody else has taken over since."""
    if lease is None:
        return
    row = tx.one(f"SELECT fence, holder FROM leases WHERE thread_id = ? {tx.dialect.share}", (thread,))
    check_lease(lease, thread, row)


def check_lease(lease: Lease, thread: str, row: Row | None) -> None:
    """The same with what is known of the newest lease: its number and who holds it."""
    if lease.thread != thread or row is None or row[0] != lease.fence:
        now_held = f"{row[1]} holds it with number {row[0]}" if row else "nobody holds it"
        raise LeaseLostError(
            f"the lease {lease.fence} on thread {lease.thread} is lost: {now_held}; nothing was written"
        )


def json_text(value: Any) -> str:
    """JSON that every database keeps exactly: compact, readable; escaped only where text is no valid Unicode."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return text if text.isprintable() or _encodable(text) else json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"this is no JSON value and cannot be stored: {error}") from error


def from_json(text: str) -> Any:
    """What was stored as JSON. Anything else in its place is damage."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise StoreDamagedError(f"what is stored is damaged: {text[:40]!r} … is no JSON ({error})") from error


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain(text: str) -> str:
    """Text that every database takes: what is no character becomes a question mark. For words, never for content."""
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


LAST = 2**62
"""Behind every number of ours."""


def placeholders(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))
