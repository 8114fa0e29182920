"""Who may write to a thread. The database's clock decides, and a number that only grows tells old holders apart."""

from __future__ import annotations

from everthread.errors import LeaseLostError
from everthread.store.base import Lease
from everthread.store.database import Tx
from everthread.store.operations.sessions import thread_of


def acquire(tx: Tx, thread: str, holder: str, seconds: float) -> Lease | None:
    """The lease, or None while somebody else holds it."""
    now, thread = tx.dialect.now, thread_of(tx, thread)
    row = tx.one(
        f"INSERT INTO leases (thread_id, holder, fence, expires) VALUES (?, ?, 1, {now} + ?) "
        "ON CONFLICT (thread_id) DO UPDATE SET "
        "holder = excluded.holder, fence = leases.fence + 1, expires = excluded.expires "
        f"WHERE leases.holder = excluded.holder OR leases.expires <= {now} RETURNING fence, expires",
        (thread, holder, seconds),
    )
    return None if row is None else Lease(thread, holder, row[0], row[1])


def renew(tx: Tx, lease: Lease, seconds: float) -> Lease:
    """The same lease for longer. One that ran out may be renewed as long as nobody took it."""
    row = tx.one(
        f"UPDATE leases SET expires = {tx.dialect.now} + ? WHERE thread_id = ? AND fence = ? RETURNING expires",
        (seconds, lease.thread, lease.fence),
    )
    if row is None:
        raise LeaseLostError(f"the lease {lease.fence} on thread {lease.thread} was taken over; it cannot be renewed")
    return Lease(lease.thread, lease.holder, lease.fence, row[0])


def release(tx: Tx, lease: Lease) -> None:
    """Let others in at once. The number stays, so that a late write of ours is still refused."""
    tx.run(
        f"UPDATE leases SET expires = {tx.dialect.now}, fence = fence + 1, holder = '' "
        "WHERE thread_id = ? AND fence = ?",
        (lease.thread, lease.fence),
    )
