"""What stands for the beginning of a conversation. Rows are written once and never changed."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.errors import StoreDamagedError
from everthread.store.base import NewCompaction
from everthread.store.database import Row, Tx
from everthread.store.operations import continuation
from everthread.store.operations.links import chunks
from everthread.store.operations.sessions import from_json, json_text, placeholders
from everthread.store.proxied import Rewrite

COLUMNS = "tenant, engine, chain, strength, length, skeleton, results, thread_id, replacement, ripe, depth, state"
MOST = 4
"""The longest counts; a few more, where it is not ripe or not for this one."""


def put(tx: Tx, new: Rewrite, now: float, compaction: NewCompaction | None = None) -> Rewrite:
    """Insert, with the record of the compaction that made it, or read who was first."""
    values = (
        new.tenant, new.engine, new.chain, new.strength, new.length, new.skeleton, new.results, new.thread,
        new.replacement, new.ripe, new.depth, json_text(dict(new.state)), now,
    )  # fmt: skip
    won = tx.one(
        f"INSERT INTO rewrites ({COLUMNS}, created) VALUES ({placeholders(values)}) ON CONFLICT DO NOTHING "
        "RETURNING chain",
        values,
    )
    if won is not None and compaction is not None:
        continuation.record(tx, new.thread, compaction, now)
    row = tx.one(
        f"SELECT {COLUMNS} FROM rewrites WHERE tenant = ? AND engine = ? AND chain = ? AND strength = ?",
        (new.tenant, new.engine, new.chain, new.strength),
    )
    if row is None:
        raise StoreDamagedError(f"the rewrite {new.chain} was neither stored nor found")
    return as_rewrite(row)


def find(tx: Tx, tenant: str, engine: str, digests: Sequence[str]) -> list[Rewrite]:
    return _find(tx, "chain", tenant, engine, digests)


def find_similar(tx: Tx, tenant: str, engine: str, skeletons: Sequence[str]) -> list[Rewrite]:
    return _find(tx, "skeleton", tenant, engine, skeletons)


def _find(tx: Tx, column: str, tenant: str, engine: str, digests: Sequence[str]) -> list[Rewrite]:
    found: list[Rewrite] = []
    for some in chunks(digests):
        rows = tx.all(
            f"SELECT {COLUMNS} FROM rewrites WHERE tenant = ? AND engine = ? AND {column} IN ({placeholders(some)}) "
            f"ORDER BY length DESC, strength DESC, chain LIMIT {MOST - len(found)}",
            (tenant, engine, *some),
        )
        found += map(as_rewrite, rows)
        if len(found) >= MOST:
            break
    return found


def as_rewrite(row: Row) -> Rewrite:
    return Rewrite(*[*row[:8], bytes(row[8]), row[9], row[10], from_json(row[11])])
