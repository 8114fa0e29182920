"""Index stored messages and outputs.

The transaction that stores a message queues it; it is indexed in a later batch.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from everthread.errors import StoreDamagedError
from everthread.store.database import Row, Tx, chunks, placeholders, read_ids
from everthread.store.index_pieces import (
    LONG_TEXT,
    IndexPiece,
    TextCut,
    filter_name,
    redact_and_cut,
    searchable_text,
)
from everthread.store.sql.stored_outputs import load_output
from everthread.store.value_encoding import clean_text, decode_body

log = logging.getLogger(__name__)
INDEX_BATCH = 500
BATCH_CHARS = 1_000_000
"""The most entries of the queue, and the most text, that are prepared at once."""
GENTLE_CHARS = 20_000
"""The most text at once in the background: some milliseconds of work."""
READ_ENTRIES = 50
"""Messages read at once; often only a few of the waiting ones are prepared."""
WRITE_PIECES = 250
"""Pieces indexed in one transaction; other writes wait for it."""
NOT_CITED = (None, None, None)
"""Output, tool and time of a piece that is not of an output."""
ERA_RUN = 4_096
"""Ids of pieces whose times are known together."""


class IndexEntry(NamedTuple):
    """A message or output that waits to be indexed."""

    id: int
    done: int
    """How many of its pieces are indexed already."""
    message: int | None
    output: str | None
    number: int = 0
    """The number of the thread's first session."""
    tenant: str = ""
    thread: str = ""
    role: str = ""
    tool: str = ""
    created: float = 0.0
    text: str = ""
    """Empty if the message was deleted."""


@dataclass(frozen=True, slots=True)
class IndexPart:
    """Neighbouring pieces of one entry, to be indexed together."""

    entry: IndexEntry
    first: int
    """The number of the first of these pieces."""
    cuts: Sequence[TextCut]
    last: bool
    """Whether nothing of the entry is left."""
    long: bool
    """Whether the entry has several pieces."""
    redacted: bool
    """Whether secrets were taken out of the entry."""


def is_waiting(tx: Tx) -> bool:
    """Return whether something waits to be indexed."""
    return tx.one("SELECT 1 FROM unindexed LIMIT 1") is not None


def prepare_index(tx: Tx, most: int = BATCH_CHARS) -> list[list[IndexPart]]:
    """Prepare what waits, oldest first, up to about `most` characters: a list of parts for each transaction.

    Empty if nothing waits.
    """
    batches: list[list[IndexPart]] = []
    pieces_left = chars = 0
    for entry in _list_waiting(tx):
        for part in _split_entry(entry):
            if pieces_left < len(part.cuts) or not batches:
                batches.append([])
                pieces_left = WRITE_PIECES
            batches[-1].append(part)
            pieces_left -= len(part.cuts)
        chars += len(entry.text)
        if chars > most:
            break
    return batches


def _split_entry(entry: IndexEntry) -> Iterator[IndexPart]:
    cuts, redacted = redact_and_cut(entry.text)
    start = entry.done
    last = False
    while not last:
        some = cuts[start : start + WRITE_PIECES]
        last = start + len(some) >= len(cuts)
        yield IndexPart(
            entry, start, cuts=some, last=last, long=len(cuts) > 1, redacted=redacted
        )
        start += len(some)


def _list_waiting(tx: Tx) -> Iterator[IndexEntry]:
    rows = tx.all(
        "SELECT id, done, message_id, output_id, thread_id FROM unindexed ORDER BY id LIMIT ?",
        (INDEX_BATCH,),
    )
    for some in chunks(rows, READ_ENTRIES):
        messages = tx.all_in(
            "SELECT m.id, s.number, s.tenant, m.thread_id, m.role, m.tool, m.created, m.body FROM messages m "
            "JOIN sessions s ON s.id = m.thread_id WHERE m.id IN ({})",
            [row[2] for row in some if row[2] is not None],
        )
        rows_by_id = {row[0]: row[1:] for row in messages}
        for row in some:
            output, thread = row[3:]
            if output is not None:
                yield IndexEntry(*row[:4], *_load_cited(tx, thread, output))
            elif row[2] in rows_by_id:
                *columns, body = rows_by_id[row[2]]
                fields: Row = (*columns, searchable_text(decode_body(body)))
                yield IndexEntry(*row[:4], *fields)
            else:
                yield IndexEntry(*row[:4])


def _load_cited(tx: Tx, thread: str, output_id: str) -> Row:
    """Return an output as a thread cites it: the fields of `IndexEntry` from `number` on; none if it does not."""
    row = tx.one(
        "SELECT s.number, c.tenant, MIN(c.tool), MIN(c.created) FROM citations c JOIN sessions s ON s.id = c.thread_id "
        "WHERE c.thread_id = ? AND c.output_id = ? GROUP BY s.number, c.tenant",
        (thread, output_id),
    )
    if row is None:
        return ()
    number, tenant, tool, created = row
    text = output_text(tx, output_id, tenant)
    return number, tenant, thread, "tool", tool, created, text


def output_text(tx: Tx, output_id: str, tenant: str) -> str:
    """The text of an output. A damaged one is empty for a search; reading it raises the error."""
    try:
        return load_output(tx, output_id, tenant=tenant)
    except StoreDamagedError as error:
        log.warning("a search cannot look into a stored output: %s", error)
        return ""


def index_parts(tx: Tx, parts: Sequence[IndexPart], *, wait: bool) -> None:
    """Index the parts that no other process has indexed since. The queue and the index change together.

    `wait`: until another process has done what it is at; else that is passed over.
    """
    cuts = [
        (part, cut) for part in _claim_parts(tx, parts, wait=wait) for cut in part.cuts
    ]
    if not cuts:
        return
    ids = read_ids(
        tx.all(tx.dialect.select_new_ids.format("pieces"), (len(cuts),)), len(cuts)
    )
    rows: list[Row] = []
    pieces: list[IndexPiece] = []
    times: dict[int, list[float]] = {}
    for piece_id, (part, cut) in zip(ids, cuts, strict=True):
        entry = part.entry
        shown_text = clean_text(cut.text) if part.redacted else None
        span = (entry.number, entry.message, cut.start, len(cut.text), shown_text)
        is_output = entry.output is not None
        cited = (entry.output, entry.tool, entry.created) if is_output else NOT_CITED
        rows.append((piece_id, *span, *cited))
        pieces.append(IndexPiece(piece_id, cut.terms, _filter_names(part)))
        times.setdefault(piece_id // ERA_RUN, []).append(entry.created)
    tx.many(
        "INSERT INTO pieces (id, thread, message_id, start, length, said, output_id, tool, created) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )
    tx.index(pieces)
    tx.many(
        "INSERT INTO eras (run, earliest, latest) VALUES (?, ?, ?) ON CONFLICT (run) DO UPDATE SET "
        "earliest = CASE WHEN excluded.earliest < eras.earliest THEN excluded.earliest ELSE eras.earliest END, "
        "latest = CASE WHEN excluded.latest > eras.latest THEN excluded.latest ELSE eras.latest END",
        [(run, min(some), max(some)) for run, some in sorted(times.items())],
    )


def _claim_parts(tx: Tx, parts: Sequence[IndexPart], *, wait: bool) -> list[IndexPart]:
    """The parts that no other process has indexed, and whose message was not deleted; they are marked as done."""
    lock = tx.dialect.lock if wait else tx.dialect.skip
    ids = [part.entry.id for part in parts]
    waiting: dict[int, int] = dict(
        tx.all(
            f"SELECT id, done FROM unindexed WHERE id IN ({placeholders(ids)}) ORDER BY id {lock}",
            ids,
        )
    )
    mine = [part for part in parts if waiting.get(part.entry.id) == part.first]
    indexed = {
        part.entry.id
        for part in mine
        if part.first == 0 and _is_indexed(tx, part.entry)
    }
    ended = indexed | {part.entry.id for part in mine if part.last}
    progress = [
        (part.first + len(part.cuts), part.entry.id)
        for part in mine
        if part.entry.id not in ended
    ]
    if ended:
        tx.run(
            f"DELETE FROM unindexed WHERE id IN ({placeholders(list(ended))})",
            list(ended),
        )
    tx.many("UPDATE unindexed SET done = ? WHERE id = ?", progress)
    return [part for part in mine if part.entry.id not in indexed]


def _is_indexed(tx: Tx, entry: IndexEntry) -> bool:
    """Whether an output is indexed for its thread already: it may be cited more than once."""
    sql = "SELECT 1 FROM pieces WHERE output_id = ? AND thread = ? LIMIT 1"
    return (
        entry.output is not None
        and tx.one(sql, (entry.output, entry.number)) is not None
    )


def _filter_names(part: IndexPart) -> tuple[str, ...]:
    entry = part.entry
    names = _name_filters(entry.tenant, entry.thread, role=entry.role, tool=entry.tool)
    return (*names, LONG_TEXT) if part.long else names


@functools.lru_cache(maxsize=1024)
def _name_filters(tenant: str, thread: str, *, role: str, tool: str) -> tuple[str, ...]:
    tools = (name for name in dict.fromkeys(tool.split(",")) if name)
    return (
        filter_name("tenant", tenant),
        filter_name("thread", thread),
        filter_name("role", role),
        *(filter_name("tool", name) for name in tools),
    )
