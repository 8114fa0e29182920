"""What is known beside the conversations: learnt windows, state of engines, the graph of summaries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from everthread.store.base import Lease, ModelLimit, Node
from everthread.store.database import Tx
from everthread.store.operations.sessions import check_fence, from_json, hold, json_text, thread_of

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


def limits(tx: Tx, now: float) -> list[ModelLimit]:
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
        (scope, key, json_text(value), now),
    )


def get_state(tx: Tx, scope: str, key: str) -> Any | None:
    row = tx.one("SELECT value FROM state WHERE scope = ? AND name = ?", (scope, key))
    return None if row is None else from_json(row[0])


def put_nodes(tx: Tx, nodes: Sequence[Node], lease: Lease | None) -> None:
    """Nodes of one or more threads; one that is known is replaced (a degraded one rebuilt)."""
    for thread in dict.fromkeys(node.thread for node in nodes):
        check_fence(tx, hold(tx, thread), lease)
    tx.many(
        "INSERT INTO nodes (id, thread_id, level, first_message, record) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (thread_id, id) DO UPDATE SET level = excluded.level, first_message = excluded.first_message, "
        "record = excluded.record",
        [(node.id, node.thread, node.level, node.first_message, json_text(asdict(node))) for node in nodes],
    )


def nodes(tx: Tx, thread: str) -> list[Node]:
    rows = tx.all(
        "SELECT record FROM nodes WHERE thread_id = ? ORDER BY level, first_message, id", (thread_of(tx, thread),)
    )
    return [as_node(from_json(row[0])) for row in rows]


def as_node(record: dict[str, Any]) -> Node:
    return Node(**{**record, "sources": tuple(record["sources"])})
