"""The points of clients' histories, and the rewrites of their beginnings.

Clients send their whole history each time. It is known by two digests of each of its prefixes: `digest` changes with
every word; `skeleton` leaves out thinking and the contents of tool results, which clients drop to save room.
`results` are short hashes of those contents, separated by blanks: they distinguish a cleared result from a
result of another conversation. A rewrite is written once and never changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from everthread.errors import InputError, StoreDamagedError
from everthread.store.database import Row, Tx, placeholders
from everthread.store.records import (
    ConversationEnd,
    MessageKind,
    NewCompaction,
    NewMessage,
    NewRewrite,
    NewThreadLink,
    Rewrite,
    RewriteSearch,
    ThreadLink,
    ThreadLinkMatch,
)
from everthread.store.sql.compactions import (
    branch_thread,
    continue_session,
    history_ids,
)
from everthread.store.sql.message_rows import AppendRequest, append_messages
from everthread.store.sql.session_rows import (
    ThreadTip,
    adopt_side_calls,
    create_session,
    find_conversation,
    has_open_calls,
    load_session,
    lock_tip,
    place_side_call,
    promote_side_call,
)
from everthread.store.value_encoding import decode_body, decode_json, encode_json

LINK_COLUMNS = (
    "tenant, scope, digest, previous, skeleton, thread_id, length, message_id, results"
)


@dataclass(frozen=True, slots=True)
class PreparedPoint:
    """A point to be stored, with its messages as the database takes them."""

    new: NewThreadLink
    messages: AppendRequest


INSERT_LINK = (
    "INSERT INTO links (tenant, scope, digest, previous, follows, skeleton, thread_id, length, message_id, results) "
    "SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ? "
    "WHERE ? = '' OR EXISTS (SELECT 1 FROM links WHERE digest = ? AND thread_id = ?) "
    "ON CONFLICT DO NOTHING RETURNING digest"
)
"""Append a point after the one it follows, which must be stored. The index `links_follows` lets only one follow it."""
SELECT_OWNER = "SELECT tenant, kind, parent_id FROM sessions WHERE id = ?"
DIGESTS_AT_ONCE = 400
"""The most digests in one query."""
MAX_SIMILAR = 8
"""Points of one skeleton that are looked at: a client clears old results a few times, not often."""


def extend_thread(
    tx: Tx, points: Sequence[PreparedPoint], now: float
) -> list[ThreadLink | None]:
    """Store points that follow each other in one thread, their messages, and the thread if it is new.

    Stop at a point that was stored before, and return that one. Return None for a point if the thread does not end at
    the point that it follows.
    """
    links: list[ThreadLink | None] = []
    new_points: list[PreparedPoint] = []
    session: Row | None = None
    for point in points:
        link = point.new.link
        rows, *sessions = tx.ask(
            [
                (INSERT_LINK, _link_values(point.new)),
                *([] if new_points else [(SELECT_OWNER, (link.thread,))]),
            ],
        )
        links.append(link if rows else _load_link(tx, link))
        if not rows:
            break
        session = sessions[0][0] if sessions and sessions[0] else session
        new_points.append(point)
    if not new_points:
        return links
    _open_thread(tx, new_points[0].new, session, now)
    messages_by_point = append_messages(tx, [point.messages for point in new_points])
    for index, (point, messages) in enumerate(
        zip(new_points, messages_by_point, strict=True)
    ):
        if messages:
            link = point.new.link
            last_id = messages[-1].id
            key = (link.tenant, link.scope, link.digest)
            tx.run(
                "UPDATE links SET message_id = ? WHERE tenant = ? AND scope = ? AND digest = ?",
                (last_id, *key),
            )
            links[index] = replace(link, message=last_id)
    return links


def _link_values(new: NewThreadLink) -> Row:
    """The values of `INSERT_LINK`."""
    link = new.link
    return (
        link.tenant,
        link.scope,
        link.digest,
        link.previous,
        new.follows,
        link.skeleton,
        link.thread,
        link.length,
        link.message,
        link.results,
        new.follows,
        new.follows,
        link.thread,
    )


def _open_thread(tx: Tx, new: NewThreadLink, row: Row | None, now: float) -> None:
    """Create the thread of a point if it does not exist. `row`: the result of `SELECT_OWNER`."""
    if row is not None:
        if row[0] != new.link.tenant:
            raise InputError(f"the id {new.link.thread!r} is taken by another session")
        if row[1] == new.session.kind == "side":
            promote_side_call(tx, new.link.thread, row[2])
        elif row[1] == "side" and _becomes_conversation(tx, new):
            tx.run(
                "UPDATE sessions SET kind = 'branch' WHERE id = ?", (new.link.thread,)
            )
        return
    if new.branch_of is not None:
        thread, message = new.branch_of
        if load_session(tx, thread).tenant == new.link.tenant:
            branch_thread(
                tx,
                thread,
                at_message=message,
                new=new.session,
                fresh_id=new.session.id,
                now=now,
            )
            return
    session = place_side_call(tx, new.session, new.client_parent)
    create_session(tx, session, now)
    if session.kind == "main" and session.client_session:
        adopt_side_calls(tx, session.id)


def _becomes_conversation(tx: Tx, new: NewThreadLink) -> bool:
    """Return whether the user speaks again in a side call that shares a conversation's beginning."""
    if not any(message.body["role"] == "user" for message in new.messages):
        return False
    first = tx.one(
        "SELECT previous FROM links WHERE thread_id = ? AND follows = '' AND previous <> ''",
        (new.link.thread,),
    )
    return first is not None


def find_link(
    tx: Tx, tenant: str, scope: str, digests: Sequence[str]
) -> ThreadLinkMatch | None:
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


def load_last_link(tx: Tx, thread: str) -> ThreadLink | None:
    """The point at which a thread ends; None if the thread has no points."""
    row = tx.one(
        f"SELECT {LINK_COLUMNS} FROM links l WHERE thread_id = ? AND NOT EXISTS "
        "(SELECT 1 FROM links n WHERE n.thread_id = l.thread_id AND n.follows = l.digest)",
        (thread,),
    )
    return None if row is None else ThreadLink(*row)


def load_conversation_end(
    tx: Tx, tenant: str, client_session: str, most: int
) -> ConversationEnd | None:
    """The end of a client's conversation; None if there is none, or if it waits for the results of its calls."""
    thread = find_conversation(tx, tenant, client_session)
    if thread is None or has_open_calls(tx, thread):
        return None
    rows = tx.all(
        "SELECT id, body FROM messages WHERE thread_id = ? AND kind = 'message' ORDER BY id DESC LIMIT ?",
        (thread, most),
    )
    return (
        ConversationEnd(thread, rows[0][0], [decode_body(row[1]) for row in rows])
        if rows
        else None
    )


def continues_other(tx: Tx, thread: str) -> bool:
    """Whether a thread continues another one whose messages its client no longer sends."""
    row = tx.one(
        "SELECT 1 FROM sessions s JOIN links l ON l.thread_id = s.id "
        "WHERE s.id = ? AND s.kind = 'branch' AND l.follows = '' AND l.previous = ''",
        (thread,),
    )
    return row is not None


def find_skeletons(
    tx: Tx, tenant: str, scope: str, skeletons: Sequence[str]
) -> list[ThreadLinkMatch]:
    """Points with the longest of these skeletons that is known."""
    for some in longest_first(skeletons):
        rows = tx.all(
            f"SELECT {LINK_COLUMNS} FROM links WHERE tenant = ? AND scope = ? AND skeleton IN ({placeholders(some)}) "
            f"ORDER BY length DESC, digest LIMIT {MAX_SIMILAR}",
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
    return ThreadLinkMatch(
        link,
        None if following is None else following[0],
        " ".join(_collect_results(tx, link)),
    )


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
    "tenant, engine, chain, strength, length, skeleton, results, thread_id, "
    "replacement, session_id, depth, state"
)
MAX_REWRITES = 4
"""Rewrites after which a lookup stops. The longest is used; the next ones if it is not ripe or does not apply."""


def put_rewrite(tx: Tx, new: Rewrite, now: float) -> Rewrite:
    """Insert a rewrite, or read the one that was first."""
    values = (
        new.tenant,
        new.engine,
        new.chain,
        new.strength,
        new.length,
        new.skeleton,
        new.results,
        new.thread,
        new.replacement,
        new.session,
        new.depth,
        encode_json(dict(new.state)),
        now,
    )
    tx.run(
        f"INSERT INTO rewrites ({REWRITE_COLUMNS}, created) VALUES ({placeholders(values)}) ON CONFLICT DO NOTHING",
        values,
    )
    row = tx.one(
        f"SELECT {REWRITE_COLUMNS} FROM rewrites WHERE tenant = ? AND engine = ? AND chain = ? AND strength = ?",
        (new.tenant, new.engine, new.chain, new.strength),
    )
    if row is None:
        raise StoreDamagedError(f"the rewrite {new.chain} was neither stored nor found")
    return as_rewrite(row)


def commit_rewrite(tx: Tx, new: NewRewrite, new_session: str, now: float) -> Rewrite:
    """Continue a thread with a compacted context, and keep the bytes that replace the history.

    If another process compacted the same history first, return its rewrite and change nothing.
    """
    rewrite = new.rewrite
    tip = lock_tip(tx, rewrite.thread)
    if tip.id != new.base_session:
        earlier_rewrite = _find_session_rewrite(tx, tip.id, new)
        if earlier_rewrite is not None:
            return earlier_rewrite
    point = _load_point(tx, new)
    entries, record = resolve_context(tx, tip, new, point)
    continuation = continue_session(
        tx,
        tip.id,
        entries,
        seen=_count_seen(tx, tip.id, point),
        pending=(),
        compaction=record,
        system=None,
        nodes=(),
        new_id=new_session,
        now=now,
        lease=None,
    )
    stored_rewrite = put_rewrite(
        tx, replace(rewrite, session=continuation.session.id), now
    )
    if stored_rewrite.session != continuation.session.id:
        raise StoreDamagedError(
            f"the rewrite {rewrite.chain} belongs to the session {stored_rewrite.session}"
        )
    return stored_rewrite


def _find_session_rewrite(tx: Tx, session: str, new: NewRewrite) -> Rewrite | None:
    """Find another process's rewrite of the same history in the session in which the thread continues."""
    digests = set(new.digests)
    rows = tx.all(
        f"SELECT {REWRITE_COLUMNS} FROM rewrites WHERE session_id = ? AND engine = ? ORDER BY length DESC",
        (session, new.rewrite.engine),
    )
    return next(
        (rewrite for rewrite in map(as_rewrite, rows) if rewrite.chain in digests), None
    )


def _load_point(tx: Tx, new: NewRewrite) -> int | None:
    """Load the id of the last message of the request that was compacted."""
    message: int | None = tx.value(
        "SELECT message_id FROM links WHERE tenant = ? AND scope = ? AND digest = ?",
        (new.rewrite.tenant, new.scope, new.digest),
    )
    return message


def _count_seen(tx: Tx, session: str, point: int | None) -> int:
    """Count the messages that a session shows up to a message; all if it does not show that one."""
    count = tx.value(
        "SELECT seq + 1 FROM places WHERE session_id = ? AND message_id = ?",
        (session, point),
    )
    return (
        int(count)
        if count
        else int(tx.value("SELECT next_seq FROM sessions WHERE id = ?", (session,)))
    )


def resolve_context(
    tx: Tx, tip: ThreadTip, new: NewRewrite, point: int | None
) -> tuple[list[int | NewMessage], NewCompaction]:
    """Find the stored messages that a compacted context keeps, and those that its summary covers.

    The client's own messages are counted from the end of the request; those of the last rewrite are where the session
    shows them, if it is the session of that rewrite.
    """
    context = new.context
    history = history_ids(tx, tip.thread, point)
    shown_ids: list[int] = []
    if tip.id == new.base_session:
        rows = tx.all(
            "SELECT message_id FROM places WHERE session_id = ? AND seq >= 0 ORDER BY seq",
            (tip.id,),
        )
        shown_ids = [row[0] for row in rows]

    def find(position: int) -> int | None:
        if position < context.inherited:
            place = context.lead + position
            return shown_ids[place] if place < len(shown_ids) else None
        place = len(history) - (context.given - position)
        return history[place] if 0 <= place < len(history) else None

    entries: list[int | NewMessage] = list(history[: context.lead])
    for entry in context.entries:
        message = None if entry.position is None else find(entry.position)
        if message is not None and not entry.is_changed:
            entries.append(message)
        elif entry.body is not None:
            kind: MessageKind = "summary" if entry.position is None else "derived"
            entries.append(
                NewMessage(entry.body, kind, tokens=entry.tokens, origin=message)
            )
    covered_ids = [
        message for message in map(find, context.covered) if message is not None
    ]
    return entries, replace(new.record, covered=covered_ids)


def find_rewrites(
    tx: Tx, tenant: str, engine: str, digests: Sequence[str]
) -> list[Rewrite]:
    """The longest few that cover one of these beginnings, the longest and strongest first."""
    return _find_rewrites(tx, "chain", tenant, engine, digests)


Found = list[tuple[list[Rewrite], list[Rewrite]]]


def list_rewrite_engines(tx: Tx, thread: str) -> list[str]:
    """Return the engines, each with its options and tools, whose rewrites a thread has."""
    rows = tx.all(
        "SELECT DISTINCT engine FROM rewrites WHERE thread_id = ? ORDER BY engine",
        (thread,),
    )
    return [row[0] for row in rows]


def match_rewrites(
    tx: Tx,
    tenant: str,
    engines: Sequence[str],
    digests: Sequence[str],
    skeletons: Sequence[str],
    before: RewriteSearch | None = None,
) -> tuple[Found, RewriteSearch | None]:
    """For each engine, find rewrites that cover a beginning exactly, and longer ones by skeleton; stop at a match.

    `before`: a search for a beginning of the history. While no rewrite was made since, only the new part is searched,
    and the rewrites found then.
    """
    if not tx.dialect.newest:
        return _match_rewrites(tx, tenant, engines, digests, skeletons, start=0), None
    newest = tx.one(tx.dialect.newest.format("rewrites"))
    if before is not None and _continues_search(before, engines, digests, newest):
        shorter = [*before.chains, *digests[before.length :]]
        matches = _match_rewrites(
            tx, tenant, engines, shorter, skeletons, start=before.length
        )
        # If the earlier rewrite is no longer there, search from the start.
        if not before.chains or any(exact_matches for exact_matches, _ in matches):
            return matches, _remember_search(engines, digests, newest, matches)
    matches = _match_rewrites(tx, tenant, engines, digests, skeletons, start=0)
    return matches, _remember_search(engines, digests, newest, matches)


def _match_rewrites(
    tx: Tx,
    tenant: str,
    engines: Sequence[str],
    digests: Sequence[str],
    skeletons: Sequence[str],
    *,
    start: int,
) -> Found:
    """The matches of each engine. `start`: shorter skeletons were searched before."""
    matches = []
    for engine in engines:
        exact_matches = find_rewrites(tx, tenant, engine, digests)
        exact_matches = [
            rewrite for rewrite in exact_matches if rewrite.length <= len(skeletons)
        ]
        longer_skeletons = [
            skeleton
            for skeleton in skeletons[
                max(start, exact_matches[0].length if exact_matches else 0) :
            ]
            if skeleton
        ]
        matches.append(
            (exact_matches, find_similar_rewrites(tx, tenant, engine, longer_skeletons))
        )
        if exact_matches:
            break
    return matches


def _continues_search(
    last_search: RewriteSearch,
    engines: Sequence[str],
    digests: Sequence[str],
    newest: Row | None,
) -> bool:
    return (
        last_search.newest == newest
        and last_search.engines == tuple(engines)
        and 0 < last_search.length <= len(digests)
        and digests[last_search.length - 1] == last_search.digest
    )


def _remember_search(
    engines: Sequence[str], digests: Sequence[str], newest: Row | None, matches: Found
) -> RewriteSearch | None:
    """Return the state from which the next search resumes; None if it must search for everything again."""
    if not digests or any(similar for _, similar in matches):
        return None
    chains = [
        rewrite.chain
        for exact_matches, _ in matches
        for rewrite in reversed(exact_matches)
    ]
    return RewriteSearch(
        tuple(engines), len(digests), digests[-1], newest, tuple(chains)
    )


def find_similar_rewrites(
    tx: Tx, tenant: str, engine: str, skeletons: Sequence[str]
) -> list[Rewrite]:
    """The longest few rewrites that cover one of these skeletons."""
    return _find_rewrites(tx, "skeleton", tenant, engine, skeletons)


def _find_rewrites(
    tx: Tx, column: str, tenant: str, engine: str, digests: Sequence[str]
) -> list[Rewrite]:
    rewrites: list[Rewrite] = []
    for some in longest_first(digests):
        rows = tx.all(
            f"SELECT {REWRITE_COLUMNS} FROM rewrites WHERE tenant = ? AND engine = ? "
            f"AND {column} IN ({placeholders(some)}) "
            f"ORDER BY length DESC, strength DESC, chain LIMIT {MAX_REWRITES - len(rewrites)}",
            (tenant, engine, *some),
        )
        rewrites += map(as_rewrite, rows)
        if len(rewrites) >= MAX_REWRITES:
            break
    return rewrites


def as_rewrite(row: Row) -> Rewrite:
    return Rewrite(*[*row[:8], bytes(row[8]), row[9], row[10], decode_json(row[11])])
