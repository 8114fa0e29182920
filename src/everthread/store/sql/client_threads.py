"""The links of clients' histories, and the rewrites of their beginnings.

Clients send their whole history each time. Each prefix of a history is identified by two digests: `digest` changes with
every word; `skeleton` leaves out thinking and the contents of tool results, which clients drop to save tokens.
`results` are short hashes of those contents, separated by blanks: they distinguish a cleared result from a result of
another conversation. A rewrite is written once and never changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.errors import InputError, StoreDamagedError
from everthread.store.database import Row, Tx, placeholders
from everthread.store.records import MessageKind, NewCompaction, NewMessage
from everthread.store.rewrite_records import (
    ConversationEnd,
    NewRewrite,
    NewThreadLink,
    Rewrite,
    RewriteSearch,
    ThreadLink,
    ThreadLinkMatch,
)
from everthread.store.sql.accounts import insert_usage, record_usage
from everthread.store.sql.branches import branch_thread, list_history_ids
from everthread.store.sql.compactions import continue_session
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
from everthread.store.sql.thread_state import put_state
from everthread.store.usage_records import NewUsage
from everthread.store.value_encoding import decode_body, decode_json, encode_json

LINK_COLUMNS = (
    "tenant, scope, digest, previous, skeleton, thread_id, length, message_id, results"
)


@dataclass(frozen=True, slots=True)
class PreparedLink:
    """A link to store, with its messages prepared for the database."""

    new_link: NewThreadLink
    append_request: AppendRequest


@dataclass(frozen=True, slots=True)
class ThreadExtension:
    """Links to append to one thread, with the usage and the state to store in the same transaction."""

    thread: str
    """The thread for usage and state if there are no links."""
    links: Sequence[PreparedLink]
    usage: Sequence[NewUsage] = ()
    state: tuple[str, Any] | None = None
    """A key and its value."""

    def prepare(self) -> None:
        """Compute the rows of all messages, before the transaction."""
        for prepared in self.links:
            prepared.append_request.prepare()

    def store(self, tx: Tx, now: float) -> list[ThreadLink | None]:
        """Store everything, and return the links; store nothing if the first link cannot be appended."""
        stored_links = extend_thread(tx, self.links, now)
        first_link = stored_links[0] if stored_links else None
        if stored_links and first_link is None:
            return stored_links
        thread = first_link.thread if first_link is not None else self.thread
        # The thread of a stored link exists; any other must be looked up.
        store_usage = insert_usage if stored_links else record_usage
        for call in self.usage:
            store_usage(
                tx,
                call if call.session == thread else replace(call, session=thread),
                now,
            )
        if self.state is not None:
            put_state(tx, thread, *self.state, now)
        return stored_links


INSERT_LINK = (
    "INSERT INTO links (tenant, scope, digest, previous, follows, skeleton, thread_id, length, message_id, results) "
    "SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ? "
    "WHERE ? = '' OR EXISTS (SELECT 1 FROM links WHERE digest = ? AND thread_id = ?) "
    "ON CONFLICT DO NOTHING RETURNING digest"
)
"""Append a link to the stored link that it follows. The index `links_follows` lets only one link follow another."""
SELECT_THREAD_OWNER = "SELECT tenant, kind, parent_id FROM sessions WHERE id = ?"
MAX_DIGESTS_PER_QUERY = 400
"""Maximum digests in one query."""
MAX_SIMILAR = 8
"""Maximum links of one skeleton to compare: a client clears old results only a few times."""


def extend_thread(
    tx: Tx, prepared_links: Sequence[PreparedLink], now: float
) -> list[ThreadLink | None]:
    """Store links that follow each other in one thread, their messages, and the thread if it is new.

    Stop at a link that was stored before, and return the stored one. Return None for a link if the thread does not end
    at the link that it follows.
    """
    links: list[ThreadLink | None] = []
    inserted_links: list[PreparedLink] = []
    session: Row | None = None
    for prepared in prepared_links:
        link = prepared.new_link.link
        rows, *sessions = tx.all_of_each(
            [
                (INSERT_LINK, _make_link_row(prepared.new_link)),
                *([] if inserted_links else [(SELECT_THREAD_OWNER, (link.thread,))]),
            ],
        )
        links.append(link if rows else _reload_link(tx, link))
        if not rows:
            break
        session = sessions[0][0] if sessions and sessions[0] else session
        inserted_links.append(prepared)
    if not inserted_links:
        return links
    _open_thread(tx, inserted_links[0].new_link, session, now)
    messages_by_link = append_messages(
        tx, [prepared.append_request for prepared in inserted_links]
    )
    for index, (prepared, messages) in enumerate(
        zip(inserted_links, messages_by_link, strict=True)
    ):
        if messages:
            link = prepared.new_link.link
            last_id = messages[-1].id
            key = (link.tenant, link.scope, link.digest)
            tx.run(
                "UPDATE links SET message_id = ? WHERE tenant = ? AND scope = ? AND digest = ?",
                (last_id, *key),
            )
            links[index] = replace(link, message=last_id)
    return links


def _make_link_row(new: NewThreadLink) -> Row:
    """Return the values of `INSERT_LINK`."""
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
    """Create the thread of a link if it does not exist. `row`: the result of `SELECT_THREAD_OWNER`."""
    if row is not None:
        if row[0] != new.link.tenant:
            raise InputError(f"the id {new.link.thread!r} is taken by another session")
        if row[1] == new.session.kind == "side":
            promote_side_call(tx, new.link.thread, row[2])
        elif row[1] == "side" and _turns_into_conversation(tx, new):
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
                default_id=new.session.id,
                now=now,
            )
            return
    session = place_side_call(tx, new.session, new.client_parent)
    create_session(tx, session, now)
    if session.kind == "main" and session.client_session:
        adopt_side_calls(tx, session.id)


def _turns_into_conversation(tx: Tx, new: NewThreadLink) -> bool:
    """Return whether a side call that shares a conversation's beginning has a new message of the user."""
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
    """Find the longest stored beginning of a history. `digests`: those of all beginnings, the shortest first."""
    for chunk in chunk_longest_first(digests):
        row = tx.one(
            f"SELECT {LINK_COLUMNS} FROM links WHERE tenant = ? AND scope = ? AND digest IN ({placeholders(chunk)}) "
            "ORDER BY length DESC LIMIT 1",
            (tenant, scope, *chunk),
        )
        if row is not None:
            return _make_link_match(tx, ThreadLink(*row))
    return None


def load_last_link(tx: Tx, thread: str) -> ThreadLink | None:
    """Return the last link of a thread; None if the thread has no links."""
    row = tx.one(
        f"SELECT {LINK_COLUMNS} FROM links l WHERE thread_id = ? AND NOT EXISTS "
        "(SELECT 1 FROM links n WHERE n.thread_id = l.thread_id AND n.follows = l.digest)",
        (thread,),
    )
    return None if row is None else ThreadLink(*row)


def load_conversation_end(
    tx: Tx, tenant: str, client_session: str, platform: str, max_messages: int
) -> ConversationEnd | None:
    """Return the end of a client's conversation; None without a conversation, or while results of calls are missing."""
    thread = find_conversation(tx, tenant, client_session, platform)
    if thread is None or has_open_calls(tx, thread):
        return None
    rows = tx.all(
        "SELECT id, body FROM messages WHERE thread_id = ? AND kind = 'message' ORDER BY id DESC LIMIT ?",
        (thread, max_messages),
    )
    return (
        ConversationEnd(thread, rows[0][0], [decode_body(row[1]) for row in rows])
        if rows
        else None
    )


def continues_other_thread(tx: Tx, thread: str) -> bool:
    """Return whether a thread continues another one whose messages its client no longer sends."""
    row = tx.one(
        "SELECT 1 FROM sessions s JOIN links l ON l.thread_id = s.id "
        "WHERE s.id = ? AND s.kind = 'branch' AND l.follows = '' AND l.previous = ''",
        (thread,),
    )
    return row is not None


def find_links_by_skeleton(
    tx: Tx, tenant: str, scope: str, skeletons: Sequence[str]
) -> list[ThreadLinkMatch]:
    """Return the links with the longest stored skeleton among these."""
    for chunk in chunk_longest_first(skeletons):
        rows = tx.all(
            f"SELECT {LINK_COLUMNS} FROM links WHERE tenant = ? AND scope = ? AND skeleton IN ({placeholders(chunk)}) "
            f"ORDER BY length DESC, digest LIMIT {MAX_SIMILAR}",
            (tenant, scope, *chunk),
        )
        if rows:
            return [_make_link_match(tx, ThreadLink(*row)) for row in rows]
    return []


def chunk_longest_first(digests: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the digests in chunks, those of the longest prefixes first."""
    for end in range(len(digests), 0, -MAX_DIGESTS_PER_QUERY):
        yield digests[max(0, end - MAX_DIGESTS_PER_QUERY) : end]


def _make_link_match(tx: Tx, link: ThreadLink) -> ThreadLinkMatch:
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
    """Return the hashes of all tool results up to a link."""
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


def _reload_link(tx: Tx, link: ThreadLink) -> ThreadLink | None:
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
"""Maximum rewrites that a lookup returns. The longest is used first; a shorter one if that does not apply."""


def put_rewrite(tx: Tx, new: Rewrite, now: float) -> Rewrite:
    """Insert a rewrite; return the stored one, which another process may have inserted first."""
    values = (
        new.tenant,
        new.engine,
        new.digest,
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
        (new.tenant, new.engine, new.digest, new.strength),
    )
    if row is None:
        raise StoreDamagedError(
            f"the rewrite {new.digest} was neither stored nor found"
        )
    return decode_rewrite(row)


def commit_rewrite(tx: Tx, new: NewRewrite, new_session: str, now: float) -> Rewrite:
    """Continue a thread with a compacted context, and store the rewrite.

    If another process compacted the same history first, return that rewrite and change nothing.
    """
    rewrite = new.rewrite
    tip = lock_tip(tx, rewrite.thread)
    if tip.id != new.base_session:
        earlier_rewrite = _find_session_rewrite(tx, tip.id, new)
        if earlier_rewrite is not None:
            return earlier_rewrite
    last_message = _load_last_request_message(tx, new)
    entries, record = resolve_stored_context(tx, tip, new, last_message)
    continuation = continue_session(
        tx,
        tip.id,
        entries,
        seen_count=_count_shown_until(tx, tip.id, last_message),
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
            f"the rewrite {rewrite.digest} belongs to the session {stored_rewrite.session}"
        )
    return stored_rewrite


def _find_session_rewrite(tx: Tx, session: str, new: NewRewrite) -> Rewrite | None:
    """Return the rewrite of the same history that another process made in this session, or None."""
    digests = set(new.digests)
    rows = tx.all(
        f"SELECT {REWRITE_COLUMNS} FROM rewrites WHERE session_id = ? AND engine = ? ORDER BY length DESC",
        (session, new.rewrite.engine),
    )
    return next(
        (rewrite for rewrite in map(decode_rewrite, rows) if rewrite.digest in digests),
        None,
    )


def _load_last_request_message(tx: Tx, new: NewRewrite) -> int | None:
    """Load the id of the last message of the request that was compacted."""
    message: int | None = tx.value(
        "SELECT message_id FROM links WHERE tenant = ? AND scope = ? AND digest = ?",
        (new.rewrite.tenant, new.scope, new.digest),
    )
    return message


def _count_shown_until(tx: Tx, session: str, message: int | None) -> int:
    """Count the messages that a session shows up to a message; count all if the session does not show it."""
    count = tx.value(
        "SELECT seq + 1 FROM places WHERE session_id = ? AND message_id = ?",
        (session, message),
    )
    return (
        int(count)
        if count
        else int(tx.value("SELECT next_seq FROM sessions WHERE id = ?", (session,)))
    )


def resolve_stored_context(
    tx: Tx, tip: ThreadTip, new: NewRewrite, last_message: int | None
) -> tuple[list[int | NewMessage], NewCompaction]:
    """Find the stored messages that a compacted context keeps, and those that its summary covers.

    `last_message`: the last stored message of the request. The client's own messages are counted back from there;
    messages of the last rewrite are those that its session shows.
    """
    context = new.context
    history = list_history_ids(tx, tip.thread, last_message)
    shown_ids: list[int] = []
    if tip.id == new.base_session:
        rows = tx.all(
            "SELECT message_id FROM places WHERE session_id = ? AND seq >= 0 ORDER BY seq",
            (tip.id,),
        )
        shown_ids = [row[0] for row in rows]

    def find_stored_message(position: int) -> int | None:
        if position < context.inherited_count:
            index = context.leading_count + position
            return shown_ids[index] if index < len(shown_ids) else None
        index = len(history) - (context.compacted_count - position)
        return history[index] if 0 <= index < len(history) else None

    entries: list[int | NewMessage] = list(history[: context.leading_count])
    for entry in context.entries:
        message = (
            None if entry.position is None else find_stored_message(entry.position)
        )
        if message is not None and not entry.is_changed:
            entries.append(message)
        elif entry.body is not None:
            kind: MessageKind = "summary" if entry.position is None else "derived"
            entries.append(
                NewMessage(entry.body, kind, tokens=entry.tokens, origin=message)
            )
    covered_ids = [
        message
        for message in map(find_stored_message, context.covered)
        if message is not None
    ]
    return entries, replace(new.record, covered=covered_ids)


def find_rewrites(
    tx: Tx, tenant: str, engine: str, digests: Sequence[str]
) -> list[Rewrite]:
    """Return a few rewrites that cover one of these beginnings, the longest and strongest first."""
    return _find_rewrites(tx, "chain", tenant, engine, digests)


RewriteMatches = list[tuple[list[Rewrite], list[Rewrite]]]
"""For each engine, the rewrites of an exact beginning, and those of a beginning with the same skeleton."""


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
    last_search: RewriteSearch | None = None,
) -> tuple[RewriteMatches, RewriteSearch | None]:
    """For each engine, find rewrites of an exact beginning, and of longer beginnings by skeleton; stop at a match.

    `last_search`: an earlier search for a beginning of the history. If no rewrite was made since, only the new part is
    searched.
    """
    if not tx.dialect.select_newest:
        return _match_rewrites(
            tx, tenant, engines, digests, skeletons, searched_length=0
        ), None
    newest_rewrite = tx.one(tx.dialect.select_newest.format("rewrites"))
    if last_search is not None and _continues_search(
        last_search, engines, digests, newest_rewrite
    ):
        unsearched_digests = [
            *last_search.found_digests,
            *digests[last_search.length :],
        ]
        matches = _match_rewrites(
            tx,
            tenant,
            engines,
            unsearched_digests,
            skeletons,
            searched_length=last_search.length,
        )
        # If the earlier rewrite is no longer there, search from the start.
        if not last_search.found_digests or any(
            exact_matches for exact_matches, _ in matches
        ):
            return matches, _remember_search(engines, digests, newest_rewrite, matches)
    matches = _match_rewrites(
        tx, tenant, engines, digests, skeletons, searched_length=0
    )
    return matches, _remember_search(engines, digests, newest_rewrite, matches)


def _match_rewrites(
    tx: Tx,
    tenant: str,
    engines: Sequence[str],
    digests: Sequence[str],
    skeletons: Sequence[str],
    *,
    searched_length: int,
) -> RewriteMatches:
    """Return the matches of each engine. `searched_length`: skip the skeletons up to this length, searched before."""
    matches = []
    for engine in engines:
        exact_matches = find_rewrites(tx, tenant, engine, digests)
        exact_matches = [
            rewrite for rewrite in exact_matches if rewrite.length <= len(skeletons)
        ]
        longer_skeletons = [
            skeleton
            for skeleton in skeletons[
                max(searched_length, exact_matches[0].length if exact_matches else 0) :
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
    newest_rewrite: Row | None,
) -> bool:
    return (
        last_search.newest_rewrite == newest_rewrite
        and last_search.engines == tuple(engines)
        and 0 < last_search.length <= len(digests)
        and digests[last_search.length - 1] == last_search.digest
    )


def _remember_search(
    engines: Sequence[str],
    digests: Sequence[str],
    newest_rewrite: Row | None,
    matches: RewriteMatches,
) -> RewriteSearch | None:
    """Return the state from which the next search resumes; None if it must search for everything again."""
    if not digests or any(similar for _, similar in matches):
        return None
    found_digests = [
        rewrite.digest
        for exact_matches, _ in matches
        for rewrite in reversed(exact_matches)
    ]
    return RewriteSearch(
        tuple(engines), len(digests), digests[-1], newest_rewrite, tuple(found_digests)
    )


def find_similar_rewrites(
    tx: Tx, tenant: str, engine: str, skeletons: Sequence[str]
) -> list[Rewrite]:
    """Return a few rewrites that cover one of these skeletons, the longest first."""
    return _find_rewrites(tx, "skeleton", tenant, engine, skeletons)


def _find_rewrites(
    tx: Tx, column: str, tenant: str, engine: str, digests: Sequence[str]
) -> list[Rewrite]:
    rewrites: list[Rewrite] = []
    for chunk in chunk_longest_first(digests):
        rows = tx.all(
            f"SELECT {REWRITE_COLUMNS} FROM rewrites WHERE tenant = ? AND engine = ? "
            f"AND {column} IN ({placeholders(chunk)}) "
            f"ORDER BY length DESC, strength DESC, chain LIMIT {MAX_REWRITES - len(rewrites)}",
            (tenant, engine, *chunk),
        )
        rewrites += map(decode_rewrite, rows)
        if len(rewrites) >= MAX_REWRITES:
            break
    return rewrites


def decode_rewrite(row: Row) -> Rewrite:
    return Rewrite(*[*row[:8], bytes(row[8]), row[9], row[10], decode_json(row[11])])
