"""What a gateway stores besides conversations: the points of its clients' histories and their rewrites, keys, turns.

Clients send their whole history each time. It is known by two digests of each of its prefixes: `digest` changes with
every word; `skeleton` leaves out thinking and the contents of tool results, which clients drop to save room.
`results` are short hashes of those contents, separated by blanks: they tell a result that was cleared from another
conversation's. A rewrite is written once and never changed.

A turn is queued before its client is told that it was accepted. One process at a time, the one with the thread's lease,
answers the queue in order. A turn whose process vanished is marked by the next one and never begun again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.errors import InputError, StoreDamagedError, UnknownIdError
from everthread.store.database import PICO, Row, Tx, as_pico, clean_text, decode_json, encode_json, notify, placeholders
from everthread.store.models import (
    KeyLimits,
    KeyUse,
    Lease,
    NewCompaction,
    NewKey,
    NewQueuedTurn,
    NewThreadLink,
    QueuedTurn,
    Rewrite,
    RewriteSearch,
    StoredKey,
    ThreadLink,
    ThreadLinkMatch,
    TurnClaim,
    TurnState,
)
from everthread.store.sql.compactions import branch_thread, record_compaction
from everthread.store.sql.messages import AppendRequest, append_messages
from everthread.store.sql.sessions import (
    adopt_side_calls,
    check_fence,
    create_session,
    find_thread,
    load_session,
    lock_thread,
    place_side_call,
    promote_side_call,
)

# --- threads of clients, and what stands for their beginnings ---------------------------------------------------------


LINK_COLUMNS = "tenant, scope, digest, previous, skeleton, thread_id, length, message_id, results"


@dataclass(frozen=True, slots=True)
class PreparedPoint:
    """A point to be stored, with its messages as the database takes them."""

    new: NewThreadLink
    messages: AppendRequest


INSERT_LINK = (
    "INSERT INTO links (tenant, scope, digest, previous, step, skeleton, thread_id, length, message_id, results) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING RETURNING digest"
)
SELECT_OWNER = "SELECT tenant, kind, parent_id FROM sessions WHERE id = ?"
DIGESTS_AT_ONCE = 400
"""The most digests in one query."""
MOST_SIMILAR = 8
"""Points of one skeleton that are looked at: a client clears old results a few times, not often."""


def extend_thread(tx: Tx, points: Sequence[PreparedPoint], now: float) -> list[ThreadLink | None]:
    """Store points that follow each other in one thread, the thread where it is new, and their messages.

    A point that is there already is returned as it is, None where its step is taken; nothing is stored behind it.
    """
    links: list[ThreadLink | None] = []
    won: list[PreparedPoint] = []
    session: Row | None = None
    for point in points:
        link = point.new.link
        values = (
            link.tenant, link.scope, link.digest, link.previous, point.new.step, link.skeleton, link.thread,
            link.length, link.message, link.results,
        )  # fmt: skip
        rows, *sessions = tx.ask(
            [(INSERT_LINK, values), *([] if won else [(SELECT_OWNER, (link.thread,))])],
        )
        links.append(link if rows else _load_link(tx, link))
        if not rows:
            break
        session = sessions[0][0] if sessions and sessions[0] else session
        won.append(point)
    if not won:
        return links
    _open_thread(tx, won[0].new, session, now)
    stored = append_messages(tx, [point.messages for point in won])
    for index, (point, messages) in enumerate(zip(won, stored, strict=True)):
        if messages:
            link, last = point.new.link, messages[-1].id
            key = (link.tenant, link.scope, link.digest)
            tx.run("UPDATE links SET message_id = ? WHERE tenant = ? AND scope = ? AND digest = ?", (last, *key))
            links[index] = replace(link, message=last)
    return links


def _open_thread(tx: Tx, new: NewThreadLink, row: Row | None, now: float) -> None:
    """Create the thread of a point where there is none. `row`: what `SELECT_OWNER` tells of it."""
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
    """The longest of these beginnings that is known; `digests` from the shortest on."""
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
    """Points with the longest of these skeletons that is known."""
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
    """The digests in chunks, those of the longest prefixes first."""
    for end in range(len(digests), 0, -DIGESTS_AT_ONCE):
        yield digests[max(0, end - DIGESTS_AT_ONCE) : end]


def _as_link_match(tx: Tx, link: ThreadLink) -> ThreadLinkMatch:
    following = tx.one(
        "SELECT digest FROM links WHERE thread_id = ? AND previous = ? AND digest <> ? ORDER BY length DESC LIMIT 1",
        (link.thread, link.digest, link.digest),
    )
    return ThreadLinkMatch(link, None if following is None else following[0], " ".join(_collect_results(tx, link)))


def _collect_results(tx: Tx, link: ThreadLink) -> list[str]:
    """The hashes of the results, from the first message on."""
    results = [link.results]
    previous = link.previous
    while previous:
        row: Row | None = tx.one(
            "SELECT results, previous FROM links WHERE tenant = ? AND scope = ? AND digest = ?",
            (link.tenant, link.scope, previous),
        )
        if row is None:
            break
        results.append(row[0])
        previous = row[1]
    return [part for part in reversed(results) if part]


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
    """The longest few that cover one of these beginnings, the longest and strongest first."""
    return _find_rewrites(tx, "chain", tenant, engine, digests)


Found = list[tuple[list[Rewrite], list[Rewrite]]]


def match_rewrites(
    tx: Tx,
    tenant: str,
    engines: Sequence[str],
    histories: Sequence[Sequence[str]],
    skeletons: Sequence[str],
    before: RewriteSearch | None = None,
) -> tuple[Found, RewriteSearch | None]:
    """For each engine what covers a beginning exactly, and what covers more by skeleton; up to the first that does.

    `histories`: the digests of the history, and those by which earlier versions knew it. `before`: a search for a
    beginning of it. While no rewrite was made since, only what is new is looked for, and what was found then.
    """
    if not tx.dialect.newest:
        return _match_rewrites(tx, tenant, engines, histories, skeletons, 0), None
    newest = tx.one(tx.dialect.newest.format("rewrites"))
    if before is not None and _goes_on(before, engines, histories, newest):
        [digests] = histories
        shorter = [[*before.chains, *digests[before.length :]]]
        matches = _match_rewrites(tx, tenant, engines, shorter, skeletons, before.length)
        if not before.chains or any(exact for exact, _ in matches):  # else it was taken back
            return matches, _remember_search(engines, histories, newest, matches)
    matches = _match_rewrites(tx, tenant, engines, histories, skeletons, 0)
    return matches, _remember_search(engines, histories, newest, matches)


def _match_rewrites(
    tx: Tx,
    tenant: str,
    engines: Sequence[str],
    histories: Sequence[Sequence[str]],
    skeletons: Sequence[str],
    start: int,
) -> Found:
    """The matches of each engine. `start`: shorter skeletons were searched before."""
    matches = []
    for engine in engines:
        exact = next(filter(None, (find_rewrites(tx, tenant, engine, digests) for digests in histories)), [])
        exact = [rewrite for rewrite in exact if rewrite.length <= len(skeletons)]
        longer = [skeleton for skeleton in skeletons[max(start, exact[0].length if exact else 0) :] if skeleton]
        matches.append((exact, find_similar_rewrites(tx, tenant, engine, longer)))
        if exact:
            break
    return matches


def _goes_on(
    before: RewriteSearch, engines: Sequence[str], histories: Sequence[Sequence[str]], newest: Row | None
) -> bool:
    digests = histories[0]
    return (
        len(histories) == 1
        and before.newest == newest
        and before.engines == tuple(engines)
        and 0 < before.length <= len(digests)
        and digests[before.length - 1] == before.digest
    )


def _remember_search(
    engines: Sequence[str], histories: Sequence[Sequence[str]], newest: Row | None, matches: Found
) -> RewriteSearch | None:
    """What the next search needs of this one; None where it has to search for everything again."""
    digests = histories[0]
    if len(histories) > 1 or not digests or any(similar for _, similar in matches):
        return None
    chains = [rewrite.chain for exact, _ in matches for rewrite in reversed(exact)]
    return RewriteSearch(tuple(engines), len(digests), digests[-1], newest, tuple(chains))


def find_similar_rewrites(tx: Tx, tenant: str, engine: str, skeletons: Sequence[str]) -> list[Rewrite]:
    """The longest few rewrites that cover one of these skeletons."""
    return _find_rewrites(tx, "skeleton", tenant, engine, skeletons)


def any_options(engine: str) -> str:
    """The name under which rewrites of the version before are kept: `api engine *`, whatever the options were."""
    api, name, _, *more = [*engine.split(" ", 3), "", ""][: max(3, engine.count(" ") + 1)]
    return " ".join([api, name, "*", *more])


def _find_rewrites(tx: Tx, column: str, tenant: str, engine: str, digests: Sequence[str]) -> list[Rewrite]:
    rewrites: list[Rewrite] = []
    for some in longest_first(digests):
        rows = tx.all(
            f"SELECT {REWRITE_COLUMNS} FROM rewrites WHERE tenant = ? AND engine IN (?, ?) "
            f"AND {column} IN ({placeholders(some)}) "
            f"ORDER BY length DESC, strength DESC, chain LIMIT {MOST_REWRITES - len(rewrites)}",
            (tenant, engine, any_options(engine), *some),
        )
        rewrites += map(as_rewrite, rows)
        if len(rewrites) >= MOST_REWRITES:
            break
    return rewrites


def as_rewrite(row: Row) -> Rewrite:
    return Rewrite(*[*row[:8], bytes(row[8]), row[9], row[10], decode_json(row[11])])


# --- keys and shared secrets ------------------------------------------------------------------------------------------


KEY_COLUMNS = (
    "k.id, k.digest, k.name, k.tenant, k.scopes, k.mode, k.requests_per_day, k.tokens_per_day, k.pico_dollars_per_day, "
    "k.created, k.revoked"
)
SELECT_KEY = f"SELECT {KEY_COLUMNS} FROM api_keys k"
SUM_DAY = (
    "SELECT COALESCE(SUM(d.requests), 0), COALESCE(SUM(d.tokens), 0), COALESCE(SUM(d.pico_dollars), 0), "
    "COALESCE(SUM(d.fresh), 0) FROM "
    "(SELECT requests, tokens, pico_dollars, 0 AS fresh FROM key_days WHERE key_id = ? AND day = ? UNION ALL "
    "SELECT requests, tokens, pico_dollars, 1 FROM key_uses WHERE key_id = ? AND day = ?) d"
)
"""The use of a key on a day, and how many of its rows are not summed up yet."""
LAST_USED = (
    "SELECT MAX(u.used) FROM (SELECT last_used AS used FROM key_days WHERE key_id = ? UNION ALL "
    "SELECT used FROM key_uses WHERE key_id = ?) u"
)
FOLD = 64
"""So many rows of a key's day are summed up into one."""


def create_key(tx: Tx, new: NewKey, now: float) -> None:
    limits = new.limits
    values = (
        new.id, new.digest, new.name, new.tenant, " ".join(sorted(new.scopes)), new.mode, limits.requests,
        limits.tokens, as_pico(limits.dollars), now,
    )  # fmt: skip
    tx.run(
        "INSERT INTO api_keys (id, digest, name, tenant, scopes, mode, requests_per_day, tokens_per_day, "
        f"pico_dollars_per_day, created) VALUES ({placeholders(values)})",
        values,
    )


def find_key(tx: Tx, digest: str, day: str) -> StoredKey | None:
    """A key and its use on a day; also a revoked one."""
    keys = _load_keys(tx, f"{SELECT_KEY} WHERE k.digest = ?", (digest,), day)
    return keys[0] if keys else None


def list_keys(tx: Tx, day: str, *, tenant: str | None = None) -> list[StoredKey]:
    """The newest first, revoked ones among them."""
    where, values = ("", ()) if tenant is None else (" WHERE k.tenant = ?", (tenant,))
    return _load_keys(tx, f"{SELECT_KEY}{where} ORDER BY k.created DESC, k.id", values, day)


def _load_keys(tx: Tx, sql: str, values: Sequence[str], day: str) -> list[StoredKey]:
    """Keys with their use on a day."""
    rows = tx.all(sql, values)
    uses = tx.ask([(SUM_DAY, (row[0], day, row[0], day)) for row in rows]) if rows else []
    times = tx.ask([(LAST_USED, (row[0], row[0])) for row in rows]) if rows else []
    return [_as_key(row, use[0], last[0][0]) for row, use, last in zip(rows, uses, times, strict=True)]


def revoke_key(tx: Tx, key_id: str, now: float) -> float:
    row = tx.one(
        "UPDATE api_keys SET revoked = COALESCE(revoked, ?) WHERE id = ? RETURNING revoked",
        (now, key_id),
    )
    if row is None:
        raise UnknownIdError(f"there is no key {key_id}; `everthread keys list` shows those there are")
    return float(row[0])


def count_use(tx: Tx, day: str, uses: Mapping[str, KeyUse], now: float) -> dict[str, KeyUse]:
    """Add rows and sum up. Nobody waits for another: only who sums many rows up into one changes a row."""
    sums: dict[str, KeyUse] = {}
    for key_id, use in sorted(uses.items()):
        tx.run(
            "INSERT INTO key_uses (key_id, day, requests, tokens, pico_dollars, used) VALUES (?, ?, ?, ?, ?, ?)",
            (key_id, day, use.requests, use.tokens, as_pico(use.dollars), now),
        )
        row = tx.one(SUM_DAY, (key_id, day, key_id, day))
        assert row is not None
        if row[3] >= FOLD:
            _fold_uses(tx, key_id, day)
        sums[key_id] = _as_use(row)
    return sums


def _fold_uses(tx: Tx, key_id: str, day: str) -> None:
    """Sum rows up into their day; not those that another process is at."""
    ids = [
        row[0]
        for row in tx.all(
            f"SELECT id FROM key_uses WHERE key_id = ? AND day = ? ORDER BY id LIMIT {FOLD} {tx.dialect.skip}",
            (key_id, day),
        )
    ]
    if not ids:
        return
    rows = tx.all(
        f"DELETE FROM key_uses WHERE id IN ({placeholders(ids)}) RETURNING requests, tokens, pico_dollars, used", ids
    )
    requests, tokens, pico, used = zip(*rows, strict=True)
    tx.run(
        "INSERT INTO key_days (key_id, day, requests, tokens, pico_dollars, last_used) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (key_id, day) DO UPDATE SET requests = key_days.requests + excluded.requests, "
        "tokens = key_days.tokens + excluded.tokens, "
        "pico_dollars = key_days.pico_dollars + excluded.pico_dollars, last_used = excluded.last_used",
        (key_id, day, sum(requests), sum(tokens), sum(pico), max(used)),
    )


def find_secret(tx: Tx, name: str) -> bytes | None:
    row = tx.one("SELECT value FROM shared_secrets WHERE name = ?", (name,))
    return None if row is None else bytes(row[0])


def shared_secret(tx: Tx, name: str, fresh: bytes) -> bytes:
    """Insert the secret, or read the one that was stored first."""
    tx.run("INSERT INTO shared_secrets (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING", (name, fresh))
    secret = find_secret(tx, name)
    if secret is None:
        raise StoreDamagedError(f"the shared secret {name} was neither stored nor found")
    return secret


def _as_use(row: Row) -> KeyUse:
    return KeyUse(int(row[0]), int(row[1]), int(row[2]) / PICO)


def _as_key(row: Row, use: Row, last_used: float | None) -> StoredKey:
    limits = KeyLimits(row[6], row[7], None if row[8] is None else row[8] / PICO)
    key = NewKey(row[0], row[1], row[3], frozenset(row[4].split()), limits, row[2], row[5])
    return StoredKey(key, row[9], row[10], last_used, _as_use(use))


# --- turns that wait --------------------------------------------------------------------------------------------------


TURN_COLUMNS = "id, thread_id, tenant, place, request, state, message, options, result, cancel, created, started, ended"
SELECT_TURN = f"SELECT {TURN_COLUMNS} FROM turns"
_RUNNING = "state = 'running' AND ended IS NULL"
_QUEUED = "state = 'queued' AND ended IS NULL"


def queue_turn(tx: Tx, new: NewQueuedTurn, most: int, now: float) -> QueuedTurn | None:
    """At the end of the queue, or the turn that has the key; None where the queue is full."""
    thread, key = lock_thread(tx, new.thread), clean_text(new.key)
    row = tx.one(f"{SELECT_TURN} WHERE thread_id = ? AND request = ?", (thread, key))
    if row is not None:
        return as_turn(row)
    waiting = tx.one(f"SELECT COUNT(*) FROM turns WHERE thread_id = ? AND {_QUEUED}", (thread,))
    if waiting is not None and waiting[0] >= most:
        return None
    values = (
        new.id, thread, new.tenant, key, "queued", encode_json(dict(new.message)), encode_json(dict(new.options)), now,
        thread,
    )  # fmt: skip
    tx.run(
        "INSERT INTO turns (id, thread_id, tenant, request, state, message, options, created, place) "
        f"VALUES ({placeholders(values[:-1])}, (SELECT COALESCE(MAX(place), 0) + 1 FROM turns WHERE thread_id = ?))",
        values,
    )
    notify(tx, thread)
    return load_turn(tx, new.id, tenant=new.tenant)


def load_turn(tx: Tx, turn_id: str, *, tenant: str) -> QueuedTurn:
    """`UnknownIdError` where this tenant has none of this id."""
    row = tx.one(f"{SELECT_TURN} WHERE id = ? AND tenant = ?", (turn_id, tenant))
    if row is None:
        raise UnknownIdError(f"there is no turn {turn_id!r}")
    return as_turn(row)


def list_turns(tx: Tx, thread: str, *, only_open: bool = False, limit: int = 50, offset: int = 0) -> list[QueuedTurn]:
    """Those of a thread: the newest first, open ones in the order of their answers."""
    where, order = ("AND ended IS NULL", "place") if only_open else ("", "place DESC")
    rows = tx.all(
        f"{SELECT_TURN} WHERE thread_id = ? {where} ORDER BY {order} LIMIT ? OFFSET ?",
        (find_thread(tx, thread), limit, offset),
    )
    return [as_turn(row) for row in rows]


def begin_turn(tx: Tx, lease: Lease, now: float) -> TurnClaim:
    """The next turn. A running one is lost: whoever holds the lease has begun nothing else."""
    thread = lock_thread(tx, lease.thread)
    check_fence(tx, thread, lease)
    lost = tx.all(f"{SELECT_TURN} WHERE thread_id = ? AND {_RUNNING} ORDER BY place", (thread,))
    if lost:
        return TurnClaim(None, tuple(as_turn(row) for row in lost))
    row = tx.one(
        f"UPDATE turns SET state = 'running', fence = ?, started = ? "
        f"WHERE id = (SELECT id FROM turns WHERE thread_id = ? AND {_QUEUED} ORDER BY place LIMIT 1) "
        f"RETURNING {TURN_COLUMNS}",
        (lease.fence, now, thread),
    )
    return TurnClaim(None if row is None else as_turn(row))


def end_turn(tx: Tx, turn_id: str, state: TurnState, result: Mapping[str, Any], lease: Lease, now: float) -> QueuedTurn:
    thread = lock_thread(tx, lease.thread)
    check_fence(tx, thread, lease)
    tx.run(
        f"UPDATE turns SET state = ?, result = ?, ended = ? WHERE id = ? AND thread_id = ? AND {_RUNNING}",
        (state, encode_json(dict(result)), now, turn_id, thread),
    )
    notify(tx, thread)
    row = tx.one(f"{SELECT_TURN} WHERE id = ? AND thread_id = ?", (turn_id, thread))
    if row is None:
        raise InputError(f"the turn {turn_id!r} is none of the thread {thread}")
    return as_turn(row)


def cancel_turn(tx: Tx, turn_id: str, tenant: str, now: float) -> QueuedTurn:
    turn = load_turn(tx, turn_id, tenant=tenant)
    lock_thread(tx, turn.thread)
    result = encode_json({"code": "cancelled", "message": "It was cancelled before it began."})
    tx.run(
        f"UPDATE turns SET state = 'cancelled', result = ?, ended = ? WHERE id = ? AND {_QUEUED}",
        (result, now, turn_id),
    )
    notify(tx, turn.thread)
    tx.run(f"UPDATE turns SET cancel = 1 WHERE id = ? AND {_RUNNING}", (turn_id,))
    return load_turn(tx, turn_id, tenant=tenant)


def idle_queues(tx: Tx, *, limit: int = 50) -> list[str]:
    """Threads with open turns and no lease that counts."""
    rows = tx.all(
        "SELECT DISTINCT t.thread_id FROM turns t LEFT JOIN leases l ON l.thread_id = t.thread_id "
        f"WHERE t.ended IS NULL AND (l.expires IS NULL OR l.expires <= {tx.dialect.now}) "
        "ORDER BY t.thread_id LIMIT ?",
        (limit,),
    )
    return [row[0] for row in rows]


def as_turn(row: Row) -> QueuedTurn:
    message, options = decode_json(row[6]), decode_json(row[7])
    if not isinstance(message, dict) or not isinstance(options, dict):
        raise StoreDamagedError(f"the turn {row[0]} is no object")
    result = None if row[8] is None else decode_json(row[8])
    return QueuedTurn(*[*row[:6], message, options, result, bool(row[9]), *row[10:]])
