"""What compactions took out and was fetched again."""

from __future__ import annotations

from everthread.core.regret import KINDS
from everthread.errors import InputError
from everthread.store.database import Tx
from everthread.store.operations.sessions import plain, thread_of
from everthread.store.regretted import RegretRecord


def note(tx: Tx, record: RegretRecord) -> bool:
    """Whether it is new."""
    if record.kind not in KINDS:
        raise InputError(f"something is fetched again by {', '.join(KINDS)}, not by {record.kind!r}")
    row = tx.one(
        "INSERT INTO regrets (session_id, kind, what, thread_id, call_id, created) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT DO NOTHING RETURNING kind",
        (
            record.session, record.kind, plain(record.what), thread_of(tx, record.session), plain(record.call_id),
            record.created,
        ),
    )  # fmt: skip
    return row is not None


def of_thread(tx: Tx, thread: str, *, undone: bool = False) -> list[RegretRecord]:
    rows = tx.all(
        "SELECT r.session_id, r.kind, r.what, r.call_id, r.created FROM regrets r "
        "JOIN sessions s ON s.id = r.session_id "
        f"WHERE r.thread_id = ?{'' if undone else OF_USED} ORDER BY r.created, r.session_id, r.kind, r.what",
        (thread_of(tx, thread),),
    )
    return [RegretRecord(*row) for row in rows]


OF_USED = " AND s.kind <> 'reverted'"


def counts(tx: Tx, since: float, until: float, narrowed: tuple[str, list[str]]) -> dict[str, int]:
    """How often in a period, by kind. `narrowed`: the part of a WHERE that narrows by session `s`."""
    rows = tx.all(
        "SELECT r.kind, COUNT(*) FROM regrets r JOIN sessions s ON s.id = r.session_id "
        f"WHERE r.created >= ? AND r.created < ?{OF_USED}{narrowed[0]} GROUP BY 1",
        (since, until, *narrowed[1]),
    )
    found = {str(row[0]): int(row[1]) for row in rows}
    return {kind: found.get(kind, 0) for kind in KINDS}
