"""Read indexed chunks and their texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from everthread.store.database import Tx
from everthread.store.search.index_queue import load_output_text
from everthread.store.search.text_chunks import searchable_text
from everthread.store.value_codec import decode_body

TextKey = tuple[int | None, str | None, str]
"""Identifies a text: its message, its output, and its thread."""


class StoredChunk(NamedTuple):
    """A row of `chunk_details`: a part of a message, or of an output that a thread cites."""

    id: int
    message_id: int | None
    output_id: str | None
    tenant: str
    thread_id: str
    role: str
    tool: str
    start: int
    length: int
    redacted_text: str | None
    """Its text, stored only if secrets were removed from it."""
    created: float

    @property
    def text_key(self) -> TextKey:
        """The key of the text that the chunk is a part of."""
        return self.message_id, self.output_id, self.thread_id

    @property
    def is_result(self) -> bool:
        """Whether this is a tool's result, in a message of any role."""
        return _is_result(self.role, self.tool)


class ChunkHeader(NamedTuple):
    """The few columns by which chunks are compared before their texts are read."""

    id: int
    message_id: int | None
    thread_id: str
    role: str
    tool: str
    length: int
    created: float

    @property
    def is_result(self) -> bool:
        """Whether this is a tool's result, in a message of any role."""
        return _is_result(self.role, self.tool)


def _is_result(role: str, tool: str) -> bool:
    return role != "assistant" and (bool(tool) or role == "tool")


CHUNK_COLUMNS = (
    "chunk.id, chunk.message_id, chunk.output_id, chunk.tenant, chunk.thread_id, chunk.role, "
    "chunk.tool, chunk.start, chunk.length, chunk.redacted_text, chunk.created"
)


def load_chunks(
    tx: Tx, ids: Sequence[int], where: str = "", values: Sequence[Any] = ()
) -> list[StoredChunk]:
    """Return the chunks with these ids that fulfil a condition, in any order."""
    sql = _select_chunks(CHUNK_COLUMNS, where)
    return list(map(StoredChunk._make, tx.all_for_keys(sql, ids, *values)))


def load_chunk_headers(
    tx: Tx, ids: Sequence[int], where: str, values: Sequence[Any]
) -> list[ChunkHeader]:
    """Return the same chunks as `load_chunks`, with fewer columns."""
    sql = _select_chunks(
        "chunk.id, chunk.message_id, chunk.thread_id, chunk.role, chunk.tool, chunk.length, chunk.created",
        where,
    )
    return list(map(ChunkHeader._make, tx.all_for_keys(sql, ids, *values)))


def _select_chunks(columns: str, where: str) -> str:
    within = f" AND {where}" if where else ""
    return f"SELECT {columns} FROM chunk_details chunk WHERE chunk.id IN ({{}}){within}"


def read_chunk_texts(tx: Tx, chunks: Sequence[StoredChunk]) -> list[str]:
    """Return the text of each chunk."""
    ids = [
        chunk.message_id
        for chunk in chunks
        if chunk.message_id is not None and chunk.redacted_text is None
    ]
    bodies: dict[int | None, bytes] = dict(
        tx.all_for_keys("SELECT id, body FROM messages WHERE id IN ({})", ids)
    )
    texts = []
    for chunk in chunks:
        if chunk.redacted_text is not None:
            texts.append(chunk.redacted_text)
            continue
        if chunk.output_id is not None:
            text = load_output_text(tx, chunk.output_id, chunk.tenant)
        else:
            text = searchable_text(decode_body(bodies.get(chunk.message_id, b"{}")))
        texts.append(text[chunk.start : chunk.start + chunk.length])
    return texts
