"""Find the messages before and after a search hit."""

from __future__ import annotations

import re
from collections.abc import Sequence

from everthread.core.lookup_tools import is_lookup_tool
from everthread.core.search.search_results import Neighbour
from everthread.core.secrets.redaction import redact_part
from everthread.errors import StoreDamagedError
from everthread.store.database import Tx
from everthread.store.search.snippets import RAW_SECRET_MARGIN
from everthread.store.search.text_chunks import searchable_text
from everthread.store.sql.stored_messages import ORIGINAL_PLACE_FIRST
from everthread.store.value_codec import decode_body

NEIGHBOUR_CHARS = 100
"""Characters to show of a neighbouring message."""
_PART_SEPARATOR_PATTERN = re.compile("\n[→≈] ")
"""Separates the messages of a passage that shows several."""
SELECT_NEIGHBOURS = (
    "WITH home AS (SELECT * FROM (SELECT m.id, p.session_id, p.seq, s.kind, s.parent_id, s.inherited_count, "
    f"s.next_seq, ROW_NUMBER() OVER (PARTITION BY m.id ORDER BY {ORIGINAL_PLACE_FIRST}) AS place FROM messages m "
    "JOIN places p ON p.message_id = m.id JOIN sessions s ON s.id = p.session_id WHERE m.id IN ({})) every_place "
    "WHERE place = 1), "
    "beside AS (SELECT h.id, 0 AS side, COALESCE(b.id, h.session_id) AS session_id, "
    "COALESCE(b.next_seq, h.seq) - 1 AS seq FROM home h "
    "LEFT JOIN sessions b ON b.id = h.parent_id AND h.kind = 'continuation' AND h.seq = h.inherited_count "
    "UNION ALL SELECT h.id, 1, COALESCE(c.id, h.session_id), "
    "COALESCE(c.inherited_count, CASE h.seq WHEN -1 THEN h.inherited_count ELSE h.seq + 1 END) FROM home h "
    "LEFT JOIN sessions c ON c.parent_id = h.session_id AND c.kind = 'continuation' AND h.seq = h.next_seq - 1) "
    "SELECT beside.id, beside.side, m.id, m.role, m.tool, m.body FROM beside JOIN places p "
    "ON p.session_id = beside.session_id AND p.seq = beside.seq JOIN messages m ON m.id = p.message_id "
    "WHERE m.kind = 'message'"
)
"""Select the messages before (0) and after (1) messages in the history, also across a compaction."""


def find_neighbours(
    tx: Tx, shown_texts: Sequence[tuple[int | None, str]]
) -> list[tuple[Neighbour | None, Neighbour | None]]:
    """Return the messages before and after each message, with one query. Leave out calls of lookup tools.

    `shown_texts`: each message with the text shown of it. A neighbour that this text includes is left out too. An
    output has no neighbours.
    """
    ids = list(dict.fromkeys(message for message, _ in shown_texts if message is not None))
    neighbours = {
        (shown, side): Neighbour(message, role, tool, _first_words(body))
        for shown, side, message, role, tool, body in tx.all_for_keys(SELECT_NEIGHBOURS, ids)
    }

    def find_unshown(message_id: int | None, side: int, shown_text: str) -> Neighbour | None:
        neighbour = neighbours.get((message_id, side))
        if (
            neighbour is None
            or not neighbour.text
            or any(map(is_lookup_tool, neighbour.tool.split(",")))
        ):
            return None
        has_parts = _PART_SEPARATOR_PATTERN.search(shown_text) is not None
        shown_words = " ".join(shown_text.split())
        is_shown = has_parts and neighbour.text.rstrip("…") in shown_words
        return None if is_shown else neighbour

    return [
        (find_unshown(message, 0, shown_text), find_unshown(message, 1, shown_text))
        for message, shown_text in shown_texts
    ]


def _first_words(body: bytes) -> str:
    """Return the beginning of a message on one line, or an empty text if it is damaged, so that no search fails."""
    try:
        text = searchable_text(decode_body(body))
    except StoreDamagedError:
        return ""
    words = " ".join(redact_part(text, 0, NEIGHBOUR_CHARS, margin=RAW_SECRET_MARGIN).split())
    return f"{words}…" if len(text) > NEIGHBOUR_CHARS else words
