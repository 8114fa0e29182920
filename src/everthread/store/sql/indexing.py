"""The search index follows what is stored: a message or output is queued with it, and indexed in a later batch."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everthread.errors import StoreDamagedError
from everthread.store.database import Database, Row, Tx, clean_text, placeholders
from everthread.store.index import LONG_TEXT, IndexPiece, TextCut, filter_name, redact_and_cut, searchable_text
from everthread.store.sql.outputs import load_output

log = logging.getLogger(__name__)
INDEX_BATCH = 500
BATCH_CHARS = 1_000_000
"""So many entries of the queue, or so much text, is prepared at once."""
WRITE_PIECES = 250
"""So many pieces are indexed in one transaction: other writes wait for it."""
ERA_RUN = 4_096
"""Ids of pieces whose times are known together."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """Something that waits to be indexed."""

    id: int
    done: int
    """How many of its pieces are indexed already."""
    message: int | None
    output: str | None
    tenant: str
    thread: str
    role: str
    tool: str
    created: float
    text: str


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


def prepare_index(tx: Tx) -> list[list[IndexPart]]:
    """What waits, oldest first, ready to be indexed: a list for each transaction. Empty when nothing waits."""
    batches: list[list[IndexPart]] = []
    room = chars = 0
    for entry in _list_waiting(tx):
        for part in _split_entry(entry):
            if room < len(part.cuts) or not batches:
                batches.append([])
                room = WRITE_PIECES
            batches[-1].append(part)
            room -= len(part.cuts)
        chars += len(entry.text)
        if chars > BATCH_CHARS:
            break
    return batches


def _split_entry(entry: IndexEntry) -> Iterator[IndexPart]:
    cuts, redacted = redact_and_cut(entry.text)
    start = entry.done
    while True:
        some = cuts[start : start + WRITE_PIECES]
        last = start + len(some) >= len(cuts)
        yield IndexPart(entry, start, some, last, len(cuts) > 1, redacted)
        if last:
            return
        start += len(some)


def _list_waiting(tx: Tx) -> Iterator[IndexEntry]:
    rows = tx.all(
        "SELECT id, done, message_id, thread_id, output_id FROM unindexed ORDER BY id LIMIT ?", (INDEX_BATCH,)
    )
    known = _load_texts(tx, [row[2] for row in rows if row[2] is not None])
    for key, done, message_id, thread, output_id in rows:
        if output_id is not None:
            yield IndexEntry(key, done, None, output_id, *_load_cited_output(tx, thread, output_id))
        else:
            yield IndexEntry(key, done, message_id, None, *known.get(message_id, NO_ENTRY))


NO_ENTRY = ("", "", "", "", 0.0, "")
"""What is left of something that was deleted."""


def _load_texts(tx: Tx, ids: Sequence[int]) -> dict[int, Row]:
    """Tenant, thread, role, tool, time and text of messages."""
    if not ids:
        return {}
    rows = tx.all(
        "SELECT m.id, s.tenant, m.thread_id, m.role, m.tool, m.created, m.body FROM messages m "
        f"JOIN sessions s ON s.id = m.thread_id WHERE m.id IN ({placeholders(ids)})",
        ids,
    )
    return {row[0]: (*row[1:6], searchable_text(json.loads(row[6]))) for row in rows}


def _load_cited_output(tx: Tx, thread: str, output_id: str) -> Row:
    """The same of an output, as a thread cites it."""
    row = tx.one(
        "SELECT tenant, MIN(tool), MIN(created) FROM citations WHERE thread_id = ? AND output_id = ? GROUP BY tenant",
        (thread, output_id),
    )
    if row is None:
        return NO_ENTRY
    return row[0], thread, "tool", row[1], row[2], output_text(tx, output_id, row[0])


def output_text(tx: Tx, output_id: str, tenant: str) -> str:
    """What an output says. One that is damaged says nothing to a search: whoever reads it is told."""
    try:
        return load_output(tx, output_id, tenant)
    except StoreDamagedError as error:
        log.warning("a search cannot look into a stored output: %s", error)
        return ""


def index_parts(tx: Tx, database: Database, parts: Sequence[IndexPart]) -> None:
    """Index what nobody else has indexed since. The queue and the index change together."""
    mine = _claim_parts(tx, parts)
    rows = [
        (
            entry.message, entry.output, entry.tenant, entry.thread, entry.role, entry.tool, cut.start, len(cut.text),
            clean_text(cut.text) if part.redacted else None, entry.created,
        )
        for part in mine for entry in (part.entry,) for cut in part.cuts
    ]  # fmt: skip
    if not rows:
        return
    made = tx.all(
        "INSERT INTO pieces (message_id, output_id, tenant, thread_id, role, tool, start, length, said, created) "
        f"VALUES {', '.join(['(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)'] * len(rows))} "
        "RETURNING id, message_id, output_id, thread_id, start, created",
        [value for row in rows for value in row],
    )
    ids: dict[Row, int] = {row[1:5]: row[0] for row in made}
    pieces: list[IndexPiece] = []
    for part in mine:
        entry, names = part.entry, _filter_names(part)
        for cut in part.cuts:
            key = (entry.message, entry.output, entry.thread, cut.start)
            pieces.append(IndexPiece(ids[key], cut.terms, names))
    database.index(tx, pieces)
    _widen_eras(tx, [(row[0], row[5]) for row in made])


def _claim_parts(tx: Tx, parts: Sequence[IndexPart]) -> list[IndexPart]:
    """The parts whose turn it is, marked as done: nobody else has indexed them or deleted what they are of."""
    ids = [part.entry.id for part in parts]
    waiting: dict[int, int] = dict(
        tx.all(f"SELECT id, done FROM unindexed WHERE id IN ({placeholders(ids)}) ORDER BY id {tx.dialect.lock}", ids)
    )
    mine = [part for part in parts if waiting.get(part.entry.id) == part.first]
    known = {part.entry.id for part in mine if part.first == 0 and _is_indexed(tx, part.entry)}
    ended = known | {part.entry.id for part in mine if part.last}
    going = [(part.first + len(part.cuts), part.entry.id) for part in mine if part.entry.id not in ended]
    if ended:
        tx.run(f"DELETE FROM unindexed WHERE id IN ({placeholders(list(ended))})", list(ended))
    tx.many("UPDATE unindexed SET done = ? WHERE id = ?", going)
    return [part for part in mine if part.entry.id not in known]


def _is_indexed(tx: Tx, entry: IndexEntry) -> bool:
    """Whether an output is indexed for its thread already: it may be cited more than once."""
    if entry.output is None:
        return False
    sql = "SELECT 1 FROM pieces WHERE output_id = ? AND thread_id = ? LIMIT 1"
    return tx.one(sql, (entry.output, entry.thread)) is not None


def _filter_names(part: IndexPart) -> list[str]:
    entry = part.entry
    names = [filter_name("tenant", entry.tenant), filter_name("thread", entry.thread), filter_name("role", entry.role)]
    names += [filter_name("tool", tool) for tool in dict.fromkeys(entry.tool.split(",")) if tool]
    return [*names, LONG_TEXT] if part.long else names


def _widen_eras(tx: Tx, made: Sequence[tuple[int, float]]) -> None:
    runs: dict[int, list[float]] = {}
    for piece_id, created in made:
        runs.setdefault(piece_id // ERA_RUN, []).append(created)
    tx.many(
        "INSERT INTO eras (run, earliest, latest) VALUES (?, ?, ?) ON CONFLICT (run) DO UPDATE SET "
        "earliest = CASE WHEN excluded.earliest < eras.earliest THEN excluded.earliest ELSE eras.earliest END, "
        "latest = CASE WHEN excluded.latest > eras.latest THEN excluded.latest ELSE eras.latest END",
        [(run, min(times), max(times)) for run, times in sorted(runs.items())],
    )
