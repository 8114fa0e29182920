"""Store state beside the messages: leases, learnt limits, pins, state of engines, the graph of summaries.

Leases expire by the database's clock. Each new lease on a thread has a larger number than the ones before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from everthread.core.types import Node
from everthread.errors import InputError, LeaseLostError, UnknownIdError
from everthread.store.database import Tx, make_equality_condition, placeholders
from everthread.store.records import (
    DEFAULT_TENANT,
    LearntLimits,
    Lease,
    LimitKind,
    ModelLimit,
    Pin,
    make_pin_id,
)
from everthread.store.sql.session_rows import find_thread, lock_thread, require_lease
from everthread.store.value_encoding import clean_text, decode_json, encode_json


def _lock_session(tx: Tx, thread: str) -> None:
    """Lock a thread's session before its lease, as every writer does, to avoid deadlocks."""
    if tx.dialect.for_update:
        tx.one(
            f"SELECT id FROM sessions WHERE id = ? {tx.dialect.for_update}", (thread,)
        )


def acquire_lease(tx: Tx, thread: str, holder: str, seconds: float) -> Lease | None:
    now = tx.dialect.now
    thread = lock_thread(tx, thread)
    row = tx.one(
        f"INSERT INTO leases (thread_id, holder, fence, expires) VALUES (?, ?, 1, {now} + ?) "
        "ON CONFLICT (thread_id) DO UPDATE SET "
        "holder = excluded.holder, fence = leases.fence + 1, expires = excluded.expires "
        f"WHERE leases.holder = excluded.holder OR leases.expires <= {now} RETURNING fence, expires",
        (thread, holder, seconds),
    )
    return None if row is None else Lease(thread, holder, row[0], row[1])


def renew_lease(tx: Tx, lease: Lease, seconds: float) -> Lease:
    _lock_session(tx, lease.thread)
    row = tx.one(
        f"UPDATE leases SET expires = {tx.dialect.now} + ? WHERE thread_id = ? AND fence = ? RETURNING expires",
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
        f"UPDATE leases SET expires = {tx.dialect.now}, fence = fence + 1, holder = '' "
        "WHERE thread_id = ? AND fence = ?",
        (lease.thread, lease.fence),
    )


LIMIT_LIFE_SECONDS = 7 * 24 * 3600.0
"""Seconds until a learnt limit expires, because providers change them. For as long an accepted prompt disproves smaller
windows."""
DAY_SECONDS = 24 * 3600.0
LIMIT_COLUMNS = "base_url, model, headers, tokens, source, learnt, expires, tenant, kind, credential"


def learn_limit(tx: Tx, new: ModelLimit) -> ModelLimit:
    """Store a limit, replacing the last one that this credential met."""
    values = (
        new.base_url,
        new.model,
        new.headers,
        new.limit,
        new.source,
        new.learnt,
        new.expires,
        new.tenant,
        new.kind,
        new.credential,
    )
    tx.run(
        f"INSERT INTO model_limits ({LIMIT_COLUMNS}) VALUES ({placeholders(values)}) "
        "ON CONFLICT (base_url, model, headers, kind, tenant, credential) DO UPDATE SET tokens = excluded.tokens, "
        "source = excluded.source, learnt = excluded.learnt, expires = excluded.expires",
        values,
    )
    return new


def load_limits(
    tx: Tx, base_url: str, model: str, headers: str, tenant: str, now: float
) -> LearntLimits:
    """Return a tenant's limits: those it learnt itself, or those that two credentials met.

    A window smaller than a prompt that was accepted is left out.
    """
    where = "base_url = ? AND model = ? AND headers = ?"
    values = (base_url, model, headers)
    rows, success_rows = tx.all_of_each(
        [
            (
                f"SELECT {LIMIT_COLUMNS} FROM model_limits WHERE {where} AND expires > ?",
                (*values, now),
            ),
            (
                f"SELECT MAX(tokens) FROM model_successes WHERE {where} AND tenant = ? AND day > ?",
                (*values, tenant, (now - LIMIT_LIFE_SECONDS) // DAY_SECONDS),
            ),
        ]
    )
    limits = [ModelLimit(*row) for row in rows]
    largest_success = int(success_rows[0][0] or 0)
    windows = [
        limit
        for limit in _select_effective_limits(limits, "window", tenant)
        if limit.limit >= largest_success
    ]
    outputs = _select_effective_limits(limits, "output", tenant)
    return LearntLimits(
        min(windows, key=lambda limit: limit.limit, default=None),
        min(outputs, key=lambda limit: limit.limit, default=None),
        largest_success,
    )


def _select_effective_limits(
    limits: Sequence[ModelLimit], kind: LimitKind, tenant: str
) -> list[ModelLimit]:
    """Return the newest limit that the tenant learnt, or else the one that most credentials met, at least two."""
    limits_of_kind = [limit for limit in limits if limit.kind == kind]
    tenant_limits = [limit for limit in limits_of_kind if limit.tenant == tenant]
    if tenant_limits:
        return [max(tenant_limits, key=lambda limit: (limit.learnt, -limit.limit))]
    limits_by_size: dict[int, list[ModelLimit]] = {}
    for limit in limits_of_kind:
        limits_by_size.setdefault(limit.limit, []).append(limit)
    commonest_limits = max(limits_by_size.values(), key=len, default=[])
    return (
        [max(commonest_limits, key=lambda limit: limit.learnt)]
        if len({limit.credential for limit in commonest_limits}) > 1
        else []
    )


def list_limits(tx: Tx, now: float) -> list[ModelLimit]:
    rows = tx.all(
        f"SELECT {LIMIT_COLUMNS} FROM model_limits WHERE expires > ? "
        "ORDER BY base_url, model, headers, kind, tenant, credential",
        (now,),
    )
    return [ModelLimit(*row) for row in rows]


def forget_limits(tx: Tx, base_url: str | None, model: str | None) -> int:
    where, values = make_equality_condition({"base_url": base_url, "model": model})
    return len(
        tx.all(f"DELETE FROM model_limits WHERE {where} RETURNING model", values)
    )


def record_success(
    tx: Tx,
    base_url: str,
    model: str,
    headers: str,
    tenant: str,
    prompt: int,
    now: float,
) -> None:
    """Record that a prompt of this size was accepted, and delete smaller windows learnt by this tenant."""
    tx.run(
        "INSERT INTO model_successes (tenant, base_url, model, headers, day, tokens) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (base_url, model, headers, tenant, day) DO UPDATE SET tokens = excluded.tokens "
        "WHERE model_successes.tokens < excluded.tokens",
        (tenant, base_url, model, headers, int(now // DAY_SECONDS), prompt),
    )
    tx.run(
        "DELETE FROM model_limits WHERE base_url = ? AND model = ? AND headers = ? AND tenant = ? "
        "AND kind = 'window' AND tokens < ?",
        (base_url, model, headers, tenant, prompt),
    )
    tx.run(
        "DELETE FROM model_successes WHERE day < ?",
        (int((now - 2 * LIMIT_LIFE_SECONDS) // DAY_SECONDS),),
    )


def put_pin(tx: Tx, thread: str, text: str, max_pins: int, now: float) -> Pin:
    thread = lock_thread(tx, thread)
    text = clean_text(text)
    if (
        tx.value(
            "SELECT COUNT(*) FROM pins WHERE thread_id = ? AND id <> ?",
            (thread, make_pin_id(text)),
        )
        >= max_pins
    ):
        raise InputError(
            f"{max_pins} texts are pinned to this thread already; delete one first"
        )
    tx.run(
        "INSERT INTO pins (thread_id, id, body, created) VALUES (?, ?, ?, ?) ON CONFLICT (thread_id, id) DO NOTHING",
        (thread, make_pin_id(text), text, now),
    )
    return next(pin for pin in list_pins(tx, thread) if pin.text == text)


def list_pins(tx: Tx, thread: str) -> list[Pin]:
    """Return the pins of a thread, the earliest first."""
    rows = tx.all(
        "SELECT id, body, created FROM pins WHERE thread_id = ? ORDER BY created, id",
        (find_thread(tx, thread),),
    )
    return [Pin(*row) for row in rows]


def delete_pin(tx: Tx, thread: str, pin: str) -> None:
    if not tx.all(
        "DELETE FROM pins WHERE thread_id = ? AND id = ? RETURNING id",
        (lock_thread(tx, thread), pin),
    ):
        raise UnknownIdError(f"nothing is pinned under {pin[:80]!r}")


def copy_pins(tx: Tx, thread: str, branch: str) -> None:
    """Copy the pins of a thread to its branch."""
    tx.run(
        "INSERT INTO pins (thread_id, id, body, created) SELECT ?, id, body, created FROM pins WHERE thread_id = ? "
        "ON CONFLICT (thread_id, id) DO NOTHING",
        (branch, thread),
    )


def put_state(tx: Tx, scope: str, key: str, value: Any, now: float) -> None:
    tx.run(
        "INSERT INTO state (scope, name, value, changed) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (scope, name) DO UPDATE SET value = excluded.value, changed = excluded.changed",
        (scope, key, encode_json(value), now),
    )


def get_state(tx: Tx, scope: str, key: str) -> Any | None:
    value = tx.value(
        "SELECT value FROM state WHERE scope = ? AND name = ?", (scope, key)
    )
    return None if value is None else decode_json(value)


FAILURE_SCOPE_PREFIX = "failures:"
"""The prefix of the scope that counts a tenant's failed requests: one row for each day and kind, with the count."""


def add_failures(
    tx: Tx, counts: Mapping[tuple[str, str, str], int], now: float
) -> None:
    """Count failures by tenant, thread and kind; without a tenant, the thread's is used."""
    day = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d}"
    for (tenant, thread, kind), count in counts.items():
        failing_tenant = (
            tenant
            or tx.value("SELECT tenant FROM sessions WHERE id = ?", (thread,))
            or DEFAULT_TENANT
        )
        tx.run(
            "INSERT INTO state (scope, name, value, changed) VALUES (?, ?, ?, ?) ON CONFLICT (scope, name) DO UPDATE "
            "SET value = CAST(CAST(state.value AS INTEGER) + CAST(excluded.value AS INTEGER) AS TEXT), "
            "changed = excluded.changed",
            (
                f"{FAILURE_SCOPE_PREFIX}{failing_tenant}",
                f"{day} {kind}",
                str(count),
                now,
            ),
        )


def sum_failures(
    tx: Tx, *, since: float = 0.0, tenant: str | None = None
) -> list[tuple[str, int]]:
    """Return the number of failures of each kind since a time, the most frequent first."""
    condition = "scope LIKE ?" if tenant is None else "scope = ?"
    scope = f"{FAILURE_SCOPE_PREFIX}{'%' if tenant is None else tenant}"
    rows = tx.all(
        f"SELECT SUBSTR(name, 12), SUM(CAST(value AS INTEGER)) FROM state WHERE {condition} AND changed >= ? "
        "GROUP BY 1 ORDER BY 2 DESC, 1",
        (scope, since),
    )
    return [(row[0], int(row[1])) for row in rows]


def put_nodes(tx: Tx, nodes: Sequence[Node], lease: Lease | None) -> None:
    for thread in dict.fromkeys(node.thread for node in nodes):
        require_lease(tx, lock_thread(tx, thread), lease)
    tx.run_many(
        "INSERT INTO nodes (id, thread_id, level, first_message, record) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (thread_id, id) DO UPDATE SET level = excluded.level, first_message = excluded.first_message, "
        "record = excluded.record",
        [
            (
                node.id,
                node.thread,
                node.level,
                node.first_message,
                encode_json(asdict(node)),
            )
            for node in nodes
        ],
    )


def list_nodes(tx: Tx, thread: str) -> list[Node]:
    rows = tx.all(
        "SELECT record FROM nodes WHERE thread_id = ? ORDER BY level, first_message, id",
        (find_thread(tx, thread),),
    )
    return [decode_node(decode_json(row[0])) for row in rows]


def decode_node(record: dict[str, Any]) -> Node:
    return Node(**{**record, "sources": tuple(record["sources"])})
