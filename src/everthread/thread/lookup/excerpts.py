"""Make excerpts and passages of stored messages, redacted."""

from __future__ import annotations

from everthread.core.search.search_results import Excerpt, Passage
from everthread.core.secrets.redaction import redact_part
from everthread.store.records import StoredMessage
from everthread.store.search.snippets import RAW_SECRET_MARGIN
from everthread.store.search.text_chunks import searchable_text


def make_excerpt(
    stored_message: StoredMessage, thread: str, turn: int | None, tool: str = ""
) -> Excerpt:
    role = str(stored_message.body.get("role", ""))
    text = searchable_text(stored_message.body)
    return Excerpt(
        f"message:{stored_message.id}",
        thread,
        turn=turn or None,
        role=role,
        tool=tool,
        created=stored_message.created,
        text=text,
    )


def make_passage(excerpt: Excerpt, start: int, max_chars: int) -> Passage:
    """Return a part of a whole text."""
    size = len(excerpt.text)
    first = min(start, size)
    end = min(size, first + max_chars)
    text = redact_part(excerpt.text, first, end, margin=RAW_SECRET_MARGIN)
    created = excerpt.created or None
    return Passage(
        excerpt.id,
        excerpt.thread,
        turn=excerpt.turn,
        role=excerpt.role,
        tool=excerpt.tool,
        created=created,
        text=text,
        start=first,
        end=end,
        size=size,
    )
