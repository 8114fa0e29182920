"""Which thread a client's messages belong to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from everthread.errors import InputError
from everthread.store.database import Row, Tx
from everthread.store.operations import appending, branching, sessions
from everthread.store.operations.sessions import placeholders
from everthread.store.proxied import FoundLink, Link, NewLink

COLUMNS = "tenant, scope, digest, previous, skeleton, thread_id, length, message_id, results"
CHUNK = 400
"""So many digests are asked for at once."""
MOST_SIMILAR = 8
"""Points of one skeleton that are looked at: a client clears old results a few times, not often."""


def extend(tx: Tx, new: NewLink, request: appending.Request, now: float) -> Link | None:
    """Store the point, its thread where that is new, and its messages: all of it or nothing."""
    link = new.link
    known = _get(tx, link)
    if known is not None:
        return known
    values = (
        link.tenant, link.scope, link.digest, link.previous, new.step, link.skeleton, link.thread, link.length,
        link.message, link.results,
    )  # fmt: skip
    won = tx.one(
        "INSERT INTO links (tenant, scope, digest, previous, step, skeleton, thread_id, length, message_id, results) "
        f"VALUES ({placeholders(values)}) ON CONFLICT DO NOTHING RETURNING digest",
        values,
    )
    if won is None:
        return _get(tx, link)
    _open(tx, new, now)
    [stored] = appending.append_many(tx, [request])
    if stored:
        key = (link.tenant, link.scope, link.digest)
        tx.run("UPDATE links SET message_id = ? WHERE tenant = ? AND scope = ? AND digest = ?", (stored[-1].id, *key))
    return _get(tx, link)


def _open(tx: Tx, new: NewLink, now: float) -> None:
    """The thread it belongs to, made where it is not there."""
    row = tx.one("SELECT tenant FROM sessions WHERE id = ?", (new.link.thread,))
    if row is not None:
        if row[0] != new.link.tenant:
            raise InputError(f"the id {new.link.thread!r} is taken by another session")
        return
    if new.branch_of is not None:
        thread, message = new.branch_of
        if sessions.get(tx, thread).tenant == new.link.tenant:
            branching.branch(tx, thread, message, new.session, new.session.id, now)
            return
    sessions.create(tx, new.session, now)


def find(tx: Tx, tenant: str, scope: str, digests: Sequence[str]) -> FoundLink | None:
    for some in chunks(digests):
        row = tx.one(
            f"SELECT {COLUMNS} FROM links WHERE tenant = ? AND scope = ? AND digest IN ({placeholders(some)}) "
            "ORDER BY length DESC LIMIT 1",
            (tenant, scope, *some),
        )
        if row is not None:
            return _found(tx, Link(*row))
    return None


def find_skeletons(tx: Tx, tenant: str, scope: str, skeletons: Sequence[str]) -> list[FoundLink]:
    for some in chunks(skeletons):
        rows = tx.all(
            f"SELECT {COLUMNS} FROM links WHERE tenant = ? AND scope = ? AND skeleton IN ({placeholders(some)}) "
            f"ORDER BY length DESC, digest LIMIT {MOST_SIMILAR}",
            (tenant, scope, *some),
        )
        if rows:
            return [_found(tx, Link(*row)) for row in rows]
    return []


def chunks(digests: Sequence[str]) -> Iterator[Sequence[str]]:
    """From the end on: the longest beginnings first."""
    for end in range(len(digests), 0, -CHUNK):
        yield digests[max(0, end - CHUNK) : end]


def _found(tx: Tx, link: Link) -> FoundLink:
    following = tx.one(
        "SELECT digest FROM links WHERE thread_id = ? AND previous = ? AND digest <> ? ORDER BY length DESC LIMIT 1",
        (link.thread, link.digest, link.digest),
    )
    return FoundLink(link, None if following is None else following[0], " ".join(_results(tx, link)))


def _results(tx: Tx, link: Link) -> list[str]:
    """What was in the results, from the first message on."""
    found = [link.results]
    previous = link.previous
    while previous:
        row: Row | None = tx.one(
            "SELECT results, previous FROM links WHERE tenant = ? AND scope = ? AND digest = ?",
            (link.tenant, link.scope, previous),
        )
        if row is None:
            break
        found.append(row[0])
        previous = row[1]
    return [part for part in reversed(found) if part]


def _get(tx: Tx, link: Link) -> Link | None:
    row = tx.one(
        f"SELECT {COLUMNS} FROM links WHERE tenant = ? AND scope = ? AND digest = ?",
        (link.tenant, link.scope, link.digest),
    )
    return None if row is None else Link(*row)
