"""The bounds of a search: tenant, thread, session, role, tool, time, path."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everthread.core.messages import calls_of, results_of
from everthread.errors import UnknownIdError
from everthread.store.database import MAX_ID, Row, Tx
from everthread.store.search.index_query import IndexQuery, parse_query
from everthread.store.search.index_queue import CHUNKS_PER_ERA
from everthread.store.search.stored_chunks import StoredChunk
from everthread.store.search.text_chunks import make_filter_term
from everthread.store.search_records import SearchQuery
from everthread.store.sql.session_rows import list_family
from everthread.store.value_codec import clean_text, decode_body

IN_THREAD = (
    "(chunk.thread_id = ? "
    "OR EXISTS (SELECT 1 FROM places p WHERE p.session_id = ? AND p.message_id = chunk.message_id) "
    "OR EXISTS (SELECT 1 FROM citations c WHERE c.thread_id = ? AND c.output_id = chunk.output_id))"
)
IN_SESSION = (
    "(EXISTS (SELECT 1 FROM places p WHERE p.session_id = ? AND p.message_id = chunk.message_id) "
    "OR chunk.output_id IS NOT NULL AND chunk.created >= ? AND chunk.created <= ?)"
)


def make_search_scope(tx: Tx, query: SearchQuery) -> IndexQuery | None:
    """Return the bounds of a search as an index query without words, or None if no text can be within the bounds."""
    filter_terms = [_make_tenant_filter(tx, query.tenant)]
    speaker_filters = (("role", query.role), ("tool", query.tool))
    filter_terms += [
        (make_filter_term(kind, clean_text(value)),)
        for kind, value in speaker_filters
        if value is not None
    ]
    conditions: list[str] = []
    values: list[Any] = []
    if query.thread is not None:
        thread = _load_session_bounds(tx, query.thread, query.tenant)[0]
        sources = (
            list_family(tx, thread) if query.include_family else list_source_threads(tx, thread)
        )
        filter_terms.append(tuple(make_filter_term("thread", source) for source in sources))
        if len(sources) > 1 and not query.include_family:
            conditions.append(IN_THREAD)
            values += (thread, thread, thread)
    if query.session is not None:
        thread, started, ended = _load_session_bounds(tx, query.session, query.tenant)
        filter_terms.append(
            tuple(make_filter_term("thread", source) for source in list_source_threads(tx, thread))
        )
        conditions.append(IN_SESSION)
        values += (query.session, started, ended if ended is not None else 1e18)
    first_id = 0
    end_id = MAX_ID
    if query.since is not None or query.until is not None:
        since = -1e18 if query.since is None else query.since
        until = 1e18 if query.until is None else query.until
        conditions.append("chunk.created >= ? AND chunk.created < ?")
        values += (since, until)
        era_range = tx.one(
            "SELECT MIN(number), MAX(number) FROM eras WHERE latest >= ? AND earliest < ?",
            (since, until),
        )
        if era_range is None or era_range[0] is None:
            return None
        first_id = era_range[0] * CHUNKS_PER_ERA
        end_id = (era_range[1] + 1) * CHUNKS_PER_ERA
    return IndexQuery(
        (),
        tuple(filter_terms),
        first_id=first_id,
        end_id=end_id,
        where=" AND ".join(conditions),
        values=tuple(values),
    )


def _make_tenant_filter(tx: Tx, tenant: str | None) -> tuple[str, ...]:
    """Return the filter term of a tenant, or none if the store has no other tenant, because filtering has a cost."""
    tenant_range = tx.one(
        "SELECT (SELECT MIN(tenant) FROM sessions), (SELECT MAX(tenant) FROM sessions)"
    )
    if tenant is None or tenant_range == (tenant, tenant):
        return ()
    return (make_filter_term("tenant", tenant),)


def _load_session_bounds(tx: Tx, session_id: str, tenant: str | None) -> Row:
    """Return a session's thread, start and end; raise `UnknownIdError` if the tenant has no such session."""
    row = tx.one(
        "SELECT thread_id, started, ended, tenant FROM sessions WHERE id = ?",
        (session_id,),
    )
    if row is None or tenant not in (None, row[3]):
        raise UnknownIdError(f"there is no thread or session {session_id!r} to search in")
    return row[:3]


def list_source_threads(tx: Tx, thread_id: str) -> list[str]:
    """Return the thread, and for a branch the threads whose messages and outputs it shares."""
    if tx.value("SELECT kind FROM sessions WHERE id = ?", (thread_id,)) != "branch":
        return [thread_id]
    rows = tx.all(
        "SELECT m.thread_id FROM places p JOIN messages m ON m.id = p.message_id WHERE p.session_id = ? UNION "
        "SELECT chunk.thread_id FROM citations c JOIN chunk_details chunk ON chunk.output_id = c.output_id "
        "WHERE c.thread_id = ?",
        (thread_id, thread_id),
    )
    return [thread_id, *sorted({row[0] for row in rows} - {thread_id})]


MAX_PATH_CALLS = 500
"""Maximum messages with the path to read, the newest."""


def find_path_calls(tx: Tx, query: SearchQuery, path: str) -> set[str]:
    """Return the ids of calls that have a path among their arguments."""
    scope = make_search_scope(
        tx, replace(query, role="assistant", tool=None, since=None, until=None)
    )
    variants = parse_query(f'"{path}"').variants
    if scope is None or not variants:
        return set()
    chunks = tx.match_ids(replace(scope, phrases=variants[0]), MAX_PATH_CALLS)
    select_bodies = "SELECT m.body FROM messages m WHERE m.id IN (SELECT message_id FROM chunks WHERE id IN ({}))"
    bodies = (decode_body(row[0]) for row in tx.all_for_keys(select_bodies, chunks))
    return {call.id for body in bodies for call in calls_of(body) if path in call.arguments}


def touches_path(tx: Tx, chunk: StoredChunk, path: str, path_calls: set[str]) -> bool:
    """Return whether a chunk belongs to a call with this path, or to the result of such a call."""
    if chunk.output_id is not None:
        sql = "SELECT call_id FROM citations WHERE thread_id = ? AND output_id = ?"
        return not path_calls.isdisjoint(
            row[0] for row in tx.all(sql, (chunk.thread_id, chunk.output_id))
        )
    sql = "SELECT body FROM messages WHERE id = ?"
    body = decode_body(tx.value(sql, (chunk.message_id,)) or b"{}")
    makes_path_call = any(path in call.arguments for call in calls_of(body))
    return makes_path_call or not path_calls.isdisjoint(
        result.call_id for result in results_of(body)
    )
