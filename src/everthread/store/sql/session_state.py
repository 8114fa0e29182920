"""Store state beside the messages: pins, state of engines, counts of failures, the graph of summaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from everthread.core.types import Node
from everthread.errors import InputError, UnknownIdError
from everthread.store.database import Tx
from everthread.store.records import DEFAULT_TENANT, Pin, make_pin_id
from everthread.store.sql.session_rows import find_thread, lock_thread
from everthread.store.value_codec import clean_text, decode_json, encode_json


def put_pin(tx: Tx, now: float, thread_id: str, text: str, *, max_pins: int = 50) -> Pin:
    """Pin a text to a thread, and return the pin. A text that is already pinned keeps its pin."""
    thread_id = lock_thread(tx, thread_id)
    text = clean_text(text)
    if (
        tx.value(
            "SELECT COUNT(*) FROM pins WHERE thread_id = ? AND id <> ?",
            (thread_id, make_pin_id(text)),
        )
        >= max_pins
    ):
        raise InputError(f"{max_pins} texts are pinned to this thread already; delete one first")
    tx.run(
        "INSERT INTO pins (thread_id, id, body, created) VALUES (?, ?, ?, ?) ON CONFLICT (thread_id, id) DO NOTHING",
        (thread_id, make_pin_id(text), text, now),
    )
    return next(pin for pin in list_pins(tx, thread_id) if pin.text == text)


def list_pins(tx: Tx, thread_id: str) -> list[Pin]:
    """Return the pins of a thread, the earliest first."""
    rows = tx.all(
        "SELECT id, body, created FROM pins WHERE thread_id = ? ORDER BY created, id",
        (find_thread(tx, thread_id),),
    )
    return [Pin(*row) for row in rows]


def delete_pin(tx: Tx, thread_id: str, pin: str) -> None:
    if not tx.all(
        "DELETE FROM pins WHERE thread_id = ? AND id = ? RETURNING id",
        (lock_thread(tx, thread_id), pin),
    ):
        raise UnknownIdError(f"nothing is pinned under {pin[:80]!r}")


def copy_pins(tx: Tx, thread_id: str, branch: str) -> None:
    """Copy the pins of a thread to its branch."""
    tx.run(
        "INSERT INTO pins (thread_id, id, body, created) SELECT ?, id, body, created FROM pins WHERE thread_id = ? "
        "ON CONFLICT (thread_id, id) DO NOTHING",
        (branch, thread_id),
    )


def put_state(tx: Tx, now: float, scope: str, key: str, value: Any) -> None:
    """Store a JSON value under a key of a scope, replacing an earlier one."""
    tx.run(
        "INSERT INTO state (scope, name, value, changed) VALUES (?, ?, ?, ?) "
        "ON CONFLICT (scope, name) DO UPDATE SET value = excluded.value, changed = excluded.changed",
        (scope, key, encode_json(value), now),
    )


def get_state(tx: Tx, scope: str, key: str) -> Any | None:
    value = tx.value("SELECT value FROM state WHERE scope = ? AND name = ?", (scope, key))
    return None if value is None else decode_json(value)


FAILURE_SCOPE_PREFIX = "failures:"
"""The prefix of the scope that counts a tenant's failed requests: one row for each day and kind, with the count."""


def add_failures(tx: Tx, now: float, counts: Mapping[tuple[str, str, str], int]) -> None:
    """Add to the counts of failed requests that were passed through.

    The keys are tenant, thread and kind; without a tenant, the thread's is used.
    """
    day = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d}"
    for (tenant, thread_id, kind), count in counts.items():
        failing_tenant = (
            tenant
            or tx.value("SELECT tenant FROM sessions WHERE id = ?", (thread_id,))
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


def sum_failures(tx: Tx, *, since: float = 0.0, tenant: str | None = None) -> list[tuple[str, int]]:
    """Return the number of failures of each kind since a time, the most frequent first."""
    condition = "scope LIKE ?" if tenant is None else "scope = ?"
    scope = f"{FAILURE_SCOPE_PREFIX}{'%' if tenant is None else tenant}"
    rows = tx.all(
        f"SELECT SUBSTR(name, 12), SUM(CAST(value AS INTEGER)) FROM state WHERE {condition} AND changed >= ? "
        "GROUP BY 1 ORDER BY 2 DESC, 1",
        (scope, since),
    )
    return [(row[0], int(row[1])) for row in rows]


def put_nodes(tx: Tx, nodes: Sequence[Node]) -> None:
    """Store summary nodes of locked threads, replacing stored ones."""
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


def list_nodes(tx: Tx, thread_id: str) -> list[Node]:
    rows = tx.all(
        "SELECT record FROM nodes WHERE thread_id = ? ORDER BY level, first_message, id",
        (find_thread(tx, thread_id),),
    )
    return [decode_node(decode_json(row[0])) for row in rows]


def decode_node(record: dict[str, Any]) -> Node:
    return Node(**{**record, "sources": tuple(record["sources"])})
