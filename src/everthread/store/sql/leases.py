"""Acquire, renew and check leases: the right of one process at a time to write to a thread.

Leases expire by the database's clock. Each new lease on a thread has a larger number than the ones before.
"""

from __future__ import annotations

from everthread.errors import LeaseLostError
from everthread.store.database import Row, Tx
from everthread.store.records import Lease
from everthread.store.sql.session_rows import lock_thread


def _lock_session(tx: Tx, thread_id: str) -> None:
    """Lock a thread's session before its lease, as every writer does, to avoid deadlocks."""
    if tx.dialect.for_update:
        tx.one(f"SELECT id FROM sessions WHERE id = ? {tx.dialect.for_update}", (thread_id,))


def acquire_lease(tx: Tx, thread_id: str, holder: str, seconds: float) -> Lease | None:
    now = tx.dialect.now
    thread_id = lock_thread(tx, thread_id)
    row = tx.one(
        f"INSERT INTO leases (thread_id, holder, fence, expires_at) VALUES (?, ?, 1, {now} + ?) "
        "ON CONFLICT (thread_id) DO UPDATE SET "
        "holder = excluded.holder, fence = leases.fence + 1, expires_at = excluded.expires_at "
        f"WHERE leases.holder = excluded.holder OR leases.expires_at <= {now} RETURNING fence, expires_at",
        (thread_id, holder, seconds),
    )
    return None if row is None else Lease(thread_id, holder, row[0], row[1])


def renew_lease(tx: Tx, lease: Lease, seconds: float) -> Lease:
    _lock_session(tx, lease.thread)
    row = tx.one(
        f"UPDATE leases SET expires_at = {tx.dialect.now} + ? WHERE thread_id = ? AND fence = ? RETURNING expires_at",
        (seconds, lease.thread, lease.fence),
    )
    if row is None:
        raise LeaseLostError(
            f"the lease {lease.fence} on thread {lease.thread} was taken over; it cannot be renewed"
        )
    return Lease(lease.thread, lease.holder, lease.fence, row[0])


def release_lease(tx: Tx, lease: Lease) -> None:
    """Release a lease at once. Increase its number, so that a late write of the old holder is refused."""
    _lock_session(tx, lease.thread)
    tx.run(
        f"UPDATE leases SET expires_at = {tx.dialect.now}, fence = fence + 1, holder = '' "
        "WHERE thread_id = ? AND fence = ?",
        (lease.thread, lease.fence),
    )


def require_lease(tx: Tx, thread_id: str, lease: Lease | None) -> None:
    """Refuse a write under a lease that another process has taken over."""
    if lease is None:
        return
    row = tx.one(
        f"SELECT fence, holder FROM leases WHERE thread_id = ? {tx.dialect.for_share}",
        (thread_id,),
    )
    require_newest_lease(lease, thread_id, row)


def require_newest_lease(lease: Lease, thread_id: str, row: Row | None) -> None:
    """Raise an error if a lease is not the newest. `row`: number and holder of the newest lease, if there is one."""
    if lease.thread != thread_id or row is None or row[0] != lease.fence:
        holder_text = f"{row[1]} holds it with number {row[0]}" if row else "nobody holds it"
        raise LeaseLostError(
            f"the lease {lease.fence} on thread {lease.thread} is lost: {holder_text}; nothing was written"
        )
