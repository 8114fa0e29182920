"""Index stored messages and outputs.

The transaction that stores a message queues it; it is indexed in a later batch. Redaction and the extraction of terms
are pure Python and would delay the requests of a gateway, so `index_waiting` may run in another process. The queue is
in the store: that process may be killed at any moment.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from everthread.errors import StoreDamagedError
from everthread.store.database import (
    Database,
    Row,
    Tx,
    placeholders,
    read_ids,
    split_batches,
)
from everthread.store.search.text_chunks import (
    PART_OF_LONG_TEXT,
    IndexChunk,
    TextChunk,
    make_filter_term,
    redact_and_split,
    searchable_text,
)
from everthread.store.sql.stored_outputs import load_output
from everthread.store.value_codec import clean_text, decode_body

log = logging.getLogger(__name__)
MAX_BATCH_ENTRIES = 500
"""Maximum entries of the queue to prepare at once."""
MAX_BATCH_CHARS = 1_000_000
"""About the maximum characters to prepare at once."""
BACKGROUND_BATCH_CHARS = 20_000
"""About the maximum characters to prepare at once in the background: some milliseconds of work."""
ENTRIES_PER_READ = 50
"""Waiting messages to read at once; often only a few of them are prepared."""
CHUNKS_PER_WRITE = 500
"""Chunks to index in one transaction, for which other writes wait."""
NO_OUTPUT_COLUMNS = (None, None, None)
"""Output, tool and time of a chunk of a message."""
CHUNKS_PER_ERA = 4_096
"""Number of consecutive chunk ids that form an era. The earliest and the latest time of each era are stored, so that a
search within a period skips the other eras."""


class IndexEntry(NamedTuple):
    """A message or output that waits to be indexed."""

    id: int
    indexed_chunks: int
    """How many of the entry's chunks are indexed already."""
    message_id: int | None
    output_id: str | None
    thread_number: int = 0
    """The number of the thread's first session."""
    tenant: str = ""
    thread_id: str = ""
    role: str = ""
    tool: str = ""
    created: float = 0.0
    text: str = ""
    """Empty if the message was deleted."""


class IndexPart(NamedTuple):
    """Neighbouring chunks of one entry, to be indexed together."""

    entry: IndexEntry
    first_chunk: int
    """The position of the first of these chunks in the entry."""
    chunks: Sequence[TextChunk]
    is_last_part: bool
    """Whether this is the last part of the entry."""
    is_of_long_text: bool
    """Whether the entry has several chunks."""
    is_redacted: bool
    """Whether secrets were redacted in the entry."""


def has_waiting_entries(tx: Tx) -> bool:
    """Return whether any text waits to be indexed."""
    return tx.one("SELECT 1 FROM unindexed LIMIT 1") is not None


def prepare_index(tx: Tx, max_chars: int = MAX_BATCH_CHARS) -> list[list[IndexPart]]:
    """Prepare waiting entries of about `max_chars` characters, oldest first; return the parts for each transaction.

    The list is empty if no entry waits.
    """
    batches: list[list[IndexPart]] = []
    chunks_left = chars = 0
    for entry in _load_waiting_entries(tx):
        for part in _split_entry(entry):
            if chunks_left < len(part.chunks) or not batches:
                batches.append([])
                chunks_left = CHUNKS_PER_WRITE
            batches[-1].append(part)
            chunks_left -= len(part.chunks)
        chars += len(entry.text)
        if chars > max_chars:
            break
    return batches


def _split_entry(entry: IndexEntry) -> Iterator[IndexPart]:
    chunks, is_redacted = redact_and_split(entry.text)
    start = entry.indexed_chunks
    is_last = False
    while not is_last:
        next_chunks = chunks[start : start + CHUNKS_PER_WRITE]
        is_last = start + len(next_chunks) >= len(chunks)
        yield IndexPart(
            entry,
            start,
            chunks=next_chunks,
            is_last_part=is_last,
            is_of_long_text=len(chunks) > 1,
            is_redacted=is_redacted,
        )
        start += len(next_chunks)


def _load_waiting_entries(tx: Tx) -> Iterator[IndexEntry]:
    rows = tx.all(
        "SELECT id, indexed_chunks, message_id, output_id, thread_id FROM unindexed ORDER BY id LIMIT ?",
        (MAX_BATCH_ENTRIES,),
    )
    for batch in split_batches(rows, ENTRIES_PER_READ):
        messages = tx.all_for_keys(
            "SELECT m.id, s.number, s.tenant, m.thread_id, m.role, m.tool, m.created, m.body FROM messages m "
            "JOIN sessions s ON s.id = m.thread_id WHERE m.id IN ({})",
            [row[2] for row in batch if row[2] is not None],
        )
        rows_by_id = {row[0]: row[1:] for row in messages}
        for row in batch:
            output_id, thread = row[3:]
            if output_id is not None:
                yield IndexEntry(*row[:4], *_load_output_fields(tx, thread, output_id))
            elif row[2] in rows_by_id:
                *columns, body = rows_by_id[row[2]]
                fields: Row = (*columns, searchable_text(decode_body(body)))
                yield IndexEntry(*row[:4], *fields)
            else:
                yield IndexEntry(*row[:4])


def _load_output_fields(tx: Tx, thread_id: str, output_id: str) -> Row:
    """Return the fields of an output's `IndexEntry` from `thread_number` on, or none if the thread does not cite it."""
    row = tx.one(
        "SELECT s.number, c.tenant, MIN(c.tool), MIN(c.created) FROM citations c JOIN sessions s ON s.id = c.thread_id "
        "WHERE c.thread_id = ? AND c.output_id = ? GROUP BY s.number, c.tenant",
        (thread_id, output_id),
    )
    if row is None:
        return ()
    number, tenant, tool, created = row
    text = load_output_text(tx, output_id, tenant)
    return number, tenant, thread_id, "tool", tool, created, text


def load_output_text(tx: Tx, output_id: str, tenant: str) -> str:
    """Return the text of an output, or an empty text if it is damaged, so that the search still succeeds."""
    try:
        return load_output(tx, output_id, tenant=tenant)
    except StoreDamagedError as error:
        log.warning("a stored output cannot be searched: %s", error)
        return ""


def index_parts(tx: Tx, parts: Sequence[IndexPart], *, wait_for_locked: bool) -> None:
    """Index the parts that no other process has indexed meanwhile. The queue and the index change in one transaction.

    `wait_for_locked`: wait for entries that another process is indexing, instead of skipping them.
    """
    parts_and_chunks = [
        (part, text_chunk)
        for part in _claim_parts(tx, parts, wait_for_locked=wait_for_locked)
        for text_chunk in part.chunks
    ]
    if not parts_and_chunks:
        return
    ids = read_ids(
        tx.all(tx.dialect.select_new_ids.format("chunks"), (len(parts_and_chunks),)),
        len(parts_and_chunks),
    )
    rows: list[Row] = []
    chunks: list[IndexChunk] = []
    times: dict[int, list[float]] = {}
    for chunk_id, (part, text_chunk) in zip(ids, parts_and_chunks, strict=True):
        entry = part.entry
        shown_text = clean_text(text_chunk.text) if part.is_redacted else None
        location = (
            entry.thread_number,
            entry.message_id,
            text_chunk.start,
            len(text_chunk.text),
            shown_text,
        )
        is_output = entry.output_id is not None
        output_columns = (
            (entry.output_id, entry.tool, entry.created) if is_output else NO_OUTPUT_COLUMNS
        )
        rows.append((chunk_id, *location, *output_columns))
        chunks.append(IndexChunk(chunk_id, text_chunk.terms, _list_filter_terms(part)))
        times.setdefault(chunk_id // CHUNKS_PER_ERA, []).append(entry.created)
    tx.run_many(
        "INSERT INTO chunks (id, thread, message_id, start, length, redacted_text, output_id, tool, created) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )
    tx.index(chunks)
    tx.run_many(
        "INSERT INTO eras (number, earliest, latest) VALUES (?, ?, ?) ON CONFLICT (number) DO UPDATE SET "
        "earliest = CASE WHEN excluded.earliest < eras.earliest THEN excluded.earliest ELSE eras.earliest END, "
        "latest = CASE WHEN excluded.latest > eras.latest THEN excluded.latest ELSE eras.latest END",
        [
            (era, min(created_times), max(created_times))
            for era, created_times in sorted(times.items())
        ],
    )


def _claim_parts(tx: Tx, parts: Sequence[IndexPart], *, wait_for_locked: bool) -> list[IndexPart]:
    """Mark parts as indexed, and return the parts that were not indexed yet and whose message still exists."""
    lock = tx.dialect.for_update if wait_for_locked else tx.dialect.skip_locked
    ids = [part.entry.id for part in parts]
    progress_by_id: dict[int, int] = dict(
        tx.all(
            f"SELECT id, indexed_chunks FROM unindexed WHERE id IN ({placeholders(ids)}) ORDER BY id {lock}",
            ids,
        )
    )
    unindexed_parts = [
        part for part in parts if progress_by_id.get(part.entry.id) == part.first_chunk
    ]
    indexed_ids = {
        part.entry.id
        for part in unindexed_parts
        if part.first_chunk == 0 and _is_indexed(tx, part.entry)
    }
    finished_ids = indexed_ids | {part.entry.id for part in unindexed_parts if part.is_last_part}
    progress = [
        (part.first_chunk + len(part.chunks), part.entry.id)
        for part in unindexed_parts
        if part.entry.id not in finished_ids
    ]
    if finished_ids:
        tx.run(
            f"DELETE FROM unindexed WHERE id IN ({placeholders(list(finished_ids))})",
            list(finished_ids),
        )
    tx.run_many("UPDATE unindexed SET indexed_chunks = ? WHERE id = ?", progress)
    return [part for part in unindexed_parts if part.entry.id not in indexed_ids]


def _is_indexed(tx: Tx, entry: IndexEntry) -> bool:
    """Return whether an output is already indexed for its thread, which may cite it more than once."""
    sql = "SELECT 1 FROM chunks WHERE output_id = ? AND thread = ? LIMIT 1"
    return (
        entry.output_id is not None
        and tx.one(sql, (entry.output_id, entry.thread_number)) is not None
    )


def _list_filter_terms(part: IndexPart) -> tuple[str, ...]:
    """Return the filter terms of the chunks of a part."""
    entry = part.entry
    terms = _make_filter_terms(entry.tenant, entry.thread_id, role=entry.role, tool=entry.tool)
    return (*terms, PART_OF_LONG_TEXT) if part.is_of_long_text else terms


@functools.lru_cache(maxsize=1024)
def _make_filter_terms(tenant: str, thread_id: str, *, role: str, tool: str) -> tuple[str, ...]:
    tools = (tool_name for tool_name in dict.fromkeys(tool.split(",")) if tool_name)
    return (
        make_filter_term("tenant", tenant),
        make_filter_term("thread", thread_id),
        make_filter_term("role", role),
        *(make_filter_term("tool", tool_name) for tool_name in tools),
    )


IndexInOtherProcess = Callable[[Database, float], Awaitable[bool]]
"""Calls `index_waiting` in another process."""


def index_waiting(database: Database, max_seconds: float) -> bool:
    """Index waiting entries for at most `max_seconds`, a few in each transaction; return whether entries still wait.

    Only one process at a time prepares the texts of a SQLite file, so that no text is prepared twice.
    """
    try:
        with database.lock_indexing() as has_lock:
            return not has_lock or _index_until(database, time.monotonic() + max_seconds)
    except Exception as error:
        raise database.explain(error) from error
    finally:
        database.close()


def _index_until(database: Database, deadline: float) -> bool:
    database.prepare(create=False)
    with (
        closing(database.connect_reader()) as reader,
        closing(database.connect_writer()) as writer,
    ):
        while time.monotonic() < deadline:
            reader.begin()
            batches = prepare_index(reader, BACKGROUND_BATCH_CHARS)
            reader.rollback()
            if not batches:
                return False
            for parts in batches:
                writer.begin()
                index_parts(writer, parts, wait_for_locked=False)
                writer.commit()
    return True
