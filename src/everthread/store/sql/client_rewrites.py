"""Store and find rewrites: compacted beginnings of clients' histories. A rewrite is never changed, only deleted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, replace
from typing import Literal

from everthread.core.turns import user_text
from everthread.errors import StoreDamagedError
from everthread.store.database import Row, Tx, placeholders, split_batches
from everthread.store.records import MessageKind, NewCompaction, NewMessage
from everthread.store.rewrite_records import (
    CLIENT_NOTES_ROLE,
    NewRewrite,
    ProxiedContext,
    Rewrite,
    RewriteSearchState,
    RewriteState,
)
from everthread.store.sql.branches import list_history_ids
from everthread.store.sql.client_links import batch_longest_first
from everthread.store.sql.compactions import continue_session
from everthread.store.sql.session_rows import ThreadTip, lock_tip
from everthread.store.sql.stored_messages import load_message
from everthread.store.value_codec import decode_json, encode_json

REWRITE_COLUMNS = (
    "tenant, engine, digest, strength, replaced_count, loose_digest, results, thread_id, "
    "replacement, session_id, depth, state"
)
MAX_REWRITES = 4
"""Maximum rewrites that a lookup returns. The longest is used first; a shorter one if that does not apply."""


def put_rewrite(tx: Tx, now: float, new: Rewrite) -> Rewrite:
    """Store a rewrite; return the stored one, which another process may have made first."""
    values = (*astuple(new)[:-1], encode_json(asdict(new.state)), now)
    tx.run(
        f"INSERT INTO rewrites ({REWRITE_COLUMNS}, created) VALUES ({placeholders(values)}) ON CONFLICT DO NOTHING",
        values,
    )
    row = tx.one(
        f"SELECT {REWRITE_COLUMNS} FROM rewrites WHERE tenant = ? AND engine = ? AND digest = ? AND strength = ?",
        (new.tenant, new.engine, new.digest, new.strength),
    )
    if row is None:
        raise StoreDamagedError(f"the rewrite {new.digest} was neither stored nor found")
    return decode_rewrite(row)


def commit_rewrite(tx: Tx, new: NewRewrite, now: float) -> Rewrite:
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
        seen_count=_count_messages_through(tx, tip.id, last_message),
        now=now,
        compaction=record,
    )
    stored_rewrite = put_rewrite(tx, now, replace(rewrite, session=continuation.session.id))
    if stored_rewrite.session != continuation.session.id:
        raise StoreDamagedError(
            f"the rewrite {rewrite.digest} belongs to the session {stored_rewrite.session}"
        )
    return stored_rewrite


def _find_session_rewrite(tx: Tx, session_id: str, new: NewRewrite) -> Rewrite | None:
    """Return the rewrite of the same history that another process made in this session, or None."""
    digests = set(new.digests)
    rows = tx.all(
        f"SELECT {REWRITE_COLUMNS} FROM rewrites WHERE session_id = ? AND engine = ? ORDER BY replaced_count DESC",
        (session_id, new.rewrite.engine),
    )
    return next(
        (rewrite for rewrite in map(decode_rewrite, rows) if rewrite.digest in digests),
        None,
    )


def _load_last_request_message(tx: Tx, new: NewRewrite) -> int | None:
    """Load the id of the last message of the request that was compacted."""
    message: int | None = tx.value(
        "SELECT last_message_id FROM links WHERE tenant = ? AND scope = ? AND digest = ?",
        (new.rewrite.tenant, new.scope, new.digest),
    )
    return message


def _count_messages_through(tx: Tx, session_id: str, message_id: int | None) -> int:
    """Count the messages that a session shows up to and including this one, or all if it does not show this one."""
    sql = "SELECT seq + 1 FROM places WHERE session_id = ? AND message_id = ?"
    count = tx.value(sql, (session_id, message_id))
    if not count:
        count = tx.value("SELECT next_seq FROM sessions WHERE id = ?", (session_id,))
    return int(count)


def resolve_stored_context(
    tx: Tx, tip: ThreadTip, new: NewRewrite, last_message_id: int | None
) -> tuple[list[int | NewMessage], NewCompaction]:
    """Find the stored messages that a compacted context keeps, and those that its summary covers.

    `last_message_id`: the last stored message of the request. The client's own messages are found from there backwards;
    messages of the last rewrite are those that its session shows.
    """
    context = new.context
    history = list_history_ids(tx, tip.thread_id, last_message_id)
    own_ids = _find_own_ids(tx, context, history)
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
        return own_ids[position - context.inherited_count]

    entries: list[int | NewMessage] = list(history[: context.leading_count])
    for entry in context.entries:
        message = None if entry.position is None else find_stored_message(entry.position)
        if message is not None and not entry.is_changed:
            entries.append(message)
        elif entry.message is not None:
            kind: MessageKind = "summary" if entry.position is None else "derived"
            entries.append(NewMessage(entry.message, kind, tokens=entry.tokens, origin=message))
    covered_ids = [
        message for message in map(find_stored_message, context.covered) if message is not None
    ]
    return entries, replace(new.record, covered=covered_ids)


def _find_own_ids(tx: Tx, context: ProxiedContext, history: Sequence[int]) -> list[int | None]:
    """Return the stored id of each of the client's own compacted messages, or None for a message that is not stored.

    Pair them with the stored messages from the end backwards, by their roles: a client may have added a message that
    holds only its own notes, or split an answer, and such messages are not stored.
    """
    stored_roles = _load_roles(tx, history)
    ids: list[int | None] = []
    index = len(history) - 1
    for role in reversed(context.own_roles):
        while role == "tool" and index >= 0 and stored_roles[history[index]] != role:
            index -= 1
        message = history[index] if index >= 0 else None
        if message is not None and _has_role(tx, message, stored_roles[message], role):
            ids.append(message)
            index -= 1
        else:
            ids.append(None)
    ids.reverse()
    return ids


def _has_role(tx: Tx, message_id: int, stored_role: str, role: str) -> bool:
    """Return whether a stored message has this role, `CLIENT_NOTES_ROLE` included."""
    if role == CLIENT_NOTES_ROLE:
        return stored_role == "user" and not user_text(load_message(tx, message_id).body)
    return stored_role == role


def _load_roles(tx: Tx, ids: Sequence[int]) -> dict[int, str]:
    roles: dict[int, str] = {}
    for batch in split_batches(ids):
        rows = tx.all(f"SELECT id, role FROM messages WHERE id IN ({placeholders(batch)})", batch)
        roles.update((row[0], row[1]) for row in rows)
    return roles


RewriteMatches = list[tuple[list[Rewrite], list[Rewrite]]]
"""For each engine, the rewrites of an exact beginning, and those of a beginning with the same loose digest."""


def list_rewrite_engines(tx: Tx, thread_id: str) -> list[str]:
    """Return the engines, each with its options and tools, whose rewrites a thread has."""
    rows = tx.all(
        "SELECT DISTINCT engine FROM rewrites WHERE thread_id = ? ORDER BY engine",
        (thread_id,),
    )
    return [row[0] for row in rows]


def match_rewrites(
    tx: Tx,
    tenant: str,
    engines: Sequence[str],
    digests: Sequence[str],
    loose_digests: Sequence[str],
    last_search: RewriteSearchState | None = None,
) -> tuple[RewriteMatches, RewriteSearchState | None]:
    """For each engine, find rewrites of an exact beginning, and of longer beginnings by loose digest; stop at a match.

    `last_search`: an earlier search for a beginning of the history. If no rewrite was made since, only the new part is
    searched.
    """
    if not tx.dialect.select_newest:
        return _match_rewrites(tx, tenant, engines, digests, loose_digests, searched_length=0), None
    newest_rewrite = tx.one(tx.dialect.select_newest.format("rewrites"))
    if last_search is not None and _continues_search(last_search, engines, digests, newest_rewrite):
        unsearched_digests = [
            *last_search.found_digests,
            *digests[last_search.message_count :],
        ]
        matches = _match_rewrites(
            tx,
            tenant,
            engines,
            unsearched_digests,
            loose_digests,
            searched_length=last_search.message_count,
        )
        # If the earlier rewrite is no longer there, search from the start.
        if not last_search.found_digests or any(exact_matches for exact_matches, _ in matches):
            return matches, _remember_search(engines, digests, newest_rewrite, matches)
    matches = _match_rewrites(tx, tenant, engines, digests, loose_digests, searched_length=0)
    return matches, _remember_search(engines, digests, newest_rewrite, matches)


def _match_rewrites(
    tx: Tx,
    tenant: str,
    engines: Sequence[str],
    digests: Sequence[str],
    loose_digests: Sequence[str],
    *,
    searched_length: int,
) -> RewriteMatches:
    """Return the matches of each engine. `searched_length`: skip the loose digests up to this length."""
    matches = []
    for engine in engines:
        exact_matches = [
            rewrite
            for rewrite in _find_rewrites(tx, "digest", tenant, engine, digests)
            if rewrite.replaced_count <= len(loose_digests)
        ]
        longer_loose_digests = [
            loose_digest
            for loose_digest in loose_digests[
                max(searched_length, exact_matches[0].replaced_count if exact_matches else 0) :
            ]
            if loose_digest
        ]
        similar_matches = _find_rewrites(tx, "loose_digest", tenant, engine, longer_loose_digests)
        matches.append((exact_matches, similar_matches))
        if exact_matches:
            break
    return matches


def _continues_search(
    last_search: RewriteSearchState,
    engines: Sequence[str],
    digests: Sequence[str],
    newest_rewrite: Row | None,
) -> bool:
    return (
        last_search.newest_rewrite == newest_rewrite
        and last_search.engines == tuple(engines)
        and 0 < last_search.message_count <= len(digests)
        and digests[last_search.message_count - 1] == last_search.digest
    )


def _remember_search(
    engines: Sequence[str],
    digests: Sequence[str],
    newest_rewrite: Row | None,
    matches: RewriteMatches,
) -> RewriteSearchState | None:
    """Return the state from which the next search resumes, or None if it must search for everything again."""
    if not digests or any(similar for _, similar in matches):
        return None
    found_digests = [
        rewrite.digest for exact_matches, _ in matches for rewrite in reversed(exact_matches)
    ]
    return RewriteSearchState(
        tuple(engines), len(digests), digests[-1], newest_rewrite, tuple(found_digests)
    )


def _find_rewrites(
    tx: Tx,
    column: Literal["digest", "loose_digest"],
    tenant: str,
    engine: str,
    digests: Sequence[str],
) -> list[Rewrite]:
    """Return a few rewrites that cover one of these beginnings, the longest and strongest first."""
    rewrites: list[Rewrite] = []
    for batch in batch_longest_first(digests):
        rows = tx.all(
            f"SELECT {REWRITE_COLUMNS} FROM rewrites WHERE tenant = ? AND engine = ? "
            f"AND {column} IN ({placeholders(batch)}) "
            f"ORDER BY replaced_count DESC, strength DESC, digest LIMIT {MAX_REWRITES - len(rewrites)}",
            (tenant, engine, *batch),
        )
        rewrites += map(decode_rewrite, rows)
        if len(rewrites) >= MAX_REWRITES:
            break
    return rewrites


def decode_rewrite(row: Row) -> Rewrite:
    state = RewriteState(**decode_json(row[11]))
    return Rewrite(*[*row[:8], bytes(row[8]), row[9], row[10], state])
