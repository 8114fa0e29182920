"""Read indexed pieces and their texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from everthread.store.database import Tx
from everthread.store.index_pieces import searchable_text
from everthread.store.indexing import load_output_text
from everthread.store.value_encoding import decode_body

TextKey = tuple[int | None, str | None, str]
"""Identifies a text: its message, its output, and its thread."""


class StoredPiece(NamedTuple):
    """A row of `piece_details`: a part of a message, or of an output that a thread cites."""

    id: int
    message: int | None
    output: str | None
    tenant: str
    thread: str
    role: str
    tool: str
    start: int
    length: int
    redacted_text: str | None
    """Its text, stored only if secrets were removed from it."""
    created: float

    @property
    def text_key(self) -> TextKey:
        """The key of the text that the piece is a part of."""
        return self.message, self.output, self.thread

    @property
    def is_result(self) -> bool:
        """Whether this is a tool's result, in a message of any role."""
        return _is_result(self.role, self.tool)


class PieceSummary(NamedTuple):
    """The few columns by which pieces are compared before their texts are read."""

    id: int
    message: int | None
    thread: str
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


PIECE_COLUMNS = (
    "p.id, p.message_id, p.output_id, p.tenant, p.thread_id, p.role, "
    "p.tool, p.start, p.length, p.said, p.created"
)


def load_pieces(
    tx: Tx, ids: Sequence[int], where: str = "", values: Sequence[Any] = ()
) -> list[StoredPiece]:
    """Return the pieces with these ids that fulfil a condition, in any order."""
    sql = _select_pieces(PIECE_COLUMNS, where)
    return list(map(StoredPiece._make, tx.all_for_keys(sql, ids, *values)))


def load_piece_summaries(
    tx: Tx, ids: Sequence[int], where: str = "", values: Sequence[Any] = ()
) -> list[PieceSummary]:
    """Return the same pieces as `load_pieces`, with fewer columns."""
    sql = _select_pieces(
        "p.id, p.message_id, p.thread_id, p.role, p.tool, p.length, p.created", where
    )
    return list(map(PieceSummary._make, tx.all_for_keys(sql, ids, *values)))


def _select_pieces(columns: str, where: str) -> str:
    within = f" AND {where}" if where else ""
    return f"SELECT {columns} FROM piece_details p WHERE p.id IN ({{}}){within}"


def read_piece_texts(tx: Tx, pieces: Sequence[StoredPiece]) -> list[str]:
    """Return the text of each piece."""
    ids = [
        piece.message
        for piece in pieces
        if piece.message is not None and piece.redacted_text is None
    ]
    bodies: dict[int | None, bytes] = dict(
        tx.all_for_keys("SELECT id, body FROM messages WHERE id IN ({})", ids)
    )
    texts = []
    for piece in pieces:
        if piece.redacted_text is not None:
            texts.append(piece.redacted_text)
            continue
        if piece.output is not None:
            text = load_output_text(tx, piece.output, piece.tenant)
        else:
            text = searchable_text(decode_body(bodies.get(piece.message, b"{}")))
        texts.append(text[piece.start : piece.start + piece.length])
    return texts
