"""Title a thread by its own title or the user's first words."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.core.messages import content_text
from everthread.core.secrets.redaction import redact
from everthread.core.turns import user_text
from everthread.errors import UnknownIdError
from everthread.store.records import Session, StoredMessage
from everthread.store.store import Store

_SEARCHED_MESSAGE_COUNT = 8
"""Number of messages that are searched for the user's first words."""
_MAX_READ_CHARS = 4_000
"""Maximum characters to read of the user's first words, enough to recognise a secret."""


async def load_title(store: Store, session: Session) -> str:
    """Return a thread's title; if it has none, the user's first words without secrets and headings.

    A branch with its parent's title is named after the user's first words in the branch. A side call that has no words
    of the user is named after the first line of its instructions.
    """
    if session.branched_at is not None and await _has_parents_title(store, session):
        messages = await store.load_history(
            session.id, after_id=session.branched_at, limit=_SEARCHED_MESSAGE_COUNT
        )
        if title := _title_from_words(messages):
            return title
    if session.title:
        return redact(session.title)
    messages = await store.load_history(session.id, limit=_SEARCHED_MESSAGE_COUNT)
    if title := _title_from_words(messages):
        return title
    instructions = content_text(session.system).strip() if messages else ""
    return redact(instructions.partition("\n")[0][:_MAX_READ_CHARS]).lstrip("# ")


async def _has_parents_title(store: Store, branch: Session) -> bool:
    """Return whether a branch has the title of the thread it left, or both have none."""
    if not branch.title:
        return True
    try:
        parent = await store.load_session(branch.parent or "")
    except UnknownIdError:
        return False  # deleted
    return branch.title == parent.title


def _title_from_words(messages: Sequence[StoredMessage]) -> str:
    """Return the user's first words without secrets and headings; empty if there are none."""
    first_words = next(
        (first_words for message in messages if (first_words := user_text(message.body))),
        "",
    )
    lines = [line for line in redact(first_words[:_MAX_READ_CHARS]).splitlines() if line.strip()]
    text_lines = [line for line in lines if not line.startswith("#")]
    return "\n".join(text_lines or [line.lstrip("# ") for line in lines])
