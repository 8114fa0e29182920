"""Store and find the histories of clients that send their whole history each time, as chains of links.

A link is a prefix of a history. It is identified by two digests: `digest` changes with every word; `loose_digest`
leaves out thinking and the contents of tool results, which clients drop to save tokens. `results` are short hashes of
those contents, separated by blanks: they distinguish a cleared result from a result of another conversation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from everthread.errors import InputError
from everthread.store.database import Row, Tx, placeholders
from everthread.store.rewrite_records import (
    ConversationEnd,
    NewThreadLink,
    ThreadLink,
    ThreadLinkMatch,
)
from everthread.store.sql.accounts import insert_usage, record_usage
from everthread.store.sql.branches import branch_thread
from everthread.store.sql.session_rows import create_session, load_session
from everthread.store.sql.session_state import put_state
from everthread.store.sql.side_calls import (
    adopt_side_calls,
    find_conversation,
    has_open_calls,
    place_side_call,
    promote_side_call,
)
from everthread.store.sql.stored_messages import AppendRequest, append_messages
from everthread.store.usage_records import NewUsage
from everthread.store.value_codec import decode_body

LINK_COLUMNS = "tenant, scope, digest, previous, loose_digest, thread_id, message_count, last_message_id, results"


@dataclass(frozen=True, slots=True)
class PreparedLink:
    """A link to store, with its messages prepared for the database."""

    new_link: NewThreadLink
    append_request: AppendRequest


@dataclass(frozen=True, slots=True)
class ThreadExtension:
    """Links to append to one thread, with the usage and the state to store in the same transaction."""

    thread_id: str
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
        thread_id = first_link.thread if first_link is not None else self.thread_id
        # The thread of a stored link exists; any other must be looked up.
        store_usage = insert_usage if stored_links else record_usage
        for call in self.usage:
            store_usage(
                tx,
                call if call.session == thread_id else replace(call, session=thread_id),
                now,
            )
        if self.state is not None:
            put_state(tx, now, thread_id, *self.state)
        return stored_links


INSERT_LINK = (
    f"INSERT INTO links ({LINK_COLUMNS}, follows) SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ? "
    "WHERE ? = '' OR EXISTS (SELECT 1 FROM links WHERE digest = ? AND thread_id = ?) "
    "ON CONFLICT DO NOTHING RETURNING digest"
)
"""Append a link to the stored link that it follows. The index `links_follows` lets only one link follow another."""
SELECT_THREAD_OWNER = "SELECT tenant, kind, parent_id FROM sessions WHERE id = ?"
MAX_DIGESTS_PER_QUERY = 400
"""Maximum digests in one query."""
MAX_SIMILAR_LINKS = 8
"""Maximum links of one loose digest to compare: a client clears old results only a few times."""


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
        follows = prepared.new_link.follows
        link_values = (*astuple(link), follows, follows, follows, link.thread)
        rows, *sessions = tx.all_of_each(
            [
                (INSERT_LINK, link_values),
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
    messages_by_link = append_messages(tx, [prepared.append_request for prepared in inserted_links])
    for index, (prepared, messages) in enumerate(
        zip(inserted_links, messages_by_link, strict=True)
    ):
        if messages:
            link = prepared.new_link.link
            last_id = messages[-1].id
            key = (link.tenant, link.scope, link.digest)
            tx.run(
                "UPDATE links SET last_message_id = ? WHERE tenant = ? AND scope = ? AND digest = ?",
                (last_id, *key),
            )
            links[index] = replace(link, last_message_id=last_id)
    return links


def _open_thread(tx: Tx, new: NewThreadLink, row: Row | None, now: float) -> None:
    """Create the thread of a link if it does not exist. `row`: the result of `SELECT_THREAD_OWNER`."""
    if row is not None:
        if row[0] != new.link.tenant:
            raise InputError(f"the id {new.link.thread!r} is taken by another session")
        if row[1] == new.session.kind == "side":
            promote_side_call(tx, new.link.thread, row[2])
        elif row[1] == "side" and _turns_into_conversation(tx, new):
            tx.run("UPDATE sessions SET kind = 'branch' WHERE id = ?", (new.link.thread,))
        return
    if new.branch_of is not None:
        thread_id, message = new.branch_of
        if load_session(tx, thread_id).tenant == new.link.tenant:
            branch_thread(tx, now, thread_id, message, new=new.session)
            return
    session = place_side_call(tx, new.session, new.client_parent)
    create_session(tx, session, now)
    if session.kind == "main" and session.client_session:
        adopt_side_calls(tx, session.id)


def _turns_into_conversation(tx: Tx, new: NewThreadLink) -> bool:
    """Return whether a side call that shares a conversation's beginning has a new message of the user."""
    if not any(message.body["role"] == "user" for message in new.messages):
        return False
    first_row = tx.one(
        "SELECT previous FROM links WHERE thread_id = ? AND follows = '' AND previous <> ''",
        (new.link.thread,),
    )
    return first_row is not None


def find_link(tx: Tx, tenant: str, scope: str, digests: Sequence[str]) -> ThreadLinkMatch | None:
    """Find the longest stored beginning of a history. `digests`: those of all beginnings, the shortest first."""
    for batch in batch_longest_first(digests):
        row = tx.one(
            f"SELECT {LINK_COLUMNS} FROM links WHERE tenant = ? AND scope = ? AND digest IN ({placeholders(batch)}) "
            "ORDER BY message_count DESC LIMIT 1",
            (tenant, scope, *batch),
        )
        if row is not None:
            return _make_link_match(tx, ThreadLink(*row))
    return None


def load_last_link(tx: Tx, thread_id: str) -> ThreadLink | None:
    """Return the last link of a thread, or None if the thread has no links."""
    row = tx.one(
        f"SELECT {LINK_COLUMNS} FROM links l WHERE thread_id = ? AND NOT EXISTS "
        "(SELECT 1 FROM links n WHERE n.thread_id = l.thread_id AND n.follows = l.digest)",
        (thread_id,),
    )
    return None if row is None else ThreadLink(*row)


def load_conversation_end(
    tx: Tx, tenant: str, client_session: str, platform: str, max_messages: int
) -> ConversationEnd | None:
    """Return the end of a client's conversation, or None if there is none or if results of calls are missing."""
    thread_id = find_conversation(tx, tenant, client_session, platform)
    if thread_id is None or has_open_calls(tx, thread_id):
        return None
    rows = tx.all(
        "SELECT id, body FROM messages WHERE thread_id = ? AND kind = 'message' ORDER BY id DESC LIMIT ?",
        (thread_id, max_messages),
    )
    return (
        ConversationEnd(thread_id, rows[0][0], [decode_body(row[1]) for row in rows])
        if rows
        else None
    )


def continues_other_thread(tx: Tx, thread_id: str) -> bool:
    """Return whether a thread continues another one whose messages its client no longer sends."""
    row = tx.one(
        "SELECT 1 FROM sessions s JOIN links l ON l.thread_id = s.id "
        "WHERE s.id = ? AND s.kind = 'branch' AND l.follows = '' AND l.previous = ''",
        (thread_id,),
    )
    return row is not None


def find_links_by_loose_digest(
    tx: Tx, tenant: str, scope: str, loose_digests: Sequence[str]
) -> list[ThreadLinkMatch]:
    """Return the links with the longest stored loose digest among these."""
    for batch in batch_longest_first(loose_digests):
        rows = tx.all(
            f"SELECT {LINK_COLUMNS} FROM links WHERE tenant = ? AND scope = ? "
            f"AND loose_digest IN ({placeholders(batch)}) "
            f"ORDER BY message_count DESC, digest LIMIT {MAX_SIMILAR_LINKS}",
            (tenant, scope, *batch),
        )
        if rows:
            return [_make_link_match(tx, ThreadLink(*row)) for row in rows]
    return []


def batch_longest_first(digests: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the digests in batches, those of the longest prefixes first."""
    for end in range(len(digests), 0, -MAX_DIGESTS_PER_QUERY):
        yield digests[max(0, end - MAX_DIGESTS_PER_QUERY) : end]


def _make_link_match(tx: Tx, link: ThreadLink) -> ThreadLinkMatch:
    following = tx.one(
        "SELECT digest FROM links WHERE thread_id = ? AND previous = ? AND digest <> ? "
        "ORDER BY message_count DESC LIMIT 1",
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
