"""Titles and states of sessions, as several commands print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everthread.core.messages import excerpt
from everthread.thread.lookup.thread_title import load_title

if TYPE_CHECKING:
    from everthread.store.records import Session
    from everthread.store.store import Store


async def load_short_title(store: Store, session: Session) -> str:
    """Return a session's title, or the first words of the user, in one line."""
    return excerpt(await load_title(store, session), 100)


def describe_state(session: Session) -> str:
    return "live" if session.is_live else f"ended ({excerpt(session.end_reason or 'unknown', 20)})"
