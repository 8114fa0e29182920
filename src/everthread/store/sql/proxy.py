"""Clients that send their whole history each time: whose it is, and what stands for its beginning.

A history is known by two digests of each of its prefixes. `digest` changes with every word; `skeleton` leaves out
thinking and the contents of tool results, which clients drop to save room. `results` are short hashes of those
contents, separated by blanks: they tell a result that was cleared from another conversation's. A rewrite is written
once and never changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from everthread.errors import InputError, StoreDamagedError
from everthread.store.database import Row, Tx, decode_json, encode_json, placeholders
from everthread.store.models import NewCompaction, NewThreadLink, Rewrite, ThreadLink, ThreadLinkMatch
from everthread.store.sql.compactions import branch_thread, record_compaction
from everthread.store.sql.messages import AppendRequest, append_messages
from everthread.store.sql.sessions import (
    adopt_side_calls,
    create_session,
    load_session,
    place_side_call,
    promote_side_call,
)

LINK_COLUMNS = "tenant, scope, digest, previous, skeleton, thread_id, length, message_id, results"
DIGESTS_AT_ONCE = 400
"""So many digests are asked for at once."""
MOST_SIMILAR = 8
"""Points of one skeleton that are looked at: a client clears old results a few times, not often."""


def extend_link(tx: Tx, new: NewThreadLink, request: AppendRequest, now: float) -> ThreadLink | None:
    """Store the point, its thread where that is new, and its messages: all of it or nothing."""
    link = new.link
    known = _load_link(tx, link)
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
        return _load_link(tx, link)
    _open_thread(tx, new, now)
    [stored] = append_messages(tx, [request])
    if stored:
        key = (link.tenant, link.scope, link.digest)
        tx.run("UPDATE links SET message_id = ? WHERE tenant = ? AND scope = ? AND digest = ?", (stored[-1].id, *key))
    return _load_link(tx, link)


def _open_thread(tx: Tx, new: NewThreadLink, now: float) -> None:
    """The thread it belongs to, made where it is not there."""
    row = tx.one("SELECT tenant, kind, parent_id FROM sessions WHERE id = ?", (new.link.thread,))
    if row is not None:
        if row[0] != new.link.tenant:
            raise InputError(f"the id {new.link.thread!r} is taken by another session")
        if row[1] == new.session.kind == "side":
            promote_side_call(tx, new.link.thread, row[2])
        return
    if new.branch_of is not None:
        thread, message = new.branch_of
        if load_session(tx, thread).tenant == new.link.tenant:
            branch_thread(tx, thread, message, new.session, new.session.id, now)
            return
    session = place_side_call(tx, new.session, new.client_parent)
    create_session(tx, session, now)
    if session.kind == "main" and session.client_session:
        adopt_side_calls(tx, session.id)


def find_link(tx: Tx, tenant: str, scope: str, digests: Sequence[str]) -> ThreadLinkMatch | None:
    for some in longest_first(digests):
        row = tx.one(
            f"SELECT {LINK_COLUMNS} FROM links WHERE tenant = ? AND scope = ? AND digest IN ({placeholders(some)}) "
            "ORDER BY length DESC LIMIT 1",
            (tenant, scope, *some),
        )
        if row is not None:
            return _as_link_match(tx, ThreadLink(*row))
    return None


def find_skeletons(tx: Tx, tenant: str, scope: str, skeletons: Sequence[str]) -> list[ThreadLinkMatch]:
    for some in longest_first(skeletons):
        rows = tx.all(
            f"SELECT {LINK_COLUMNS} FROM links WHERE tenant = ? AND scope = ? AND skeleton IN ({placeholders(some)}) "
            f"ORDER BY length DESC, digest LIMIT {MOST_SIMILAR}",
            (tenant, scope, *some),
        )
        if rows:
            return [_as_link_match(tx, ThreadLink(*row)) for row in rows]
    return []


def longest_first(digests: Sequence[str]) -> Iterator[Sequence[str]]:
    """From the end on: the longest beginnings first."""
    for end in range(len(digests), 0, -DIGESTS_AT_ONCE):
        yield digests[max(0, end - DIGESTS_AT_ONCE) : end]


def _as_link_match(tx: Tx, link: ThreadLink) -> ThreadLinkMatch:
    following = tx.one(
        "SELECT digest FROM links WHERE thread_id = ? AND previous = ? AND digest <> ? ORDER BY length DESC LIMIT 1",
        (link.thread, link.digest, link.digest),
    )
    return ThreadLinkMatch(link, None if following is None else following[0], " ".join(_collect_results(tx, link)))


def _collect_results(tx: Tx, link: ThreadLink) -> list[str]:
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


def _load_link(tx: Tx, link: ThreadLink) -> ThreadLink | None:
    row = tx.one(
        f"SELECT {LINK_COLUMNS} FROM links WHERE tenant = ? AND scope = ? AND digest = ?",
        (link.tenant, link.scope, link.digest),
    )
    return None if row is None else ThreadLink(*row)


REWRITE_COLUMNS = (
    "tenant, engine, chain, strength, length, skeleton, results, thread_id, replacement, ripe, depth, state"
)
MOST_REWRITES = 4
"""The longest counts; a few more, where it is not ripe or not for this one."""


def put_rewrite(tx: Tx, new: Rewrite, now: float, compaction: NewCompaction | None = None) -> Rewrite:
    """Insert, with the record of the compaction that made it, or read who was first."""
    values = (
        new.tenant, new.engine, new.chain, new.strength, new.length, new.skeleton, new.results, new.thread,
        new.replacement, new.ripe, new.depth, encode_json(dict(new.state)), now,
    )  # fmt: skip
    won = tx.one(
        f"INSERT INTO rewrites ({REWRITE_COLUMNS}, created) VALUES ({placeholders(values)}) ON CONFLICT DO NOTHING "
        "RETURNING chain",
        values,
    )
    if won is not None and compaction is not None:
        record_compaction(tx, new.thread, compaction, now)
    row = tx.one(
        f"SELECT {REWRITE_COLUMNS} FROM rewrites WHERE tenant = ? AND engine = ? AND chain = ? AND strength = ?",
        (new.tenant, new.engine, new.chain, new.strength),
    )
    if row is None:
        raise StoreDamagedError(f"the rewrite {new.chain} was neither stored nor found")
    return as_rewrite(row)


def find_rewrites(tx: Tx, tenant: str, engine: str, digests: Sequence[str]) -> list[Rewrite]:
    return _find_rewrites(tx, "chain", tenant, engine, digests)


def match_rewrites(
    tx: Tx, tenant: str, engines: Sequence[str], histories: Sequence[Sequence[str]], skeletons: Sequence[str]
) -> list[tuple[list[Rewrite], list[Rewrite]]]:
    """For each engine what covers a beginning exactly, and what covers more by skeleton; up to the first that does.

    `histories`: the digests of the history, and those by which earlier versions knew it.
    """
    found = []
    for engine in engines:
        exact = next(filter(None, (find_rewrites(tx, tenant, engine, digests) for digests in histories)), [])
        exact = [rewrite for rewrite in exact if rewrite.length <= len(skeletons)]
        longer = [skeleton for skeleton in skeletons[exact[0].length if exact else 0 :] if skeleton]
        found.append((exact, find_similar_rewrites(tx, tenant, engine, longer)))
        if exact:
            break
    return found


def find_similar_rewrites(tx: Tx, tenant: str, engine: str, skeletons: Sequence[str]) -> list[Rewrite]:
    return _find_rewrites(tx, "skeleton", tenant, engine, skeletons)


def any_options(engine: str) -> str:
    """The name under which rewrites of the version before are kept: `api engine *`, whatever the options were."""
    api, name, _, *more = [*engine.split(" ", 3), "", ""][: max(3, engine.count(" ") + 1)]
    return " ".join([api, name, "*", *more])


def _find_rewrites(tx: Tx, column: str, tenant: str, engine: str, digests: Sequence[str]) -> list[Rewrite]:
    found: list[Rewrite] = []
    for some in longest_first(digests):
        rows = tx.all(
            f"SELECT {REWRITE_COLUMNS} FROM rewrites WHERE tenant = ? AND engine IN (?, ?) "
            f"AND {column} IN ({placeholders(some)}) "
            f"ORDER BY length DESC, strength DESC, chain LIMIT {MOST_REWRITES - len(found)}",
            (tenant, engine, any_options(engine), *some),
        )
        found += map(as_rewrite, rows)
        if len(found) >= MOST_REWRITES:
            break
    return found


def as_rewrite(row: Row) -> Rewrite:
    return Rewrite(*[*row[:8], bytes(row[8]), row[9], row[10], decode_json(row[11])])
