"""What is known beside the messages: leases, learnt windows, state of engines, the graph of summaries.

A lease is granted by the database's clock; a number that only grows tells old holders apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from everthread.core.nodes import Node
from everthread.errors import LeaseLostError
from everthread.store.database import Tx, decode_json, encode_json
from everthread.store.models import Lease, ModelLimit
from everthread.store.sql.sessions import check_fence, find_thread, lock_thread


def acquire_lease(tx: Tx, thread: str, holder: str, seconds: float) -> Lease | None:
    """The lease, or None while somebody else holds it."""
    now, thread = tx.dialect.now, find_thread(tx, thread)
    row = tx.one(
        f"INSERT INTO leases (thread_id, holder, fence, expires) VALUES (?, ?, 1, {now} + ?) "
        "ON CONFLICT (thread_id) DO UPDATE SET "
        "holder = excluded.holder, fence = leases.fence + 1, expires = excluded.expires "
        f"WHERE leases.holder = excluded.holder OR leases.expires <= {now} RETURNING fence, expires",
        (thread, holder, seconds),
    )
    return None if row is None else Lease(thread, holder, row[0], row[1])


def renew_lease(tx: Tx, lease: Lease, seconds: float) -> Lease:
    """The same lease for longer. One that ran out may be renewed as long as nobody took it."""
    row = tx.one(
        f"UPDATE leases SET expires = {tx.dialect.now} + ? WHERE thread_id = ? AND fence = ? RETURNING expires",
        (seconds, lease.thread, lease.fence),
    )
    if row is None:
        raise LeaseLostError(f"the lease {lease.fence} on thread {lease.thread} was taken over; it cannot be renewed")
    return Lease(lease.thread, lease.holder, lease.fence, row[0])


def release_lease(tx: Tx, lease: Lease) -> None:
    """Let others in at once. The number stays, so that a late write of ours is still refused."""
    tx.run(
        f"UPDATE leases SET expires = {tx.dialect.now}, fence = fence + 1, holder = '' "
        "WHERE thread_id = ? AND fence = ?",
        (lease.thread, lease.fence),
    )


LIMIT_LIFE = 7 * 24 * 3600.0
"""A learnt window expires: providers change them."""


def learn_limit(tx: Tx, base_url: str, model: str, limit: int, source: str, headers: str, now: float) -> ModelLimit:
    learnt = ModelLimit(base_url, model, headers, limit, source, now, now + LIMIT_LIFE)
    tx.run(
        "INSERT INTO limits (base_url, model, headers, tokens, source, learnt, expires) VALUES (?, ?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (base_url, model, headers) DO UPDATE SET tokens = excluded.tokens, source = excluded.source, "
        "learnt = excluded.learnt, expires = excluded.expires",
        (base_url, model, headers, limit, source, now, learnt.expires),
    )
    return learnt


def limit_for(tx: Tx, base_url: str, model: str, headers: str, now: float) -> ModelLimit | None:
    row = tx.one(
        "SELECT base_url, model, headers, tokens, source, learnt, expires FROM limits "
        "WHERE base_url = ? AND model = ? AND headers = ? AND expires > ?",
        (base_url, model, headers, now),
    )
    return None if row is None else ModelLimit(*row)


def list_limits(tx: Tx, now: float) -> list[ModelLimit]:
    rows = tx.all(
        "SELECT base_url, model, headers, tokens, source, learnt, expires FROM limits WHERE expires > ? "
        "ORDER BY base_url, model, headers",
        (now,),
    )
    return [ModelLimit(*row) for row in rows]


def forget_limits(tx: Tx, base_url: str | None, model: str | None, below: int | None) -> int:
    """How many were forgotten. `below`: only those a success of this size disproves."""
    where, values = ["1 = 1"], []
    for condition, value in (("base_url = ?", base_url), ("model = ?", model), ("tokens < ?", below)):
        if value is not None:
            where.append(condition)
            values.append(value)
    return len(tx.all(f"DELETE FROM limits WHERE {' AND '.join(where)} RETURNING model", values))


def put_state(tx: Tx, scope: str, key: str, value: Any, now: float) -> None:
    tx.run(
        "INSERT INTO state (scope, name, value, changed) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (scope, name) DO UPDATE SET value = excluded.value, changed = excluded.changed",
        (scope, key, encode_json(value), now),
    )


def get_state(tx: Tx, scope: str, key: str) -> Any | None:
    row = tx.one("SELECT value FROM state WHERE scope = ? AND name = ?", (scope, key))
    return None if row is None else decode_json(row[0])


def put_nodes(tx: Tx, nodes: Sequence[Node], lease: Lease | None) -> None:
    """Nodes of one or more threads; one that is known is replaced (a degraded one rebuilt)."""
    for thread in dict.fromkeys(node.thread for node in nodes):
        check_fence(tx, lock_thread(tx, thread), lease)
    tx.many(
        "INSERT INTO nodes (id, thread_id, level, first_message, record) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (thread_id, id) DO UPDATE SET level = excluded.level, first_message = excluded.first_message, "
        "record = excluded.record",
        [(node.id, node.thread, node.level, node.first_message, encode_json(asdict(node))) for node in nodes],
    )


def list_nodes(tx: Tx, thread: str) -> list[Node]:
    rows = tx.all(
        "SELECT record FROM nodes WHERE thread_id = ? ORDER BY level, first_message, id", (find_thread(tx, thread),)
    )
    return [as_node(decode_json(row[0])) for row in rows]


def as_node(record: dict[str, Any]) -> Node:
    return Node(**{**record, "sources": tuple(record["sources"])})
